//! The plot of a fit: observed values against those of the final parameters, with the line where both are equal.
//!
//! The format is SVG, with the viewer's fonts. Long series are thinned to every n-th point.

use std::fs::OpenOptions;
use std::path::Path;

use super::Error;

#[cfg_attr(not(feature = "plots"), path = "plot/without_drawing.rs")]
mod drawing;

/// Points of one panel; at this number, every second point is removed.
const POINTS_MAX: usize = 4_000;

/// A thinned series: the first and then every n-th item.
#[derive(Debug)]
pub(super) struct Thinned<T> {
    pub(super) kept: Vec<T>,
    seen: u64,
    /// Every n-th item is kept, with this n.
    step: u64,
}

impl<T> Default for Thinned<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), seen: 0, step: 1 }
    }
}

impl<T> Thinned<T> {
    pub(super) fn push(&mut self, item: T) {
        if self.seen.is_multiple_of(self.step) {
            self.kept.push(item);
        }
        self.seen += 1;
        if self.kept.len() >= POINTS_MAX {
            let mut index = 0_usize;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.step *= 2;
        }
    }
}

/// Checks before long work that the file can be written. An existing file is kept.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    drawing::check(path)?;
    let open = OpenOptions::new().create(true).append(true).open(path);
    open.map(drop).map_err(Error::reading(path))
}

#[derive(Debug, Default)]
pub(super) struct Plot {
    /// Observed and fitted value, in milliseconds.
    itl: Thinned<(f64, f64)>,
    ttft: Thinned<(f64, f64)>,
}

impl Plot {
    /// Adds a time between tokens.
    pub(super) fn itl(&mut self, observed_ms: f64, fitted_ms: f64) {
        push(&mut self.itl, observed_ms, fitted_ms);
    }

    /// Adds a time to the first token.
    pub(super) fn ttft(&mut self, observed_ms: f64, fitted_ms: f64) {
        push(&mut self.ttft, observed_ms, fitted_ms);
    }

    /// Writes the plot to a file.
    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        std::fs::write(path, drawing::svg(self))
            .map_err(|source| Error::Plot { path: path.into(), why: source.to_string() })
    }
}

fn push(pairs: &mut Thinned<(f64, f64)>, observed_ms: f64, fitted_ms: f64) {
    if observed_ms.is_finite() && fitted_ms.is_finite() {
        pairs.push((observed_ms, fitted_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_points_are_few_and_evenly_spaced() {
        let mut pairs = Thinned::default();
        for number in 0..100_000_u32 {
            pairs.push((f64::from(number), 1.0));
        }
        assert!((POINTS_MAX / 2..POINTS_MAX).contains(&pairs.kept.len()), "{}", pairs.kept.len());
        let steps: Vec<f64> = pairs.kept.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "{:?}", &steps[..9]);
    }
}
