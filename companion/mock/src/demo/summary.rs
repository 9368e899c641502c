//! The demo's last words: what each tenant got, and whether every request is accounted for.

use std::fmt::Write;

use super::books::Books;
use super::scene::Scene;
use super::tally::{OUTPUT_WEIGHT, Tally};
use super::text::{columns, duration, percent};

const HEADER: [&str; 10] = [
    "tenant", "weight", "sent", "served", "refused", "failed", "TTFT p50", "p99", "share", "ideal",
];

/// The whole summary; it ends with a newline.
pub(super) fn write(scene: &Scene, books: &Books, misfits: &[String]) -> String {
    let shares = scene.shares();
    let tenants = scene.tenants.iter().zip(&scene.tallies);
    let rows: Vec<Vec<String>> = tenants
        .clone()
        .enumerate()
        .map(|(place, (tenant, tally))| {
            let share = shares.as_ref().and_then(|shares| shares.get(place)).copied();
            vec![
                tenant.name.to_owned(),
                tenant.weight.to_string(),
                tally.sent.to_string(),
                tally.served.to_string(),
                tally.refused.to_string(),
                (tally.cut + tally.failed).to_string(),
                duration(tally.ttft(0.5)),
                duration(tally.ttft(0.99)),
                percent(share.map(|(real, _)| real)),
                percent(share.map(|(_, ideal)| ideal)),
            ]
        })
        .collect();
    let mut out = columns(&HEADER, &rows);
    out.push('\n');
    out.push_str(&explanation(scene));
    for (tenant, tally) in tenants {
        let outcomes: Vec<String> = tally
            .outcomes
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        push(&mut out, &format!("{}: {}", tenant.name, outcomes.join(", ")));
        if let Some(why) = &tally.last_failure {
            push(&mut out, &format!("{}, the last failure: {why}", tenant.name));
        }
    }
    let (served, peaks): (u64, Vec<String>) =
        books
            .servers
            .iter()
            .fold((0, Vec::new()), |(served, mut peaks), stats| {
                peaks.push(stats.peak.to_string());
                (served + stats.served, peaks)
            });
    push(
        &mut out,
        &format!("servers: {served} served, at most {} at a time", peaks.join(", ")),
    );
    let sum = |of: fn(&Tally) -> u64| scene.tallies.iter().map(of).sum::<u64>();
    let (sent, failed) = (sum(|t| t.sent), sum(|t| t.cut + t.failed));
    if misfits.is_empty() {
        let agree = if books.companion_restarted {
            "clients and servers agree (the companion was started again, its counts begin there)"
        } else {
            "clients, companion and servers agree"
        };
        let failures = if failed > 0 {
            format!(", {failed} of them failed")
        } else {
            String::new()
        };
        push(
            &mut out,
            &format!("every one of {sent} requests is accounted for{failures}: {agree}"),
        );
    }
    out
}

fn explanation(scene: &Scene) -> String {
    let names = scene.backlogged();
    let who = match names.as_slice() {
        [] => "nobody always had something waiting, so weights decided nothing: each got what it asked for"
            .to_owned(),
        [one] => format!("only {one} always had something waiting: it should have all that the others left"),
        many => format!(
            "{} always had something waiting: by weight they divide what the others left",
            many.join(" and ")
        ),
    };
    format!(
        "  share: of the tokens served (prompt + {OUTPUT_WEIGHT} x output) after the first second\n  ideal: {who}\n\n"
    )
}

fn push(out: &mut String, line: &str) {
    writeln!(out, "  {line}").expect("invariant: writing to a string doesn't fail");
}
