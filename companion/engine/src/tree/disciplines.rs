//! The levels of the tree as they can be: each rule behind the one contract of [`Node`].

use alloc::boxed::Box;
use core::time::Duration;

use crate::audit::{AuditError, holds};
use crate::cost::{Charge, Virtual};
use crate::policy::{BandMode, ClassMode, CostUnit, Discipline};
use crate::time::Instant;

use super::LaneId;
use super::classes::Classes;
use super::drr::{Drr, Quantum};
use super::dynamo::Dynamo;
use super::node::{ChildId, Head, Node, Receipt, Unit};
use super::strict_priority::StrictPriority;
use super::tree_config::TreeConfig;
use super::virtual_time::{Rule, VirtualTimeScheduler};

/// Tokens a visit grants for a weight of 1: to a band,
const BAND_TOKENS: f64 = 100.0;
/// and to a flow or a model.
const FLOW_TOKENS: f64 = 1_024.0;

fn quantum(tokens: f64, weight: f64, shape: &TreeConfig) -> Quantum {
    match shape.cost {
        CostUnit::Tokens => Quantum::new(weight * tokens),
        CostUnit::Requests => Quantum::new(weight),
    }
}

/// Implements [`Node`] by handing everything on to whichever there is.
macro_rules! hand_on {
    ($level:ty: $($variant:ident)|+) => {
        impl Node for $level {
            fn enqueue(&mut self, child: ChildId, head: &Head) {
                match self {
                    $(Self::$variant(node) => node.enqueue(child, head),)+
                }
            }

            fn block(&mut self, child: ChildId) {
                match self {
                    $(Self::$variant(node) => node.block(child),)+
                }
            }

            fn remove(&mut self, child: ChildId) {
                match self {
                    $(Self::$variant(node) => node.remove(child),)+
                }
            }

            fn pick(&self) -> Option<ChildId> {
                match self {
                    $(Self::$variant(node) => node.pick(),)+
                }
            }

            fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
                match self {
                    $(Self::$variant(node) => node.serve(child, charge),)+
                }
            }

            fn miss(&mut self) {
                match self {
                    $(Self::$variant(node) => node.miss(),)+
                }
            }

            fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
                match self {
                    $(Self::$variant(node) => node.charge(child, charge),)+
                }
            }

            fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
                match self {
                    $(Self::$variant(node) => node.settle(child, charge, receipt, real),)+
                }
            }
        }
    };
}

/// The bands of a pool, by their number.
#[derive(Debug)]
pub(super) enum Bands {
    Strict(StrictPriority),
    Weighted(Weighted),
}

hand_on!(Bands: Strict | Weighted);

impl Bands {
    /// What its children have next is nothing to it, but that they have something.
    pub(super) const fn is_plain(&self) -> bool {
        matches!(self, Self::Strict(_))
    }

    pub(super) fn new(shape: &TreeConfig) -> Self {
        match shape.bands.mode {
            BandMode::Strict => Self::Strict(StrictPriority::default()),
            BandMode::Weighted(weights) => {
                let mut ring = Drr::fixed(Unit::Flow);
                for (band, weight) in (0..).zip(weights) {
                    ring.add(band, quantum(BAND_TOKENS, weight, shape));
                }
                Self::Weighted(Weighted {
                    ring,
                    last: StrictPriority::default(),
                    has_turns: weights.map(|weight| weight > 0.0),
                })
            }
        }
    }

    /// The same bands by another measure, in place; `false`: it takes another level.
    pub(super) fn reweigh(&mut self, shape: &TreeConfig) -> bool {
        match (self, shape.bands.mode) {
            (Self::Strict(_), BandMode::Strict) => true,
            (Self::Weighted(weighted), BandMode::Weighted(weights)) => {
                if weighted.has_turns != weights.map(|weight| weight > 0.0) {
                    return false;
                }
                for (band, weight) in (0..).zip(weights) {
                    weighted
                        .ring
                        .set_quantum(band, quantum(BAND_TOKENS, weight, shape));
                }
                true
            }
            (Self::Strict(_) | Self::Weighted(_), _) => false,
        }
    }

