//! Record of the requests that reached this server, so that tests can count at the server instead of the client.
//!
//! Keeps the latest [`ENTRIES_MAX`] requests and counts the ones it dropped.

use std::collections::{BTreeMap, VecDeque};

use penstock_engine::Instant;
use serde::Serialize;

/// Requests that are kept.
pub(super) const ENTRIES_MAX: usize = 65_536;
/// Tenants that are counted separately.
const TENANTS_MAX: usize = 1_024;

/// `/mock/log`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Log {
    stats: Stats,
    /// Served requests by tenant. From [`TENANTS_MAX`] on, new tenants count as `other`; no tenant is `anonymous`.
    served_by_tenant: BTreeMap<String, u64>,
    /// Number of dropped entries.
    forgotten: u64,
    /// In order of arrival.
    requests: VecDeque<Entry>,
}

/// `/mock/stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Requests at the server now.
    pub in_flight: u64,
    /// The most requests at a time.
    pub peak: u64,
    /// Requests with a complete response.
    pub served: u64,
    /// Requests whose client disconnected before the response was complete.
    pub cancelled: u64,
    /// Rejected requests: malformed, too long, or for an unknown model.
    pub refused: u64,
}

/// Properties of a request at its arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct RequestInfo {
    pub(super) path: &'static str,
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) request_id: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) priority: Option<String>,
    /// All x-gateway-* and x-penstock-* headers.
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize)]
struct Entry {
    /// Position in the order of arrival, from 0.
    order: u64,
    request: RequestInfo,
    input_tokens: u64,
    output_tokens: u64,
    /// Requests at the server right after this one's arrival, including this one.
    in_flight: u64,
    state: State,
    /// Milliseconds since the server's start, as all times here.
    arrived_ms: f64,
    first_token_ms: Option<f64>,
    ended_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    InFlight,
    Served,
    Cancelled,
}

impl Log {
    /// Records an arrival. Orders must be consecutive. Returns the requests in flight, including this one.
    pub(super) fn arrived(&mut self, now: Instant, order: u64, info: RequestInfo, input_tokens: u64) -> u64 {
        self.stats.in_flight += 1;
        self.stats.peak = self.stats.peak.max(self.stats.in_flight);
        let in_flight = self.stats.in_flight;
        self.requests.push_back(Entry {
            order,
            request: info,
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

    pub(super) fn token(&mut self, time: Instant, order: u64) {
        if let Some(entry) = self.entry(order) {
            entry.output_tokens += 1;
            entry.first_token_ms.get_or_insert(ms(time));
        }
    }

    pub(super) fn served(&mut self, time: Instant, order: u64, tenant: String) {
        self.stats.served += 1;
        let full = self.served_by_tenant.len() >= TENANTS_MAX && !self.served_by_tenant.contains_key(&tenant);
        let tenant = if full { "other".to_owned() } else { tenant };
        *self.served_by_tenant.entry(tenant).or_default() += 1;
        self.ended(time, order, State::Served);
    }

    pub(super) fn cancelled(&mut self, time: Instant, order: u64) {
        self.stats.cancelled += 1;
        self.ended(time, order, State::Cancelled);
    }

    pub(super) fn count_refused(&mut self) {
        self.stats.refused += 1;
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    pub(super) fn served_by_tenant(&self) -> BTreeMap<String, u64> {
        self.served_by_tenant.clone()
    }

    fn ended(&mut self, time: Instant, order: u64, state: State) {
        self.stats.in_flight -= 1;
        if let Some(entry) = self.entry(order) {
            entry.state = state;
            entry.ended_ms = Some(ms(time));
        }
    }

    fn entry(&mut self, order: u64) -> Option<&mut Entry> {
        let first = self.requests.front()?.order;
        self.requests.get_mut(usize::try_from(order.checked_sub(first)?).ok()?)
    }
}

fn ms(time: Instant) -> f64 {
    time.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_entries_are_dropped_and_counted() {
        let mut log = Log::default();
        let more = 10;
        for order in 0..(ENTRIES_MAX + more) as u64 {
            assert_eq!(log.arrived(Instant::ZERO, order, RequestInfo::default(), 1), order + 1);
        }
        log.served(Instant::ZERO, 0, "a".to_owned());
        log.cancelled(Instant::ZERO, more as u64);
        assert_eq!((log.requests.len(), log.forgotten), (ENTRIES_MAX, more as u64));
        assert_eq!((log.requests[0].order, log.requests[0].state), (more as u64, State::Cancelled));
        let stats = log.stats();
        assert_eq!((stats.peak, stats.served, stats.cancelled), ((ENTRIES_MAX + more) as u64, 1, 1));
        assert_eq!(stats.in_flight, stats.peak - 2);
    }
}
