//! How far the flows of a leaf are apart in what they were served, over what the rule allows: measured beside the
//! rules, which know nothing of it.
//!
//! The bound is one of pairs, each from the moment on that both could go: so every pair has a beginning, and these are
//! kept for the first [`TRACKED`] flows only. The others are served by the same rule; that they aren't looked at is the
//! price of a cost that doesn't grow with the flows.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::policy::{CostUnit, Discipline};
use crate::snapshot::FairnessLag;

use super::{BANDS, NONE, Tree};

/// Flows of a leaf that are looked at.
const TRACKED: usize = 16;
/// What a visit grants per weight under `drr`, in tokens; requests: 1.
const DRR_TOKENS: f64 = 1_024.0;

/// Where a flow is among those that are looked at; it is kept with the flow, so that of who isn't looked at, as most
/// aren't, nothing has to be searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seat(Option<u8>);

/// One leaf's.
#[derive(Debug, Default)]
pub(super) struct FairnessLags {
    /// By seat; of one that is free it means nothing.
    places: Vec<Place>,
    /// The seats that are taken, a bit each.
    taken: u32,
    /// Charged and not settled.
    in_flight: u64,
    /// The most of that since two flows have been looked at.
    most: u64,
}

/// A flow that could go, and has waited since.
#[derive(Debug)]
struct Place {
    flow: u32,
    weight: f64,
    /// Settled cost since it is here,
    served: f64,
    /// without what ran when it came.
    before: u64,
    /// The largest estimate of what was next.
    next: u64,
    /// By the other's seat: what this one was served when both were here.
    since: [f64; TRACKED],
}

impl FairnessLags {
    /// `flow`, whose seat this is, waits and can go, and its next request costs `cost`; of it `running` are charged and
    /// not settled.
    pub(super) fn stands(&mut self, seat: &mut Seat, flow: u32, weight: f64, cost: u64, running: u64) {
        if let Seat(Some(at)) = *seat {
            let place = &mut self.places[usize::from(at)];
            if place.weight.to_bits() == weight.to_bits() {
                place.next = place.next.max(cost);
                return;
            }
            self.leaves(seat);
        }
        // The first that is free.
        let at = self.taken.trailing_ones() as usize;
        if at >= TRACKED {
            return;
        }
        if self.taken.count_ones() < 2 {
            self.most = self.in_flight;
        }
        for place in &mut self.places {
            place.since[at] = place.served;
        }
        let place = Place {
            flow,
            weight,
            served: 0.0,
            before: running,
            next: cost,
            since: [0.0; TRACKED],
        };
        match self.places.get_mut(at) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        self.taken |= 1 << at;
        *seat = Seat(Some(at as u8));
    }

    /// Nothing waits that could go of the flow whose seat this is.
    pub(super) fn leaves(&mut self, seat: &mut Seat) {
        if let Seat(Some(at)) = core::mem::take(seat) {
            self.taken &= !(1 << at);
        }
    }

    /// The flows that are looked at.
    pub(super) fn flows(&self) -> impl Iterator<Item = u32> {
        self.seated().map(|(_, place)| place.flow)
    }

    /// Whether `seat` is what `flow` has here.
    pub(super) fn has(&self, seat: Seat, flow: u32) -> bool {
        let found = self.seated().find(|(_, place)| place.flow == flow);
        found.map(|(at, _)| at) == seat.0.map(usize::from)
    }

    fn seated(&self) -> impl Iterator<Item = (usize, &Place)> {
        let places = self.places.iter().enumerate();
        places.filter(|&(at, _)| self.taken & (1 << at) != 0)
    }

    /// A request of some flow was charged.
    pub(super) fn charged(&mut self) {
        self.in_flight += 1;
        self.most = self.most.max(self.in_flight);
    }

