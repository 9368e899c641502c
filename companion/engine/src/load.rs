//! The load of one request on the endpoint where it runs, the part of it above the bound, and the load above which a class
//! avoids an endpoint.

use core::ops::{AddAssign, SubAssign};

use crate::cost::{TOKENS_MAX, TokenEstimate};
use crate::policy::{Class, StockUnit};

/// The load of one request, or of several together, on an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Prompt and expected output.
    pub(crate) tokens: u64,
    /// The part of `tokens` that is output.
    pub(crate) output: u64,
    /// Prompt tokens that aren't cached.
    pub(crate) prefill: u64,
    /// The part of `prefill` whose answer hasn't begun.
    pub(crate) in_prefill: u64,
    /// Sequences that the server computes at the same time; at least 1 for a request.
    pub(crate) sequences: u64,
    /// The part that runs in places above the bound.
    pub(crate) extra: Extra,
    /// Requests that were asked to end.
    pub(crate) evicted: u64,
}

/// The part of a load that runs in places above the bound: see [`crate::policy::ExtraPlaces`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) requests: u64,
    pub(crate) sequences: u64,
    pub(crate) tokens: u64,
}

impl Extra {
    /// Whether it has a request.
    pub(crate) const fn is_used(&self) -> bool {
        self.requests > 0
    }

    pub(crate) const fn in_unit(&self, unit: StockUnit) -> u64 {
        match unit {
            StockUnit::Requests => self.requests,
            StockUnit::Sequences => self.sequences,
            StockUnit::Tokens => self.tokens,
        }
    }
}

impl Load {
    pub(crate) fn of(estimate: &TokenEstimate) -> Self {
        let prompt = estimate.prompt.min(TOKENS_MAX);
        let output = estimate.output.min(TOKENS_MAX);
        let prefill = prompt.saturating_sub(estimate.cached);
        let sequences = estimate.sequences.max(1);
        Self {
            tokens: prompt + output,
            output,
            prefill,
            in_prefill: prefill,
            sequences,
            extra: Extra::default(),
            evicted: 0,
        }
    }

    /// The load of a prompt alone, at an endpoint that computes it for another one.
    pub(crate) fn of_prefill(prompt: u64, uncached: u64) -> Self {
        Self::of(&TokenEstimate { prompt, cached: prompt.saturating_sub(uncached), output: 0, sequences: 1 })
    }

    /// This load at an endpoint that gets the computed prompt from another one.
    pub(crate) const fn without_prefill(self) -> Self {
        Self { prefill: 0, in_prefill: 0, ..self }
    }

    /// This load once its answer has begun.
    pub(crate) const fn prefilled(self) -> Self {
        Self { in_prefill: 0, ..self }
    }

    /// The part that ends when the answer begins.
    pub(crate) fn in_prefill_only(self) -> Self {
        Self { in_prefill: self.in_prefill, ..Self::default() }
    }

    /// This load of one request in a place above the bound if it `is_extra`, else within the bound.
    pub(crate) const fn placed(self, is_extra: bool) -> Self {
        let extra = match is_extra {
            true => Extra { requests: 1, sequences: self.sequences, tokens: self.tokens },
            false => Extra { requests: 0, sequences: 0, tokens: 0 },
        };
        Self { extra, ..self }
    }

    /// This load of one request, which was asked to end as that of `other` was.
    pub(crate) const fn evicted_like(self, other: &Self) -> Self {
        Self { evicted: other.evicted, ..self }
    }

    /// The part that counts against a bound of this unit.
    pub(crate) const fn in_unit(&self, unit: StockUnit) -> u64 {
        match unit {
            StockUnit::Requests => 1,
            StockUnit::Sequences => self.sequences,
            StockUnit::Tokens => self.tokens,
        }
    }

    pub(crate) const fn prompt(&self) -> u64 {
        self.tokens - self.output
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, more: Self) {
        self.tokens += more.tokens;
        self.output += more.output;
        self.prefill += more.prefill;
        self.in_prefill += more.in_prefill;
        self.sequences += more.sequences;
        self.extra.requests += more.extra.requests;
        self.extra.sequences += more.extra.sequences;
        self.extra.tokens += more.extra.tokens;
        self.evicted += more.evicted;
    }
}

/// Subtracts a load that was added before.
impl SubAssign for Load {
    fn sub_assign(&mut self, less: Self) {
        debug_assert!(
            self.tokens >= less.tokens
                && self.output >= less.output
                && self.prefill >= less.prefill
                && self.in_prefill >= less.in_prefill
                && self.sequences >= less.sequences
                && self.extra.requests >= less.extra.requests
                && self.extra.sequences >= less.extra.sequences
                && self.extra.tokens >= less.extra.tokens
                && self.evicted >= less.evicted,
            "invariant: a load that ends was started"
        );
        self.tokens = self.tokens.saturating_sub(less.tokens);
        self.output = self.output.saturating_sub(less.output);
        self.prefill = self.prefill.saturating_sub(less.prefill);
        self.in_prefill = self.in_prefill.saturating_sub(less.in_prefill);
        self.sequences = self.sequences.saturating_sub(less.sequences);
        self.extra.requests = self.extra.requests.saturating_sub(less.extra.requests);
        self.extra.sequences = self.extra.sequences.saturating_sub(less.extra.sequences);
        self.extra.tokens = self.extra.tokens.saturating_sub(less.extra.tokens);
        self.evicted = self.evicted.saturating_sub(less.evicted);
    }
}

/// The uncached prompt tokens in prefill above which an endpoint takes nothing of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Threshold {
    /// In tokens.
    pub(crate) tokens: Option<u64>,
    /// As a part of the endpoint's `batched_tokens_max`; ineffective where that is unknown.
    pub(crate) fraction: Option<f64>,
}

impl Threshold {
    pub(crate) const fn of(class: &Class) -> Self {
        Self { tokens: class.busy_tokens, fraction: class.busy_fraction }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_prompt_and_output_and_prefills_uncached_tokens() {
        let estimate = TokenEstimate { prompt: 100, cached: 40, output: 10, sequences: 2 };
        let within = Extra::default();
        let expected = Load {
            tokens: 110,
            output: 10,
            prefill: 60,
            in_prefill: 60,
            sequences: 2,
            extra: within,
            evicted: 0,
        };
        assert_eq!(Load::of(&estimate), expected);
        assert_eq!(Load::of(&estimate).prefilled().in_prefill, 0);
        let endless = TokenEstimate {
            prompt: u64::MAX,
            cached: u64::MAX,
            output: u64::MAX,
            ..TokenEstimate::default()
        };
        let expected = Load {
            tokens: 2 * TOKENS_MAX,
            output: TOKENS_MAX,
            prefill: 0,
            in_prefill: 0,
            sequences: 1,
            extra: within,
            evicted: 0,
        };
        assert_eq!(Load::of(&endless), expected);
    }
}
