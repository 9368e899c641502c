//! What one request weighs on the endpoint where it runs, and how much of that is too much for a class.

use crate::cost::{TOKENS_MAX, Tally};
use crate::policy::Class;

/// What one request weighs on the endpoint where it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Prompt and expected output.
    pub(crate) tokens: u64,
    /// Of these, the output.
    pub(crate) output: u64,
    /// Of the prompt, not cached.
    pub(crate) prefill: u64,
}

impl Load {
    pub(crate) fn of(tally: &Tally) -> Self {
        let prompt = tally.prompt.min(TOKENS_MAX);
        let output = tally.output.min(TOKENS_MAX);
        Self {
            tokens: prompt + output,
            output,
            prefill: prompt.saturating_sub(tally.cached),
        }
    }

    pub(crate) const fn prompt(&self) -> u64 {
        self.tokens - self.output
    }
}

/// From how many uncached prompt tokens in flight on an endpoint takes nothing of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Threshold {
    /// In tokens,
    pub(crate) tokens: Option<u64>,
    /// and as a part of what the endpoint takes into one iteration, where that is known.
    pub(crate) fraction: Option<f64>,
}

impl Threshold {
    pub(crate) const fn of(class: &Class) -> Self {
        Self {
            tokens: class.busy_tokens,
            fraction: class.busy_fraction,
        }
    }

    /// It holds nobody back.
    pub(crate) const fn is_none(&self) -> bool {
        self.tokens.is_none() && self.fraction.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_weighs_its_prompt_and_output_and_prefills_what_is_not_cached() {
        let tally = Tally {
            prompt: 100,
            cached: 40,
            output: 10,
        };
        let expected = Load {
            tokens: 110,
            output: 10,
            prefill: 60,
        };
        assert_eq!(Load::of(&tally), expected);
        let endless = Tally {
            prompt: u64::MAX,
            cached: u64::MAX,
            output: u64::MAX,
        };
        let expected = Load {
            tokens: 2 * TOKENS_MAX,
            output: TOKENS_MAX,
            prefill: 0,
        };
        assert_eq!(Load::of(&endless), expected);
    }
}
