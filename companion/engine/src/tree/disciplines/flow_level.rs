//! The choice among the flows of one leaf.

use alloc::boxed::Box;
use core::time::Duration;

use super::super::drr::Drr;
use super::super::node::{Head, Node, Receipt, Unit};
use super::super::tree_config::TreeConfig;
use super::super::virtual_time::{Rule, VirtualTimeScheduler};
use super::{FLOW_TOKENS, quantum};
use crate::audit::{AuditError, check};
use crate::cost::{Charge, VirtualTime};
use crate::ids::{ChildId, EligibilityId, FlowId, ModelId};
use crate::policy::Discipline;
use crate::time::Instant;

#[derive(Debug)]
pub(crate) enum FlowLevel {
    VirtualTime(Box<VirtualTimeScheduler>),
    Drr(FlowDrr),
}

/// Flows by deficit round robin. A flow under a closed eligibility set is blocked, and an idle flow is forgotten at once.
#[derive(Debug)]
pub(crate) struct FlowDrr {
    drr: Drr<FlowId>,
    idle: Option<ChildId>,
}

impl FlowLevel {
    pub(crate) fn new(config: &TreeConfig, now: Instant) -> Self {
        let rule = match config.discipline {
            Discipline::Wfq => Rule::Wfq,
            Discipline::Usage => Rule::Usage,
            Discipline::Vtc => Rule::Vtc,
            Discipline::RoundRobin => Rule::RoundRobin,
            Discipline::Fifo => Rule::Fifo,
            Discipline::Drr => {
                return Self::Drr(FlowDrr { drr: Drr::joining(Unit::Flow), idle: None });
            }
        };
        Self::VirtualTime(Box::new(VirtualTimeScheduler::new(rule, config.usage_window, now)))
    }

    /// Adds a flow without charges.
    pub(crate) fn add(&mut self, flow: FlowId, weight: f64, anonymous: bool, config: &TreeConfig) -> ChildId {
        match self {
            Self::VirtualTime(scheduler) => {
                let child = scheduler.add(flow, weight);
                if anonymous {
                    scheduler.put_last(child);
                }
                child
            }
            Self::Drr(flows) => flows.drr.add(flow, quantum(FLOW_TOKENS, weight, config)),
        }
    }

