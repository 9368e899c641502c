//! The figures of a report: a chart, its legend, and a table of the same data.

mod by_run;
mod by_tenant;
mod over_time;

use std::fmt::Write as _;

pub(super) use self::by_run::{by_policy, by_servers};
pub(super) use self::by_tenant::by_tenant;
pub(super) use self::over_time::over_time;
use super::axis::Axis;
use super::html::{escape, table};
use super::lines::{Line, class};
use crate::simulate::format::percent;
use crate::simulate::outcome::Outcome;

/// The axis of the values. That of a percentage ends at 100.
fn axis(unit: &str, lines: &[Line]) -> Axis {
    let points = lines.iter().flat_map(|line| &line.points);
    let values = points.filter_map(|(_, value)| *value);
    if unit.starts_with('%') {
        Axis::linear(100.0, 4)
    } else if unit == "ms" {
        Axis::fitting(values, 4)
    } else {
        Axis::linear(values.fold(0.0, f64::max), 4)
    }
}

/// The values of lines that have the same x, as a table.
fn data(x_title: &str, lines: &[Line], x: fn(f64) -> String, text: fn(Option<f64>) -> String) -> String {
    let columns = std::iter::once(x_title).chain(lines.iter().map(|line| line.name.as_str()));
    let longest = lines.iter().max_by_key(|line| line.points.len());
    let places = longest.map_or(&[][..], |line| &line.points);
    let rows = places.iter().map(|(place, _)| {
        let values = lines.iter().map(|line| {
            let point = line.points.iter().find(|(x, _)| x == place);
            text(point.and_then(|(_, value)| *value))
        });
        std::iter::once(x(*place)).chain(values).collect()
    });
    table("", columns, rows)
}

/// The colours and dashes of the policies; nothing for a single one.
fn legend(outcome: &Outcome) -> String {
    if outcome.policies.len() < 2 {
        return String::new();
    }
    let mut html = String::from("<ul class=\"legend\">");
    for (index, policy) in outcome.policies.iter().enumerate() {
        let _ = write!(
            html,
            "<li><svg viewBox=\"0 0 32 14\" aria-hidden=\"true\"><g class=\"{}\"><path class=\"series\" \
             stroke-width=\"4\" d=\"M0 8H32\"/></g></svg>{}</li>",
            class(index),
            escape(&policy.name)
        );
    }
    html.push_str("</ul>");
    html
}

fn figure(title: &str, about: &str, legend: &str, svg: &str, data: &str) -> String {
    format!(
        "<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>{legend}\n{svg}<details><summary>the same data as a \
         table</summary>{data}</details></figure>\n",
        escape(title),
        escape(about)
    )
}

fn percentage(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| percent(value / 100.0))
}
