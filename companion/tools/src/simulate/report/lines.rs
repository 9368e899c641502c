//! A chart of lines.

use std::fmt::Write as _;

use super::axis::Axis;
use super::html::escape;
use crate::simulate::format::{grouped, short};

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 40.0;

/// A line of a chart.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: String,
    /// By rising x. `None`: there is no value, and the line is interrupted.
    pub(super) points: Vec<(f64, Option<f64>)>,
}

/// A chart of lines with axes and units.
#[derive(Debug)]
pub(super) struct LineChart<'a> {
    /// The name of the chart for screen readers.
    pub(super) title: &'a str,
    pub(super) x_title: &'a str,
    pub(super) y_title: &'a str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: &'a [Line],
    /// A value to compare with, with a name. It is shown where the axis holds it.
    pub(super) aim: Option<(f64, String)>,
    /// The place of the first line in the order of colours.
    pub(super) first_class: usize,
    pub(super) has_dots: bool,
}

/// The class of the series at this place, for its colour and dashes.
pub(super) fn class(index: usize) -> String {
    let dash = match index % 4 {
        0 => "",
        1 => " dash2",
        2 => " dash3",
        _ => " dash4",
    };
    format!("s{}{dash}", index % 8)
}

impl LineChart<'_> {
    pub(super) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(self.title)
        );
        self.frame(&mut svg);
        if let Some((value, name)) = self.aim.as_ref().filter(|(value, _)| self.y.holds(*value)) {
            let y = self.y_of(*value);
            let right = WIDTH - RIGHT;
            let _ = writeln!(
                svg,
                "<path class=\"aim\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"value\" x=\"{right}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                if y < TOP + 14.0 { y + 14.0 } else { y - 4.0 },
                escape(name)
            );
        }
        for (index, line) in self.lines.iter().enumerate() {
            self.draw(&mut svg, &class(self.first_class + index), line);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn x_of(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y_of(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn frame(&self, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for (tick, label) in self.y.ticks.iter().zip(tick_labels(&self.y.ticks)) {
            let y = self.y_of(*tick);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                label
            );
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>");
        for (tick, label) in self.x.ticks.iter().zip(tick_labels(&self.x.ticks)) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.x_of(*tick),
                bottom + 16.0,
                label
            );
        }
        let logarithmic = if self.y.is_logarithmic() { " (logarithmic)" } else { "" };
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"12\">{}{logarithmic}</text><text x=\"{right}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            escape(self.y_title),
            HEIGHT - 6.0,
            escape(self.x_title)
        );
    }

    fn draw(&self, svg: &mut String, class: &str, line: &Line) {
        let mut path = String::new();
        let mut dots = String::new();
        let mut is_drawing = false;
        for (index, (x, y)) in line.points.iter().enumerate() {
            let Some(y) = y else {
                is_drawing = false;
                continue;
            };
            let (x, y) = (self.x_of(*x), self.y_of(*y));
            let command = if is_drawing { 'L' } else { 'M' };
            let _ = write!(path, "{command}{x:.1} {y:.1}");
            let before = index.checked_sub(1).and_then(|index| line.points.get(index));
            let is_alone = !before.is_some_and(|(_, y)| y.is_some())
                && !line.points.get(index + 1).is_some_and(|(_, y)| y.is_some());
            // A point without neighbours has no line.
            if self.has_dots || is_alone {
                let _ = write!(dots, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
            }
            is_drawing = true;
        }
        let _ = writeln!(
            svg,
            "<g class=\"{class}\"><path class=\"series\" d=\"{path}\"/>{dots}<title>{}</title></g>",
            escape(&line.name)
        );
    }
}

/// Ticks as text. An axis with large numbers counts in thousands.
fn tick_labels(ticks: &[f64]) -> Vec<String> {
    let has_large = ticks.iter().any(|tick| *tick >= 100_000.0);
    let label = |tick: &f64| match *tick {
        tick if has_large && tick >= 1_000.0 => format!("{} k", grouped((tick / 1_000.0).round() as u64)),
        tick if tick.fract() == 0.0 => grouped(tick as u64),
        tick => short(tick),
    };
    ticks.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: &[Line]) -> String {
        let chart = LineChart {
            title: "a & b",
            x_title: "min",
            y_title: "requests",
            x: Axis::linear(10.0, 5),
            y: Axis::linear(100.0, 4),
            lines,
            aim: Some((50.0, "aim".into())),
            first_class: 0,
            has_dots: false,
        };
        chart.svg()
    }

    #[test]
    fn lines_break_where_there_is_no_value_and_lone_points_are_dots() {
        let points = [Some(1.0), Some(2.0), None, Some(3.0), None, Some(4.0), Some(5.0)];
        let points = (0..).map(f64::from).zip(points).collect();
        let svg = chart(&[Line { name: "<x>".into(), points }]);
        let path = svg.split("class=\"series\" d=\"").nth(1).expect("a line");
        let path = &path[..path.find('"').expect("its end")];
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (3, 2), "{path}");
        assert_eq!(svg.matches("<circle").count(), 1);
        assert!(!svg.contains("<x>") && svg.contains("a &amp; b") && svg.contains(">requests<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn large_ticks_count_in_thousands() {
        assert_eq!(tick_labels(&[0.0, 2.5, 10_000.0]), ["0", "2.50", "10,000"]);
        assert_eq!(tick_labels(&[10.0, 1_000.0, 1_000_000.0]), ["10", "1 k", "1,000 k"]);
    }

    #[test]
    fn series_differ_in_colour_and_dashes() {
        let classes: std::collections::BTreeSet<String> = (0..8).map(class).collect();
        assert_eq!(classes.len(), 8);
    }
}