    /// A request of the flow of `seat` that was charged `estimate` cost `real`; `None`: nothing.
    pub(super) fn settled(&mut self, seat: Seat, estimate: u64, real: Option<u64>, discipline: Discipline) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Seat(Some(at)) = seat else {
            return;
        };
        let place = &mut self.places[usize::from(at)];
        if place.before > 0 {
            place.before -= 1;
            return;
        }
        let served = real.map(|real| match discipline {
            Discipline::RoundRobin => 1,
            // A snapshot: it isn't settled.
            Discipline::Drr => estimate,
            Discipline::Wfq | Discipline::Usage | Discipline::Vtc | Discipline::Fifo => real,
        });
        place.served += served.unwrap_or(0) as f64;
    }

    /// The largest gap of two over what is allowed for these two; 0 with fewer. `largest` says of a flow what one of its
    /// requests cost at most.
    pub(super) fn ratio(&self, discipline: Discipline, unit: CostUnit, largest: impl Fn(u32) -> u64) -> f64 {
        let in_flight = self.most.max(self.in_flight) as f64 + 1.0;
        let mut ratio = 0.0_f64;
        for (i, one) in self.seated() {
            let ones = (one.weight, largest(one.flow).max(one.next) as f64);
            for (j, other) in self.seated().skip_while(|&(j, _)| j <= i) {
                let others = (other.weight, largest(other.flow).max(other.next) as f64);
                let served = (one.served - one.since[j], other.served - other.since[i]);
                let gap = served.0 / one.weight - served.1 / other.weight;
                let allowed = allowed(ones, others, discipline, unit) * in_flight;
                if allowed > 0.0 {
                    ratio = ratio.max(libm::fabs(gap) / allowed);
                }
            }
        }
        ratio
    }
}

/// How far two may be apart, by weight and largest cost, with nothing in flight (QUEUEING, Flows and Classes).
fn allowed(one: (f64, f64), other: (f64, f64), discipline: Discipline, unit: CostUnit) -> f64 {
    let ((one_weight, one_largest), (other_weight, other_largest)) = (one, other);
    match discipline {
        Discipline::RoundRobin => 1.0 / one_weight + 1.0 / other_weight,
        Discipline::Drr => {
            let visit = match unit {
                CostUnit::Tokens => DRR_TOKENS,
                CostUnit::Requests => 1.0,
            };
            visit + 2.0 * one_largest.max(other_largest) / one_weight.min(other_weight)
        }
        Discipline::Wfq | Discipline::Usage | Discipline::Vtc | Discipline::Fifo => {
            one_largest / one_weight + other_largest / other_weight
        }
    }
}

impl Tree {
    /// How far the flows of each leaf are apart, over what their rule allows.
    pub(crate) fn gap_snapshots(&self) -> Vec<FairnessLag> {
        let (discipline, unit) = (self.shape.discipline, self.shape.cost);
        if !has_bound(discipline) {
            return Vec::new();
        }
        let mut gaps = Vec::new();
        for band in BANDS {
            let trees = self.bands[band as usize].trees.iter();
            let mut trees: Vec<(&u32, Option<&u32>)> =
                trees.map(|(model, tree)| (model, Some(tree))).collect();
            if trees.is_empty() && !self.shape.per_model {
                trees.push((&0, None));
            }
            trees.sort_unstable();
            for (model, tree) in trees {
                for (number, class) in self.classes.iter() {
                    let largest = |flow: u32| self.flows[flow].largest;
                    let leaf = tree.map_or(NONE, |&tree| self.trees[tree].leaves[number as usize]);
                    if leaf == NONE && self.shape.per_model {
                        continue;
                    }
                    gaps.push(FairnessLag {
                        band,
                        model: match self.models.name(*model) {
                            Some(name) if self.shape.per_model => name.into(),
                            None if self.shape.per_model => "other".into(),
                            Some(_) | None => Box::default(),
                        },
                        class: class.policy.as_ref().map_or("", |_| class.name()).into(),
                        ratio: self
                            .leaves
                            .get(leaf)
                            .map_or(0.0, |leaf| leaf.gaps.ratio(discipline, unit, largest)),
                    });
                }
            }
        }
        gaps
    }
}

