//! The status of sessions and pools, and of one request.

use hashbrown::HashMap;
use penstock_engine::Instant;

use super::Control;
use crate::ids::{EnvoyId, Epoch};
use crate::request_status::RequestStatus;
use crate::root_context::RootContext;
use crate::status::{SessionStatus, Status};

impl Control {
    /// Everything at this moment, in time proportional to it.
    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let mut waiting: HashMap<Epoch, usize> = HashMap::with_capacity(self.contexts.len());
        let requests = self.pools.iter().flat_map(|(_, pool)| pool.requests());
        for (_, request) in requests.filter(|(_, request)| request.is_waiting()) {
            *waiting.entry(request.key.epoch).or_default() += 1;
        }
        let mut contexts: Vec<_> = self.contexts.iter().collect();
        contexts.sort_unstable_by(|(epoch, context), (other_epoch, other)| {
            (&context.node, epoch).cmp(&(&other.node, other_epoch))
        });
        let sessions = contexts.into_iter().map(|(epoch, context)| {
            let waiting = waiting.get(epoch).copied().unwrap_or_default();
            self.session_status(now, *epoch, context, waiting)
        });
        let is_orphaned = |epoch| {
            let context = self.contexts.get(&epoch);
            !context.is_some_and(RootContext::is_open)
        };
        Status {
            sessions: sessions.collect(),
            pools: self.pools.iter().map(|(_, pool)| pool.status(now, is_orphaned)).collect(),
            started: self.is_started,
            gathered: self.is_gathered,
            draining: self.is_draining,
            handed_over: self.is_handed_over,
            envoys: self.envoys.len(),
            requests: self.open_requests,
        }
    }

    fn session_status(
        &self,
        now: Instant,
        epoch: Epoch,
        context: &RootContext,
        waiting: usize,
    ) -> SessionStatus {
        let session = context.conn.and_then(|conn| self.sessions.get(&conn));
        let last_seen = session.map(|session| session.last_frame_at).or(context.orphaned_since);
        SessionStatus {
            id: format!("{:016x}", epoch.high),
            pool: None,
            node: context.node.clone(),
            envoy: match context.envoy {
                EnvoyId::Process(process) => format!("{process:016x}"),
                EnvoyId::RootContext(_) => String::new(),
            },
            door: context.origin.door(),
            open: context.is_open(),
            waiting,
            running: context.requests.len() - waiting,
            moved: self.aliases.count(epoch),
            unacked: session.map_or(0, |session| session.unacknowledged()),
            last_seen: now.since(last_seen.unwrap_or(now)),
        }
    }

    /// The request with this `x-request-id` that hasn't ended; of several, the one that came last. Finding it takes constant
    /// time.
    #[must_use]
    pub fn request(&self, now: Instant, request_id: &str) -> Option<RequestStatus> {
        let route = self.request_index.latest(request_id)?;
        self.pools.get(route.pool)?.request_status(now, route.id)
    }
}
