//! The speed and capacity of a simulated server, and their allowed ranges.

use crate::limits::{BATCHED_TOKENS, COST_MS_MAX, KV_TOKENS_MAX, SEQS_MAX};

/// A server's speed and capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// Milliseconds that every iteration takes; above 0.
    pub alpha_ms: f64,
    /// Milliseconds per token processed in an iteration.
    pub beta_ms: f64,
    /// Milliseconds per token resident in the KV cache during an iteration.
    pub gamma_ms: f64,
    /// Sequences in one batch; at least 1.
    pub seqs_max: usize,
    /// Tokens that the KV cache holds; at least 1.
    pub kv_tokens: u64,
    /// Tokens processed in one iteration; at least `seqs_max`.
    pub batched_tokens: u64,
    /// Relative standard deviation of an iteration's duration; 0: none. From 0 to 1.
    pub noise: f64,
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            alpha_ms: 8.0,
            beta_ms: 0.05,
            gamma_ms: 0.0005,
            seqs_max: 256,
            kv_tokens: 262_144,
            batched_tokens: BATCHED_TOKENS,
            noise: 0.0,
        }
    }
}

/// Why a [`Hardware`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum HardwareError {
    /// A cost is negative, not a number, or too large.
    #[error("{name} is {value} ms; it must be a number from {min} to {COST_MS_MAX}")]
    Cost {
        /// Name of the cost.
        name: &'static str,
        /// The invalid value.
        value: f64,
        /// The smallest allowed value, in words.
        min: &'static str,
    },
    /// The batch has no place for a sequence, or too many places.
    #[error("max-num-seqs is {0}; it must be from 1 to {SEQS_MAX}")]
    Seqs(usize),
    /// The cache's size is outside its range.
    #[error("kv-tokens is {0}; it must be from 1 to {KV_TOKENS_MAX}")]
    Kv(u64),
    /// One iteration can't decode the whole batch.
    #[error(
        "an iteration of {batched} tokens is too small for {seqs} sequences; it needs at least one for each"
    )]
    Batched {
        /// Tokens of an iteration.
        batched: u64,
        /// Sequences of the batch.
        seqs: usize,
    },
    /// The noise is outside its range.
    #[error("noise is {0}; it must be from 0 to 1")]
    Noise(f64),
}

impl Hardware {
    /// Checks that all values are in their ranges.
    pub(crate) fn check(&self) -> Result<(), HardwareError> {
        let cost = |name, value: f64, min: &'static str, in_range: bool| {
            if in_range && value.is_finite() && value <= COST_MS_MAX {
                Ok(())
            } else {
                Err(HardwareError::Cost { name, value, min })
            }
        };
        cost("alpha", self.alpha_ms, "just above 0", self.alpha_ms > 0.0)?;
        cost("beta", self.beta_ms, "0", self.beta_ms >= 0.0)?;
        cost("gamma", self.gamma_ms, "0", self.gamma_ms >= 0.0)?;
        if !(1..=SEQS_MAX).contains(&self.seqs_max) {
            return Err(HardwareError::Seqs(self.seqs_max));
        }
        if !(1..=KV_TOKENS_MAX).contains(&self.kv_tokens) {
            return Err(HardwareError::Kv(self.kv_tokens));
        }
        if self.batched_tokens < self.seqs_max as u64 {
            return Err(HardwareError::Batched { batched: self.batched_tokens, seqs: self.seqs_max });
        }
        if !(0.0..=1.0).contains(&self.noise) {
            return Err(HardwareError::Noise(self.noise));
        }
        Ok(())
    }
}
