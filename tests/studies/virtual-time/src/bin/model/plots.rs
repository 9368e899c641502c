//! The plots beside the tables.

use std::path::Path;

use penstock_studies::markdown::rows;
use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::{Map, Value};

const SIZE: (u32, u32) = (760, 420);
const OWN: RGBColor = RGBColor(31, 119, 180);
const OTHER: RGBColor = RGBColor(192, 80, 77);
const THIRD: RGBColor = RGBColor(44, 140, 60);
const FOURTH: RGBColor = RGBColor(140, 190, 230);
const FIFTH: RGBColor = RGBColor(230, 160, 150);

type Error = Box<dyn std::error::Error + Send + Sync>;
type Plot = fn(&Area<'_>, &Value) -> Result<(), Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the plots of all experiments that have figures.
pub(crate) fn draw(dir: &Path, experiments: &Map<String, Value>) -> Result<(), Error> {
    let plots: [(&str, &str, Plot); 3] = [
        ("learned", "model-long.svg", long),
        ("gate", "model-gate.svg", gate),
        ("replicas", "model-replicas.svg", replicas),
    ];
    for (name, file, plot) in plots {
        if let Some(figures) = experiments.get(name) {
            let path = dir.join(file);
            let area = SVGBackend::new(&path, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            plot(&area, figures)?;
            area.present()?;
        }
    }
    Ok(())
}

/// One line of a chart.
struct Line {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

fn lines(area: &Area<'_>, title: &str, axes: (&str, &str), top: f64, lines: Vec<Line>) -> Result<(), Error> {
    let right = lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart.configure_mesh().x_desc(axes.0).y_desc(axes.1).light_line_style(TRANSPARENT).draw()?;
    for Line { name, colour, points } in lines {
        let points = points.into_iter().map(|(x, y)| (x, y.min(top)));
        let drawn = chart.draw_series(LineSeries::new(points, colour.stroke_width(1)))?;
        if !name.is_empty() {
            drawn
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    Ok(())
}

fn points(array: &Value, y: usize) -> Vec<(f64, f64)> {
    rows(array).filter_map(|row| Some((row[0].as_f64()?, row[y].as_f64()?))).collect()
}

fn long(area: &Area<'_>, figures: &Value) -> Result<(), Error> {
    let mut all = Vec::new();
    for (index, row) in rows(&figures["long"]).enumerate() {
        for (y, name, colour) in
            [(2, "Kalman over windows", OTHER), (1, "per request, used by the gate", OWN)]
        {
            all.push(Line {
                name: if index == 0 { name.to_string() } else { String::new() },
                colour,
                points: points(&row["points"], y),
            });
        }
    }
    let title = "n* learned behind its own gate / true n*: 12 combinations, noise 10 %";
    lines(area, title, ("requests served", "n* / true n*"), 2.5, all)
}

fn gate(area: &Area<'_>, figures: &Value) -> Result<(), Error> {
    let mut all = Vec::new();
    let mut top = 1.2_f64;
    for (row, colour) in rows(&figures["scenes"]).zip([OWN, OTHER, FOURTH, FIFTH, THIRD, BLACK, MAGENTA]) {
        let auto = row["auto"]["goodput_tokens_s"].as_f64().unwrap_or(1.0);
        let points: Vec<_> = points(&row["search"], 1).into_iter().map(|(x, y)| (x, y / auto)).collect();
        top = points.iter().map(|(_, y)| y * 1.3).fold(top, f64::max);
        all.push(Line {
            name: format!("{}, {} offered", row["traffic"].as_str().unwrap_or_default(), row["offered"]),
            colour,
            points,
        });
    }
    let title = "Goodput of fixed watermarks / goodput of auto";
    lines(area, title, ("watermark per endpoint", "goodput / goodput of auto"), top, all)
}

fn replicas(area: &Area<'_>, figures: &Value) -> Result<(), Error> {
    let desired =
        Line { name: "desired replicas".into(), colour: OWN, points: points(&figures["points"], 1) };
    let demand =
        Line { name: "offered, requests/s".into(), colour: OTHER, points: points(&figures["points"], 2) };
    let top = desired.points.iter().chain(&demand.points).map(|(_, y)| y * 1.25).fold(6.0, f64::max);
    lines(
        area,
        "Desired replicas: two servers, load 0.4, 2, 0.4 and 0",
        ("seconds", ""),
        top,
        vec![demand, desired],
    )
}
