//! The course of one run of each policy.

use std::time::Duration;

use penstock_simulate::goal::Goal;
use penstock_simulate::results::{Results, Series};

use super::{axis, data, figure, legend};
use crate::simulate::format::short;
use crate::simulate::outcome::Outcome;
use crate::simulate::report::axis::Axis;
use crate::simulate::report::lines::{Line, LineChart};

/// The place in the order of colours of the arrivals, which are those of every policy.
const ARRIVALS_CLASS: usize = 7;

/// The course of one run of each policy.
pub(in crate::simulate::report) fn over_time(outcome: &Outcome) -> Vec<String> {
    let shown: Vec<(&str, &Results)> =
        outcome.policies.iter().map(|policy| (&*policy.name, &policy.shown().results)).collect();
    let all = &shown[0].1.series;
    let unit = TimeUnit::of(all.part.saturating_mul(60));
    let each = |values: fn(&Series) -> Vec<Option<f64>>| -> Vec<Line> {
        let lines = shown.iter().map(|(name, results)| line(unit, name, &results.series, values));
        lines.collect()
    };
    let legend = legend(outcome);
    let target = match outcome.goal {
        Goal::Targets(targets) => targets.ttft_ms.map(|target| (target, "target".to_owned())),
        Goal::Multiple { .. } => None,
    };
    let arrivals = Course {
        title: "Arrivals",
        about: "Requests that arrive; the same for every policy.",
        unit: "requests per second",
        lines: vec![line(unit, "arrivals", all, arrivals)],
        first_class: ARRIVALS_CLASS,
        aim: None,
    };
    let waiting = Course {
        title: "Waiting requests",
        about: "The most requests that wait at one time.",
        unit: "requests",
        lines: each(|series| numbers(&series.waiting)),
        first_class: 0,
        aim: None,
    };
    let running = Course {
        title: "Requests at the servers",
        about: "The most requests at the servers at one time.",
        unit: "requests",
        lines: each(|series| numbers(&series.running)),
        first_class: 0,
        aim: None,
    };
    let ttft = Course {
        title: "Time to the first token, p99, by arrival",
        about: "For 99 % of the served requests that arrive at this time.",
        unit: "ms",
        lines: each(|series| series.ttft_p99_ms.clone()),
        first_class: 0,
        aim: target,
    };
    vec![
        arrivals.figure(unit, ""),
        waiting.figure(unit, &legend),
        running.figure(unit, &legend),
        ttft.figure(unit, &legend),
    ]
}

/// A chart over time.
struct Course {
    title: &'static str,
    about: &'static str,
    unit: &'static str,
    /// At least one.
    lines: Vec<Line>,
    first_class: usize,
    aim: Option<(f64, String)>,
}

impl Course {
    fn figure(self, time: TimeUnit, legend: &str) -> String {
        let last = self.lines[0].points.last().map_or(1.0, |(x, _)| *x);
        let chart = LineChart {
            title: self.title,
            x_title: time.name,
            y_title: self.unit,
            x: Axis::linear(last, 6),
            y: axis(self.unit, &self.lines),
            lines: &self.lines,
            aim: self.aim,
            first_class: self.first_class,
            has_dots: false,
        };
        let text = |value: Option<f64>| value.map_or_else(|| "–".into(), short);
        let data = data(time.name, &self.lines, short, text);
        figure(self.title, self.about, legend, &chart.svg(), &data)
    }
}

/// A line with a point in the middle of each part of the run.
fn line(unit: TimeUnit, name: &str, series: &Series, values: fn(&Series) -> Vec<Option<f64>>) -> Line {
    let part = unit.number(series.part);
    Line {
        name: name.into(),
        points: (0..).map(|index| part * (f64::from(index) + 0.5)).zip(values(series)).collect(),
    }
}

fn arrivals(series: &Series) -> Vec<Option<f64>> {
    let secs = series.part.as_secs_f64();
    let counts = series.arrived.iter();
    counts.map(|count| Some(*count as f64 / secs)).collect()
}

fn numbers(counts: &[usize]) -> Vec<Option<f64>> {
    counts.iter().map(|count| Some(*count as f64)).collect()
}

/// The unit of a time axis.
#[derive(Clone, Copy)]
struct TimeUnit {
    name: &'static str,
    secs: f64,
}

impl TimeUnit {
    /// The unit for a run of this length.
    fn of(length: Duration) -> Self {
        let (name, secs) = match length.as_secs() {
            0..300 => ("time in s", 1.0),
            300..18_000 => ("time in min", 60.0),
            18_000..432_000 => ("time in h", 3_600.0),
            _ => ("time in days", 86_400.0),
        };
        Self { name, secs }
    }

    fn number(self, time: Duration) -> f64 {
        time.as_secs_f64() / self.secs
    }
}