/// The rule promises a bound.
pub(super) const fn has_bound(discipline: Discipline) -> bool {
    match discipline {
        Discipline::Wfq | Discipline::RoundRobin | Discipline::Drr => true,
        Discipline::Usage | Discipline::Vtc | Discipline::Fifo => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf with these flows, none of which is there yet.
    struct Leaf<const FLOWS: usize> {
        gaps: FairnessLags,
        seats: [Seat; FLOWS],
    }

    impl<const FLOWS: usize> Leaf<FLOWS> {
        fn new() -> Self {
            Self {
                gaps: FairnessLags::default(),
                seats: [Seat::default(); FLOWS],
            }
        }

        fn stands(&mut self, flow: usize, weight: f64, running: u64) {
            self.gaps
                .stands(&mut self.seats[flow], flow as u32, weight, 10, running);
        }

        fn leaves(&mut self, flow: usize) {
            self.gaps.leaves(&mut self.seats[flow]);
        }

        fn serve(&mut self, flow: usize, cost: u64) {
            self.gaps.charged();
            self.settle(flow, Some(cost));
        }

        fn settle(&mut self, flow: usize, cost: Option<u64>) {
            self.gaps.settled(self.seats[flow], 10, cost, Discipline::Wfq);
        }

        fn ratio(&self) -> f64 {
            self.gaps.ratio(Discipline::Wfq, CostUnit::Tokens, |_| 0)
        }
    }

    #[test]
    fn a_pair_begins_when_both_wait() {
        let mut leaf = Leaf::<3>::new();
        leaf.stands(1, 1.0, 0);
        leaf.serve(1, 10);
        leaf.serve(1, 10);
        assert_eq!(leaf.ratio(), 0.0, "there is nobody to compare with");
        leaf.stands(2, 2.0, 0);
        assert_eq!(leaf.ratio(), 0.0, "what was before doesn't count");
        leaf.serve(1, 10);
        // One in flight at a time: 10 of 2 * (10 / 1 + 10 / 2).
        assert_eq!(leaf.ratio(), 10.0 / 30.0);
        leaf.serve(2, 20);
        assert_eq!(leaf.ratio(), 0.0, "by weight they are even");
        leaf.leaves(1);
        assert_eq!(leaf.ratio(), 0.0);
        leaf.stands(1, 1.0, 0);
        assert_eq!(leaf.ratio(), 0.0, "a new beginning");
    }

    #[test]
    fn who_leaves_takes_only_its_own_pairs_along() {
        let mut leaf = Leaf::<4>::new();
        for flow in 0..4 {
            leaf.stands(flow, 1.0, 0);
        }
        leaf.serve(3, 10);
        let before = leaf.ratio();
        assert!(before > 0.0);
        leaf.leaves(0);
        assert_eq!(leaf.ratio(), before);
        leaf.leaves(3);
        assert_eq!(leaf.ratio(), 0.0);
    }

    #[test]
    fn what_ran_before_or_was_refunded_is_no_service() {
        let mut leaf = Leaf::<3>::new();
        leaf.gaps.charged();
        leaf.stands(1, 1.0, 1);
        leaf.stands(2, 1.0, 0);
        leaf.settle(1, Some(10));
        leaf.gaps.charged();
        leaf.settle(1, None);
        assert_eq!(leaf.ratio(), 0.0);
    }

    #[test]
    fn there_are_no_more_than_so_many() {
        let mut leaf = Leaf::<1_000>::new();
        for flow in 0..1_000 {
            leaf.stands(flow, 1.0, 0);
        }
        assert_eq!(leaf.gaps.flows().count(), TRACKED);
        assert!(leaf.gaps.flows().eq(0..16));
        leaf.leaves(5);
        leaf.leaves(700);
        leaf.stands(700, 1.0, 0);
        leaf.stands(701, 1.0, 0);
        let seated: Vec<u32> = leaf.gaps.flows().collect();
        assert_eq!(seated, [0, 1, 2, 3, 4, 700, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(
            (0..)
                .zip(leaf.seats)
                .all(|(flow, seat)| leaf.gaps.has(seat, flow))
        );
    }
}
