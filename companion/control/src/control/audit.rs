//! Checks the invariants of sessions, routes and pools.

use penstock_engine::RequestId;

use super::Control;
use crate::audit::{AuditError, holds, same};
use crate::cost_trace::CostEvent;
use crate::ids::{Epoch, RequestKey};
use crate::limits::{ALIASES_MAX, CONTEXTS_MAX, ENDED_MAX, PREVIOUS_KEYS_MAX, REQUESTS_MAX};
use crate::root_context::RootContext;
use crate::session::Stage;

impl Control {
    /// Checks every invariant, in time proportional to the whole state.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn audit(&self) -> Result<(), AuditError> {
        for (_, pool) in self.pools.iter() {
            pool.audit()?;
        }
        holds("the indexes of the pools agree", self.pools.audit())?;
        if self.is_handed_over {
            // The sessions belong to another companion already.
            return Ok(());
        }
        self.audit_routes()?;
        for (epoch, context) in &self.contexts {
            self.audit_context(*epoch, context)?;
        }
        self.audit_envoys()?;
        self.audit_aliases()?;
        self.audit_sessions()
    }

    /// Whether this request of the root context with this epoch is granted here; `None` if it isn't known.
    #[must_use]
    pub fn is_granted(&self, epoch: u128, sequence: u64) -> Option<bool> {
        let route = self.find(RequestKey { epoch: Epoch::from_bits(epoch), sequence })?;
        Some(!self.is_waiting(route))
    }

    /// All pools record cost events from now on, for a simulated world that keeps accounts of its own.
    pub fn trace_costs(&mut self) {
        self.pools.trace_costs();
    }

    /// The cost events since the last call, those of each pool in order.
    pub fn take_cost_events(&mut self) -> Vec<CostEvent> {
        self.pools.take_cost_events()
    }

    fn audit_routes(&self) -> Result<(), AuditError> {
        let (mut open, mut indexed) = (0, 0);
        for (id, pool) in self.pools.iter() {
            for (request_id, request) in pool.requests() {
                let route = self.find(request.key);
                holds(
                    "a request's key leads to it",
                    route.is_some_and(|route| route.pool == id && route.id == request_id),
                )?;
                open += 1;
                indexed += u64::from(!request.labels.request_id.is_empty());
            }
        }
        same("requests that haven't ended", self.open_requests, open)?;
        let routes = self.contexts.values().map(|context| context.requests.len()).sum();
        same("requests of all root contexts", routes, open)?;
        same("requests by x-request-id", self.request_index.len(), indexed)?;
        holds("root contexts have a limit", self.contexts.len() <= CONTEXTS_MAX)
    }

    fn audit_context(&self, epoch: Epoch, context: &RootContext) -> Result<(), AuditError> {
        holds("the requests of a root context have a limit", context.requests.len() <= REQUESTS_MAX)?;
        let session = context.conn.and_then(|conn| self.sessions.get(&conn));
        holds(
            "a root context has a stream, or is orphaned",
            match (session, context.orphaned_since) {
                (Some(session), None) => {
                    matches!(session.stage, Stage::Established(established) if established == epoch)
                }
                (None, Some(_)) => context.conn.is_none(),
                _ => false,
            },
        )?;
        holds(
            "an unconfirmed request belongs to the root context",
            context.unconfirmed.iter().all(|route| {
                let is_open = self.pools.get(route.pool).is_some_and(|pool| pool.contains(route.id));
                !is_open || context.requests.values().any(|own| own == route)
            }),
        )?;
        holds(
            "ended requests are remembered up to a limit",
            context.ended.audit().is_some_and(|count| count <= ENDED_MAX),
        )
    }

    fn audit_envoys(&self) -> Result<(), AuditError> {
        let mut envoys: Vec<_> = self.contexts.values().map(|context| context.envoy).collect();
        envoys.sort_unstable();
        for group in envoys.chunk_by(|one, other| one == other) {
            let known = u64::try_from(self.envoys.contexts(group[0])).unwrap_or(u64::MAX);
            same("root contexts of an Envoy", group.len(), known)?;
        }
        envoys.dedup();
        let known = u64::try_from(self.envoys.len()).unwrap_or(u64::MAX);
        same("Envoys", envoys.len(), known)
    }

    fn audit_aliases(&self) -> Result<(), AuditError> {
        let is_open = |id: RequestId| self.pools.iter().any(|(_, pool)| pool.contains(id));
        for (key, id) in self.aliases.iter() {
            holds("an alias is no request's key", self.find(key).is_none())?;
            holds(
                "the alias of an ended request belongs to a known root context",
                self.aliases.is_open(id) || self.contexts.contains_key(&key.epoch),
            )?;
            holds("aliases have a limit", self.aliases.count(key.epoch) <= ALIASES_MAX)?;
        }
        for (id, keys) in self.aliases.open_requests() {
            holds("only an open request has previous keys", is_open(id))?;
            holds(
                "a request's previous keys are its aliases",
                keys.len() <= PREVIOUS_KEYS_MAX && keys.iter().all(|key| self.aliases.get(*key) == Some(id)),
            )?;
        }
        Ok(())
    }

    fn audit_sessions(&self) -> Result<(), AuditError> {
        for (conn, session) in &self.sessions {
            if let Stage::Established(epoch) = session.stage {
                let context = self.contexts.get(&epoch);
                holds(
                    "an established stream is that of its root context",
                    context.is_some_and(|context| context.conn == Some(*conn)),
                )?;
            }
        }
        Ok(())
    }
}
