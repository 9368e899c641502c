//! The order in a flow: strict tiers, higher first; in a tier the least score; then by first arrival.
//!
//! The same requests stand in a second heap by arrival, the latest first, for displacement takes the youngest. Those
//! that are suspended stand in a third instead of the first: they are nobody's next, and keep their keys. All heaps are
//! links in arenas by request number: a flow's queue is three roots, however many flows there are.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use crate::pairing_heap::{PairingHeaps, Root};
use crate::policy;
use crate::time::Instant;

use super::node::Head;
use super::{Arrival, LaneId, Queued};

/// What decides a request's place in its flow, under its strict tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrderKey {
    pub(crate) class_cost: u64,
    pub(crate) arrived: Instant,
    /// Its head start.
    pub(crate) jump: Duration,
    /// The client's own.
    pub(crate) deadline: Option<Instant>,
    /// The request's own, from arrival to the first token.
    pub(crate) ttft_target: Option<Duration>,
}

/// The least goes first. A head start counts to 292 years, and an arrival to as late.
pub(crate) fn score(order: policy::Order, claim: &OrderKey) -> u64 {
    const HALF: u64 = 1 << 63;
    match order {
        policy::Order::Fcfs => {
            let jump = u64::try_from(claim.jump.as_nanos()).map_or(HALF, |jump| jump.min(HALF));
            claim.arrived.as_nanos().min(HALF - 1) + HALF - jump
        }
        policy::Order::Wspt => {
            // Of what isn't negative, the bits stand in the order of the numbers.
            let worth = (1.0 + claim.jump.as_secs_f64()) / claim.class_cost.max(1) as f64;
            !worth.to_bits()
        }
        policy::Order::Edf => claim.deadline.map_or(u64::MAX, Instant::as_nanos),
        policy::Order::SloDeadline { target } => claim
            .ttft_target
            .or(target)
            .map_or(u64::MAX, |target| claim.arrived.after(target).as_nanos()),
    }
}

/// The least goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tier: Reverse<u8>,
    score: u64,
    arrival: Arrival,
}

/// What the levels above have to know of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    class_cost: u64,
    cost: u64,
    model: u32,
    lane: LaneId,
}

/// What waits in one flow.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    first: Root,
    /// In the arena of `first`.
    suspended: Root,
    youngest: Root,
}

impl Queue {
    /// The request that goes next: of those that aren't suspended.
    pub(super) const fn head(&self) -> Option<u32> {
        self.first.least()
    }

