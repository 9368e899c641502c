//! The interface of a level of the tree to the levels above and below.

use crate::arrival::Arrival;
use crate::band::TreeBand;
use crate::cost::Charge;
use crate::ids::{ChildId, EligibilityId, Id, ModelId};
use crate::time::Instant;

/// The attributes of a child's next request that a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The cost to its class: uncached prompt tokens, at least 1; never settled.
    pub(crate) class_cost: u64,
    /// The cost to its flow and its band.
    pub(crate) cost: u64,
    pub(crate) model: ModelId,
    /// The endpoints that it may go to.
    pub(crate) eligibility: EligibilityId,
    /// The eligibility set is open.
    pub(crate) open: bool,
    pub(crate) arrival: Arrival,
}

impl Head {
    /// For a node that ignores its children's heads.
    pub(crate) const NONE: Self = Self {
        class_cost: 0,
        cost: 0,
        model: ModelId::FIRST,
        eligibility: EligibilityId::ANY,
        open: true,
        arrival: Arrival { at: Instant::ZERO, sequence: 0 },
    };
}

/// The cost that a node counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The cost to the class, which is never settled.
    Class,
    /// The cost to the flow.
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

/// What a node took for a request, so that a refund gives back exactly that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The period in which it was taken: under deficit round robin of the child's backlog, under virtual times of the node.
    pub(crate) period: u32,
    /// Taken from the child's deficit, or the cost that virtual time waits for.
    pub(crate) taken: u64,
}

/// The receipts of every level for a running request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipts {
    pub(super) band: Receipt,
    pub(super) model: Receipt,
    pub(super) class: Receipt,
    pub(super) flow: Receipt,
    /// The tree's epoch. The levels above the flows may have been rebuilt since.
    pub(super) epoch: u64,
}

/// A level of the tree: it chooses among its children.
///
/// A child is backlogged while a request of it waits, runnable while one of these could be dispatched, and blocked while
/// it is backlogged and not runnable.
pub(crate) trait Node {
    /// `child` is runnable with this head: it becomes backlogged or unblocked, or its head changed.
    fn enqueue(&mut self, child: ChildId, head: &Head);
    /// `child` is blocked.
    fn block(&mut self, child: ChildId);
    /// `child` is no longer backlogged.
    fn remove(&mut self, child: ChildId);
    /// The runnable child that is next. Changes nothing.
    fn pick(&self) -> Option<ChildId>;
    /// The head of `child`, which was picked, is dispatched. The caller then enqueues, blocks or removes `child` before
    /// any other call.
    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt;
    /// A pick found no runnable child.
    fn pick_missed(&mut self) {}
    /// A request of `child` bypassed the queue.
    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt;
    /// The real flow cost of what was charged; `None`: nothing was served, as if it had never been charged.
    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>);
}

/// How a request reached its charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    Picked,
    Bypassed,
}

/// Charges `child` by [`Node::serve`] or [`Node::charge`].
#[inline]
pub(super) fn charge_child(
    node: &mut impl Node,
    child: ChildId,
    charge: &Charge,
    passage: Passage,
) -> Receipt {
    match passage {
        Passage::Picked => node.serve(child, charge),
        Passage::Bypassed => node.charge(child, charge),
    }
}

/// The child that stands for `band` at the root.
#[inline]
pub(super) fn band_child(band: TreeBand) -> ChildId {
    ChildId::from_index(band as usize)
}

/// The bit of `child` in a set of few children.
pub(super) fn bit(child: ChildId) -> u64 {
    1 << child.index()
}
