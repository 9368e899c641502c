//! What reached this server, for tests that count at the server and not at the client.
//!
//! The latest [`ENTRIES_MAX`] requests; older ones are forgotten and counted.

use std::collections::{BTreeMap, VecDeque};

use penstock_engine::Instant;
use serde::Serialize;

/// Requests that are remembered.
pub(super) const ENTRIES_MAX: usize = 65_536;
/// Tenants that are counted one by one.
const TENANTS_MAX: usize = 1_024;

/// `/mock/log`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Log {
    stats: Stats,
    /// Requests served, by tenant; at most [`TENANTS_MAX`], then `other`. One that names none is `anonymous`.
    served_by_tenant: BTreeMap<String, u64>,
    /// Requests that were forgotten.
    forgotten: u64,
    /// In order of arrival.
    requests: VecDeque<Entry>,
}

/// `/mock/stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Requests that are here now.
    pub in_flight: u64,
    /// The most that were here at a time.
    pub peak: u64,
    /// Requests that got their whole answer.
    pub served: u64,
    /// Requests whose client left before.
    pub cancelled: u64,
    /// Requests that were taken from no client: malformed, too long, for a model that isn't served.
    pub refused: u64,
}

/// What is known of a request when it arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Seen {
    pub(super) path: &'static str,
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) request_id: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) priority: Option<String>,
    /// Every x-gateway-* and x-penstock-* header.
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize)]
struct Entry {
    /// From 0, in order of arrival.
    order: u64,
    request: Seen,
    input_tokens: u64,
    output_tokens: u64,
    /// Requests that were here right after its arrival, itself included.
    in_flight: u64,
    state: State,
    /// Since the server's start, like the others.
    arrived_ms: f64,
    first_token_ms: Option<f64>,
    ended_ms: Option<f64>,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    InFlight,
    Served,
    Cancelled,
}

impl Log {
    /// A request is here; the orders are given without gaps. Gives the requests in flight, this one included.
    pub(super) fn arrived(&mut self, now: Instant, order: u64, seen: Seen, input_tokens: u64) -> u64 {
        self.stats.in_flight += 1;
        self.stats.peak = self.stats.peak.max(self.stats.in_flight);
        let in_flight = self.stats.in_flight;
        self.requests.push_back(Entry {
            order,
            request: seen,
            input_tokens,
            output_tokens: 0,
            in_flight,
            state: State::InFlight,
            arrived_ms: ms(now),
            first_token_ms: None,
            ended_ms: None,
        });
        if self.requests.len() > ENTRIES_MAX {
            self.requests.pop_front();
            self.forgotten += 1;
        }
        in_flight
    }

    pub(super) fn token(&mut self, at: Instant, order: u64) {
        if let Some(entry) = self.entry(order) {
            entry.output_tokens += 1;
            entry.first_token_ms.get_or_insert(ms(at));
        }
    }

    pub(super) fn served(&mut self, at: Instant, order: u64, tenant: String) {
        self.stats.served += 1;
        let full = self.served_by_tenant.len() >= TENANTS_MAX && !self.served_by_tenant.contains_key(&tenant);
        let tenant = if full { "other".to_owned() } else { tenant };
        *self.served_by_tenant.entry(tenant).or_default() += 1;
        self.ended(at, order, State::Served);
    }

    pub(super) fn cancelled(&mut self, at: Instant, order: u64) {
        self.stats.cancelled += 1;
        self.ended(at, order, State::Cancelled);
    }

    pub(super) fn refused(&mut self) {
        self.stats.refused += 1;
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    pub(super) fn served_by_tenant(&self) -> BTreeMap<String, u64> {
        self.served_by_tenant.clone()
    }

    fn ended(&mut self, at: Instant, order: u64, state: State) {
        self.stats.in_flight -= 1;
        if let Some(entry) = self.entry(order) {
            entry.state = state;
            entry.ended_ms = Some(ms(at));
        }
    }

    fn entry(&mut self, order: u64) -> Option<&mut Entry> {
        let first = self.requests.front()?.order;
        self.requests
            .get_mut(usize::try_from(order.checked_sub(first)?).ok()?)
    }
}

fn ms(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_is_forgotten_and_what_is_kept_keeps_its_order() {
        let mut log = Log::default();
        let more = 10;
        for order in 0..(ENTRIES_MAX + more) as u64 {
            assert_eq!(log.arrived(Instant::ZERO, order, Seen::default(), 1), order + 1);
        }
        log.served(Instant::ZERO, 0, "a".to_owned());
        log.cancelled(Instant::ZERO, more as u64);
        assert_eq!((log.requests.len(), log.forgotten), (ENTRIES_MAX, more as u64));
        assert_eq!(
            (log.requests[0].order, log.requests[0].state),
            (more as u64, State::Cancelled)
        );
        let stats = log.stats();
        assert_eq!(
            (stats.peak, stats.served, stats.cancelled),
            ((ENTRIES_MAX + more) as u64, 1, 1)
        );
        assert_eq!(stats.in_flight, stats.peak - 2);
    }
}
