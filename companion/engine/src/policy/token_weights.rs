//! The weights of prompt and output tokens in a cost.

/// Weights of tokens in a cost; finite, not negative, not both 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenWeights {
    /// Of uncached prompt tokens.
    pub input: f64,
    /// Of output tokens.
    pub output: f64,
}

impl Default for TokenWeights {
    fn default() -> Self {
        Self { input: 1.0, output: 2.0 }
    }
}
