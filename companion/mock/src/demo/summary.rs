//! The demo's summary: each tenant's service, and whether every request is accounted for.

use std::fmt::Write;

use super::accounting::Accounting;
use super::snapshot::{Snapshot, result_cells};
use super::takeover::Takeover;
use super::takeover_report::sentences;
use super::tally::{OUTPUT_WEIGHT, Tally};
use super::text::columns;

const HEADER: [&str; 10] =
    ["tenant", "weight", "sent", "served", "refused", "failed", "TTFT p50", "p99", "share", "ideal"];

/// The summary's text; it ends with a newline.
/// `roles` has the role of each of several companions.
pub(super) fn render(
    snapshot: &Snapshot,
    accounting: &Accounting,
    mismatches: &[String],
    roles: &[Option<String>],
) -> String {
    let mut out = columns(&HEADER, &tenant_rows(snapshot));
    out.push('\n');
    out.push_str(&explanation(snapshot));
    for (tenant, tally) in snapshot.tenants.iter().zip(&snapshot.tallies) {
        let outcomes: Vec<String> =
            tally.outcomes.iter().map(|(name, count)| format!("{name} {count}")).collect();
        push(&mut out, &format!("{}: {}", tenant.name, outcomes.join(", ")));
        if let Some(why) = &tally.last_failure {
            push(&mut out, &format!("{}, last failure: {why}", tenant.name));
        }
    }
    push(&mut out, &servers_line(accounting));
    if mismatches.is_empty() {
        push(&mut out, &accounted_line(snapshot, accounting));
    }
    if let Some(takeover) = &snapshot.takeover {
        out.push('\n');
        for sentence in sentences(takeover, snapshot, roles) {
            push(&mut out, &sentence);
        }
    }
    out
}

fn tenant_rows(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let shares = snapshot.shares();
    let tenants = snapshot.tenants.iter().zip(&snapshot.tallies);
    tenants
        .enumerate()
        .map(|(index, (tenant, tally))| {
            let mut cells = vec![tenant.name.to_owned(), tenant.weight.to_string(), tally.sent.to_string()];
            cells.extend(result_cells(tally, shares.as_ref().map(|shares| shares[index])));
            cells
        })
        .collect()
}

fn servers_line(accounting: &Accounting) -> String {
    let served: u64 = accounting.servers.iter().map(|stats| stats.served).sum();
    let peaks: Vec<String> = accounting.servers.iter().map(|stats| stats.peak.to_string()).collect();
    format!("servers: {served} served, at most {} at a time", peaks.join(", "))
}

fn accounted_line(snapshot: &Snapshot, accounting: &Accounting) -> String {
    let sum = |count: fn(&Tally) -> u64| snapshot.tallies.iter().map(count).sum::<u64>();
    let sent = sum(|tally| tally.sent);
    let failed = sum(|tally| tally.cut + tally.failed);
    let is_killed = snapshot.takeover.as_ref().is_some_and(Takeover::is_killed);
    let agree = if is_killed {
        "clients and servers agree (the killed companion's counts are gone)"
    } else if accounting.companion_restarted {
        "clients and servers agree (the companion was restarted, so its counts are incomplete)"
    } else {
        "clients, companion and servers agree"
    };
    let failures = if failed > 0 { format!(", {failed} of them failed") } else { String::new() };
    format!("every one of {sent} requests is accounted for{failures}: {agree}")
}

fn explanation(snapshot: &Snapshot) -> String {
    let names = snapshot.backlogged();
    let ideal = match names.as_slice() {
        [] => "no tenant always had a waiting request, so weights had no effect: each tenant got all it requested"
            .to_owned(),
        [name] => format!("only {name} always had a waiting request: its ideal share is the rest"),
        names => format!(
            "{} always had a waiting request: they divide the rest by weight",
            names.join(" and ")
        ),
    };
    format!(
        "  share: part of the served tokens (prompt + {OUTPUT_WEIGHT} x output) after the first second\n  ideal: {ideal}\n\n"
    )
}

fn push(out: &mut String, line: &str) {
    writeln!(out, "  {line}").expect("invariant: writing to a string doesn't fail");
}