    pub(crate) fn set_weight(&mut self, child: ChildId, weight: f64, config: &TreeConfig) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.set_weight(child, weight),
            Self::Drr(flows) => {
                let quantum = quantum(FLOW_TOKENS, weight, config);
                flows.drr.set_quantum(child, quantum);
            }
        }
    }

    /// Ends a change of weights.
    pub(crate) fn end_weights(&mut self) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.end_weights(),
            Self::Drr(_) => {}
        }
    }

    pub(crate) fn flow(&self, child: ChildId) -> FlowId {
        match self {
            Self::VirtualTime(scheduler) => scheduler.owner(child),
            Self::Drr(flows) => flows.drr.owner(child),
        }
    }

    /// The head that is dispatched next.
    pub(crate) fn next_head(&self) -> Option<Head> {
        match self {
            Self::VirtualTime(scheduler) => scheduler.next_head(),
            Self::Drr(flows) => flows.drr.next_head(),
        }
    }

    /// The virtual finish time of the last charge of `child`, or the usage by which it is ordered; zero under deficit
    /// round robin.
    pub(crate) fn finish(&self, child: ChildId) -> VirtualTime {
        match self {
            Self::VirtualTime(scheduler) => scheduler.finish_now(child),
            Self::Drr(_) => VirtualTime::default(),
        }
    }

    /// How far `child` is ahead of the level at which a new child would start, where virtual time orders children.
    pub(crate) fn lag(&self, child: ChildId) -> VirtualTime {
        match self {
            Self::VirtualTime(scheduler) => scheduler.lag(child),
            Self::Drr(_) => VirtualTime::default(),
        }
    }

    /// The tag of the child that is next.
    pub(crate) fn least_tag(&self) -> Option<VirtualTime> {
        match self {
            Self::VirtualTime(scheduler) => scheduler.least_tag(),
            Self::Drr(_) => None,
        }
    }

    /// Adds a past cost where the discipline counts usage. The caller then calls [`Self::expired_usage`] until it returns
    /// `None`.
    pub(crate) fn add_past_usage(&mut self, child: ChildId, model: ModelId, cost: u64, ago: Duration) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.add_past_usage(child, model, cost, ago),
            Self::Drr(_) => {}
        }
    }

    /// Replaces the estimated cost of `child`'s requests for `model` at other engines, and returns the cost before.
    pub(crate) fn set_running_elsewhere(&mut self, child: ChildId, model: ModelId, running: u64) -> u128 {
        match self {
            Self::VirtualTime(scheduler) => scheduler.set_running_elsewhere(child, model, running),
            Self::Drr(_) => 0,
        }
    }

    /// The estimated cost of all flows' requests that run at other engines.
    pub(crate) fn running_elsewhere(&self) -> u128 {
        match self {
            Self::VirtualTime(scheduler) => scheduler.running_elsewhere(),
            Self::Drr(_) => 0,
        }
    }

    /// The estimated cost of the requests for `model` that `child` runs here, where the discipline counts usage.
    pub(crate) fn running_usage(&self, child: ChildId, model: ModelId) -> u128 {
        match self {
            Self::VirtualTime(scheduler) => scheduler.running_usage(child, model),
            Self::Drr(_) => 0,
        }
    }

    /// The usage by which `child` is ordered, before its head is enqueued.
    pub(crate) fn set_usage(&mut self, child: ChildId, used: u128) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.set_usage(child, used),
            Self::Drr(_) => {}
        }
    }

    /// The usage by which `child` is ordered, if it waits and its head is of `model`. Returns whether its tag changed.
    pub(crate) fn retag_usage(&mut self, child: ChildId, model: ModelId, used: u128) -> bool {
        match self {
            Self::VirtualTime(scheduler) => scheduler.retag_usage(child, model, used),
            Self::Drr(_) => false,
        }
    }

    /// The identity of `child` is charged in another leaf. Returns whether the tag of a waiting child changed.
    pub(crate) fn charge_elsewhere(&mut self, child: ChildId, charge: &Charge) -> bool {
        match self {
            Self::VirtualTime(scheduler) => scheduler.charge_elsewhere(child, charge),
            Self::Drr(_) => false,
        }
    }

    /// A request that was charged in another leaf cost `real`; `None`: nothing. Returns whether the tag of a waiting child
    /// changed.
    pub(crate) fn settle_elsewhere(&mut self, child: ChildId, charge: &Charge, real: Option<u64>) -> bool {
        match self {
            Self::VirtualTime(scheduler) => scheduler.settle_elsewhere(child, charge, real),
            Self::Drr(_) => false,
        }
    }

    /// Removes the next usage that is out of the window: the flow, the model and the cost.
    pub(crate) fn expired_usage(&mut self) -> Option<(FlowId, ModelId, u128)> {
        match self {
            Self::VirtualTime(scheduler) => scheduler.expired_usage(),
            Self::Drr(_) => None,
        }
    }

    /// The usage of `child` in this leaf by model: in the window, and running.
    pub(crate) fn usage_by_model(&self, child: ChildId) -> impl Iterator<Item = (ModelId, u128)> {
        let scheduler = match self {
            Self::VirtualTime(scheduler) => Some(scheduler),
            Self::Drr(_) => None,
        };
        scheduler.into_iter().flat_map(move |scheduler| scheduler.usage_by_model(child))
    }

    /// `eligibility` has opened or closed. Returns `false` if the flows under it have to be updated one by one.
    pub(crate) fn set_open(&mut self, eligibility: EligibilityId, open: bool) -> bool {
        match self {
            Self::VirtualTime(scheduler) if open => scheduler.open(eligibility),
            Self::VirtualTime(scheduler) => scheduler.close(eligibility),
            Self::Drr(_) => return false,
        }
        true
    }

    /// Applies another usage window. The caller then adds all usage up again.
    pub(crate) fn reconfigure(&mut self, config: &TreeConfig) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.resize_window(config.usage_window),
            Self::Drr(_) => {}
        }
    }

    /// Advances usage windows to `now`. The caller then calls [`Self::expired_usage`] until it returns `None`.
    pub(crate) fn advance(&mut self, now: Instant) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.advance(now),
            Self::Drr(_) => {}
        }
    }

    /// Nothing of `child` waits or runs any more.
    pub(crate) fn set_idle(&mut self, child: ChildId) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.set_idle(child),
            Self::Drr(flows) => flows.idle = Some(child),
        }
    }

    /// An idle child that a new one would equal.
    pub(crate) fn forgettable(&self) -> Option<ChildId> {
        match self {
            Self::VirtualTime(scheduler) => scheduler.forgettable(),
            Self::Drr(flows) => flows.idle,
        }
    }

    /// Removes `child`, which was [`Self::forgettable`].
    pub(crate) fn forget(&mut self, child: ChildId) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.forget(child),
            Self::Drr(flows) => {
                flows.idle = None;
                flows.drr.forget(child);
            }
        }
    }

    /// Checks `child` against its flow: the enqueued head, and whether nothing of it waits or runs.
    pub(crate) fn audit_child(
        &self,
        child: ChildId,
        flow: FlowId,
        weight: f64,
        head: Option<Head>,
        idle: bool,
    ) -> Result<(), AuditError> {
        match self {
            Self::VirtualTime(scheduler) => scheduler.audit_child(child, flow, weight, head, idle),
            Self::Drr(flows) => check("a child leads to its flow", flows.drr.owner(child) == flow),
        }
    }

    pub(crate) fn audit(&self, open: impl Fn(EligibilityId) -> bool) -> Result<(), AuditError> {
        match self {
            Self::VirtualTime(scheduler) => scheduler.audit(open),
            Self::Drr(flows) => {
                check("an idle flow is forgotten", flows.idle.is_none())?;
                flows.drr.audit()
            }
        }
    }
}

