//! Records the cost events of the pool, if a simulated world has asked for them.

use penstock_engine::input::RequestId;

use super::Pool;
use crate::cost_trace::{CostEvent, CostEventKind};

impl Pool {
    /// Records cost events from now on.
    pub(crate) fn trace_costs(&mut self) {
        self.cost_events = Some(vec![CostEventKind::PoolMade]);
    }

    /// The events since the last call.
    pub(crate) fn take_cost_events(&mut self) -> Vec<CostEvent> {
        let events = self.cost_events.as_mut().map(core::mem::take);
        let with_pool = |kind| CostEvent { pool: self.name.clone(), kind };
        events.unwrap_or_default().into_iter().map(with_pool).collect()
    }

    #[inline]
    pub(super) fn record_cost_event(&mut self, kind: impl FnOnce() -> CostEventKind) {
        if let Some(events) = &mut self.cost_events {
            events.push(kind());
        }
    }

    /// The engine has started this request.
    #[inline]
    pub(super) fn record_start(&mut self, id: RequestId, is_granted: bool) {
        if let Some(events) = &mut self.cost_events
            && let Some(estimate) = self.engine.expected(id)
            && let Some((flow, is_demoted)) = self.engine.charged_flow(id)
        {
            events.push(CostEventKind::Started { id, flow: flow.into(), is_granted, is_demoted, estimate });
        }
    }
}
