//! The order within a flow: strict tiers, higher first; within a tier the least score; then the first arrival.
//!
//! Requests that may go anywhere are in one heap, and those that may go to the same endpoints in one each ([`Lanes`]). The
//! same requests are in another heap, latest arrival first, because displacement takes the youngest. Suspended requests are
//! in a heap of their own instead of the first, so they are never next, and keep their keys. All heaps link members in
//! arenas by job: a flow's queue is three roots, however many flows there are, unless it has lanes.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};
use core::time::Duration;

use super::lanes::Lanes;
use super::node::Head;
use super::queued::Queued;
use crate::arrival::Arrival;
use crate::ids::{EligibilityId, JobId, ModelId};
use crate::input::{EndpointId, Request};
use crate::pairing_heap::{PairingHeaps, Root};
use crate::policy;
use crate::time::Instant;

/// The attributes of a request that decide its score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct OrderKey {
    /// The client's deadline.
    pub(crate) deadline: Option<Instant>,
    pub(crate) class_cost: u64,
    pub(crate) arrived: Instant,
    pub(crate) head_start: Duration,
    /// The request's own target, from the arrival to the first token.
    pub(crate) ttft_target: Option<Duration>,
}

impl OrderKey {
    pub(crate) fn of(request: &Request, arrived: Instant, uncached: u64) -> Self {
        Self {
            class_cost: uncached.max(1),
            arrived,
            head_start: request.head_start,
            deadline: request.deadline,
            ttft_target: request.ttft_target,
        }
    }

    /// The score; the least goes first. Head starts and arrivals count up to 292 years.
    pub(crate) fn score(&self, order: policy::Order) -> u64 {
        const HALF: u64 = 1 << 63;
        match order {
            policy::Order::Fcfs => {
                let nanos = self.head_start.as_nanos();
                let head_start = u64::try_from(nanos).map_or(HALF, |nanos| nanos.min(HALF));
                // The half keeps an early arrival with a long head start above 0.
                self.arrived.as_nanos().min(HALF - 1) + HALF - head_start
            }
            policy::Order::Wspt => {
                // The bits of numbers that aren't negative have the order of the numbers. They are inverted, because the greatest worth goes
                // first.
                let worth = (1.0 + self.head_start.as_secs_f64()) / self.class_cost.max(1) as f64;
                !worth.to_bits()
            }
            policy::Order::Edf => self.deadline.map_or(u64::MAX, Instant::as_nanos),
            policy::Order::SloDeadline { target } => {
                self.ttft_target.or(target).map_or(u64::MAX, |target| self.arrived.after(target).as_nanos())
            }
        }
    }
}

/// The least goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tier: Reverse<u8>,
    score: u64,
    arrival: Arrival,
}

/// A waiting request: its key, and the rest of the [`Head`] that it is when it goes first. Members have the order of their
/// keys.
#[derive(Clone, Copy, Debug)]
struct Member {
    key: Key,
    class_cost: u64,
    cost: u64,
    model: ModelId,
    eligibility: EligibilityId,
    /// The request's lane in its flow while it is active; `None`: it may go anywhere.
    lane: Option<u8>,
}

impl Member {
    fn of(request: &Queued, lane: Option<u8>) -> Self {
        Self {
            lane,
            key: Key { tier: Reverse(request.strict), score: request.score, arrival: request.arrival },
            class_cost: request.class_cost,
            cost: request.cost,
            model: request.model,
            eligibility: request.eligibility,
        }
    }
}

