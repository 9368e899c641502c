//! A rejection as this crate keeps it until the filter has acknowledged it.

use core::time::Duration;

use penstock_engine::Outcome;

use crate::answer::GatewayAnswer;
use crate::rate_limit::RateLimit;

/// The wait that a client is advised if the engine can't estimate one.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// The answer to a request that isn't granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) answer: GatewayAnswer,
    pub(crate) outcome: Outcome,
    /// In the queue.
    pub(crate) waited: Duration,
    /// Only for a client that may try again.
    pub(crate) retry_after: Option<Duration>,
    /// Of the pool, in thousandths.
    pub(crate) saturation_milli: u32,
    /// `None`: the request's flow has no budget that decides.
    pub(crate) rate_limit: Option<RateLimit>,
}

impl Rejection {
    /// `retry_after`: the engine's estimate, if there is one.
    pub(crate) fn new(
        answer: GatewayAnswer,
        outcome: Outcome,
        waited: Duration,
        retry_after: Option<Duration>,
        saturation_milli: u32,
    ) -> Self {
        let may_retry = matches!(answer.status, 429 | 503 | 504);
        Self {
            retry_after: may_retry.then(|| retry_after.unwrap_or(RETRY_AFTER_DEFAULT)),
            answer,
            outcome,
            waited,
            saturation_milli,
            rate_limit: None,
        }
    }

    /// This rejection, with the rest of the flow's budget.
    pub(crate) fn with_rate_limit(self, rate_limit: Option<RateLimit>) -> Self {
        Self { rate_limit, ..self }
    }

    /// The rejection of a request that no engine has seen.
    pub(crate) fn immediate(answer: GatewayAnswer, outcome: Outcome) -> Self {
        Self::new(answer, outcome, Duration::ZERO, None, 0)
    }
}
