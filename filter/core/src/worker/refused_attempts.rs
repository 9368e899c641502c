//! Attempts that a server failed: by a status after which Envoy sends the request again, by a cut connection, or by silence. And attempts that
//! never left Envoy, because it had no file descriptor for a connection.
//!
//! Envoy reports nothing to the filter about an attempt that it repeats, except by its access log of attempts, which has no context of
//! the request's stream. The log entry is matched to its request by `x-request-id`, by the latest grant if several requests share
//! an id: a request that was requeued runs under the same id as before.

use core::hash::Hasher;
use std::collections::BTreeMap;

use penstock_wire::AttemptFailed;
use penstock_wire::filter_frame::Event;
use siphasher::sip::SipHasher13;

use super::Worker;
use crate::exchange::{Exchange, Granted, Phase};
use crate::headers::Headers;
use crate::limits::{REQUEST_ID_BYTES_MAX, RETRY_AFTER_TEXT_BYTES_MAX};
use crate::properties::{Properties, lacked_socket, ran_out_of_time, upstream_address, was_cut, was_reused};
use crate::session::Epoch;
use crate::time::Instant;

/// The granted requests that a server may refuse, by `x-request-id`.
#[derive(Debug)]
pub(super) struct GrantedIds {
    /// The key of the hash, which no client knows.
    key: Epoch,
    /// The sequence of the latest grant, by the hash of the id.
    sequences: BTreeMap<u64, u64>,
}

impl GrantedIds {
    pub(super) const fn new(key: Epoch) -> Self {
        Self { key, sequences: BTreeMap::new() }
    }

    fn hash(&self, request_id: &str) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.hi, self.key.lo);
        hasher.write(request_id.as_bytes());
        hasher.finish()
    }

    /// `exchange` is granted.
    pub(super) fn insert(&mut self, exchange: &Exchange) {
        let request_id = &exchange.register.request_id;
        if !request_id.is_empty() {
            let hash = self.hash(request_id);
            self.sequences.insert(hash, exchange.register.sequence);
        }
    }

    /// `exchange`, which was granted, has ended.
    pub(super) fn remove(&mut self, exchange: &Exchange) {
        let hash = self.hash(&exchange.register.request_id);
        if self.sequences.get(&hash) == Some(&exchange.register.sequence) {
            self.sequences.remove(&hash);
        }
    }

    fn find(&self, request_id: &str) -> Option<u64> {
        self.sequences.get(&self.hash(request_id)).copied()
    }
}

impl Worker {
    /// Envoy writes the log entry of one attempt to send a request upstream. `request` and `response` are the headers of the
    /// attempt, and `host` has its properties.
    pub fn handle_attempt_log(
        &mut self,
        now: Instant,
        request: Headers<'_>,
        response: Headers<'_>,
        host: &impl Properties,
    ) {
        let status = response.text(":status", 3).and_then(|status| status.parse().ok()).unwrap_or(0);
        let Some((exchange, granted)) = self.granted_exchange(request) else {
            return;
        };
        let Some(event) = failed_attempt(exchange, granted, status, response, host) else {
            let (epoch, sequence) = (self.grant_headers.epoch, exchange.register.sequence);
            self.failed_attempts.end(epoch, sequence, upstream_address(host).as_deref());
            return;
        };
        // The requeue listener's own answer is that of another exchange.
        if event.endpoint.is_empty() || Some(&event.endpoint) == self.requeue_listener.as_ref() {
            return;
        }
        self.failed_attempts.insert(self.grant_headers.epoch, event.clone());
        self.report_failed_attempt(now, event);
    }

    /// Reports a failed attempt.
    pub(super) fn report_failed_attempt(&mut self, now: Instant, event: AttemptFailed) {
        // The companion lowers the endpoint's bound only for a request that it knows.
        self.report_admission(now, event.sequence);
        let pool = event.pool.clone();
        self.sessions.of_mut(Some(&pool)).send_once(now, Event::AttemptFailed(event));
    }

    fn granted_exchange(&self, request: Headers<'_>) -> Option<(&Exchange, &Granted)> {
        let request_id = request.text("x-request-id", REQUEST_ID_BYTES_MAX)?;
        let exchange = self.exchanges.get(&self.granted_ids.find(&request_id)?)?;
        match &exchange.phase {
            Phase::Granted(granted) if exchange.register.request_id == request_id => {
                Some((exchange, granted))
            }
            Phase::Granted(_)
            | Phase::ReadingBody(_)
            | Phase::Waiting { .. }
            | Phase::KeptAlive
            | Phase::Answered => None,
        }
    }
}

/// The report of an attempt that a server refused or cut, that never left Envoy, or whose time ran out. `status`: 0 if no server answered.
/// `None`: it ended otherwise.
pub(super) fn failed_attempt(
    exchange: &Exchange,
    granted: &Granted,
    status: u32,
    response: Headers<'_>,
    host: &impl Properties,
) -> Option<AttemptFailed> {
    let requeue_on = exchange.requeue_on().for_grant(false, granted.retries_not_found);
    let cut = status == 0 && was_cut(host);
    let lacked_socket = status == 0 && !cut && lacked_socket(host);
    let timed_out = status == 0 && !cut && !lacked_socket && ran_out_of_time(host);
    if !cut && !lacked_socket && !timed_out && !requeue_on.contains(status) {
        return None;
    }
    let retry_after = response.text("retry-after", RETRY_AFTER_TEXT_BYTES_MAX).filter(|_| status != 0);
    let retry_after = retry_after.and_then(|seconds| seconds.trim().parse::<u64>().ok());
    Some(AttemptFailed {
        sequence: exchange.register.sequence,
        endpoint: upstream_address(host).unwrap_or_default(),
        status,
        retry_after_ms: retry_after.map(|seconds| seconds.saturating_mul(1_000)),
        pool: granted.pool.clone(),
        cut,
        reused: cut && was_reused(host),
        timed_out,
    })
}