impl FlowDrr {
    /// Blocks `child` while its eligibility set is closed.
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        if head.open {
            self.drr.enqueue(child, head);
        } else {
            self.drr.block(child);
        }
    }
}

impl Node for FlowLevel {
    /// The eligibility set of `head` is open or closed.
    #[inline]
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.enqueue(child, head),
            Self::Drr(flows) => flows.enqueue(child, head),
        }
    }

    #[inline]
    fn block(&mut self, child: ChildId) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.block(child),
            Self::Drr(flows) => flows.drr.block(child),
        }
    }

    #[inline]
    fn remove(&mut self, child: ChildId) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.remove(child),
            Self::Drr(flows) => flows.drr.remove(child),
        }
    }

    #[inline]
    fn pick(&self) -> Option<ChildId> {
        match self {
            Self::VirtualTime(scheduler) => scheduler.pick(),
            Self::Drr(flows) => flows.drr.pick(),
        }
    }

    #[inline]
    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        match self {
            Self::VirtualTime(scheduler) => scheduler.serve(child, charge),
            Self::Drr(flows) => flows.drr.serve(child, charge),
        }
    }

    #[inline]
    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        match self {
            Self::VirtualTime(scheduler) => scheduler.charge(child, charge),
            Self::Drr(flows) => flows.drr.charge(child, charge),
        }
    }

    #[inline]
    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
        match self {
            Self::VirtualTime(scheduler) => scheduler.settle(child, charge, receipt, real),
            Self::Drr(flows) => flows.drr.settle(child, charge, receipt, real),
        }
    }
}
