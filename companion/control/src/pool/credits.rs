//! The admission credits of a pool: places at endpoints that root contexts may fill without asking.
//!
//! Both sides count the places of a credit by the same messages, in the order in which they were sent. A `Credit` adds places. An `Admitted`
//! without an end takes one away: that request is counted by itself from then on. `CreditReturned`, and the Hello that follows a lost stream,
//! take all away. Everything else, the end of a request above all, changes no number.
//!
//! Until a credit has come back, its places are stock in the engine.
//!
//! A busy root context gets the places that it needs as long as there is room. Its part is an equal share of the places that can be lent, one place at
//! least. When a root context has less than its part and there is no room, a root context with more than its part gives its credit up, and all of
//! them keep to their parts for a while.

use core::time::Duration;

use hashbrown::HashMap;
use penstock_engine::Instant;
use penstock_engine::input::EndpointId;
use penstock_wire::limits::CREDIT_RENEWAL;

use crate::ids::{CreditId, Epoch};
use crate::limits::{CREDIT_FIRST, CREDIT_MAX};

/// Requests are counted over this time to tell which root contexts are busy.
const ACTIVITY: Duration = Duration::from_secs(1);
/// The busy root contexts are counted this often, because that takes time proportional to their number.
const COUNT_INTERVAL: Duration = Duration::from_millis(250);
/// Root contexts keep to their parts for this long after one has lacked its own.
const CONTENDED: Duration = Duration::from_secs(10);
/// Nothing must have waited for this long.
const CALM: Duration = Duration::from_secs(1);

/// The credits of a pool.
#[derive(Debug)]
pub(super) struct Credits {
    /// By root context. An entry stays as long as the session, because the numbers of its credits must only rise.
    holders: HashMap<Epoch, Holder>,
    /// The number before the first credit of a root context.
    last_number: u64,
    /// Root contexts with places that weren't recalled.
    active: usize,
    /// Places that filters have, recalled ones included.
    given: u64,
    /// The last time at which a request waited.
    waited_at: Option<Instant>,
    /// A request waited after the last event.
    is_waiting: bool,
    /// The longest prompt that may go by credit, in bytes, and the time at which that was found out.
    longest_prompt: Option<(Instant, u64)>,
    /// The next renewal; `None` without a credit.
    renewal_at: Option<Instant>,
    /// How many root contexts are busy, and the time at which they were counted.
    busy: Option<(Instant, u64)>,
    /// The last time at which a root context lacked its part, and another one had more.
    lacked_at: Option<Instant>,
}

/// A root context's use of the pool, and its credit.
#[derive(Debug, Default)]
struct Holder {
    activity: Activity,
    /// The number of its last credit.
    id: u64,
    /// The places of that credit, by endpoint.
    places: Vec<(EndpointId, u64)>,
    /// The filter may requeue requests that it admits.
    may_requeue: bool,
    /// The credit was recalled, or its stream has ended: no place is added, and it isn't renewed.
    is_recalled: bool,
}

/// Requests in the present and the last span of [`ACTIVITY`].
#[derive(Debug, Default)]
struct Activity {
    since: Option<Instant>,
    present: u32,
    last: u32,
}

/// A credit to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewal {
    pub(super) credit: CreditId,
    /// The filter may requeue requests that it admits.
    pub(super) may_requeue: bool,
}

/// What can be lent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lendable<F> {
    /// Places at all endpoints together, with those that filters have.
    pub(super) in_all: u64,
    /// Free places at the endpoint of a request that was granted; `None`: that endpoint takes no credit.
    pub(super) here: F,
}

/// What becomes of a root context that has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Nothing,
    /// It gets places.
    Offer(Offer),
    /// Another one has the places that it should have, and must give its credit up.
    Recall(CreditId),
}

/// Places to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) number: u64,
    pub(super) places: u64,
    /// The root context had no credit.
    pub(super) is_new: bool,
    /// The filter may requeue requests that it admits.
    pub(super) may_requeue: bool,
}

