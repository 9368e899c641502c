//! The picture of a fit: what was observed against what the parameters at its end say, with the line where both agree.
//!
//! As SVG, with the fonts of whoever looks at it. Of many points it shows every n-th.

use std::fs::OpenOptions;
use std::path::Path;

use super::Error;
#[cfg_attr(not(feature = "plots"), path = "plot/without_drawing.rs")]
mod drawing;

/// Points of one panel; when there are as many, every second is left away.
const POINTS_MAX: usize = 4_000;

/// Of a long series, a few: the first and every n-th.
#[derive(Debug)]
pub(super) struct Thinned<T> {
    pub(super) kept: Vec<T>,
    seen: u64,
    /// Every so many are kept.
    every: u64,
}

impl<T> Default for Thinned<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            seen: 0,
            every: 1,
        }
    }
}

impl<T> Thinned<T> {
    pub(super) fn take(&mut self, one: T) {
        if self.seen.is_multiple_of(self.every) {
            self.kept.push(one);
        }
        self.seen += 1;
        if self.kept.len() >= POINTS_MAX {
            let mut nth = 0_usize;
            self.kept.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.every *= 2;
        }
    }
}

/// Whether a picture can be written there: asked before long work. What stands there is kept.
pub(super) fn check(to: &Path) -> Result<(), Error> {
    drawing::check(to)?;
    let open = OpenOptions::new().create(true).append(true).open(to);
    open.map(drop).map_err(Error::reading(to))
}

/// What a picture shows.
#[derive(Debug, Default)]
pub(super) struct Plot {
    /// Observed, then fitted, in milliseconds.
    itl: Thinned<(f64, f64)>,
    ttft: Thinned<(f64, f64)>,
}

impl Plot {
    /// A time between tokens.
    pub(super) fn itl(&mut self, observed_ms: f64, fitted_ms: f64) {
        take(&mut self.itl, observed_ms, fitted_ms);
    }

    /// A time to the first token.
    pub(super) fn ttft(&mut self, observed_ms: f64, fitted_ms: f64) {
        take(&mut self.ttft, observed_ms, fitted_ms);
    }

    /// Writes it to a file.
    pub(super) fn write(&self, to: &Path) -> Result<(), Error> {
        std::fs::write(to, drawing::svg(self)).map_err(|source| Error::Plot {
            path: to.into(),
            why: source.to_string(),
        })
    }
}

fn take(pairs: &mut Thinned<(f64, f64)>, observed_ms: f64, fitted_ms: f64) {
    if observed_ms.is_finite() && fitted_ms.is_finite() {
        pairs.take((observed_ms, fitted_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stay_few_and_even() {
        let mut pairs = Thinned::default();
        for at in 0..100_000_u32 {
            pairs.take((f64::from(at), 1.0));
        }
        assert!(
            (POINTS_MAX / 2..POINTS_MAX).contains(&pairs.kept.len()),
            "{}",
            pairs.kept.len()
        );
        let steps: Vec<f64> = pairs.kept.windows(2).map(|it| it[1].0 - it[0].0).collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "{:?}", &steps[..9]);
    }
}