    pub(super) fn audit(&self) -> Result<(), AuditError> {
        match self {
            Self::Strict(_) => Ok(()),
            Self::Weighted(weighted) => weighted.ring.audit(),
        }
    }
}

/// Bands by weight; those of weight 0 go when no other can, the more critical first.
#[derive(Debug)]
pub(super) struct Weighted {
    ring: Drr,
    last: StrictPriority,
    has_turns: [bool; 3],
}

impl Weighted {
    fn of(&mut self, band: ChildId) -> &mut dyn Node {
        if self.has_turns[band as usize] {
            &mut self.ring
        } else {
            &mut self.last
        }
    }
}

impl Node for Weighted {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        self.of(child).enqueue(child, head);
    }

    fn block(&mut self, child: ChildId) {
        self.of(child).block(child);
    }

    fn remove(&mut self, child: ChildId) {
        self.of(child).remove(child);
    }

    fn pick(&self) -> Option<ChildId> {
        self.ring.pick().or_else(|| self.last.pick())
    }

    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.of(child).serve(child, charge)
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.of(child).charge(child, charge)
    }

    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
        self.of(child).settle(child, charge, receipt, real);
    }
}

/// The classes of one tree, by their number.
#[derive(Debug)]
pub(super) enum Ring {
    /// There is one class.
    One(StrictPriority),
    Exact(Drr),
    Dynamo(Dynamo),
}

hand_on!(Ring: One | Exact | Dynamo);

impl Ring {
    /// What its children have next is nothing to it, but that they have something.
    pub(super) const fn is_plain(&self) -> bool {
        matches!(self, Self::One(_))
    }

    pub(super) fn new(classes: &Classes, shape: &TreeConfig) -> Self {
        if !classes.are_configured() {
            return Self::One(StrictPriority::default());
        }
        match shape.class_mode {
            ClassMode::Exact => {
                let mut ring = Drr::fixed(Unit::Class);
                for (number, class) in classes.iter() {
                    ring.add(number, Quantum::whole(class.quantum()));
                }
                Self::Exact(ring)
            }
            ClassMode::Dynamo => {
                let mut ring = Dynamo::new(Unit::Class);
                for (_, class) in classes.iter() {
                    ring.add(class.quantum());
                }
                Self::Dynamo(ring)
            }
        }
    }

    /// The same classes with other quanta.
    pub(super) fn reweigh(&mut self, classes: &Classes) {
        for (number, class) in classes.iter() {
            match self {
                Self::One(_) => {}
                Self::Exact(ring) => ring.set_quantum(number, Quantum::whole(class.quantum())),
                Self::Dynamo(ring) => ring.set_quantum(number, class.quantum()),
            }
        }
    }

    /// What `class` has left; 0 where none is configured.
    pub(super) fn deficit(&self, class: ChildId) -> u64 {
        match self {
            Self::One(_) => 0,
            Self::Exact(ring) => ring.deficit(class),
            Self::Dynamo(ring) => ring.deficit(class),
        }
    }

    pub(super) fn audit(&self) -> Result<(), AuditError> {
        match self {
            Self::One(_) => Ok(()),
            Self::Exact(ring) => ring.audit(),
            Self::Dynamo(ring) => ring.audit(),
        }
    }
}

/// The flows of one leaf.
#[derive(Debug)]
pub(super) enum FlowScheduler {
    VirtualTimeScheduler(Box<VirtualTimeScheduler>),
    Ring(Turns),
}

/// Flows by turns: one whose lane is closed is blocked, and one with nothing is forgotten at once.
#[derive(Debug)]
pub(super) struct Turns {
    ring: Drr,
    resting: Option<ChildId>,
}

impl FlowScheduler {
    pub(super) fn new(shape: &TreeConfig, now: Instant) -> Self {
        let rule = match shape.discipline {
            Discipline::Wfq => Rule::Wfq,
            Discipline::Usage => Rule::Usage,
            Discipline::Vtc => Rule::Vtc,
            Discipline::RoundRobin => Rule::RoundRobin,
            Discipline::Fifo => Rule::Fifo,
            Discipline::Drr => {
                return Self::Ring(Turns {
                    ring: Drr::joining(Unit::Flow),
                    resting: None,
                });
            }
        };
        Self::VirtualTimeScheduler(Box::new(VirtualTimeScheduler::new(rule, shape.window, now)))
    }

