//! Steady overload, recognized without a model: requests wait at a full gate, and more arrive than are served.

use crate::window_stats::count;

/// An overload is steady from this level on.
const STEADY: u8 = 4;
/// The highest level, so that the end of an overload is recognized soon.
const LEVEL_MAX: u8 = 6;

/// The load of a pool in one window, in requests per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Offered, including the share of the backlog.
    pub(crate) offered: f64,
    /// Served.
    pub(crate) served: f64,
    /// Requests waited because the endpoints were full.
    pub(crate) is_full: bool,
}

/// How long a pool has been overloaded. The level rises by one with every overloaded window, and falls by one with every other, so
/// that one window doesn't decide.
#[derive(Debug, Default)]
pub(crate) struct Saturation {
    level: u8,
    /// Offered divided by served requests, in the last window.
    ratio: f64,
}

impl Saturation {
    /// A window is over.
    pub(crate) fn record(&mut self, load: &Load) {
        let is_overloaded = load.is_full && load.served > 0.0 && load.offered > load.served;
        if is_overloaded {
            self.level = (self.level + 1).min(LEVEL_MAX);
            self.ratio = load.offered / load.served;
        } else {
            self.level = self.level.saturating_sub(1);
        }
    }

    /// The replicas that a steady overload needs, if `ready` replicas serve what is served now. `None`: there is no steady
    /// overload, or nothing is ready.
    pub(crate) fn required(&self, ready: u64) -> Option<u64> {
        if self.level < STEADY || ready == 0 {
            return None;
        }
        let required = (count(ready) * self.ratio).ceil();
        // Saturates; the ratio is finite and above 1.
        Some((required as u64).max(ready + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERLOAD: Load = Load { offered: 12.0, served: 5.0, is_full: true };

    #[test]
    fn only_a_steady_overload_asks_for_replicas() {
        let mut saturation = Saturation::default();
        for _ in 0..3 {
            saturation.record(&OVERLOAD);
            assert_eq!(saturation.required(2), None);
        }
        saturation.record(&OVERLOAD);
        assert_eq!(saturation.required(2), Some(5), "2 * 12 / 5, rounded up");
        assert_eq!(saturation.required(0), None, "no replica serves");
        saturation.record(&Load { offered: 5.1, ..OVERLOAD });
        assert_eq!(saturation.required(2), Some(3));
    }

    #[test]
    fn an_overload_ends_when_the_gate_has_room_or_everything_is_served() {
        for calm in [
            Load { is_full: false, ..OVERLOAD },
            Load { offered: 5.0, ..OVERLOAD },
            Load { served: 0.0, ..OVERLOAD },
        ] {
            let mut saturation = Saturation::default();
            (0..100).for_each(|_| saturation.record(&OVERLOAD));
            for _ in 0..2 {
                saturation.record(&calm);
                assert!(saturation.required(1).is_some(), "one calm window is no end: {calm:?}");
            }
            saturation.record(&calm);
            assert_eq!(saturation.required(1), None, "{calm:?}");
        }
    }
}
