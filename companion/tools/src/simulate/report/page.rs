//! The page around the figures.

use std::fmt::Write as _;

use super::figures;
use super::html::{escape, table};
use crate::simulate::format::{counted, percent};
use crate::simulate::outcome::{ENOUGH, Outcome};
use crate::simulate::table::{
    COLUMNS, TENANT_COLUMNS, cells, enough, remarks, targets, tenant_cells, traffic,
};

/// Tenants in the table of a run.
const TENANTS_SHOWN: usize = 50;

pub(in crate::simulate) fn html(outcome: &Outcome) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Penstock simulation: {}</title>\n<style>\n{}</style>\n<main>\n<h1>Penstock simulation</h1>\n",
        escape(&outcome.source.name()),
        include_str!("style.css")
    );
    for line in [traffic(outcome), targets(outcome)] {
        let _ = writeln!(page, "<p>{}.</p>", escape(&sentence(&line)));
    }
    for line in answers(outcome) {
        let _ = writeln!(page, "<p class=\"answer\">{}.</p>", escape(&line));
    }
    page.push_str("<h2>Results</h2>\n");
    page.push_str(&results(outcome));
    page.push_str(GLOSSARY);
    if !outcome.has_range() {
        for line in remarks(outcome) {
            let _ = writeln!(page, "<p>{}.</p>", escape(&line));
        }
    }
    if outcome.has_range() {
        section(&mut page, "By the number of servers", "", &figures::by_servers(outcome));
    } else if outcome.policies.len() > 1 {
        section(&mut page, "By policy", "", &figures::by_policy(outcome));
    }
    let shown = shown(outcome);
    section(&mut page, "Over time", &shown, &figures::over_time(outcome));
    if outcome.has_tenants() {
        section(&mut page, "By tenant", &shown, &figures::by_tenant(outcome));
        page.push_str(&tenants(outcome));
    }
    page.push_str("</main>\n</html>\n");
    page
}

const GLOSSARY: &str = "<p class=\"soft\"><b>in time</b>: served within the targets, of all requests. <b>good</b>: of the requests in \
time, per second of arrivals. <b>TTFT</b>: from the arrival to the first token. <b>queue</b>: from the arrival to the grant. \
<b>busy</b>: the part of the time in which a server computed, be it for one request. <b>Jain</b>: 1 if every tenant got its fair part of the served \
tokens, less the further they are from it.</p>\n";

/// The first letter of a line as a capital.
fn sentence(line: &str) -> String {
    let mut characters = line.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}

/// The result in a sentence for each policy.
fn answers(outcome: &Outcome) -> Vec<String> {
    if outcome.has_range() {
        return enough(outcome);
    }
    let answer = outcome.runs().map(|(policy, run)| {
        format!(
            "{policy} with {}: {} of the requests are in time",
            counted(run.servers, "server"),
            percent(run.results.within_targets)
        )
    });
    answer.collect()
}

/// Which runs the charts of single runs show.
fn shown(outcome: &Outcome) -> String {
    let runs: Vec<String> = outcome
        .policies
        .iter()
        .map(|policy| format!("{} with {}", policy.name, counted(policy.shown().servers, "server")))
        .collect();
    let why = if outcome.has_range() {
        format!(
            " For each policy, the fewest servers with {:.0} % of the requests in time, or else the most.",
            ENOUGH * 100.0
        )
    } else {
        String::new()
    };
    format!("{}.{why}", runs.join("; "))
}

fn section(page: &mut String, title: &str, about: &str, figures: &[String]) {
    let _ = writeln!(page, "<h2>{}</h2>", escape(title));
    if !about.is_empty() {
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(about));
    }
    let _ = writeln!(page, "<div class=\"charts\">\n{}</div>", figures.concat());
}

fn results(outcome: &Outcome) -> String {
    let columns = std::iter::once("policy").chain(COLUMNS);
    let rows = outcome.runs().map(|(policy, run)| {
        let cells = cells(run.servers, &run.results);
        std::iter::once(policy.to_owned()).chain(cells).collect()
    });
    table("", columns, rows)
}

fn tenants(outcome: &Outcome) -> String {
    let mut html = String::new();
    for policy in &outcome.policies {
        let run = policy.shown();
        let cells = tenant_cells(&run.results, TENANTS_SHOWN);
        let rows =
            cells.into_iter().map(|(name, cells)| std::iter::once(name.to_owned()).chain(cells).collect());
        let caption = format!("{}, {}", policy.name, counted(run.servers, "server"));
        let columns = std::iter::once("tenant").chain(TENANT_COLUMNS);
        html.push_str(&table(&caption, columns, rows));
        let hidden = run.results.tenants.len().saturating_sub(TENANTS_SHOWN);
        if hidden > 0 {
            let _ = writeln!(
                html,
                "<p class=\"soft\">And {}: see results.json.</p>",
                counted(hidden, "more tenant")
            );
        }
    }
    html
}
