//! Checks the invariants of one pool, for tests and the simulated world.

use hashbrown::HashMap;
use penstock_engine::ModelName;
use penstock_engine::input::RequestId;

use super::Pool;
use crate::audit::{AuditError, holds, same};

impl Pool {
    /// Checks every invariant, in time proportional to the pool.
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        self.engine.audit().map_err(|source| AuditError::Engine { pool: self.name.clone(), source })?;
        let snapshot = self.engine.snapshot();
        let waiting = self.requests.values().filter(|request| request.is_waiting()).count();
        let granted = self.requests.len() - waiting;
        same("requests that wait", waiting, snapshot.waiting)?;
        self.audit_models()?;
        // Stock may be counted in tokens; requests in flight are always counted one by one.
        let in_flight = snapshot.flows.iter().map(|flow| flow.in_flight).sum();
        same("requests in flight", granted, in_flight)?;
        holds("nothing waits in a retired pool", !(self.is_retired && waiting > 0))?;
        let mut known = self.autopilot.in_flight();
        holds(
            "a request that the autopilot has in flight is granted",
            known.all(|id| self.requests.get(&id).is_some_and(|request| !request.is_waiting())),
        )?;
        let is_followed = |id: &RequestId| {
            self.engine.endpoint_of(*id).is_some_and(|endpoint| self.autopilot.follows(endpoint))
        };
        let followed = self.requests.keys().filter(|id| is_followed(id)).count() as u64;
        same("requests that the autopilot has in flight", self.autopilot.in_flight().count(), followed)?;
        holds("the autopilot's endpoints add up to what it has in flight", self.autopilot.audit())?;
        holds("the credits add up", self.credits.audit())?;
        let given = snapshot.endpoints.iter().filter(|endpoint| endpoint.credit > 0);
        holds(
            "the engine counts the places that filters have",
            given.map(|endpoint| (endpoint.id, endpoint.credit)).eq(self.credits.by_endpoint()),
        )?;
        holds("the endpoints' tables agree", self.endpoints.audit())
    }

    /// Compares the counts by model with the requests.
    fn audit_models(&self) -> Result<(), AuditError> {
        let mut counted: HashMap<&ModelName, (u64, u64)> = HashMap::new();
        for request in self.requests.values() {
            let (waiting, running) = counted.entry(&request.labels.model).or_default();
            *(if request.is_waiting() { waiting } else { running }) += 1;
        }
        holds(
            "each model's requests are counted",
            counted.iter().all(|(model, count)| self.model_counts.of(model) == *count),
        )?;
        let (waiting, running) = self.model_counts.in_all();
        same("requests by model", self.requests.len(), waiting + running)
    }
}
