//! What an endpoint takes where a model of its server sets the gate: the time that an iteration may take.
//!
//! The engine knows of the model only these numbers. Source: QUEUEING.md's `auto`. It predicts what an iteration takes
//! with one request more, from what is in flight there, and compares: no fit, no state, no clock.
//!
//! A target for the first token is one of means. A request is held to what the mean one in flight leaves of it, if it
//! is longer than that: to hold it to its own would drain a server for it, and it would wait for that longer than it
//! gains. What not even an idle server meets holds nobody.

use core::cmp::Ordering;
use core::time::Duration;

use crate::load::Load;

/// The budget of one endpoint. Milliseconds and tokens; finite and not negative, but where said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// What every iteration takes; above 0.
    pub alpha_ms: f64,
    /// Per token processed in it.
    pub beta_ms: f64,
    /// Per token resident during it.
    pub gamma_ms: f64,
    /// What an iteration may take, so that what decodes meets its target; may be infinite.
    pub iteration_ms_max: f64,
    /// What the first token of the newcomer may take from its dispatch, before the bias of such predictions; may be
    /// infinite.
    pub first_token_ms_max: f64,
    /// Observed over predicted time to the first token; above 0.
    pub ttft_bias: f64,
    /// Resident tokens at most; `None`: not known.
    pub kv_tokens_max: Option<u64>,
    /// Requests at most; `None`: not limited.
    pub requests_max: Option<u64>,
    /// Requests that fit, if all are like the mean of those served lately: shown, and what ceilings are parts of. It
    /// doesn't gate. At least 1.
    pub typical: u64,
    /// Requests per second that the endpoint serves at that; `None`: not known.
    pub rate: Option<f64>,
}

/// What is in flight at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// Ours,
    pub(crate) requests: u64,
    /// and the others', which are taken for as large as ours are in the mean.
    pub(crate) foreign: u64,
    /// The sum of ours.
    pub(crate) load: Load,
}

/// How much of its budget an endpoint uses with one more: the least takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    /// Predicted iteration over what it may take, or requests over its batch; the latter where there is no budget.
    pub(crate) used: f64,
    /// Where that says nothing, as nothing limits it.
    pub(crate) iteration_ms: f64,
    pub(crate) tie: u32,
}

impl Rank {
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        self.used
            .total_cmp(&other.used)
            .then_with(|| self.iteration_ms.total_cmp(&other.iteration_ms))
            .then_with(|| self.tie.cmp(&other.tie))
    }
}

impl Budget {
    /// What an iteration takes with `more` among what is in flight: each decodes a token in it, prompts are spread over
    /// the iterations of a mean answer, and answers are half written in the mean.
    fn iteration_ms(&self, there: &InFlight, more: &Load) -> f64 {
        let ours = there.requests as f64;
        let scale = if there.requests == 0 {
            0.0
        } else {
            (ours + there.foreign as f64) / ours
        };
        let load = &there.load;
        let answer = ((load.output as f64 + more.output as f64) / (ours + 1.0)).max(1.0);
        let prompts = (load.prefill as f64 * scale + more.prefill as f64) / answer;
        let processed = ours + there.foreign as f64 + 1.0 + prompts;
        let resident = (load.tokens as f64 - load.output as f64 / 2.0) * scale + more.prompt() as f64;
        self.alpha_ms + self.beta_ms * processed + self.gamma_ms * resident
    }

    /// What an iteration may take, that one of `more` tokens of prompt is to begin in.
    fn iteration_ms_max(&self, there: &InFlight, more: &Load) -> f64 {
        let mean = there.load.prefill as f64 / (there.requests as f64).max(1.0);
        let prefill = (self.beta_ms + self.gamma_ms) * (more.prefill as f64).min(mean);
        let left = self.first_token_ms_max - prefill;
        if left < self.alpha_ms {
            self.iteration_ms_max
        } else {
            self.iteration_ms_max.min(left)
        }
    }

    /// Where an endpoint stands with `more`, if it takes that: with nothing of ours in flight it takes anything.
    pub(crate) fn rank(&self, there: &InFlight, more: &Load, tie: u32) -> Option<Rank> {
        let iteration_ms = self.iteration_ms(there, more);
        let most = self.iteration_ms_max(there, more);
        let count = there.requests.saturating_add(there.foreign);
        // Of its batch, too: a server may be held to few requests, whatever they take.
        let of_batch = |most: u64| (count as f64 + 1.0) / most as f64;
        let rank = Rank {
            used: (iteration_ms / most).max(self.requests_max.map_or(0.0, of_batch)),
            iteration_ms,
            tie,
        };
        if there.requests == 0 {
            return Some(rank);
        }
        let resident = there.resident().saturating_add(more.tokens);
        let fits = iteration_ms <= most
            && self.kv_tokens_max.is_none_or(|most| resident <= most)
            && self.requests_max.is_none_or(|most| count < most);
        fits.then_some(rank)
    }

    /// From the dispatch of `more` to its first token, with the bias; what doesn't fit goes when it does.
    pub(crate) fn first_token(&self, there: &InFlight, more: &Load) -> Duration {
        let iteration_ms = match there.requests {
            0 => self.iteration_ms(there, more),
            _ => self.iteration_ms(there, more).min(self.iteration_ms_max),
        };
        let prefill = (self.beta_ms + self.gamma_ms) * more.prefill as f64;
        // What isn't finite can't come of a valid budget; the cast takes it to a bound.
        Duration::from_nanos(((iteration_ms + prefill) * self.ttft_bias * 1e6) as u64)
    }
}

impl InFlight {
    /// Tokens that are held there, of ours and of the others.
    fn resident(&self) -> u64 {
        let ours = self.load.tokens - self.load.output / 2;
        let others = u128::from(ours) * u128::from(self.foreign) / u128::from(self.requests.max(1));
        ours.saturating_add(u64::try_from(others).unwrap_or(u64::MAX))
    }
}