    const fn of(&mut self, suspended: bool) -> &mut Root {
        if suspended {
            &mut self.suspended
        } else {
            &mut self.first
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Order {
    first: PairingHeaps<Key>,
    youngest: PairingHeaps<Reverse<Arrival>>,
    facts: Vec<Facts>,
}

impl Order {
    /// Whether `number` comes next in its flow from now on.
    pub(super) fn insert(&mut self, queue: &mut Queue, number: u32, request: &Queued) -> bool {
        let index = number as usize;
        if index >= self.facts.len() {
            self.facts.resize(index + 1, Facts::default());
        }
        self.facts[index] = Facts {
            class_cost: request.class_cost,
            cost: request.cost,
            model: request.model,
            lane: request.lane,
        };
        let key = Key {
            tier: Reverse(request.strict),
            score: request.score,
            arrival: request.arrival,
        };
        self.first.insert(queue.of(request.suspended), number, key);
        self.youngest
            .insert(&mut queue.youngest, number, Reverse(request.arrival));
        queue.head() == Some(number)
    }

    /// Whether `number` was next in its flow.
    pub(super) fn remove(&mut self, queue: &mut Queue, number: u32, suspended: bool) -> bool {
        let was_head = queue.head() == Some(number);
        self.first.remove(queue.of(suspended), number);
        self.youngest.remove(&mut queue.youngest, number);
        was_head
    }

    /// `number` is suspended from now on, or isn't any more; whether another is next in its flow by that.
    pub(super) fn suspend(&mut self, queue: &mut Queue, number: u32, suspended: bool) -> bool {
        let head = queue.head();
        let key = self.first.key(number);
        self.first.remove(queue.of(!suspended), number);
        self.first.insert(queue.of(suspended), number, key);
        head != queue.head()
    }

    /// `number`, which waits, is of this lane from now on.
    pub(super) fn relane(&mut self, number: u32, lane: LaneId) {
        self.facts[number as usize].lane = lane;
    }

    pub(super) fn youngest(&self, queue: &Queue) -> Option<u32> {
        self.youngest.least(&queue.youngest).map(|(number, _)| number)
    }

    /// Those that are suspended, in no order that means anything.
    pub(super) fn suspended(&self, queue: &Queue) -> Vec<u32> {
        self.first.members(&queue.suspended)
    }

    /// All, as they would go were none suspended.
    pub(super) fn in_order(&self, queue: &Queue) -> Vec<u32> {
        let mut numbers = self.first.members(&queue.first);
        numbers.extend(self.suspended(queue));
        numbers.sort_unstable_by_key(|&number| self.first.key(number));
        numbers
    }

    /// `number`, which waits, as the level above knows it.
    pub(super) fn head_of(&self, number: u32, lane_open: impl Fn(LaneId) -> bool) -> Head {
        let facts = &self.facts[number as usize];
        Head {
            class_cost: facts.class_cost,
            cost: facts.cost,
            model: facts.model,
            lane: facts.lane,
            open: lane_open(facts.lane),
            arrival: self.first.key(number).arrival,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Order as By;

    const SECOND: u64 = 1_000_000_000;

    fn claim(class_cost: u64, arrived: u64, jump: u64) -> OrderKey {
        OrderKey {
            class_cost,
            arrived: Instant::from_nanos(arrived * SECOND),
            jump: Duration::from_secs(jump),
            ..OrderKey::default()
        }
    }

    /// Each goes before the next.
    fn in_order(order: By, claims: &[OrderKey]) {
        assert!(
            claims.is_sorted_by(|a, b| score(order, a) < score(order, b)),
            "{order:?}: {claims:?}"
        );
    }

    #[test]
    fn first_come_goes_by_arrival_less_its_head_start() {
        let claims = [
            claim(1, 5, u64::MAX),
            claim(1, 0, 90),
            claim(1, 100, 150),
            claim(1, 2, 0),
            claim(1, 13, 10),
            claim(1, 4, 0),
        ];
        in_order(By::Fcfs, &claims);
    }

    #[test]
    fn short_ones_go_by_cost_over_their_head_start() {
        let claims = [
            claim(1, 9, 1),
            claim(1, 9, 0),
            claim(400, 9, 199),
            claim(3, 0, 0),
            claim(100, 0, 9),
            claim(u64::MAX, 0, 0),
        ];
        in_order(By::Wspt, &claims);
        assert_eq!(score(By::Wspt, &claim(0, 0, 0)), score(By::Wspt, &claim(1, 0, 0)));
    }

    #[test]
    fn deadlines_and_targets_go_by_when_they_are_and_none_is_last() {
        let due = |deadline: u64| OrderKey {
            deadline: Some(Instant::from_nanos(deadline)),
            ..claim(1, 7, 1_000)
        };
        in_order(By::Edf, &[due(3), due(4), claim(1, 0, 1_000)]);
        let target = |arrived, millis| OrderKey {
            ttft_target: Some(Duration::from_millis(millis)),
            ..claim(1, arrived, 1_000)
        };
        let none = By::SloDeadline { target: None };
        in_order(none, &[target(3, 100), target(2, 1_200), claim(1, 0, 0)]);
        let pool = By::SloDeadline {
            target: Some(Duration::from_secs(1)),
        };
        in_order(pool, &[claim(1, 1, 0), target(2, 100), target(1, 1_500)]);
    }

    #[test]
    fn tiers_come_before_scores_and_scores_before_arrivals() {
        let mut order = Order::default();
        let mut queue = Queue::default();
        // Tier and score; number and arrival by place.
        let facts = [(0, 5), (0, 5), (0, 4), (2, 9), (1, 1), (2, 9)];
        for (number, &(strict, score)) in (0..).zip(&facts) {
            let request = Queued {
                flow: 0,
                lane: LaneId::ANY,
                cost: 10 + u64::from(number),
                class: 0,
                prompt: 0,
                cached: 0,
                class_cost: 1,
                model: 0,
                bytes: 0,
                strict,
                suspended: false,
                score,
                arrival: Arrival {
                    at: Instant::ZERO,
                    sequence: u64::from(number),
                },
            };
            order.insert(&mut queue, number, &request);
        }
        assert_eq!(order.in_order(&queue), [3, 5, 4, 2, 0, 1]);
        assert_eq!(order.youngest(&queue), Some(5));
        assert_eq!(order.head_of(3, |_| true).cost, 13);
        assert!(!order.remove(&mut queue, 5, false) && order.remove(&mut queue, 3, false));
        assert_eq!((queue.head(), order.youngest(&queue)), (Some(4), Some(4)));
        assert!(!order.suspend(&mut queue, 0, true) && order.suspend(&mut queue, 4, true));
        assert_eq!((queue.head(), order.youngest(&queue)), (Some(2), Some(4)));
        assert_eq!(order.in_order(&queue), [4, 2, 0, 1], "they keep their places");
        assert!(!order.remove(&mut queue, 0, true) && order.suspend(&mut queue, 4, false));
        assert_eq!((queue.head(), order.suspended(&queue)), (Some(4), Vec::new()));
    }
}
