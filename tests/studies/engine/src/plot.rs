//! Plots the cost of a pick by the number of classes: one line for each subject, both axes logarithmic.

use std::path::Path;

use plotters::prelude::*;
use serde_json::Value;

use crate::figures::{grouped, median};
use crate::pick;

const SIZE: (u32, u32) = (720, 420);
const COLOURS: [RGBColor; 3] = [RGBColor(192, 80, 77), RGBColor(31, 119, 180), RGBColor(44, 140, 60)];

/// Draws the picks of `figures`.
///
/// # Panics
/// When the file can't be written.
pub(crate) fn draw(file: &Path, figures: &Value) {
    let rows = figures["picks"].as_array().cloned().unwrap_or_default();
    let line = |name: &str, value: &dyn Fn(&Value) -> f64| -> Vec<(f64, f64)> {
        let points = rows.iter().map(|row| {
            let classes = row["classes"].as_f64().unwrap_or_default();
            (classes, value(&row["subjects"][name]["pick_ns"]))
        });
        points.collect()
    };
    let all = pick::Row::NAMES.iter().flat_map(|name| line(name, &|s| s["max"].as_f64().unwrap_or(1.0)));
    let top = all.map(|(_, y)| y).fold(100.0, f64::max) * 2.0;
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).expect("draw");
    let mut chart = ChartBuilder::on(&area)
        .caption("One pick, all classes backlogged (median, least to most)", ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d((0.8..1_400.0_f64).log_scale(), (10.0..top).log_scale())
        .expect("draw");
    chart
        .configure_mesh()
        .x_desc("classes")
        .y_desc("ns a pick")
        .x_label_formatter(&|x| grouped(*x))
        .y_label_formatter(&|y| grouped(*y))
        .light_line_style(RGBColor(235, 235, 235))
        .draw()
        .expect("draw");
    for (name, colour) in pick::Row::NAMES.iter().zip(COLOURS) {
        let points = line(name, &median);
        let series = LineSeries::new(points.clone(), colour.stroke_width(2));
        chart
            .draw_series(series)
            .expect("draw")
            .label(*name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        let dots = points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
        chart.draw_series(dots).expect("draw");
        let least = line(name, &|s| s["min"].as_f64().unwrap_or(1.0));
        let most = line(name, &|s| s["max"].as_f64().unwrap_or(1.0));
        let spans = least
            .into_iter()
            .zip(most)
            .map(|(low, high)| PathElement::new(vec![low, high], colour.stroke_width(1)));
        chart.draw_series(spans).expect("draw");
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .draw()
        .expect("draw");
    area.present().expect("write the plot");
}