impl Activity {
    fn record(&mut self, now: Instant) {
        self.advance(now);
        self.present = self.present.saturating_add(1);
    }

    fn advance(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.since(since);
        if elapsed < ACTIVITY {
            return;
        }
        self.last = if elapsed < ACTIVITY * 2 { self.present } else { 0 };
        self.present = 0;
        self.since = Some(now);
    }

    fn is_busy(&mut self, now: Instant, least: u32) -> bool {
        self.advance(now);
        self.present.max(self.last) >= least
    }
}

impl Holder {
    fn places(&self) -> u64 {
        self.places.iter().map(|(_, places)| places).sum()
    }

    fn is_active(&self) -> bool {
        !self.places.is_empty() && !self.is_recalled
    }

    fn has(&self, number: u64, endpoint: EndpointId) -> bool {
        let mut places = self.places.iter();
        self.id == number && places.any(|(id, places)| *id == endpoint && *places > 0)
    }
}

impl Credits {
    /// No credit. Nothing counts as waiting before. `generation`: how many pools were made before this one. A filter ignores a credit whose
    /// number doesn't rise, and the pool may have had the same name as this one.
    pub(super) fn new(generation: u64) -> Self {
        Self {
            holders: HashMap::new(),
            last_number: generation << 32,
            active: 0,
            given: 0,
            waited_at: None,
            is_waiting: false,
            longest_prompt: None,
            renewal_at: None,
            busy: None,
            lacked_at: None,
        }
    }

    /// Some credit was given and not recalled.
    pub(super) const fn is_any_active(&self) -> bool {
        self.active > 0
    }

    /// Places that filters have, recalled ones included.
    pub(super) const fn given(&self) -> u64 {
        self.given
    }

    /// Whether a request waits, after each event.
    pub(super) const fn note_wait(&mut self, now: Instant, is_waiting: bool) {
        if is_waiting || self.is_waiting {
            self.waited_at = Some(now);
        }
        self.is_waiting = is_waiting;
    }

    /// A request would have waited, and was rejected for it.
    pub(super) const fn note_lack(&mut self, now: Instant) {
        self.waited_at = Some(now);
    }

    /// The longest prompt that may go by credit, in bytes; `None`: that was found out too long ago, because it changes as the pool learns.
    pub(super) fn prompt_bytes_max(&self, now: Instant) -> Option<u64> {
        let (since, longest) = self.longest_prompt?;
        (now.since(since) < CREDIT_RENEWAL).then_some(longest)
    }

    pub(super) const fn set_prompt_bytes_max(&mut self, now: Instant, longest: u64) {
        self.longest_prompt = Some((now, longest));
    }

    pub(super) const fn forget_longest_prompt(&mut self) {
        self.longest_prompt = None;
    }

    /// A request of this root context was admitted without waiting.
    pub(super) fn record_use(&mut self, now: Instant, epoch: Epoch) {
        let id = self.last_number;
        let new = || Holder { id, ..Holder::default() };
        self.holders.entry(epoch).or_insert_with(new).activity.record(now);
    }

