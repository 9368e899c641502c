//! Predicts the time to the first token of running requests, and what a prompt token adds to it.

/// Weight of a new observation in the running means.
const NEW_WEIGHT: f64 = 1.0 / 64.0;

/// Running means over recent times to the first token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FirstTokenPredictor {
    count: f64,
    mean_ms: f64,
    /// Mean computed prompt tokens.
    mean_input: f64,
    /// Variance of the computed prompt tokens.
    variance: f64,
    /// Covariance of the computed prompt tokens with the time to the first token.
    covariance: f64,
    /// Mean of observed over predicted time; `None` before the first prediction was compared.
    bias: Option<f64>,
}

impl FirstTokenPredictor {
    /// Learns that the first token of a prompt of `input` computed tokens came after `ttft_ms`.
    pub(crate) fn observe(&mut self, ttft_ms: f64, input: f64, predicted_ms: Option<f64>) {
        self.count += 1.0;
        let weight = NEW_WEIGHT.max(1.0 / self.count);
        let (ttft_error_ms, input_error) = (ttft_ms - self.mean_ms, input - self.mean_input);
        self.mean_ms += weight * ttft_error_ms;
        self.mean_input += weight * input_error;
        self.variance += weight * ((1.0 - weight) * input_error * input_error - self.variance);
        self.covariance += weight * ((1.0 - weight) * input_error * ttft_error_ms - self.covariance);
        if let Some(predicted_ms) = predicted_ms.filter(|ms| *ms > 0.0) {
            let ratio = (ttft_ms / predicted_ms).clamp(0.01, 100.0);
            self.bias = Some(match self.bias {
                Some(bias) => bias + NEW_WEIGHT * (ratio - bias),
                None => ratio,
            });
        }
    }

    /// Expected time from dispatch to the first token of a prompt of `input` computed tokens.
    pub(crate) fn expected_ms(&self, input: f64, predicted_ms: Option<f64>) -> f64 {
        match predicted_ms {
            Some(ms) => self.bias.map_or(ms, |bias| ms * bias),
            None => (self.mean_ms + self.prompt_ms(None) * (input - self.mean_input)).max(0.0),
        }
    }

    /// Time that one prompt token adds, in milliseconds; 0 or more.
    ///
    /// If prompts differ too little in length for a regression, the result is the mean time without one and a half
    /// iterations of `itl_ms`, the wait for an iteration and the iteration itself, divided by the mean prompt length.
    pub(crate) fn prompt_ms(&self, itl_ms: Option<f64>) -> f64 {
        let prompts_differ = self.variance > (0.1 * self.mean_input).powi(2) && self.count >= 16.0;
        let ms = if prompts_differ {
            self.covariance / self.variance
        } else {
            (self.mean_ms - 1.5 * itl_ms.unwrap_or(0.0)) / self.mean_input
        };
        if ms.is_nan() { 0.0 } else { ms.clamp(0.0, 1e6) }
    }
}
