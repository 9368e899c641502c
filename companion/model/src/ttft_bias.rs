//! The ratio of observed to predicted time to the first token. The closed form underestimates this time, because it
//! leaves out the rest of the running iteration and the variance of the batch.

const BIAS_MIN: f64 = 0.05;
const BIAS_MAX: f64 = 20.0;
/// Weight that older observations keep with each new one.
const DECAY: f64 = 1.0 - 1.0 / 400.0;
/// Observations before the bias changes.
const OBSERVATIONS_MIN: f64 = 16.0;

/// Decaying sums of observed and predicted times to the first token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TtftBias {
    observed_ms: f64,
    predicted_ms: f64,
    count: f64,
    bias: f64,
}

impl TtftBias {
    /// Starts from `bias`; from 1 if it is not a positive number.
    pub(crate) fn new(bias: f64) -> Self {
        Self {
            observed_ms: 0.0,
            predicted_ms: 0.0,
            count: 0.0,
            bias: if bias.is_finite() && bias > 0.0 { bias.clamp(BIAS_MIN, BIAS_MAX) } else { 1.0 },
        }
    }

    /// Adds one comparison. Values that give no positive ratio are ignored.
    pub(crate) fn observe(&mut self, observed_ms: f64, predicted_ms: f64) {
        let ratio = observed_ms / predicted_ms;
        if !(ratio.is_finite() && ratio > 0.0 && predicted_ms > 1e-6) {
            return;
        }
        // Limited, so that one request of a server that was busy with something else doesn't dominate the mean.
        let observed_ms = ratio.clamp(BIAS_MIN, BIAS_MAX) * predicted_ms;
        self.observed_ms = self.observed_ms * DECAY + observed_ms;
        self.predicted_ms = self.predicted_ms * DECAY + predicted_ms;
        self.count += 1.0;
        if self.count >= OBSERVATIONS_MIN {
            self.bias = (self.observed_ms / self.predicted_ms).clamp(BIAS_MIN, BIAS_MAX);
        }
    }

    /// Observed over predicted time to the first token.
    pub(crate) const fn get(&self) -> f64 {
        self.bias
    }
}
