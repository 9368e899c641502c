//! The plot: requests per second and CPU per request, one bar per subject.

use std::path::Path;

use penstock_studies::figures::{grouped, median};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

use crate::subject::Which;
use crate::tables;

const SIZE: (u32, u32) = (920, 300);
const ENVOY: RGBColor = RGBColor(31, 119, 180);
const OURS: RGBColor = RGBColor(44, 140, 60);
const BESIDE: RGBColor = RGBColor(230, 159, 0);
const WHISKER: RGBColor = RGBColor(90, 90, 90);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the loads of short requests.
///
/// # Panics
/// If the file cannot be written.
pub(crate) fn draw(file: &Path, results: &Value) {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).expect("draw");
    let panels = area.split_evenly((1, 2));
    let [left, right] = panels.as_slice() else {
        unreachable!("one row of two");
    };
    let figure = |name: &str, key: &str| results["subjects"][name][key].clone();
    let subjects = tables::measured(results);
    let caption = "requests/s, 50 connections, 1 KB (least to most)";
    panel(left, caption, &subjects, |name| {
        let own = figure(name, "requests_per_s");
        Bar {
            parts: [median(&own), 0.0],
            span: ["min", "max"].map(|key| own[key].as_f64().unwrap_or_default()),
        }
    });
    let caption = "CPU us a request: Envoy, and beside it";
    panel(right, caption, &subjects, |name| {
        let (envoy, beside) = (figure(name, "envoy_cpu_us"), figure(name, "side_cpu_us"));
        Bar {
            parts: [median(&envoy), median(&beside)],
            span: ["min", "max"].map(|key| envoy[key].as_f64().unwrap_or_default()),
        }
    });
    area.present().expect("write the plot");
}

/// A bar of two parts in a row, with the range of the first part.
struct Bar {
    parts: [f64; 2],
    span: [f64; 2],
}

fn panel(area: &Area<'_>, caption: &str, subjects: &[(&str, Which)], bar: impl Fn(&str) -> Bar) {
    let bars: Vec<_> = subjects.iter().map(|(name, which)| (*name, *which, bar(name))).collect();
    let top = bars.iter().map(|(_, _, bar)| (bar.parts[0] + bar.parts[1]).max(bar.span[1]));
    let top = top.fold(1.0, f64::max);
    let rows = bars.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 14))
        .margin(10)
        .build_cartesian_2d(-0.55 * top..1.25 * top, 0.0..rows)
        .expect("draw");
    for (index, (name, which, bar)) in bars.iter().enumerate() {
        let middle = rows - index as f64 - 0.5;
        let colour = if which.is_penstock() { OURS } else { ENVOY };
        let [first, second] = bar.parts;
        let block = |from: f64, to: f64, colour: RGBColor| {
            Rectangle::new([(from, middle - 0.3), (to, middle + 0.3)], colour.filled())
        };
        let blocks = [block(0.0, first, colour), block(first, first + second, BESIDE)];
        chart.draw_series(blocks).expect("draw");
        let [least, most] = bar.span;
        let whisker = PathElement::new(vec![(least, middle), (most, middle)], WHISKER.stroke_width(2));
        chart.draw_series([whisker]).expect("draw");
        let style = |h| ("sans-serif", 12).into_font().color(&BLACK).pos(Pos::new(h, VPos::Center));
        let end = (first + second).max(most) + 0.02 * top;
        let says = if second > 0.0 { format!("{first:.0} + {second:.0}") } else { grouped(first) };
        let labels = [
            Text::new((*name).to_owned(), (-0.02 * top, middle), style(HPos::Right)),
            Text::new(says, (end, middle), style(HPos::Left)),
        ];
        chart.draw_series(labels).expect("draw");
    }
}
