//! Axes: their ranges, and ticks at round numbers.

/// An axis from 0 or from a power of ten up to a round number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    first: f64,
    last: f64,
    is_logarithmic: bool,
    /// The values with a tick.
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// A linear axis from 0 that has room for this value.
    pub(super) fn linear(most: f64, ticks: usize) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most / ticks.max(1) as f64);
        let count = (most / step - 1e-9).ceil().max(1.0);
        Self {
            first: 0.0,
            last: step * count,
            is_logarithmic: false,
            ticks: (0..=count as u32).map(|index| step * f64::from(index)).collect(),
        }
    }

    /// An axis between these values, with ticks at them and between them in whole steps.
    pub(super) fn between(first: f64, last: f64, ticks: usize) -> Self {
        let step = step((last - first) / ticks.max(1) as f64).max(1.0);
        let count = ((last - first) / step) as u32;
        Self {
            first,
            last: if last > first { last } else { first + 1.0 },
            is_logarithmic: false,
            ticks: (0..=count).map(|index| first + step * f64::from(index)).collect(),
        }
    }

    /// A linear axis, or a logarithmic one where the values above 0 differ much.
    pub(super) fn fitting(values: impl Iterator<Item = f64> + Clone, ticks: usize) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        let least = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        if !least.is_finite() || most / least < MANY_TIMES {
            return Self::linear(most, ticks);
        }
        let (low, high) = (least.log10().floor(), most.log10().ceil());
        let powers = (low as i32)..=(high as i32);
        Self {
            first: 10_f64.powf(low),
            last: 10_f64.powf(high),
            is_logarithmic: true,
            ticks: powers.map(|power| 10_f64.powi(power)).collect(),
        }
    }

    /// Where the value is on the axis, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let place = if self.is_logarithmic {
            (value.max(self.first) / self.first).ln() / (self.last / self.first).ln()
        } else {
            (value - self.first) / (self.last - self.first)
        };
        place.clamp(0.0, 1.0)
    }

    pub(super) fn holds(&self, value: f64) -> bool {
        (self.first..=self.last).contains(&value)
    }

    pub(super) const fn is_logarithmic(&self) -> bool {
        self.is_logarithmic
    }
}

/// Values that differ this much are on a logarithmic axis.
const MANY_TIMES: f64 = 50.0;

/// 1, 2 or 5 times a power of ten, at least this.
fn step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0];
    let fitting = times.into_iter().find(|times| times * power >= least * 0.999_999);
    fitting.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(Axis::linear(97.0, 4).ticks, [0.0, 50.0, 100.0]);
        assert_eq!(Axis::linear(1_234.0, 4).ticks, [0.0, 500.0, 1_000.0, 1_500.0]);
        assert_eq!(Axis::linear(0.0, 4).ticks.len(), 3);
        assert_eq!(Axis::between(2.0, 8.0, 10).ticks, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(Axis::between(3.0, 3.0, 10).ticks, [3.0]);
    }

    #[test]
    fn places_are_from_0_to_1() {
        let axis = Axis::linear(100.0, 4);
        assert!(axis.holds(100.0) && !axis.holds(101.0));
        assert_eq!([0.0, 25.0, 100.0, 200.0].map(|value| axis.place(value)), [0.0, 0.25, 1.0, 1.0]);
        let values = [20.0, 30_000.0, 0.0];
        let axis = Axis::fitting(values.into_iter(), 4);
        assert!(axis.is_logarithmic());
        assert_eq!(axis.ticks, [10.0, 100.0, 1_000.0, 10_000.0, 100_000.0]);
        assert_eq!(axis.place(0.0), 0.0);
        assert!((axis.place(1_000.0) - 0.5).abs() < 1e-9);
        assert!(!Axis::fitting([20.0, 40.0].into_iter(), 4).is_logarithmic());
    }
}
