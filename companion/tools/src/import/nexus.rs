//! Nexus: the `[queue]` of nexus.toml.
//!
//! One queue for everybody in order of arrival, high priority first. Its other sections are named and left to their
//! owner: they say how a backend is chosen, not who waits.

use super::page::Block;
use super::section::{Section, Unit, no_equal};
use super::tree::{self, Value};
use super::{Imported, Wrong, pool};

pub(super) fn import(text: &str) -> Result<Imported, Wrong> {
    let node = tree::toml(text)?;
    let mut root = Section::new("", &node);
    let mut section = match root.section(&["queue"])? {
        Some(section) => section,
        // The section's keys alone, as people cut them out.
        None if node
            .entries()
            .iter()
            .any(|it| matches!(it.key.as_str(), "max_size" | "max_wait_seconds")) =>
        {
            std::mem::replace(&mut root, Section::of("", []))
        }
        None if node.entries().is_empty() => return Err(Wrong::new(1, "there is no [queue] in it")),
        // What Nexus does without the section.
        None => Section::of("queue", []),
    };

    let mut identity = Block::default();
    identity.pair(
        "priority",
        "[{header: x-nexus-priority}]",
        "high goes first, as there; `low` is a word too here: sheddable",
    );
    identity.comment(
        "There whoever says high goes first. Here `max_priority` limits what a tenant may claim, and `trust` who is \
         believed at all.",
    );
    let mut metrics = Block::default();
    metrics.pair(
        "aliases",
        "[nexus]",
        "shows nexus_queue_depth besides Penstock's own",
    );

    let mut pool = pool("nexus");
    pool.map("queue", queue(&mut section)?);
    let mut flows = Block::default();
    flows.pair("key", "none", "one queue for everybody");
    flows.pair("discipline", "fifo", "in order of arrival");
    flows.pair("cost", "requests", "");
    let mut arbitration = Block::default();
    arbitration.map("flows", flows);
    pool.map("arbitration", arbitration);
    section.leave(&mut pool, |_| "");

    let mut page = Block::default();
    page.map("identity", identity);
    page.map("metrics", metrics);
    page.list("pools", vec![pool]);
    for entry in root.rest() {
        let comment = match &entry.node.value {
            Value::Map(_) => format!("[{}] {}", entry.key, elsewhere(&entry.key)),
            Value::List(_) => format!("[[{}]] {}", entry.key, elsewhere(&entry.key)),
            Value::Null | Value::Scalar(_) => no_equal(entry, ""),
        };
        page.comment(comment);
    }
    Ok(page.into())
}

fn queue(section: &mut Section<'_>) -> Result<Block, Wrong> {
    let mut queue = Block::default();
    let (enabled, note) = match section.take(&["enabled"])? {
        Some(found) => (found.flag()?, found.note()),
        None => (true, "Nexus' default".to_owned()),
    };
    let (size, size_note) = match section.take(&["max_size"])? {
        Some(found) => (found.whole(0)?, found.note()),
        None => (100, "Nexus' default".to_owned()),
    };
    let (wait, wait_note, waits) = match section.take(&["max_wait_seconds", "max_wait"])? {
        Some(found) => {
            let (span, spelt) = found.span(Unit::Seconds)?;
            (spelt, found.note(), !span.is_zero())
        }
        None => ("30s".to_owned(), "Nexus' default".to_owned(), true),
    };
    if enabled && size == 0 {
        queue.pair("enabled", "false", "`max_size = 0` queues nothing");
    } else if enabled && !waits {
        queue.pair(
            "enabled",
            "false",
            "with `max_wait_seconds = 0` whatever had to wait was refused",
        );
    } else {
        queue.pair("enabled", enabled.to_string(), note);
    }
    queue.pair("total_capacity", size.to_string(), size_note);
    queue.pair(
        "flow_capacity",
        size.max(1).to_string(),
        "the one flow may fill the queue",
    );
    if waits {
        queue.pair("ttl", wait.clone(), wait_note);
        queue.pair(
            "no_endpoint_ttl",
            wait,
            "there the same time counts when no server is ready",
        );
    }
    queue.pair("overflow", "reject", "a full queue refuses high priority too");
    Ok(queue)
}

/// Where Penstock says what another section of nexus.toml does.
fn elsewhere(section: &str) -> &'static str {
    match section {
        "backends" => {
            "isn't read: list those that serve your models under `endpoints`, those of other models as a pool each."
        }
        "server" => "isn't read: `listen.gateway` says where clients come in.",
        "health_check" => "isn't read: see `pools[].health` and `pools[].down`.",
        "discovery" => {
            "has no equal here: mDNS isn't asked; `endpoints` takes lists, DNS names, files and InferencePools."
        }
        "routing" => {
            "isn't read: see `pools[].scheduler` for how an endpoint is chosen, `rewrite` for aliases, `queue.requeues` for max_retries."
        }
        "logging" => "isn't read: see --log and --log-format.",
        "quality" | "budget" | "fleet" | "lifecycle" => "has no equal here.",
        _ => "has no equal here.",
    }
}