    /// What becomes of a root context that has just asked. It is busy with `least` requests in a second. What it has doubles each time, so
    /// that a few messages suffice whatever it needs; up to its part only, while another one has lacked its own lately.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        epoch: Epoch,
        least: u32,
        may_requeue: bool,
        lendable: Lendable<impl FnOnce() -> Option<u64>>,
    ) -> Answer {
        let is_calm = self.waited_at.is_none_or(|waited| now.since(waited) >= CALM);
        let Some(holder) = self.holders.get_mut(&epoch) else {
            return Answer::Nothing;
        };
        if !is_calm || holder.is_recalled || !holder.activity.is_busy(now, least) {
            return Answer::Nothing;
        }
        let (held, number, is_new) = (holder.places(), holder.id, holder.places.is_empty());
        let is_contended = self.lacked_at.is_some_and(|lacked_at| now.since(lacked_at) < CONTENDED);
        let part = self.part(now, least, lendable.in_all).min(CREDIT_MAX);
        let limit = if is_contended { part } else { CREDIT_MAX };
        let wanted = held.max(CREDIT_FIRST.min(part / 4).max(1)).min(limit.saturating_sub(held));
        let Some(room) = (lendable.here)().filter(|_| wanted > 0) else {
            return Answer::Nothing;
        };
        let places = wanted.min(room);
        if places > 0 {
            let number = number + u64::from(is_new);
            return Answer::Offer(Offer { number, places, is_new, may_requeue });
        }
        let recalled = (held < part).then(|| self.recall_more_than(now, part)).flatten();
        recalled.map_or(Answer::Nothing, Answer::Recall)
    }

    /// The part of each busy root context, if `in_all` places can be lent.
    fn part(&mut self, now: Instant, least: u32, in_all: u64) -> u64 {
        let counted = self.busy.filter(|(counted_at, _)| now.since(*counted_at) < COUNT_INTERVAL);
        let busy = counted.map_or_else(
            || {
                let holders = self.holders.values_mut();
                let busy = holders.map(|holder| u64::from(holder.activity.is_busy(now, least))).sum();
                self.busy = Some((now, busy));
                busy
            },
            |(_, busy)| busy,
        );
        (in_all / busy.max(1)).max(1)
    }

    /// Recalls the largest credit of more than `part` places, once in a while.
    fn recall_more_than(&mut self, now: Instant, part: u64) -> Option<CreditId> {
        if self.lacked_at.is_some_and(|lacked_at| now.since(lacked_at) < ACTIVITY) {
            return None;
        }
        let holders =
            self.holders.iter_mut().filter(|(_, holder)| holder.is_active() && holder.places() > part);
        let (&epoch, holder) = holders.max_by_key(|(epoch, holder)| (holder.places(), **epoch))?;
        holder.is_recalled = true;
        self.active -= 1;
        self.lacked_at = Some(now);
        Some(CreditId { epoch, number: holder.id })
    }

    /// The offer is made at this endpoint.
    pub(super) fn give(&mut self, now: Instant, epoch: Epoch, offer: Offer, endpoint: EndpointId) {
        let Some(holder) = self.holders.get_mut(&epoch) else {
            return;
        };
        holder.may_requeue = offer.may_requeue;
        if offer.is_new {
            holder.id = offer.number;
            self.active += 1;
        }
        self.given += offer.places;
        match holder.places.iter_mut().find(|(id, _)| *id == endpoint) {
            Some((_, places)) => *places += offer.places,
            None => holder.places.push((endpoint, offer.places)),
        }
        self.renewal_at.get_or_insert(now.after(CREDIT_RENEWAL));
    }

    /// A request runs on without its place. `false`: the root context has no such place.
    pub(super) fn consume(&mut self, credit: CreditId, endpoint: EndpointId) -> bool {
        let holder = self.holders.get_mut(&credit.epoch);
        let Some(holder) = holder.filter(|holder| holder.has(credit.number, endpoint)) else {
            return false;
        };
        let was_active = holder.is_active();
        self.given -= 1;
        for (id, places) in &mut holder.places {
            if *id == endpoint {
                *places -= 1;
            }
        }
        holder.places.retain(|(_, places)| *places > 0);
        if holder.places.is_empty() {
            // The credit is used up. A next one has a new number, for which the filter gives this one up.
            holder.is_recalled = false;
        }
        self.active -= usize::from(was_active && !holder.is_active());
        true
    }

    /// The filter has given up a credit. Returns its places.
    pub(super) fn returned(&mut self, credit: CreditId) -> Vec<(EndpointId, u64)> {
        let holder = self.holders.get_mut(&credit.epoch);
        let Some(holder) = holder.filter(|holder| holder.id == credit.number) else {
            return Vec::new();
        };
        self.active -= usize::from(holder.is_active());
        self.given -= holder.places();
        holder.is_recalled = false;
        core::mem::take(&mut holder.places)
    }

    /// The stream of a root context has ended: its credit isn't renewed. The places stay until [`Self::end`].
    pub(super) fn suspend(&mut self, epoch: Epoch) {
        if let Some(holder) = self.holders.get_mut(&epoch) {
            self.active -= usize::from(holder.is_active());
            holder.is_recalled = true;
        }
    }

    /// The credit of a root context has ended with its stream: the filter has listed what runs, or is gone. Returns its places.
    pub(super) fn end(&mut self, epoch: Epoch) -> Vec<(EndpointId, u64)> {
        let Some(holder) = self.holders.remove(&epoch) else {
            return Vec::new();
        };
        self.active -= usize::from(holder.is_active());
        self.given -= holder.places();
        holder.places
    }

    /// Recalls the credits that have a place at an endpoint for which `must_go` is true. Returns them.
    pub(super) fn recall(&mut self, must_go: impl Fn(EndpointId) -> bool) -> Vec<CreditId> {
        if self.active == 0 {
            return Vec::new();
        }
        let mut recalled = Vec::new();
        for (&epoch, holder) in &mut self.holders {
            let number = holder.id;
            if holder.is_active() && holder.places.iter().any(|(id, _)| must_go(*id)) {
                holder.is_recalled = true;
                self.active -= 1;
                recalled.push(CreditId { epoch, number });
            }
        }
        recalled.sort_unstable_by_key(|credit| credit.epoch);
        recalled
    }

    /// The filter was asked for this credit and still has places of it.
    pub(super) fn is_recalled(&self, credit: CreditId) -> bool {
        let holder = self.holders.get(&credit.epoch);
        holder.is_some_and(|holder| {
            holder.id == credit.number && holder.is_recalled && !holder.places.is_empty()
        })
    }

    /// When [`Self::take_renewals`] is due.
    pub(super) const fn renewal_at(&self) -> Option<Instant> {
        self.renewal_at
    }

    /// The credits to renew, if that is due: those of root contexts that were busy. The others expire at their filters.
    pub(super) fn take_renewals(&mut self, now: Instant, least: u32) -> Vec<Renewal> {
        if self.renewal_at.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.renewal_at = (self.active > 0).then(|| now.after(CREDIT_RENEWAL));
        let mut renewed = Vec::new();
        for (&epoch, holder) in &mut self.holders {
            if holder.is_active() && holder.activity.is_busy(now, least) {
                renewed.push(Renewal {
                    credit: CreditId { epoch, number: holder.id },
                    may_requeue: holder.may_requeue,
                });
            }
        }
        renewed.sort_unstable_by_key(|renewal| renewal.credit.epoch);
        renewed
    }

    /// The places at each endpoint, summed over the root contexts, in the order of the endpoints.
    pub(super) fn by_endpoint(&self) -> Vec<(EndpointId, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        for (id, places) in self.holders.values().flat_map(|holder| &holder.places) {
            *sums.entry(*id).or_default() += places;
        }
        sums.into_iter().collect()
    }

    /// The counters agree with the entries, nothing is empty, and credits are renewed as long as there are any.
    pub(super) fn audit(&self) -> bool {
        let active = self.holders.values().filter(|holder| holder.is_active()).count();
        let given: u64 = self.holders.values().map(Holder::places).sum();
        let mut places = self.holders.values().flat_map(|holder| &holder.places);
        active == self.active
            && given == self.given
            && (active == 0 || self.renewal_at.is_some())
            && places.all(|(_, places)| *places > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: u32 = 4;
    const HERE: EndpointId = EndpointId(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO.after(Duration::from_millis(ms))
    }

    fn epoch() -> Epoch {
        Epoch::from_bits(7)
    }

    fn credit(number: u64) -> CreditId {
        CreditId { epoch: epoch(), number }
    }

    /// A busy root context at 0 ms.
    fn busy() -> Credits {
        let mut credits = Credits::new(0);
        for _ in 0..BUSY {
            credits.record_use(at(0), epoch());
        }
        credits
    }

    fn give(credits: &mut Credits, ms: u64, room: u64) -> Option<u64> {
        give_to(credits, ms, epoch(), room)
    }

    /// There is `room` for so many places more.
    fn give_to(credits: &mut Credits, ms: u64, epoch: Epoch, room: u64) -> Option<u64> {
        let Answer::Offer(offer) = ask(credits, ms, epoch, room) else {
            return None;
        };
        credits.give(at(ms), epoch, offer, HERE);
        assert!(credits.audit());
        Some(offer.places)
    }

    fn ask(credits: &mut Credits, ms: u64, epoch: Epoch, room: u64) -> Answer {
        let lendable = Lendable { in_all: credits.given.saturating_add(room), here: || Some(room) };
        credits.answer(at(ms), epoch, BUSY, true, lendable)
    }

    #[test]
    fn only_a_busy_root_context_gets_credit_and_it_doubles_within_the_room() {
        let mut credits = Credits::new(0);
        for _ in 1..BUSY {
            credits.record_use(at(0), epoch());
        }
        assert_eq!(give(&mut credits, 0, 99), None);
        credits.record_use(at(0), epoch());
        assert_eq!(give(&mut credits, 0, 99), Some(CREDIT_FIRST));
        assert_eq!(give(&mut credits, 0, 99), Some(CREDIT_FIRST));
        assert_eq!(give(&mut credits, 0, 99), Some(2 * CREDIT_FIRST));
        assert_eq!(give(&mut credits, 0, 3), Some(3));
        assert_eq!(give(&mut credits, 0, 0), None);
        assert_eq!(credits.by_endpoint(), [(HERE, 4 * CREDIT_FIRST + 3)]);
    }

    #[test]
    fn one_root_context_holds_at_most_the_limit() {
        let mut credits = busy();
        while give(&mut credits, 0, u64::MAX).is_some() {}
        assert_eq!(credits.given(), CREDIT_MAX);
    }

    #[test]
    fn activity_is_forgotten_after_two_spans() {
        let mut credits = busy();
        assert!(give(&mut credits, 1_999, 9).is_some());
        let mut credits = busy();
        assert!(give(&mut credits, 2_000, 9).is_none());
    }

    #[test]
    fn no_credit_is_given_within_a_second_after_a_wait() {
        let mut credits = busy();
        credits.note_wait(at(100), true);
        credits.note_wait(at(500), false);
        assert_eq!(give(&mut credits, 1_499, 99), None, "it waited until then");
        assert_eq!(give(&mut credits, 1_500, 99), Some(CREDIT_FIRST));
    }

    #[test]
    fn a_returned_credit_gives_its_places_back_once_and_the_next_has_another_number() {
        let mut credits = busy();
        give(&mut credits, 0, 99);
        assert_eq!(credits.returned(credit(2)), []);
        assert_eq!(credits.recall(|id| id == HERE), [credit(1)]);
        assert_eq!(credits.recall(|_| true), [], "it is recalled once");
        assert_eq!(give(&mut credits, 0, 9), None, "nothing is added to a recalled credit");
        assert_eq!(credits.returned(credit(1)), [(HERE, CREDIT_FIRST)]);
        assert_eq!(credits.returned(credit(1)), []);
        let next = ask(&mut credits, 0, epoch(), 99);
        let offer = Offer { number: 2, places: CREDIT_FIRST, is_new: true, may_requeue: true };
        assert_eq!(next, Answer::Offer(offer));
    }

    #[test]
    fn a_consumed_place_is_gone_and_an_unknown_one_changes_nothing() {
        let mut credits = busy();
        assert_eq!([give(&mut credits, 0, 2), give(&mut credits, 0, 1)], [Some(1), Some(1)]);
        assert!(!credits.consume(credit(1), EndpointId(2)) && !credits.consume(credit(2), HERE));
        assert!(credits.consume(credit(1), HERE) && credits.consume(credit(1), HERE));
        assert!(!credits.consume(credit(1), HERE) && credits.given() == 0);
        assert!(!credits.is_any_active() && credits.audit());
        assert_eq!(credits.returned(credit(1)), []);
    }

    #[test]
    fn credits_of_busy_root_contexts_are_renewed() {
        let mut credits = busy();
        give(&mut credits, 0, 9);
        assert_eq!(credits.renewal_at(), Some(at(1_000)));
        assert_eq!(credits.take_renewals(at(999), BUSY), []);
        let renewal = Renewal { credit: credit(1), may_requeue: true };
        assert_eq!(credits.take_renewals(at(1_000), BUSY), [renewal]);
        assert_eq!(credits.take_renewals(at(2_000), BUSY), [], "it was idle for a span");
        credits.returned(credit(1));
        credits.take_renewals(at(3_000), BUSY);
        assert_eq!(credits.renewal_at(), None, "there is no credit any more");
    }

    /// So many busy root contexts at a time, beside the first one.
    fn busy_too(credits: &mut Credits, ms: u64, epochs: core::ops::Range<u128>) {
        for _ in 0..BUSY {
            for other in epochs.clone() {
                credits.record_use(at(ms), Epoch::from_bits(other));
            }
        }
    }

    /// What each of the root contexts gets of `room` places. Each asks again as long as it gets something, one after the other.
    fn lent(credits: &mut Credits, ms: u64, contexts: u128, room: u64) -> Vec<u64> {
        let mut left = room;
        let mut parts = Vec::new();
        for other in 1..=contexts {
            let mut part = 0;
            while let Some(places) = give_to(credits, ms, Epoch::from_bits(other), left) {
                (left, part) = (left - places, part + places);
            }
            parts.push(part);
        }
        parts
    }

    #[test]
    fn while_one_has_lacked_its_part_all_keep_to_parts_of_a_place_at_least() {
        for (room, contexts, parts) in [
            (4, 2, vec![2, 2]),
            (2, 2, vec![1, 1]),
            (3, 2, vec![1, 1]),
            (10, 6, vec![1; 6]),
            (24, 12, vec![2; 12]),
            (3, 4, vec![1, 1, 1, 0]),
        ] {
            let mut credits = Credits::new(0);
            busy_too(&mut credits, 0, 1..contexts + 1);
            credits.lacked_at = Some(at(0));
            assert_eq!(
                lent(&mut credits, 0, contexts, room),
                parts,
                "{room} places, {contexts} root contexts"
            );
        }
        // Ten seconds later one may have all again.
        let mut credits = Credits::new(0);
        credits.lacked_at = Some(at(0));
        busy_too(&mut credits, 10_000, 1..3);
        assert_eq!(lent(&mut credits, 10_000, 2, 4), [4, 0]);
    }

    #[test]
    fn one_that_has_more_than_its_part_gives_it_up_for_one_that_lacks_its_own() {
        let mut credits = busy();
        assert_eq!([4, 3, 2].map(|room| give(&mut credits, 0, room)), [Some(1), Some(1), Some(2)]);
        let second = Epoch::from_bits(8);
        busy_too(&mut credits, 300, 7..9);
        assert_eq!(ask(&mut credits, 300, second, 0), Answer::Recall(credit(1)));
        assert_eq!(ask(&mut credits, 300, second, 0), Answer::Nothing, "it is on its way");
        assert!(credits.audit());
        assert_eq!(credits.returned(credit(1)), [(HERE, 4)]);
        assert_eq!([4, 3, 2].map(|room| give(&mut credits, 300, room)), [Some(1), Some(1), None], "its part");
        assert_eq!([2, 1].map(|room| give_to(&mut credits, 300, second, room)), [Some(1), Some(1)]);
        // No root context has more than its part, so no credit is recalled for one that wants more.
        assert_eq!(ask(&mut credits, 1_400, second, 0), Answer::Nothing);
    }

    #[test]
    fn a_lost_stream_keeps_the_places_until_the_end() {
        let mut credits = busy();
        give(&mut credits, 0, 99);
        credits.suspend(epoch());
        assert_eq!((credits.is_any_active(), credits.given()), (false, CREDIT_FIRST));
        assert_eq!(credits.recall(|_| true), []);
        assert_eq!(credits.end(epoch()), [(HERE, CREDIT_FIRST)]);
        assert_eq!(credits.end(epoch()), []);
        assert!(credits.audit());
    }
}