impl Default for Member {
    fn default() -> Self {
        Self {
            key: Key::default(),
            class_cost: 0,
            cost: 0,
            model: ModelId::FIRST,
            eligibility: EligibilityId::ANY,
            lane: None,
        }
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Member {}

impl Ord for Member {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for Member {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The waiting requests of one flow.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Active requests that may go anywhere.
    active: Root<JobId>,
    /// In the arena of `active`: active requests with endpoints of their own. `None`: there are none.
    lanes: Option<Box<Lanes>>,
    /// In the arena of `active`.
    suspended: Root<JobId>,
    youngest: Root<JobId>,
}

impl Queue {
    /// No request is active.
    pub(super) fn is_inactive(&self) -> bool {
        self.active.least().is_none() && self.lanes.is_none()
    }

    /// No request is active that may go to exactly `eligible`, and would go before a newcomer that may.
    pub(super) fn has_empty_lane(&self, eligible: Option<&[EndpointId]>) -> bool {
        match eligible {
            None => self.active.least().is_none(),
            Some(eligible) => {
                let lanes = self.lanes.as_ref();
                lanes.is_none_or(|lanes| lanes.is_empty_for(eligible))
            }
        }
    }

    /// Some active requests have endpoints of their own.
    pub(super) const fn has_lanes(&self) -> bool {
        self.lanes.is_some()
    }

    fn root(&mut self, lane: Option<u8>) -> &mut Root<JobId> {
        match lane {
            None => &mut self.active,
            Some(lane) => self.lanes.get_or_insert_default().root(lane),
        }
    }

    /// A request has left the lane.
    fn left(&mut self, lane: Option<u8>) {
        if let (Some(lane), Some(lanes)) = (lane, &mut self.lanes)
            && lanes.left(lane)
        {
            self.lanes = None;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Order {
    by_key: PairingHeaps<JobId, Member>,
    by_arrival: PairingHeaps<JobId, Reverse<Arrival>>,
}

impl Order {
    /// Adds `job`, which may go to `eligible`. Returns whether it is the first of its lane then.
    pub(super) fn insert(
        &mut self,
        queue: &mut Queue,
        job: JobId,
        request: &Queued,
        eligible: Option<&[EndpointId]>,
    ) -> bool {
        self.by_arrival.insert(&mut queue.youngest, job, Reverse(request.arrival));
        self.enter(queue, job, request, eligible)
    }

    /// Removes `job`. Returns whether it was the first of its lane.
    pub(super) fn remove(&mut self, queue: &mut Queue, job: JobId, suspended: bool) -> bool {
        self.by_arrival.remove(&mut queue.youngest, job);
        self.leave(queue, job, suspended)
    }

    /// Starts or ends the suspension of `job`. Returns whether the first of its lane changed.
    pub(super) fn set_suspended(
        &mut self,
        queue: &mut Queue,
        job: JobId,
        request: &Queued,
        eligible: Option<&[EndpointId]>,
    ) -> bool {
        let left = self.leave(queue, job, !request.suspended);
        let entered = self.enter(queue, job, request, eligible);
        left || entered
    }

    /// `job`, which waits, has another eligibility set. Returns whether that may change the head of its flow.
    pub(super) fn set_eligibility(
        &mut self,
        queue: &mut Queue,
        job: JobId,
        request: &Queued,
        eligible: Option<&[EndpointId]>,
    ) -> bool {
        let left = self.leave(queue, job, request.suspended);
        let entered = self.enter(queue, job, request, eligible);
        left || entered
    }

    fn enter(
        &mut self,
        queue: &mut Queue,
        job: JobId,
        request: &Queued,
        eligible: Option<&[EndpointId]>,
    ) -> bool {
        if request.suspended {
            self.by_key.insert(&mut queue.suspended, job, Member::of(request, None));
            return false;
        }
        let lane = eligible.map(|eligible| queue.lanes.get_or_insert_default().enter(eligible));
        let root = queue.root(lane);
        self.by_key.insert(root, job, Member::of(request, lane));
        root.least() == Some(job)
    }

    fn leave(&mut self, queue: &mut Queue, job: JobId, suspended: bool) -> bool {
        if suspended {
            self.by_key.remove(&mut queue.suspended, job);
            return false;
        }
        let lane = self.by_key.key(job).lane;
        let root = queue.root(lane);
        let was_first = root.least() == Some(job);
        self.by_key.remove(root, job);
        queue.left(lane);
        was_first
    }

    /// The first active request of each lane, in the order in which they go.
    pub(super) fn firsts(&self, queue: &Queue) -> Vec<JobId> {
        let lanes = queue.lanes.iter().flat_map(|lanes| lanes.roots());
        let roots = core::iter::once(&queue.active).chain(lanes);
        let mut firsts: Vec<JobId> = roots.filter_map(Root::least).collect();
        firsts.sort_unstable_by_key(|&job| self.by_key.key(job));
        firsts
    }

    /// The active request that is first, if none has endpoints of its own.
    pub(super) const fn first_without_lanes(queue: &Queue) -> Option<JobId> {
        queue.active.least()
    }

    pub(super) fn youngest(&self, queue: &Queue) -> Option<JobId> {
        self.by_arrival.least(&queue.youngest).map(|(job, _)| job)
    }

    /// The suspended requests, in no particular order.
    pub(super) fn suspended(&self, queue: &Queue) -> Vec<JobId> {
        self.by_key.members(&queue.suspended)
    }

    /// All waiting requests, in the order in which they go if none is suspended.
    pub(super) fn in_order(&self, queue: &Queue) -> Vec<JobId> {
        let mut jobs = self.by_key.members(&queue.active);
        for lane in queue.lanes.iter().flat_map(|lanes| lanes.roots()) {
            jobs.extend(self.by_key.members(lane));
        }
        jobs.extend(self.suspended(queue));
        jobs.sort_unstable_by_key(|&job| self.by_key.key(job));
        jobs
    }

    pub(super) fn arrival(&self, job: JobId) -> Arrival {
        self.by_key.key(job).key.arrival
    }

    /// The head of a flow whose first request is `job`, under its own eligibility set, taken for open.
    pub(super) fn head_of(&self, job: JobId) -> Head {
        let member = self.by_key.key(job);
        Head {
            class_cost: member.class_cost,
            cost: member.cost,
            model: member.model,
            eligibility: member.eligibility,
            open: true,
            arrival: member.key.arrival,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClassId, FlowId, Id};
    use crate::policy::Order as By;

    const SECOND: u64 = 1_000_000_000;

    fn id(job: usize) -> JobId {
        JobId::from_index(job)
    }

    /// The request that arrives as this number, with its tier and score.
    fn request(number: usize, (strict, score): (u8, u64)) -> Queued {
        Queued {
            flow: FlowId::MIN,
            eligibility: EligibilityId::ANY,
            cost: 10 + number as u64,
            class: ClassId::MIN,
            prompt: 0,
            cached: 0,
            class_cost: 1,
            model: ModelId::FIRST,
            bytes: 0,
            strict,
            suspended: false,
            score,
            arrival: Arrival { at: Instant::ZERO, sequence: number as u64 },
        }
    }

    fn first(order: &Order, queue: &Queue) -> Option<JobId> {
        order.firsts(queue).first().copied()
    }

    fn in_order_of(order: &Order, queue: &Queue) -> Vec<usize> {
        order.in_order(queue).into_iter().map(JobId::index).collect()
    }

    fn key(class_cost: u64, arrived: u64, head_start: u64) -> OrderKey {
        OrderKey {
            class_cost,
            arrived: Instant::from_nanos(arrived * SECOND),
            head_start: Duration::from_secs(head_start),
            ..OrderKey::default()
        }
    }

    /// Asserts that each key goes before the next.
    fn in_order(order: By, keys: &[OrderKey]) {
        assert!(keys.is_sorted_by(|a, b| a.score(order) < b.score(order)), "{order:?}: {keys:?}");
    }

    #[test]
    fn fcfs_orders_by_arrival_less_the_head_start() {
        let keys = [
            key(1, 5, u64::MAX),
            key(1, 0, 90),
            key(1, 100, 150),
            key(1, 2, 0),
            key(1, 13, 10),
            key(1, 4, 0),
        ];
        in_order(By::Fcfs, &keys);
    }

    #[test]
    fn wspt_orders_by_cost_over_the_head_start() {
        let keys =
            [key(1, 9, 1), key(1, 9, 0), key(400, 9, 199), key(3, 0, 0), key(100, 0, 9), key(u64::MAX, 0, 0)];
        in_order(By::Wspt, &keys);
        assert_eq!(key(0, 0, 0).score(By::Wspt), key(1, 0, 0).score(By::Wspt));
    }

    #[test]
    fn edf_and_slo_deadline_order_by_due_time_and_none_is_last() {
        let due =
            |deadline: u64| OrderKey { deadline: Some(Instant::from_nanos(deadline)), ..key(1, 7, 1_000) };
        in_order(By::Edf, &[due(3), due(4), key(1, 0, 1_000)]);
        let target = |arrived, millis| OrderKey {
            ttft_target: Some(Duration::from_millis(millis)),
            ..key(1, arrived, 1_000)
        };
        let none = By::SloDeadline { target: None };
        in_order(none, &[target(3, 100), target(2, 1_200), key(1, 0, 0)]);
        let pool = By::SloDeadline { target: Some(Duration::from_secs(1)) };
        in_order(pool, &[key(1, 1, 0), target(2, 100), target(1, 1_500)]);
    }

    #[test]
    fn tiers_precede_scores_and_scores_precede_arrivals() {
        let mut order = Order::default();
        let mut queue = Queue::default();
        // Tier and score. Job and arrival are the position.
        let facts = [(0, 5), (0, 5), (0, 4), (2, 9), (1, 1), (2, 9)];
        let mut requests = Vec::new();
        for (number, &facts) in (0_usize..).zip(&facts) {
            let request = request(number, facts);
            order.insert(&mut queue, id(number), &request, None);
            requests.push(request);
        }
        assert_eq!(in_order_of(&order, &queue), [3, 5, 4, 2, 0, 1]);
        assert_eq!(order.youngest(&queue), Some(id(5)));
        assert_eq!(order.head_of(id(3)).cost, 13);
        assert!(!order.remove(&mut queue, id(5), false) && order.remove(&mut queue, id(3), false));
        assert_eq!((first(&order, &queue), order.youngest(&queue)), (Some(id(4)), Some(id(4))));
        let mut suspend = |order: &mut Order, queue: &mut Queue, job: usize, suspended| {
            requests[job].suspended = suspended;
            order.set_suspended(queue, id(job), &requests[job], None)
        };
        assert!(!suspend(&mut order, &mut queue, 0, true) && suspend(&mut order, &mut queue, 4, true));
        assert_eq!((first(&order, &queue), order.youngest(&queue)), (Some(id(2)), Some(id(4))));
        assert_eq!(in_order_of(&order, &queue), [4, 2, 0, 1], "suspended requests keep their places");
        assert!(!order.remove(&mut queue, id(0), true) && suspend(&mut order, &mut queue, 4, false));
        assert_eq!((first(&order, &queue), order.suspended(&queue)), (Some(id(4)), Vec::new()));
    }

    #[test]
    fn each_lane_has_a_first_and_one_without_requests_is_gone() {
        let mut order = Order::default();
        let mut queue = Queue::default();
        let endpoints = |ids: &[u32]| ids.iter().copied().map(EndpointId).collect::<Vec<_>>();
        let lanes = [None, Some(endpoints(&[1])), Some(endpoints(&[1, 2])), Some(endpoints(&[1])), None];
        for (number, eligible) in lanes.iter().enumerate() {
            order.insert(&mut queue, id(number), &request(number, (0, 0)), eligible.as_deref());
        }
        assert_eq!(order.firsts(&queue), [0, 1, 2].map(id));
        assert_eq!(in_order_of(&order, &queue), [0, 1, 2, 3, 4]);
        assert!(!queue.has_empty_lane(None) && !queue.has_empty_lane(Some(&endpoints(&[1]))));
        assert!(queue.has_empty_lane(Some(&endpoints(&[2]))));
        assert!(order.remove(&mut queue, id(1), false) && order.remove(&mut queue, id(2), false));
        assert_eq!(order.firsts(&queue), [0, 3].map(id));
        assert!(order.remove(&mut queue, id(3), false) && !queue.has_lanes());
        assert!(order.remove(&mut queue, id(0), false) && !queue.is_inactive());
        assert!(order.remove(&mut queue, id(4), false) && queue.is_inactive());
    }
}
