//! The flows: one per identity and leaf of the tree, with what waits there.
//!
//! A flow is here while something of it waits or runs, or while its discipline still owes it, or it the others;
//! then it is forgotten, as a new one would start no better.

use crate::slab::Slab;

use super::eligibility::LaneId;
use super::fairness_lag::Seat;
use super::node::ChildId;
use super::order::Queue;

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) identity: u32,
    pub(crate) leaf: u32,
    pub(super) child: ChildId,
    pub(crate) waiting: u64,
    pub(crate) in_flight: u64,
    /// The largest cost of one of its requests, estimated or real.
    pub(super) largest: u64,
    /// Among those of its leaf whose gaps are looked at.
    pub(super) seat: Seat,
    pub(super) queue: Queue,
    /// Where its next request stands; `None`: nothing waits, or the flow runs as much as it may.
    pub(super) standing: Option<LaneId>,
    /// The flow itself holds that lane.
    pub(super) holds: bool,
}

impl Flow {
    pub(super) fn new(identity: u32, leaf: u32, child: ChildId) -> Self {
        Self {
            identity,
            leaf,
            child,
            waiting: 0,
            in_flight: 0,
            largest: 0,
            seat: Seat::default(),
            queue: Queue::default(),
            standing: None,
            holds: false,
        }
    }
}

pub(super) type Flows = Slab<Flow>;
