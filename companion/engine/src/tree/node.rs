//! What every level of the tree does, and what the levels tell each other.

use crate::cost::Charge;
use crate::time::Instant;

use super::{Arrival, LaneId};

/// A child of a node, by the number that the node knows it by.
pub(crate) type ChildId = u32;

/// What a node has to know of the next request of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// What it costs its class: uncached prompt tokens, at least 1; never settled.
    pub(crate) class_cost: u64,
    /// What it costs its flow and its band.
    pub(crate) cost: u64,
    /// Its model, by number.
    pub(crate) model: u32,
    /// Where it may go.
    pub(crate) lane: LaneId,
    /// The lane is open.
    pub(crate) open: bool,
    pub(crate) arrival: Arrival,
}

impl Head {
    /// Of a child that has nothing.
    pub(crate) const NONE: Self = Self {
        class_cost: 0,
        cost: 0,
        model: 0,
        lane: LaneId::ANY,
        open: true,
        arrival: Arrival {
            at: Instant::ZERO,
            sequence: 0,
        },
    };
}

/// Which of its costs a request has for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The class's: a snapshot.
    Class,
    /// The flow's.
    Flow,
}

impl Unit {
    pub(crate) const fn of(self, head: &Head) -> u64 {
        match self {
            Self::Class => head.class_cost,
            Self::Flow => head.cost,
        }
    }

    pub(crate) const fn charged(self, charge: &Charge) -> u64 {
        match self {
            Self::Class => charge.class_cost,
            Self::Flow => charge.cost,
        }
    }
}

/// What a node took for a request, so that it can be given back exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// How often the child had run empty by then.
    pub(crate) period: u32,
    /// Of its deficit.
    pub(crate) taken: u64,
}

/// A child is backlogged while something of it waits; it is able while that could go.
pub(crate) trait Node {
    /// `child` is able, and has this next: it begins to wait, or can go again, or what it has next has changed.
    fn enqueue(&mut self, child: ChildId, head: &Head);
    /// `child` is backlogged, and nothing of it can go.
    fn block(&mut self, child: ChildId);
    /// Nothing of `child` waits any more.
    fn remove(&mut self, child: ChildId);
    /// The child that goes next, among those that are able. Changes nothing.
    fn pick(&self) -> Option<ChildId>;
    /// The head of `child`, which was picked, goes. Its owner enqueues, blocks or removes it before anything else.
    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt;
    /// A pick found nobody able. Nothing, but for a rule that says otherwise.
    fn miss(&mut self) {}
    /// A request of `child` went past the queue.
    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt;
    /// What was charged turns out to be `real` (in flow cost); `None`: nothing was served, as if never charged.
    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>);
}
