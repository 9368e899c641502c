//! The invariants of the flows' usage, recomputed from what runs.

use alloc::collections::BTreeMap;

use super::Table;
use super::flow::Amount;
use crate::audit::{AuditError, check, check_equal};
use crate::ids::JobId;

impl Table {
    /// Checks everything against what runs, isn't settled, and belongs to a flow with a budget: the job and its flow's name.
    pub(crate) fn audit(&self, running: &[(JobId, &str)]) -> Result<(), AuditError> {
        let mut sums: BTreeMap<&str, Amount> = BTreeMap::new();
        for &(job, name) in running {
            let reservation = self.reservation(job);
            check("what runs has a reservation", reservation.is_some())?;
            let flow = self.flows.get(name);
            if let (Some(reservation), Some(flow)) = (reservation, flow)
                && reservation.generation == flow.generation
            {
                let sum = sums.entry(name).or_default();
                sum.tokens += reservation.tokens;
                sum.requests += 1;
            }
        }
        check_equal("reservations", self.reservations_count() as u64, running.len() as u64)?;
        let mut wakes = 0;
        for (name, flow) in &self.flows {
            let sum = sums.remove(&**name).unwrap_or_default();
            check("a flow has reserved what it runs", sum == flow.running)?;
            check("only a flow that is held waits for a time", flow.held || flow.wake.is_none())?;
            wakes += u64::from(flow.wake.is_some());
            flow.windows.iter().try_for_each(|window| window.audit())?;
        }
        check_equal("wakes", self.waking().len() as u64, wakes)?;
        check("every sum belongs to a flow", sums.is_empty())
    }
}
