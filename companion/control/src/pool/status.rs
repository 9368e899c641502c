//! The status of a pool and of its requests.

use hashbrown::HashSet;
use penstock_engine::Instant;
use penstock_engine::input::RequestId;
use penstock_engine::snapshot::Snapshot;

use super::request::OpenRequest;
use super::{Pool, explain};
use crate::ids::Epoch;
use crate::request_status::{RequestState, RequestStatus};
use crate::status::{PoolStatus, ServerStatus};

impl Pool {
    /// The pool at this moment, in time proportional to it. `is_orphaned`: the root context has no stream.
    pub(crate) fn status(&self, now: Instant, is_orphaned: impl Fn(Epoch) -> bool) -> PoolStatus {
        let snapshot = self.engine.snapshot();
        let (mut orphaned_stock, mut orphaned_waiting) = (0, 0);
        for request in self.requests.values() {
            if is_orphaned(request.key.epoch) {
                let is_waiting = u64::from(request.is_waiting());
                orphaned_waiting += is_waiting;
                orphaned_stock += 1 - is_waiting;
            }
        }
        let served = self.served(&snapshot, now);
        // What a limit of its flow holds back needs no server.
        let held: u64 = snapshot.bands.iter().map(|band| band.held_by_flow).sum();
        let waiting = snapshot.waiting.saturating_sub(held);
        PoolStatus {
            name: self.name.clone(),
            retired: self.is_retired,
            addresses: self
                .endpoints
                .slots()
                .map(|slot| slot.map_or_else(Box::default, |endpoint| (*endpoint.address).into()))
                .collect(),
            public_flows: served.iter().map(|(flow, _)| flow.clone()).collect(),
            served,
            models: self.model_counts.status(now),
            other_served: self.visible_flows.other_served(),
            discipline: self.rules.policy.flows.discipline,
            servers: self.servers(&snapshot, now),
            snapshot,
            model: Some(self.autopilot.status().with_first_server(&self.rules.default_variant, waiting > 0)),
            orphaned_stock,
            orphaned_waiting,
        }
    }

    /// The visible flows with their cost.
    fn served(&self, snapshot: &Snapshot, now: Instant) -> Vec<(Box<str>, u64)> {
        let flows = snapshot.flows.iter();
        let busy: HashSet<&str> =
            flows.filter(|flow| flow.waiting > 0 || flow.in_flight > 0).map(|flow| &*flow.key).collect();
        self.visible_flows.visible_at(now, |flow| busy.contains(flow))
    }

    /// The model servers by the number of their endpoint.
    fn servers(&self, snapshot: &Snapshot, now: Instant) -> Vec<ServerStatus> {
        let slots = self.endpoints.slots();
        let mut servers: Vec<ServerStatus> = slots
            .map(|slot| {
                slot.map_or_else(ServerStatus::default, |endpoint| ServerStatus {
                    variant: endpoint.variant.to_string(),
                    role: endpoint.state.role,
                    scraped: endpoint.scraped,
                    foreign: 0,
                    is_asleep: endpoint.is_asleep,
                    oldest_running: None,
                })
            })
            .collect();
        for endpoint in &snapshot.endpoints {
            let index = usize::try_from(endpoint.id.0).ok();
            if let Some(server) = index.and_then(|index| servers.get_mut(index)) {
                server.foreign = endpoint.foreign;
            }
        }
        for (id, request) in &self.requests {
            let endpoint = self.engine.endpoint_of(*id).and_then(|endpoint| usize::try_from(endpoint.0).ok());
            if let Some(granted) = request.granted()
                && let Some(server) = endpoint.and_then(|index| servers.get_mut(index))
            {
                server.oldest_running = server.oldest_running.max(Some(now.since(granted.grant.granted_at)));
            }
        }
        servers
    }

    /// A request at this moment; `None` if it has ended.
    pub(crate) fn request_status(&self, now: Instant, id: RequestId) -> Option<RequestStatus> {
        let request = self.requests.get(&id)?;
        let (state, why) = match request.granted() {
            None => self.waiting_state(id, request)?,
            Some(granted) => {
                let first = granted.grant.first().cloned().unwrap_or_default();
                let endpoint = self.engine.endpoint_of(id).map(|id| self.endpoints.address(id));
                let endpoint = endpoint.unwrap_or_else(|| first.clone());
                let why = explain::grant(request, &endpoint, &first);
                let endpoint = (*endpoint).into();
                (RequestState::Running { endpoint }, why)
            }
        };
        Some(RequestStatus {
            labels: request.labels.clone(),
            state,
            class: self.engine.class(id),
            outcome: request.admitted.filter(|_| !request.is_waiting()),
            requeues: request.requeues,
            extra: request.is_extra(),
            waited: request.waited().unwrap_or_else(|| now.since(request.arrived)),
            why: why.into(),
        })
    }

    fn waiting_state(&self, id: RequestId, request: &OpenRequest) -> Option<(RequestState, String)> {
        let position = self.engine.position(id)?;
        let policy = &self.rules.policy;
        let reason = self.engine.block_reason(id)?;
        let mut why = explain::block_reason(&reason, policy, &self.engine.class(id));
        if request.requeues > 0 {
            why.insert_str(0, "it was requeued to its old place, because no server accepted it: ");
        }
        if let Some(pushback) = explain::pushback(&reason, self.engine.pushed_back_count()) {
            why = format!("{why}; {pushback}");
        }
        if let Some(ahead) = explain::ahead(&position, policy) {
            why = format!("{why}; {ahead}");
        }
        let state =
            RequestState::Waiting { ahead: position.ahead, estimate: position.estimate, tag: position.tag };
        Some((state, why))
    }
}