    fn node(&mut self) -> &mut dyn Node {
        match self {
            Self::VirtualTimeScheduler(tags) => &mut **tags,
            Self::Ring(turns) => &mut turns.ring,
        }
    }

    /// A child that has never been charged; `owner` is its name one level up.
    pub(super) fn add(&mut self, owner: u32, weight: f64, anonymous: bool, shape: &TreeConfig) -> ChildId {
        match self {
            Self::VirtualTimeScheduler(tags) => {
                let child = tags.add(owner, weight);
                if anonymous {
                    tags.put_last(child);
                }
                child
            }
            Self::Ring(turns) => turns.ring.add(owner, quantum(FLOW_TOKENS, weight, shape)),
        }
    }

    pub(super) fn weigh(&mut self, child: ChildId, weight: f64, shape: &TreeConfig) {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.weigh(child, weight),
            Self::Ring(turns) => turns.ring.set_quantum(child, quantum(FLOW_TOKENS, weight, shape)),
        }
    }

    pub(super) fn owner(&self, child: ChildId) -> u32 {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.owner(child),
            Self::Ring(turns) => turns.ring.owner(child),
        }
    }

    pub(super) fn pick(&self) -> Option<ChildId> {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.pick(),
            Self::Ring(turns) => turns.ring.pick(),
        }
    }

    /// What goes next.
    pub(super) fn next_head(&self) -> Option<Head> {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.next_head(),
            Self::Ring(turns) => turns.ring.next_head(),
        }
    }

    /// Where the last charge of `child` ends in virtual time; zero where there is none.
    pub(super) fn finish(&self, child: ChildId) -> Virtual {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.finish(child),
            Self::Ring(_) => Virtual::default(),
        }
    }

    /// `child` has this next; it stands in the lane of `head`, open or not.
    pub(super) fn stand(&mut self, child: ChildId, head: &Head) {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.enqueue(child, head),
            Self::Ring(turns) if head.open => turns.ring.enqueue(child, head),
            Self::Ring(turns) => turns.ring.block(child),
        }
    }

    pub(super) fn block(&mut self, child: ChildId) {
        self.node().block(child);
    }

    pub(super) fn remove(&mut self, child: ChildId) {
        self.node().remove(child);
    }

    pub(super) fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.node().serve(child, charge)
    }

    pub(super) fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.node().charge(child, charge)
    }

    pub(super) fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
        self.node().settle(child, charge, receipt, real);
    }

    /// `child` used this so long ago, where that counts.
    pub(super) fn used(&mut self, child: ChildId, model: u32, cost: u64, ago: Duration) {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.used(child, model, cost, ago),
            Self::Ring(_) => {}
        }
    }

    /// `lane` has opened, or closed; `false`: those in it have to be told one by one.
    pub(super) fn turn(&mut self, lane: LaneId, open: bool) -> bool {
        match self {
            Self::VirtualTimeScheduler(tags) if open => tags.open(lane),
            Self::VirtualTimeScheduler(tags) => tags.close(lane),
            Self::Ring(_) => return false,
        }
        true
    }

    /// The same rule by another measure.
    pub(super) fn reshape(&mut self, shape: &TreeConfig) {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.resize(shape.window),
            Self::Ring(_) => {}
        }
    }

    /// The window slides to `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.advance(now),
            Self::Ring(_) => {}
        }
    }

    /// Nothing of `child` waits or runs.
    pub(super) fn rest(&mut self, child: ChildId) {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.rest(child),
            Self::Ring(turns) => turns.resting = Some(child),
        }
    }

    /// One that rests, and a new one in its place would start no better.
    pub(super) fn forgettable(&self) -> Option<ChildId> {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.forgettable(),
            Self::Ring(turns) => turns.resting,
        }
    }

    pub(super) fn forget(&mut self, child: ChildId) {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.forget(child),
            Self::Ring(turns) => {
                turns.resting = None;
                turns.ring.forget(child);
            }
        }
    }

    pub(super) fn audit_child(
        &self,
        child: ChildId,
        owner: u32,
        weight: f64,
        head: Option<Head>,
        rests: bool,
    ) -> Result<(), AuditError> {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.audit_child(child, owner, weight, head, rests),
            Self::Ring(turns) => holds("a child knows its owner", turns.ring.owner(child) == owner),
        }
    }

    pub(super) fn audit(&self, open: impl Fn(LaneId) -> bool) -> Result<(), AuditError> {
        match self {
            Self::VirtualTimeScheduler(tags) => tags.audit(open),
            Self::Ring(turns) => {
                holds("who rests is forgotten", turns.resting.is_none())?;
                turns.ring.audit()
            }
        }
    }
}

