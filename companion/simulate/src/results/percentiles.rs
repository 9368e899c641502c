//! Percentiles of times.

use std::time::Duration;

/// Half and 99 in a hundred of the values are at most this, in milliseconds; `None`: there are no values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

impl Percentiles {
    /// The nearest-rank percentiles.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let ranked = |part: f64| {
            let rank = (part * times.len() as f64).ceil() as usize;
            let time = times.get(rank.saturating_sub(1))?;
            Some(time.as_secs_f64() * 1e3)
        };
        Self { p50: ranked(0.5), p99: ranked(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_list() {
        let times = |count: u64| (1..=count).rev().map(Duration::from_millis).collect();
        let of_100 = Percentiles::of(times(100));
        assert_eq!((of_100.p50, of_100.p99), (Some(50.0), Some(99.0)));
        let of_1 = Percentiles::of(times(1));
        assert_eq!((of_1.p50, of_1.p99), (Some(1.0), Some(1.0)));
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
