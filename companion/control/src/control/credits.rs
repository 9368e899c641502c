//! Reports of requests that filters admitted by credit, and credits that filters give up.
//!
//! | the report says | not known here | known here, or under another key | ended here |
//! |---|---|---|---|
//! | it runs | count it in place of one place | take the place away | take the place away |
//! | it has ended | count it beside the credit, and end it | as `Completed` | ignore it |

use penstock_engine::Instant;
use penstock_wire as wire;

use super::Control;
use crate::ids::{ConnId, CreditId, Epoch, PoolId, RequestKey};
use crate::limits::{RECALL_WAIT, REQUESTS_IN_ALL_MAX, REQUESTS_MAX};
use crate::pool::PoolInput;
use crate::registration::{Arrival, CreditPlace, Registration, Running};
use crate::timers::Timer;
use crate::wire_in;

impl Control {
    /// A filter reports a request that it admitted by credit.
    pub(super) fn admitted(&mut self, now: Instant, epoch: Epoch, admitted: &wire::Admitted) {
        let Some(running) = &admitted.running else {
            return;
        };
        let Some(register) = &running.register else {
            return;
        };
        let registration = wire_in::registration(epoch, register);
        let key = registration.key;
        let place =
            CreditPlace { credit: CreditId { epoch, number: admitted.credit }, endpoint: &running.endpoint };
        let arrival = |place, end| Arrival::ByCredit { running: wire_in::running(running), place, end };
        let has_ended = self.has_ended(key);
        let is_open = self.find(key).is_some();
        let is_known = is_open || has_ended || self.aliases.contains(key);
        match &admitted.completed {
            Some(completed) => {
                let completion = wire_in::completion(completed);
                if !is_known {
                    self.register(now, registration, arrival(None, Some(&completion)));
                }
                self.completed(now, key, &completion);
            }
            None => {
                if !is_known {
                    self.register(now, registration, arrival(Some(place), None));
                }
                if is_known || self.find(key).is_none() {
                    // The place is gone, whatever became of the request.
                    self.consume_place(now, &running.pool, place);
                }
                if is_open && running.started {
                    self.started_by_credit(now, key, running);
                }
            }
        }
    }

    fn consume_place(&mut self, now: Instant, pool: &str, place: CreditPlace<'_>) {
        if let Some(pool) = self.pools.named(pool) {
            self.drive_pool(now, pool, PoolInput::CreditConsumed(place));
        }
    }

    /// The response of a request that was known by a Hello has begun.
    fn started_by_credit(&mut self, now: Instant, key: RequestKey, running: &wire::Running) {
        if let Some(route) = self.find(key) {
            let input = PoolInput::Started {
                id: route.id,
                endpoint: wire_in::non_empty(&running.endpoint),
                status: 0,
                attempts: 1,
                has_first_token: running.first_token,
            };
            self.drive_pool(now, route.pool, input);
        }
    }

    /// A filter gives up a credit. One that isn't in force changes nothing.
    pub(super) fn credit_returned(&mut self, now: Instant, epoch: Epoch, returned: &wire::CreditReturned) {
        let credit = CreditId { epoch, number: returned.credit };
        if let Some(pool) = self.pools.named(&returned.pool) {
            self.drive_pool(now, pool, PoolInput::CreditReturned(credit));
        }
    }

    /// A credit of this pool was recalled: its filter must give it up. Until then its places count as stock, so a filter that
    /// doesn't answer would keep them from all others.
    pub(super) fn await_return(&mut self, pool: PoolId, credit: CreditId) {
        let context = self.contexts.get(&credit.epoch);
        if let Some(conn) = context.and_then(|context| context.conn) {
            let due = self.last_event_at.after(RECALL_WAIT);
            self.timers.set(due, Timer::Recall(conn, pool, credit));
        }
    }

    /// Closes a stream whose filter was asked for a credit and still has it. The filter's next Hello lists what runs, which ends
    /// the credit; without one the grace period does.
    pub(super) fn check_recall(&mut self, now: Instant, conn: ConnId, pool: PoolId, credit: CreditId) {
        let context = self.contexts.get(&credit.epoch);
        let is_open = context.is_some_and(|context| context.conn == Some(conn));
        let pool_of_credit = self.pools.get(pool);
        if !is_open || !pool_of_credit.is_some_and(|pool| pool.is_recalled(credit)) {
            return;
        }
        // What arrived while this process was suspended may not be read yet.
        let due = self.woken_at.after(RECALL_WAIT);
        if now < due {
            self.timers.set(due, Timer::Recall(conn, pool, credit));
        } else {
            self.close(now, conn, "it has not returned a recalled credit for 10s");
        }
    }

    /// The stream of a root context has ended. Its filter uses no credit after it has sent its next Hello.
    pub(super) fn suspend_credits(&mut self, now: Instant, epoch: Epoch) {
        for pool in self.pools.ids() {
            self.drive_pool(now, pool, PoolInput::CreditSuspended(epoch));
        }
    }

    /// The filter of a root context has listed its requests in a Hello, or is gone.
    pub(super) fn end_credits(&mut self, now: Instant, epoch: Epoch) {
        for pool in self.pools.ids() {
            self.drive_pool(now, pool, PoolInput::CreditEnded(epoch));
        }
    }

    /// If a request comes in again that its filter admitted by credit, and that isn't known here, it is counted under its previous key
    /// first, beside the credit. From then on it goes the way of every requeued request.
    pub(super) fn count_by_credit(
        &mut self,
        now: Instant,
        registration: &Registration<'_>,
        arrival: Arrival<'_>,
    ) {
        let (Arrival::New, Some(endpoint), Some(previous)) =
            (arrival, registration.credit_endpoint, registration.previous_key)
        else {
            return;
        };
        let is_known =
            self.find(previous).is_some() || self.aliases.contains(previous) || self.has_ended(previous);
        if is_known || !self.is_same_envoy(previous, registration.key) {
            return;
        }
        let context = self.contexts.get(&previous.epoch);
        let has_place = context.is_some_and(|context| context.requests.len() < REQUESTS_MAX)
            && self.open_requests < REQUESTS_IN_ALL_MAX;
        if !has_place || !registration.is_within_limits || self.pools.serving(registration.model).is_none() {
            // It is turned away under its new key, with an answer.
            return;
        }
        let first = Registration {
            key: previous,
            is_moved: false,
            previous_key: None,
            credit_endpoint: None,
            failed_attempt: None,
            requeues: 0,
            ..registration.clone()
        };
        let arrival = Arrival::ByCredit {
            running: Running {
                pool: "",
                endpoint,
                age: core::time::Duration::ZERO,
                has_begun: false,
                has_first_token: false,
                prefill_endpoint: None,
            },
            place: None,
            end: None,
        };
        self.register(now, first, arrival);
    }
}
