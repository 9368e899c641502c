//! The table of a simulation for a terminal.

use std::fmt::Write as _;

use penstock_simulate::goal::{Goal, SLACK};
use penstock_simulate::results::Results;

use super::format::{counted, grouped, ms, percent, short, time};
use super::outcome::{ENOUGH, Outcome, Source};

/// Tenants of one run that the table shows.
const TENANTS_SHOWN: usize = 10;
/// Runs up to which the table shows the tenants of each.
const RUNS_WITH_TENANTS: usize = 4;
/// The columns of a run after the policy. The report has the same.
pub(super) const COLUMNS: [&str; 13] = [
    "servers",
    "requests",
    "served",
    "refused",
    "in time",
    "good req/s",
    "good tok/s",
    "TTFT p50 ms",
    "TTFT p99 ms",
    "queue p50 ms",
    "queue p99 ms",
    "busy",
    "Jain",
];
/// The columns of a tenant after its name. The report has the same.
pub(super) const TENANT_COLUMNS: [&str; 6] =
    ["served", "refused", "share", "weight", "TTFT p50 ms", "TTFT p99 ms"];

pub(super) fn text(outcome: &Outcome) -> String {
    let mut text = format!("{}\n{}\n\n", traffic(outcome), targets(outcome));
    let mut rows = vec![header("policy", &COLUMNS)];
    for (policy, run) in outcome.runs() {
        rows.push(row(policy, cells(run.servers, &run.results)));
    }
    text.push_str(&aligned(&rows));
    if outcome.has_tenants() && outcome.runs().count() <= RUNS_WITH_TENANTS {
        for (policy, run) in outcome.runs() {
            let _ = write!(text, "\n{policy}, {}\n", counted(run.servers, "server"));
            text.push_str(&tenants(&run.results));
        }
    }
    for line in remarks(outcome) {
        let _ = write!(text, "\n{line}");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// The input in one sentence.
pub(super) fn traffic(outcome: &Outcome) -> String {
    let kind = match outcome.source {
        Source::Trace(_) => "trace",
        Source::Scenario(_) => "scenario",
    };
    let scale =
        if outcome.scale == 1.0 { String::new() } else { format!(", {} times the rate", outcome.scale) };
    format!(
        "{kind} {}: {} in {}{scale}; seed {}",
        outcome.source.name(),
        counted(outcome.requests, "request"),
        time(outcome.arrivals),
        outcome.seed
    )
}

/// What counts as in time, in one sentence.
pub(super) fn targets(outcome: &Outcome) -> String {
    let hardware = &outcome.hardware;
    let server = format!(
        "servers with alpha {} ms, beta {} ms, gamma {} ms",
        hardware.alpha_ms, hardware.beta_ms, hardware.gamma_ms
    );
    let targets = match outcome.goal {
        Goal::Multiple { multiplier, .. } => format!(
            "in time, as no targets are given (--slo-ttft, --slo-itl): within {SLACK} times the model's targets for an iteration of \
             {multiplier} times alpha"
        ),
        Goal::Targets(targets) => {
            let ttft = targets.ttft_ms.map(|target| format!("{} ms to the first token", short(target)));
            let itl = targets.itl_ms.map(|target| format!("{} ms between tokens", short(target)));
            let named: Vec<String> = [ttft, itl].into_iter().flatten().collect();
            if named.is_empty() {
                "no targets: every answer is in time".into()
            } else {
                format!("in time: {}", named.join(", "))
            }
        }
    };
    format!("{server}; {targets}")
}

/// The cells of a run, in the order of [`COLUMNS`].
pub(super) fn cells(servers: usize, results: &Results) -> [String; 13] {
    let count = |number: usize| grouped(number as u64);
    [
        count(servers),
        count(results.requests),
        count(results.served),
        count(results.refused),
        percent(results.within_targets),
        short(results.goodput_requests_per_s),
        short(results.goodput_tokens_per_s),
        ms(results.ttft_ms.p50),
        ms(results.ttft_ms.p99),
        ms(results.queue_ms.p50),
        ms(results.queue_ms.p99),
        percent(results.utilisation),
        format!("{:.3}", results.jain),
    ]
}

/// The cells of the first tenants after their names, in the order of [`TENANT_COLUMNS`].
pub(super) fn tenant_cells(results: &Results, most: usize) -> Vec<(&str, [String; 6])> {
    let shown = results.tenants.iter().take(most);
    let cells = shown.map(|tenant| {
        let cells = [
            grouped(tenant.served as u64),
            grouped(tenant.refused as u64),
            percent(tenant.share),
            tenant.weight.to_string(),
            ms(tenant.ttft_ms.p50),
            ms(tenant.ttft_ms.p99),
        ];
        (&*tenant.name, cells)
    });
    cells.collect()
}

fn tenants(results: &Results) -> String {
    let mut rows = vec![header("tenant", &TENANT_COLUMNS)];
    for (name, cells) in tenant_cells(results, TENANTS_SHOWN) {
        rows.push(row(name, cells));
    }
    let mut text = aligned(&rows);
    let hidden = results.tenants.len().saturating_sub(TENANTS_SHOWN);
    if hidden > 0 {
        let _ = writeln!(text, "and {}: see --json", counted(hidden, "more tenant"));
    }
    text
}

/// What the table doesn't show: reasons of refusals, and how many servers are enough.
pub(super) fn remarks(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    if outcome.unanswered > 0 {
        lines.push(format!(
            "{} of the trace without an answer left out",
            counted(outcome.unanswered as usize, "request")
        ));
    }
    for (policy, run) in outcome.runs() {
        let mut reasons: Vec<String> = run
            .results
            .refused_by
            .iter()
            .map(|(reason, count)| format!("{} {reason}", grouped(*count as u64)))
            .collect();
        if run.results.unfinished > 0 {
            reasons.push(format!("{} unfinished at the end", grouped(run.results.unfinished as u64)));
        }
        if !reasons.is_empty() {
            lines.push(format!(
                "{policy}, {}: not served: {}",
                counted(run.servers, "server"),
                reasons.join(", ")
            ));
        }
    }
    if outcome.has_range() {
        lines.extend(enough(outcome));
    }
    lines
}

/// For each policy, how many servers are enough.
pub(super) fn enough(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.policies.iter().map(|policy| {
        let tried = (policy.runs[0].servers, policy.runs[policy.runs.len() - 1].servers);
        match policy.enough() {
            Some(run) => format!(
                "{}: {} of {} to {} are enough: {} of the requests are in time",
                policy.name,
                counted(run.servers, "server"),
                tried.0,
                tried.1,
                percent(run.results.within_targets)
            ),
            None => format!(
                "{}: {} to {} servers are not enough for {:.0} % of the requests in time",
                policy.name,
                tried.0,
                tried.1,
                ENOUGH * 100.0
            ),
        }
    });
    lines.collect()
}

fn header(first: &str, rest: &[&str]) -> Vec<String> {
    let names = std::iter::once(&first).chain(rest);
    names.map(ToString::to_string).collect()
}

fn row<const N: usize>(first: &str, rest: [String; N]) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(rest).collect()
}

/// Columns as wide as their widest cell: the first to the left, numbers to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if index == 0 {
                let _ = write!(text, "{cell:<width$}");
            } else {
                let _ = write!(text, "  {cell:>width$}");
            }
        }
        text.push('\n');
    }
    text
}
