//! The picture of a fit: what was observed against what the parameters at its end say, with the line where both agree.
//!
//! As SVG, with the fonts of whoever looks at it. Of many points it shows every n-th.

use std::fs::OpenOptions;
use std::path::Path;

use plotters::prelude::*;

use super::Error;

/// Points of one panel; when there are as many, every second is left away.
const POINTS_MAX: usize = 4_000;
/// Pixels of a panel.
const SIZE: (u32, u32) = (640, 560);

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
        std::fs::write(to, self.svg()).map_err(|source| Error::Plot {
            path: to.into(),
            why: source.to_string(),
        })
    }

    fn svg(&self) -> String {
        let panels: Vec<_> = [
            ("time between tokens", &self.itl),
            ("time to the first token", &self.ttft),
        ]
        .into_iter()
        .filter(|(what, pairs)| !pairs.kept.is_empty() || *what == "time between tokens")
        .collect();
        let mut text = String::new();
        let columns = panels.len();
        let width = SIZE.0 * u32::try_from(columns).expect("invariant: one or two");
        let root = SVGBackend::with_string(&mut text, (width, SIZE.1)).into_drawing_area();
        let drawn = root.fill(&WHITE).and_then(|()| {
            root.split_evenly((1, columns))
                .iter()
                .zip(panels)
                .try_for_each(|(area, (what, pairs))| panel(area, what, &pairs.kept))
        });
        drawn
            .and_then(|()| root.present())
            .expect("invariant: a string takes what is drawn");
        drop(root);
        text
    }
}

fn take(pairs: &mut Thinned<(f64, f64)>, observed_ms: f64, fitted_ms: f64) {
    if observed_ms.is_finite() && fitted_ms.is_finite() {
        pairs.take((observed_ms, fitted_ms));
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn panel<'a>(area: &Area<'a>, what: &str, points: &[(f64, f64)]) -> Drawn<'a> {
    let all = || points.iter().flat_map(|(observed, fitted)| [*observed, *fitted]);
    let most = all().fold(0.0, f64::max);
    let range = 0.0..if most > 0.0 { most * 1.05 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{what}, {} points", points.len()), ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(range.clone(), range.clone())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("observed, ms")
        .y_desc("fitted, ms")
        .label_style(("sans-serif", 13))
        .draw()?;
    let point = RGBColor(31, 119, 180).mix(0.45).filled();
    chart.draw_series(points.iter().map(|at| Circle::new(*at, 2, point)))?;
    chart.draw_series(std::iter::once(PathElement::new(
        [(range.start, range.start), (range.end, range.end)],
        RGBColor(80, 80, 80).stroke_width(1),
    )))?;
    Ok(())
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

    #[test]
    fn a_picture_is_svg_with_a_circle_a_point() {
        let mut plot = Plot::default();
        let empty = plot.svg();
        assert!(
            empty.starts_with("<svg") && empty.trim_end().ends_with("</svg>"),
            "{empty}"
        );
        plot.itl(10.0, 11.0);
        plot.itl(f64::NAN, 11.0);
        plot.ttft(30.0, 28.0);
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        for text in [
            "time between tokens",
            "time to the first token",
            "observed, ms",
            "fitted, ms",
        ] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
