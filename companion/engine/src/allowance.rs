//! The gate of one endpoint under `auto`: the predicted duration of an iteration, against the longest allowed.
//!
//! The engine knows the performance model only as the numbers of an [`Allowance`]. It predicts an
//! iteration with one request more from the load in flight, and compares. There is no fit, no state and no clock here.
//!
//! The target for the first token is a target for the mean. A request whose prompt is longer than the mean prompt in
//! flight is held to the time that the mean one leaves: holding it to its own would drain a server for it, and the
//! request would wait longer for that than it gains. A request that would miss the target even on an idle server is
//! held to the iteration's bound alone.

use core::cmp::Ordering;
use core::time::Duration;

use crate::load::Load;

/// The allowance of one endpoint, in milliseconds and tokens. Numbers are finite and not negative unless noted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// The fixed duration of an iteration; above 0.
    pub alpha_ms: f64,
    /// Added per token processed in it.
    pub beta_ms: f64,
    /// Added per token resident during it.
    pub gamma_ms: f64,
    /// The longest iteration in which decoding requests meet their target; may be infinite.
    pub iteration_ms_max: f64,
    /// The longest time from a newcomer's dispatch to its first token, before `ttft_bias`; may be infinite.
    pub first_token_ms_max: f64,
    /// Observed over predicted time to the first token; above 0.
    pub ttft_bias: f64,
    /// Resident tokens at most; `None`: not known.
    pub kv_tokens_max: Option<u64>,
    /// Sequences at most; `None`: not limited.
    pub requests_max: Option<u64>,
    /// The most sequences that the server computes at a time, wherever they run: within the bound, above it, or for other clients. `None`:
    /// not known. Only places above the bound are limited by it.
    pub sequences_max: Option<u64>,
    /// Requests of one sequence that fit if all are like the mean of the recently served ones; at least 1. Shown, and the whole of
    /// which band ceilings are parts. It doesn't gate.
    pub typical: u64,
    /// Requests per second that the endpoint serves at `typical`; `None`: not known.
    pub rate: Option<f64>,
}

/// The load in flight at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// Requests of this pool.
    pub(crate) requests: u64,
    /// Sequences of these requests.
    pub(crate) sequences: u64,
    /// The part of `sequences` that counts against the limit.
    pub(crate) within: u64,
    /// Sequences of other clients, each taken for as large as the mean one of this pool.
    pub(crate) foreign: u64,
    /// The sum over the requests of this pool.
    pub(crate) load: Load,
}

/// How much of its allowance an endpoint uses with one request more. The least used endpoint takes the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    /// The predicted iteration over the longest allowed, or requests over the batch, whichever is more. Without a
    /// allowance the latter.
    pub(crate) used: f64,
    /// Orders endpoints whose iterations have no bound.
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

impl Allowance {
    /// The duration of an iteration with `more` added to the load in flight. Each sequence decodes a token in it,
    /// prompts are spread over the iterations of a mean answer, and answers are half written in the mean.
    fn iteration_ms(&self, there: &InFlight, more: &Load) -> f64 {
        let (ours, newcomers) = (there.sequences as f64, more.sequences as f64);
        let scale = if there.sequences == 0 { 0.0 } else { (ours + there.foreign as f64) / ours };
        let load = &there.load;
        let answer = ((load.output as f64 + more.output as f64) / (ours + newcomers)).max(1.0);
        let prompts = (load.prefill as f64 * scale + more.prefill as f64) / answer;
        let processed = ours + there.foreign as f64 + newcomers + prompts;
        let resident = (load.tokens as f64 - load.output as f64 / 2.0) * scale + more.prompt() as f64;
        self.alpha_ms + self.beta_ms * processed + self.gamma_ms * resident
    }

    /// The longest iteration in which a request with the prompt of `more` may begin.
    fn longest_iteration_ms(&self, there: &InFlight, more: &Load) -> f64 {
        let mean = there.load.prefill as f64 / (there.requests as f64).max(1.0);
        let prefill = (self.beta_ms + self.gamma_ms) * (more.prefill as f64).min(mean);
        let left = self.first_token_ms_max - prefill;
        if left < self.alpha_ms { self.iteration_ms_max } else { self.iteration_ms_max.min(left) }
    }

    /// The rank of the endpoint with `more`; `None` if `more` doesn't fit. An endpoint without requests of this pool
    /// within its bound takes any request.
    pub(crate) fn rank(&self, there: &InFlight, more: &Load, tie: u32) -> Option<Rank> {
        let iteration_ms = self.iteration_ms(there, more);
        let longest = self.longest_iteration_ms(there, more);
        let count = there.within.saturating_add(there.foreign).saturating_add(more.sequences);
        // A server may be limited to few sequences, however small they are.
        let batch_used = |limit: u64| count as f64 / limit as f64;
        let rank = Rank {
            used: (iteration_ms / longest).max(self.requests_max.map_or(0.0, batch_used)),
            iteration_ms,
            tie,
        };
        if there.within == 0 {
            return Some(rank);
        }
        let resident = there.resident().saturating_add(more.tokens);
        let fits = iteration_ms <= longest
            && self.kv_tokens_max.is_none_or(|limit| resident <= limit)
            && self.requests_max.is_none_or(|limit| count <= limit);
        fits.then_some(rank)
    }

    /// The predicted time from the dispatch of `more` to its first token, bias included. A request that doesn't fit
    /// is dispatched when it does.
    pub(crate) fn first_token(&self, there: &InFlight, more: &Load) -> Duration {
        let iteration_ms = match there.requests {
            0 => self.iteration_ms(there, more),
            _ => self.iteration_ms(there, more).min(self.iteration_ms_max),
        };
        let prefill = (self.beta_ms + self.gamma_ms) * more.prefill as f64;
        // A valid allowance gives a finite number. The cast saturates at the bounds.
        Duration::from_nanos(((iteration_ms + prefill) * self.ttft_bias * 1e6) as u64)
    }
}

impl InFlight {
    /// Resident tokens, of this pool's and of foreign requests.
    pub(crate) fn resident(&self) -> u64 {
        let ours = self.load.tokens - self.load.output / 2;
        let foreign = u128::from(ours) * u128::from(self.foreign) / u128::from(self.sequences.max(1));
        ours.saturating_add(u64::try_from(foreign).unwrap_or(u64::MAX))
    }
}
