//! One value of each run: over the numbers of servers, or by policy.

use penstock_simulate::results::Results;

use super::{axis, data, figure, legend, percentage};
use crate::simulate::format::ms;
use crate::simulate::outcome::{ENOUGH, Outcome, Run};
use crate::simulate::report::axis::Axis;
use crate::simulate::report::bars::{self, Group};
use crate::simulate::report::html::table;
use crate::simulate::report::lines::{Line, LineChart};

/// A value of a run that a figure shows.
struct Measure {
    title: &'static str,
    about: &'static str,
    unit: &'static str,
    value: fn(&Results) -> Option<f64>,
    text: fn(Option<f64>) -> String,
}

const MEASURES: [Measure; 4] = [
    Measure {
        title: "Requests in time",
        about: "Requests that were served within the targets, of all requests. More is better.",
        unit: "% of the requests",
        value: |results| Some(results.within_targets * 100.0),
        text: percentage,
    },
    Measure {
        title: "Time to the first token, p99",
        about: "From the arrival, for 99 % of the served requests. Less is better.",
        unit: "ms",
        value: |results| results.ttft_ms.p99,
        text: ms,
    },
    Measure {
        title: "Requests not served",
        about: "Requests that were rejected, waited too long or were unfinished, of all requests. Less is better.",
        unit: "% of the requests",
        value: |results| {
            let lost = results.refused + results.unfinished;
            Some(lost as f64 * 100.0 / results.requests.max(1) as f64)
        },
        text: percentage,
    },
    Measure {
        title: "Use of the servers",
        about: "The part of the time in which a server computed, over all servers.",
        unit: "% of the time",
        value: |results| Some(results.utilisation * 100.0),
        text: percentage,
    },
];

/// A value for each number of servers.
pub(in crate::simulate::report) fn by_servers(outcome: &Outcome) -> Vec<String> {
    let counts = || outcome.runs().map(|(_, run)| run.servers as f64);
    let (first, last) = (counts().fold(f64::INFINITY, f64::min), counts().fold(0.0, f64::max));
    let figures = MEASURES.iter().map(|measure| {
        let of_run = |run: &Run| (run.servers as f64, (measure.value)(&run.results));
        let lines: Vec<Line> = outcome
            .policies
            .iter()
            .map(|policy| Line {
                name: policy.name.clone(),
                points: policy.runs.iter().map(of_run).collect(),
            })
            .collect();
        let aim = match measure.title {
            "Requests in time" => Some((ENOUGH * 100.0, format!("{:.0} %", ENOUGH * 100.0))),
            _ => None,
        };
        let chart = LineChart {
            title: measure.title,
            x_title: "servers",
            y_title: measure.unit,
            x: Axis::between(first, last, 8),
            y: axis(measure.unit, &lines),
            lines: &lines,
            aim,
            first_class: 0,
            has_dots: true,
        };
        let number = |x: f64| format!("{x:.0}");
        let data = data("servers", &lines, number, measure.text);
        figure(measure.title, measure.about, &legend(outcome), &chart.svg(), &data)
    });
    figures.collect()
}

/// A value for each policy.
pub(in crate::simulate::report) fn by_policy(outcome: &Outcome) -> Vec<String> {
    let figures = MEASURES.iter().map(|measure| {
        let bar = |run: &Run| {
            let value = (measure.value)(&run.results);
            (value, (measure.text)(value))
        };
        let bars: Vec<_> = outcome.policies.iter().map(|policy| bar(policy.shown())).collect();
        let texts = bars.iter().map(|(_, text)| text.clone());
        let names = outcome.policies.iter().map(|policy| policy.name.clone());
        let rows = names.zip(texts).map(|(name, text)| vec![name, text]);
        let data = table("", ["policy", measure.unit], rows);
        let group = Group { name: String::new(), bars };
        let svg = bars::svg(measure.title, measure.unit, &[group]);
        figure(measure.title, measure.about, &legend(outcome), &svg, &data)
    });
    figures.collect()
}
