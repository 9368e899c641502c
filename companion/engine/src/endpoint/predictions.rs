//! What an endpoint's allowance predicts for one request more.

use core::time::Duration;

use super::Endpoint;
use crate::allowance::{InFlight, Rank};
use crate::load::Load;

impl Endpoint {
    /// The rank with `more` under [`crate::policy::Gate::Auto`], for an endpoint with room; `None` if `more` doesn't fit.
    pub(crate) fn rank(&self, more: &Load) -> Option<Rank> {
        if !self.takes(more.sequences) {
            return None;
        }
        match &self.allowance {
            Some(allowance) => allowance.rank(&self.in_flight(), more, self.tie),
            None => Some(Rank {
                used: self.sequences().saturating_add(self.foreign).saturating_add(more.sequences) as f64
                    / self.full as f64,
                iteration_ms: 0.0,
                tie: self.tie,
            }),
        }
    }

    /// The predicted time to the first token of `more` if dispatched here; `None` without an allowance.
    pub(crate) fn first_token(&self, more: &Load) -> Option<Duration> {
        let allowance = self.allowance.as_ref()?;
        Some(allowance.first_token(&self.in_flight(), more))
    }

    /// Requests per second that the endpoint serves, by its performance model.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.allowance.as_ref()?.rate
    }

    pub(super) fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.taken(),
            sequences: self.sequences(),
            within: self.sequences().saturating_sub(self.running.extra.sequences),
            foreign: self.foreign,
            load: self.running,
        }
    }
}
