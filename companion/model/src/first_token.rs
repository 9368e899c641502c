//! When first tokens come of late, for those whose own isn't known yet, and what a prompt token adds to that.

/// Weight of a new observation among those of late.
const NEW: f64 = 1.0 / 64.0;

/// Times to the first token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FirstToken {
    count: f64,
    mean_ms: f64,
    /// Of the prompts that were computed.
    mean_input: f64,
    variance: f64,
    covariance: f64,
    /// Observed over predicted; 0: none was seen.
    bias: f64,
}

impl FirstToken {
    /// The first token of a prompt of `input` tokens came after `ttft_ms`.
    pub(crate) fn saw(&mut self, ttft_ms: f64, input: f64, predicted_ms: Option<f64>) {
        self.count += 1.0;
        let weight = NEW.max(1.0 / self.count);
        let (by_ms, by) = (ttft_ms - self.mean_ms, input - self.mean_input);
        self.mean_ms += weight * by_ms;
        self.mean_input += weight * by;
        self.variance += weight * ((1.0 - weight) * by * by - self.variance);
        self.covariance += weight * ((1.0 - weight) * by * by_ms - self.covariance);
        if let Some(predicted_ms) = predicted_ms.filter(|ms| *ms > 0.0) {
            let ratio = (ttft_ms / predicted_ms).clamp(0.01, 100.0);
            let weight = if self.bias > 0.0 { NEW } else { 1.0 };
            self.bias += weight * (ratio - self.bias);
        }
    }

    /// How long after its dispatch that of a request with such a prompt is expected.
    pub(crate) fn expected_ms(&self, input: f64, predicted_ms: Option<f64>) -> f64 {
        match predicted_ms {
            Some(ms) if self.bias > 0.0 => ms * self.bias,
            Some(ms) => ms,
            None => (self.mean_ms + self.prompt_ms(0.0) * (input - self.mean_input)).max(0.0),
        }
    }

    /// What a prompt token adds, in milliseconds; 0 or more. Where prompts hardly differ, what is left of the time above
    /// that of waiting for an iteration and having one, at `itl_ms` each.
    pub(crate) fn prompt_ms(&self, itl_ms: f64) -> f64 {
        let differ = self.variance > (0.1 * self.mean_input).powi(2) && self.count >= 16.0;
        let ms = if differ {
            self.covariance / self.variance
        } else {
            (self.mean_ms - 1.5 * itl_ms) / self.mean_input
        };
        if ms.is_nan() { 0.0 } else { ms.clamp(0.0, 1e6) }
    }
}
