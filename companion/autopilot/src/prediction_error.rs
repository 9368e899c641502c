//! How far a variant's parameters were off in predicting the last observations.
//!
//! Stored parameters may be those of other servers, and learned ones of a server that has changed. The mean of the logarithms is
//! 0 for noise of any size around a right prediction whose median is right, so noise alone doesn't discredit a model.

use penstock_model::Parameters;
use penstock_model::observation::Decode;

/// The weight of one observation.
const WEIGHT: f64 = 1.0 / 64.0;
/// Fewer observations say nothing.
const OBSERVATIONS_MIN: u32 = 16;
/// The logarithm of the factor by which predictions are off when they are worth nothing,
const LARGE: f64 = 0.22;
/// and when they are worth something again.
const SMALL_AGAIN: f64 = 0.15;
/// One observation counts as off by no more than this: a pause says nothing of an iteration.
const EACH_MAX: f64 = 0.7;

/// A moving mean of logarithms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PredictionError {
    mean: f64,
    observations: u32,
    /// It was large, and hasn't become clearly smaller since.
    is_large: bool,
}

impl PredictionError {
    pub(crate) fn record(&mut self, parameters: &Parameters, decode: &Decode) {
        let Parameters { alpha_ms, beta_ms, gamma_ms } = parameters;
        let predicted_ms = alpha_ms + beta_ms * decode.batch + gamma_ms * decode.resident;
        let error = (decode.itl_ms / predicted_ms).ln();
        if !error.is_finite() {
            return;
        }
        self.observations = self.observations.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(self.observations));
        self.mean += (error.clamp(-EACH_MAX, EACH_MAX) - self.mean) * weight;
        let limit = if self.is_large { SMALL_AGAIN } else { LARGE };
        self.is_large = self.observations >= OBSERVATIONS_MIN && self.mean.abs() >= limit;
    }

    pub(crate) const fn is_small(&self) -> bool {
        !self.is_large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Parameters = Parameters { alpha_ms: 10.0, beta_ms: 0.5, gamma_ms: 0.0 };

    fn observed(itl_ms: f64) -> Decode {
        Decode { itl_ms, batch: 20.0, prompts: 0.0, resident: 0.0, neighbor_covariance: [0.0; 3] }
    }

    #[test]
    fn noise_discredits_no_prediction_and_another_server_does() {
        let mut error = PredictionError::default();
        assert!(error.is_small());
        for turn in 0..400 {
            let noise = [0.8, 0.9, 1.0, 1.1, 1.2, 1.0, 0.95, 1.9][turn % 8];
            error.record(&KNOWN, &observed(20.0 * noise));
            assert!(error.is_small(), "{error:?} after {turn}");
        }
        error.record(&KNOWN, &observed(0.0));
        error.record(&KNOWN, &observed(f64::NAN));
        assert!(error.is_small());
        for _ in 0..100 {
            error.record(&KNOWN, &observed(40.0));
        }
        assert!(!error.is_small(), "{error:?}");
        for _ in 0..200 {
            error.record(&KNOWN, &observed(20.0));
        }
        assert!(error.is_small(), "a server that is as before is predicted again: {error:?}");
    }

    #[test]
    fn few_observations_say_nothing() {
        let mut error = PredictionError::default();
        for _ in 0..15 {
            error.record(&KNOWN, &observed(100.0));
        }
        assert!(error.is_small());
        error.record(&KNOWN, &observed(100.0));
        assert!(!error.is_small());
    }
}
