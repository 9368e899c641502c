//! Quantiles of the observations of the last minute, computed from the buckets of a histogram.

use std::collections::VecDeque;

use super::limits::WINDOW_SAMPLES;
use super::sample::Quantiles;
use crate::metrics::{BUCKETS, Buckets, WAIT_SECONDS};

/// The observations of the last [`WINDOW_SAMPLES`] samples.
#[derive(Debug, Default)]
pub(super) struct QuantileWindow {
    total: Buckets,
    recent: VecDeque<[u32; BUCKETS]>,
}

impl QuantileWindow {
    /// Adds the observations since the sample before; `total` contains all observations since the start. Returns the quantiles
    /// of the window; `None`: it has no observations.
    pub(super) fn advance(&mut self, total: &Buckets) -> Option<Quantiles> {
        let mut more = [0; BUCKETS];
        for ((more, total), before) in more.iter_mut().zip(total).zip(self.total) {
            // A histogram that was removed begins again at 0.
            *more = u32::try_from(total.checked_sub(before).unwrap_or(*total)).unwrap_or(u32::MAX);
        }
        self.total = *total;
        self.recent.push_back(more);
        if self.recent.len() > WINDOW_SAMPLES {
            self.recent.pop_front();
        }
        let mut counts = Buckets::default();
        for recent in &self.recent {
            for (sum, more) in counts.iter_mut().zip(recent) {
                *sum += u64::from(*more);
            }
        }
        Some(Quantiles { p50: quantile(&counts, 0.5)?, p99: quantile(&counts, 0.99)? })
    }
}

/// The value below which `part` of the observations lie, in seconds. As Prometheus' `histogram_quantile` does, it assumes that
/// the observations of a bucket are spread evenly, and returns the last bound for observations above it.
#[expect(clippy::cast_precision_loss, reason = "counts of requests in a minute")]
#[expect(clippy::cast_possible_truncation, reason = "the bounds of the buckets are less exact")]
fn quantile(counts: &Buckets, part: f64) -> Option<f32> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let rank = part * all as f64;
    let (mut lower, mut below) = (0.0, 0);
    for (bound, count) in WAIT_SECONDS.into_iter().zip(counts) {
        if *count > 0 && (below + count) as f64 >= rank {
            let inside = (rank - below as f64) / *count as f64;
            return Some((lower + (bound - lower) * inside) as f32);
        }
        (lower, below) = (bound, below + count);
    }
    Some(lower as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bucket that ends at this bound.
    fn bucket(bound: f64) -> usize {
        let found = WAIT_SECONDS.iter().position(|known| *known == bound);
        found.expect("a bound")
    }

    fn counts(filled: &[(usize, u64)]) -> Buckets {
        let mut counts = Buckets::default();
        for (bucket, count) in filled {
            counts[*bucket] = *count;
        }
        counts
    }

    #[test]
    fn a_quantile_is_interpolated_inside_its_bucket() {
        // 10 between 0.1 and 0.25, 90 between 0.25 and 0.5.
        let counts = counts(&[(bucket(0.25), 10), (bucket(0.5), 90)]);
        assert_eq!(quantile(&counts, 0.05), Some(0.175));
        assert_eq!(quantile(&counts, 0.1), Some(0.25));
        assert_eq!(quantile(&counts, 0.55), Some(0.375));
        assert_eq!(quantile(&counts, 1.0), Some(0.5));
    }

    #[test]
    fn without_observations_there_is_no_quantile_and_above_the_last_bound_it_is_that_bound() {
        assert_eq!(quantile(&Buckets::default(), 0.5), None);
        assert_eq!(quantile(&counts(&[(BUCKETS - 1, 3)]), 0.5), Some(60.0));
    }

    #[test]
    fn observations_leave_the_window_after_a_minute() {
        let mut window = QuantileWindow::default();
        let slow = counts(&[(bucket(10.0), 4)]);
        assert_eq!(window.advance(&slow).map(|quantiles| quantiles.p50), Some(7.5));
        let both = counts(&[(bucket(10.0), 4), (bucket(0.5), 400)]);
        let p50 = window.advance(&both).map(|quantiles| quantiles.p50).expect("observations");
        assert!(p50 < 0.5, "{p50}");
        for _ in 2..WINDOW_SAMPLES {
            assert!(window.advance(&both).is_some());
        }
        let only_fast = window.advance(&both).expect("observations");
        assert!(only_fast.p99 <= 0.5, "{only_fast:?}");
        assert_eq!(window.advance(&both), None, "all of them are older");
    }

    #[test]
    fn a_histogram_that_begins_again_counts_from_its_new_start() {
        let mut window = QuantileWindow::default();
        window.advance(&counts(&[(bucket(0.5), 100)]));
        for _ in 0..WINDOW_SAMPLES {
            window.advance(&counts(&[(bucket(0.5), 100)]));
        }
        assert_eq!(window.advance(&counts(&[(bucket(0.5), 100)])), None);
        assert!(window.advance(&counts(&[(bucket(0.5), 7)])).is_some());
    }
}
