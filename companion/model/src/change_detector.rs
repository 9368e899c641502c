//! Detects that observations depart from the fitted parameters, with two cumulative sums (CUSUM).

use crate::fit::Solution;
use crate::reservoir::Sample;

/// The smallest relative deviation that surprises are measured in. Below it lies the misfit of the model itself.
pub(crate) const DEVIATION_MIN: f64 = 0.05;
/// The most that one surprise adds, so that single outliers don't raise an alarm.
const SURPRISE_MAX: f64 = 3.0;
/// Each surprise counts only by the part above this.
const SLACK: f64 = 1.0;
/// A sum above this is not chance.
const ALARM: f64 = 12.0;

/// Sums of surprises, upwards and downwards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChangeDetector {
    up: CumulativeSum,
    down: CumulativeSum,
}

#[derive(Clone, Copy, Debug, Default)]
struct CumulativeSum {
    sum: f64,
    /// Number of the observation at which the sum left 0.
    since: u64,
}

impl CumulativeSum {
    fn add(&mut self, number: u64, surprise: f64) {
        if self.sum <= 0.0 {
            self.since = number;
        }
        self.sum = (self.sum + surprise.min(SURPRISE_MAX) - SLACK).clamp(0.0, 1e6);
    }
}

impl ChangeDetector {
    /// Adds the surprise of observation `number`, in standard deviations.
    pub(crate) fn observe(&mut self, number: u64, surprise: f64) {
        self.up.add(number, surprise);
        self.down.add(number, -surprise);
    }

    /// The first of the observations that depart from the fit; `None` while there is no alarm.
    pub(crate) fn changed_since(&self) -> Option<u64> {
        [self.up, self.down]
            .into_iter()
            .filter(|direction| direction.sum > ALARM)
            .map(|direction| direction.since)
            .min()
    }
}

/// Whether the samples since observation `since` depart from `solution`, a fit to all samples, too.
pub(crate) fn persists(solution: &Solution, samples: &[Sample], since: u64) -> bool {
    let surprises = samples
        .iter()
        .filter(|sample| sample.number >= since)
        .map(|sample| solution.surprise(sample, DEVIATION_MIN).clamp(-SURPRISE_MAX, SURPRISE_MAX));
    let (count, sum) = surprises.fold((0.0, 0.0), |(count, sum), surprise| (count + 1.0, sum + surprise));
    count > 0.0 && (sum / count).abs() > SLACK / 2.0
}