/// The trees of one band.
#[derive(Debug)]
pub(super) enum Models {
    /// All models share one, by number, if there is one yet.
    One { tree: u32, able: bool },
    /// Each has its own, with the same quantum.
    Each(Drr),
}

impl Models {
    /// What its children have next is nothing to it, but that they have something.
    pub(super) const fn is_plain(&self) -> bool {
        matches!(self, Self::One { .. })
    }

    pub(super) fn new(shape: &TreeConfig) -> Self {
        if shape.per_model {
            Self::Each(Drr::joining(Unit::Flow))
        } else {
            Self::One {
                tree: u32::MAX,
                able: false,
            }
        }
    }

    pub(super) fn add(&mut self, number: u32, shape: &TreeConfig) -> ChildId {
        match self {
            Self::One { tree, .. } => {
                *tree = number;
                0
            }
            Self::Each(ring) => ring.add(number, quantum(FLOW_TOKENS, 1.0, shape)),
        }
    }

    /// Nothing waits or runs of `child` any more.
    pub(super) fn forget(&mut self, child: ChildId) {
        match self {
            Self::One { .. } => {}
            Self::Each(ring) => ring.forget(child),
        }
    }

    /// Of the same trees, each by what a visit grants now.
    pub(super) fn reweigh(&mut self, child: ChildId, shape: &TreeConfig) {
        match self {
            Self::One { .. } => {}
            Self::Each(ring) => ring.set_quantum(child, quantum(FLOW_TOKENS, 1.0, shape)),
        }
    }

    /// The tree that all models share, if they do and there is one.
    pub(super) fn shared(&self) -> Option<u32> {
        match self {
            Self::One { tree, .. } => Some(*tree).filter(|&tree| tree != u32::MAX),
            Self::Each(_) => None,
        }
    }

    /// The tree that goes next.
    pub(super) fn next(&self) -> Option<u32> {
        match self {
            Self::One { tree, able } => able.then_some(*tree),
            Self::Each(ring) => Some(ring.owner(ring.pick()?)),
        }
    }

    pub(super) fn audit(&self) -> Result<(), AuditError> {
        match self {
            Self::One { .. } => Ok(()),
            Self::Each(ring) => ring.audit(),
        }
    }
}

impl Node for Models {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        match self {
            Self::One { able, .. } => *able = true,
            Self::Each(ring) => ring.enqueue(child, head),
        }
    }

    fn block(&mut self, child: ChildId) {
        match self {
            Self::One { able, .. } => *able = false,
            Self::Each(ring) => ring.block(child),
        }
    }

    fn remove(&mut self, child: ChildId) {
        match self {
            Self::One { able, .. } => *able = false,
            Self::Each(ring) => ring.remove(child),
        }
    }

    fn pick(&self) -> Option<ChildId> {
        match self {
            Self::One { able, .. } => able.then_some(0),
            Self::Each(ring) => ring.pick(),
        }
    }

    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        match self {
            Self::One { .. } => Receipt::default(),
            Self::Each(ring) => ring.serve(child, charge),
        }
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        match self {
            Self::One { .. } => Receipt::default(),
            Self::Each(ring) => ring.charge(child, charge),
        }
    }

    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
        match self {
            Self::One { .. } => {}
            Self::Each(ring) => ring.settle(child, charge, receipt, real),
        }
    }
}
