//! Pushback: an endpoint that refuses a request by itself is bounded by what it had in flight. The bound grows by one with
//! each request that it serves, until the gate's bound holds again.

/// The bound that the endpoint's refusals set.
#[derive(Debug, Default)]
pub(crate) struct Pushback(Option<u64>);

impl Pushback {
    /// The most requests at a time; `None`: it has refused none since the gate's bound held.
    pub(crate) const fn limit(&self) -> Option<u64> {
        self.0
    }

    /// The endpoint refused a request while it had so many others in flight.
    pub(super) fn refused(&mut self, in_flight: u64) {
        let in_flight = in_flight.max(1);
        self.0 = Some(self.0.map_or(in_flight, |limit| limit.min(in_flight)));
    }

    pub(super) fn served(&mut self) {
        self.0 = self.0.map(|limit| limit.saturating_add(1));
    }

    /// Ends a pushback whose limit doesn't lower the endpoint's bound.
    pub(super) fn end_unless(&mut self, lowers: impl FnOnce(u64) -> bool) {
        self.0 = self.0.filter(|&limit| lowers(limit));
    }
}
