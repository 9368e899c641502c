//! A flow: the queue of one identity in one leaf of the tree.
//!
//! A flow exists while a request of it waits or runs, and while its discipline still counts its past charges. Then it is
//! removed, because a new flow would start no better.

use alloc::vec::Vec;

use super::backlogs::Backlog;
use super::fairness_lag::TrackedSlot;
use super::idle_flows::IdleTurn;
use super::order::Queue;
use crate::ids::{ChildId, EligibilityId, FlowId, IdentityId, JobId, LeafId};
use crate::policy::Discipline;
use crate::slab::Slab;

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) identity: IdentityId,
    pub(crate) leaf: LeafId,
    /// The flow as its leaf's discipline numbers it.
    pub(super) child: ChildId,
    pub(crate) waiting: u64,
    pub(super) waiting_cost: u64,
    pub(crate) in_flight: u64,
    /// The largest cost of one of its requests, estimated or real.
    pub(super) largest_cost: u64,
    /// The flow's slot among those whose fairness lag is tracked.
    pub(super) tracked: TrackedSlot,
    pub(super) queue: Queue,
    /// The active request that goes first of those that can go, or first of all if none can; `None`: no active request waits,
    /// or the flow is at its limit.
    pub(super) head: Option<JobId>,
    /// The sets under which the first requests of its lanes wait, if there are several. The flow holds them, and is updated
    /// when one of them opens or closes.
    pub(super) watched: Vec<EligibilityId>,
    /// The eligibility set of its head; `None`: no active request waits, or the flow is at its limit.
    pub(super) head_eligibility: Option<EligibilityId>,
    /// The flow itself holds that set, because it is narrower than the request's.
    pub(super) holds_eligibility: bool,
    /// Its turn above the bounds; `None`: it has no head, or something of its identity runs.
    pub(super) idle_turn: Option<IdleTurn>,
}

impl Flow {
    pub(super) fn new(identity: IdentityId, leaf: LeafId, child: ChildId) -> Self {
        Self {
            identity,
            leaf,
            child,
            waiting: 0,
            waiting_cost: 0,
            in_flight: 0,
            largest_cost: 0,
            tracked: TrackedSlot::default(),
            queue: Queue::default(),
            head: None,
            watched: Vec::new(),
            head_eligibility: None,
            holds_eligibility: false,
            idle_turn: None,
        }
    }

    /// What waits of it, by the cost that its turns count.
    pub(super) const fn backlog(&self, discipline: Discipline, weight: f64) -> Backlog {
        let cost = match discipline {
            Discipline::RoundRobin => self.waiting,
            _ => self.waiting_cost,
        };
        Backlog { requests: self.waiting, cost, weight }
    }
}

pub(super) type Flows = Slab<FlowId, Flow>;
