//! Draws the plot of a fit with plotters.

use std::path::Path;

use plotters::prelude::*;

use super::{Error, Plot};

/// Pixels of one panel.
const SIZE: (u32, u32) = (640, 560);

/// Checks that this binary can draw plots.
#[expect(clippy::unnecessary_wraps, reason = "a binary without plots fails here")]
pub(super) const fn check(_to: &Path) -> Result<(), Error> {
    Ok(())
}

pub(super) fn svg(plot: &Plot) -> String {
    let panels: Vec<_> = [("time between tokens", &plot.itl), ("time to the first token", &plot.ttft)]
        .into_iter()
        .filter(|(title, pairs)| !pairs.kept.is_empty() || *title == "time between tokens")
        .collect();
    let mut text = String::new();
    let columns = panels.len();
    let width = SIZE.0 * u32::try_from(columns).expect("invariant: one or two");
    let root = SVGBackend::with_string(&mut text, (width, SIZE.1)).into_drawing_area();
    let drawn = root.fill(&WHITE).and_then(|()| {
        root.split_evenly((1, columns))
            .iter()
            .zip(panels)
            .try_for_each(|(area, (title, pairs))| panel(area, title, &pairs.kept))
    });
    drawn.and_then(|()| root.present()).expect("invariant: drawing into a string doesn't fail");
    drop(root);
    text
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn panel<'a>(area: &Area<'a>, title: &str, points: &[(f64, f64)]) -> Drawn<'a> {
    let all = || points.iter().flat_map(|(observed, fitted)| [*observed, *fitted]);
    let max = all().fold(0.0, f64::max);
    let range = 0.0..if max > 0.0 { max * 1.05 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{title}, {} points", points.len()), ("sans-serif", 18))
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
    chart.draw_series(points.iter().map(|center| Circle::new(*center, 2, point)))?;
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
    fn plot_is_svg_with_one_circle_per_point() {
        let mut plot = Plot::default();
        let empty = svg(&plot);
        assert!(empty.starts_with("<svg") && empty.trim_end().ends_with("</svg>"), "{empty}");
        plot.itl(10.0, 11.0);
        plot.itl(f64::NAN, 11.0);
        plot.ttft(30.0, 28.0);
        let svg = super::svg(&plot);
        assert_eq!(svg.matches("<circle").count(), 2);
        for text in ["time between tokens", "time to the first token", "observed, ms", "fitted, ms"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
