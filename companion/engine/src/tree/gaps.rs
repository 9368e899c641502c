//! How far the flows of a leaf are apart in what they were served, over what the rule allows: measured beside the
//! rules, which know nothing of it.
//!
//! The bound is one of pairs, each from the moment on that both could go: so every pair has a beginning, and these are
//! kept for the first [`TRACKED`] flows only. The others are served by the same rule; that they aren't looked at is the
//! price of a cost that doesn't grow with the flows.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::policy::{CostUnit, Discipline};
use crate::snapshot::GapSnapshot;

use super::{BANDS, NONE, Tree};

/// Flows of a leaf that are looked at.
const TRACKED: usize = 16;
/// What a visit grants per weight under `drr`, in tokens; requests: 1.
const DRR_TOKENS: f64 = 1_024.0;

/// One leaf's.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// By place; apart, because they are searched all the time.
    flows: Vec<u32>,
    places: Vec<Place>,
    /// Charged and not settled.
    in_flight: u64,
    /// The most of that since two flows have been looked at.
    most: u64,
}

/// A flow that could go, and has waited since.
#[derive(Debug)]
struct Place {
    weight: f64,
    /// Settled cost since it is here,
    served: f64,
    /// without what ran when it came.
    before: u64,
    /// The largest estimate of what was next.
    next: u64,
    /// By the other's place: what this one was served when both were here.
    since: Vec<f64>,
}

impl Gaps {
    /// `flow` waits and can go, and its next request costs `cost`; of it `running` are charged and not settled.
    pub(super) fn stands(&mut self, flow: u32, weight: f64, cost: u64, running: u64) {
        if let Some(at) = self.find(flow) {
            let place = &mut self.places[at];
            if place.weight.to_bits() == weight.to_bits() {
                place.next = place.next.max(cost);
                return;
            }
            self.leaves(flow);
        }
        if self.places.len() >= TRACKED {
            return;
        }
        if self.places.len() < 2 {
            self.most = self.in_flight;
        }
        for place in &mut self.places {
            place.since.push(place.served);
        }
        let since = alloc::vec![0.0; self.places.len() + 1];
        self.flows.push(flow);
        self.places.push(Place {
            weight,
            served: 0.0,
            before: running,
            next: cost,
            since,
        });
    }

    /// Nothing of `flow` waits that could go.
    pub(super) fn leaves(&mut self, flow: u32) {
        let Some(at) = self.find(flow) else {
            return;
        };
        self.flows.swap_remove(at);
        self.places.swap_remove(at);
        for place in &mut self.places {
            place.since.swap_remove(at);
        }
    }

    /// The flows that are looked at.
    pub(super) fn flows(&self) -> impl Iterator<Item = u32> {
        self.flows.iter().copied()
    }

    /// A request of some flow was charged.
    pub(super) fn charged(&mut self) {
        self.in_flight += 1;
        self.most = self.most.max(self.in_flight);
    }

    /// A request of `flow` that was charged `estimate` cost `real`; `None`: nothing.
    pub(super) fn settled(&mut self, flow: u32, estimate: u64, real: Option<u64>, discipline: Discipline) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(at) = self.find(flow) else {
            return;
        };
        let place = &mut self.places[at];
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
        let largest: Vec<f64> = (self.flows.iter().zip(&self.places))
            .map(|(&flow, place)| largest(flow).max(place.next) as f64)
            .collect();
        for (i, one) in self.places.iter().enumerate() {
            for (j, other) in self.places.iter().enumerate().skip(i + 1) {
                let served = (one.served - one.since[j], other.served - other.since[i]);
                let gap = served.0 / one.weight - served.1 / other.weight;
                let one = (one.weight, largest[i]);
                let other = (other.weight, largest[j]);
                let allowed = allowed(one, other, discipline, unit) * in_flight;
                if allowed > 0.0 {
                    ratio = ratio.max(libm::fabs(gap) / allowed);
                }
            }
        }
        ratio
    }

    fn find(&self, flow: u32) -> Option<usize> {
        self.flows.iter().position(|&other| other == flow)
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
    pub(crate) fn gap_snapshots(&self) -> Vec<GapSnapshot> {
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
                    gaps.push(GapSnapshot {
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

    fn ratio(gaps: &Gaps) -> f64 {
        gaps.ratio(Discipline::Wfq, CostUnit::Tokens, |_| 0)
    }

    fn serve(gaps: &mut Gaps, flow: u32, cost: u64) {
        gaps.charged();
        gaps.settled(flow, cost, Some(cost), Discipline::Wfq);
    }

    #[test]
    fn a_pair_begins_when_both_wait() {
        let mut gaps = Gaps::default();
        gaps.stands(1, 1.0, 10, 0);
        serve(&mut gaps, 1, 10);
        serve(&mut gaps, 1, 10);
        assert_eq!(ratio(&gaps), 0.0, "there is nobody to compare with");
        gaps.stands(2, 2.0, 10, 0);
        assert_eq!(ratio(&gaps), 0.0, "what was before doesn't count");
        serve(&mut gaps, 1, 10);
        // One in flight at a time: 10 of 2 * (10 / 1 + 10 / 2).
        assert_eq!(ratio(&gaps), 10.0 / 30.0);
        serve(&mut gaps, 2, 20);
        assert_eq!(ratio(&gaps), 0.0, "by weight they are even");
        gaps.leaves(1);
        assert_eq!(ratio(&gaps), 0.0);
        gaps.stands(1, 1.0, 10, 0);
        assert_eq!(ratio(&gaps), 0.0, "a new beginning");
    }

    #[test]
    fn who_leaves_takes_only_its_own_pairs_along() {
        let mut gaps = Gaps::default();
        for flow in 0..4 {
            gaps.stands(flow, 1.0, 10, 0);
        }
        serve(&mut gaps, 3, 10);
        let before = ratio(&gaps);
        assert!(before > 0.0);
        gaps.leaves(0);
        assert_eq!(ratio(&gaps), before);
        gaps.leaves(3);
        assert_eq!(ratio(&gaps), 0.0);
    }

    #[test]
    fn what_ran_before_or_was_refunded_is_no_service() {
        let mut gaps = Gaps::default();
        gaps.charged();
        gaps.stands(1, 1.0, 10, 1);
        gaps.stands(2, 1.0, 10, 0);
        gaps.settled(1, 10, Some(10), Discipline::Wfq);
        gaps.charged();
        gaps.settled(1, 10, None, Discipline::Wfq);
        assert_eq!(ratio(&gaps), 0.0);
    }

    #[test]
    fn there_are_no_more_than_so_many() {
        let mut gaps = Gaps::default();
        for flow in 0..1_000 {
            gaps.stands(flow, 1.0, 10, 0);
        }
        assert_eq!(gaps.flows().count(), TRACKED);
    }
}
