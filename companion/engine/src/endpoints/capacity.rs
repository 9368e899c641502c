//! Predictions from the ready endpoints: their full bound, their rate, and the time to a first token.

use alloc::vec::Vec;
use core::time::Duration;

use super::Endpoints;
use crate::endpoint::Endpoint;
use crate::gate::{Bounds, Limits, Share};
use crate::input::EndpointId;
use crate::load::Load;
use crate::policy::Gate;

impl Endpoints {
    /// The upper bound over the ready endpoints without slow starts and foreign requests; `None` without bounds.
    pub(crate) fn full_bound(&self) -> Option<u64> {
        let mut sum = Share::default();
        for endpoint in self.iter().filter(|endpoint| endpoint.ready) {
            sum += endpoint.share_within(self.gate, Limits::default());
        }
        match self.gate {
            Gate::Open | Gate::Manual => None,
            Gate::Auto { .. } | Gate::Bounded { .. } => Some(Bounds::over(self.gate, sum).upper),
        }
    }

    /// Requests per second that the ready endpoints serve, by their performance models; `None` if one of them has no
    /// model, because the sum would be too low.
    pub(crate) fn rate(&self) -> Option<f64> {
        let ready = self.iter().filter(|endpoint| endpoint.ready);
        let rate: f64 = ready.map(Endpoint::rate).sum::<Option<f64>>()?;
        (rate > 0.0).then_some(rate)
    }

    /// The least predicted time to the first token of `more`, the load at each endpoint, over the ready endpoints of
    /// `eligible` (`None`: of the pool); `None` if one of them has no prediction.
    pub(crate) fn first_token(
        &self,
        eligible: Option<&[EndpointId]>,
        more: impl Fn(&Endpoint) -> Load,
    ) -> Option<Duration> {
        let first = |endpoint: &Endpoint| endpoint.first_token(&more(endpoint));
        let ready = |endpoint: &&Endpoint| endpoint.ready;
        let least = |all: Option<Vec<Duration>>| all?.into_iter().min();
        match eligible {
            None => least(self.iter().filter(ready).map(first).collect()),
            Some(eligible) => {
                let endpoints = eligible.iter().filter_map(|&id| self.get(id));
                least(endpoints.filter(ready).map(first).collect())
            }
        }
    }
}
