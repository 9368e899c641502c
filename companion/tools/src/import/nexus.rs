//! Imports the `[queue]` section of a nexus.toml.
//!
//! Nexus has one queue for all clients, in order of arrival, with high priority first. Its other sections are about the choice
//! of a backend, so they become comments.

use penstock_config::tree::Kind;

use super::page::Block;
use super::section::{Section, Unit, no_equivalent};
use super::{Imported, SourceError, pool, tree};

pub(super) fn import(text: &str) -> Result<Imported, SourceError> {
    let node = tree::toml(text)?;
    let mut root = Section::new("", &node);
    let mut section = match root.section(&["queue"])? {
        Some(section) => section,
        // The section's keys are also accepted by themselves.
        None if node
            .entries()
            .iter()
            .any(|entry| matches!(entry.key.as_str(), "max_size" | "max_wait_seconds")) =>
        {
            std::mem::replace(&mut root, Section::from_entries("", []))
        }
        None if node.entries().is_empty() => {
            return Err(SourceError::new(1, "the file has no [queue]"));
        }
        // Without the section, Nexus uses its defaults.
        None => Section::from_entries("queue", []),
    };

    let mut identity = Block::default();
    identity.pair(
        "priority",
        "[{header: x-nexus-priority}]",
        "high goes first, as there; here `low` is accepted too, as sheddable",
    );
    identity.comment(
        "There any client may claim high priority. Here `max_priority` limits the priority of a tenant, and `trust` names \
         the trusted clients.",
    );
    let mut metrics = Block::default();
    metrics.pair("aliases", "[nexus]", "exports nexus_queue_depth besides Penstock's metrics");

    let mut pool = pool("nexus");
    pool.map("queue", queue(&mut section)?);
    let mut flows = Block::default();
    flows.pair("key", "none", "one queue for all clients");
    flows.pair("discipline", "fifo", "in order of arrival");
    flows.pair("cost", "requests", "");
    let mut arbitration = Block::default();
    arbitration.map("flows", flows);
    pool.map("arbitration", arbitration);
    section.comment_rest(&mut pool, |_| "");

    let mut page = Block::default();
    page.map("identity", identity);
    page.map("metrics", metrics);
    page.list("pools", vec![pool]);
    for entry in root.rest() {
        let comment = match &entry.value.kind {
            Kind::Map(_) => format!("[{}] {}", entry.key, elsewhere(&entry.key)),
            Kind::List(_) => format!("[[{}]] {}", entry.key, elsewhere(&entry.key)),
            _ => no_equivalent(entry, ""),
        };
        page.comment(comment);
    }
    Ok(page.into())
}

fn queue(section: &mut Section<'_>) -> Result<Block, SourceError> {
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
            let (duration, written) = found.duration(Unit::Seconds)?;
            (written, found.note(), !duration.is_zero())
        }
        None => ("30s".to_owned(), "Nexus' default".to_owned(), true),
    };
    if enabled && size == 0 {
        queue.pair("enabled", "false", "`max_size = 0` queues nothing");
    } else if enabled && !waits {
        queue.pair(
            "enabled",
            "false",
            "with `max_wait_seconds = 0` Nexus rejects requests that would have to wait",
        );
    } else {
        queue.pair("enabled", enabled.to_string(), note);
    }
    queue.pair("total_capacity", size.to_string(), size_note);
    queue.pair("flow_capacity", size.max(1).to_string(), "the only flow may fill the queue");
    if waits {
        queue.pair("ttl", wait.clone(), wait_note);
        queue.pair("no_endpoint_ttl", wait, "there the same limit applies while no endpoint is ready");
    }
    queue.pair("requeues", "until_ttl", "there a request is tried again until its wait ends");
    queue.pair("overflow", "reject", "a full queue rejects high priority too");
    Ok(queue)
}

/// Penstock's keys for another section of nexus.toml.
fn elsewhere(section: &str) -> &'static str {
    match section {
        "backends" => {
            "is not imported: list the backends of a model under `endpoints`, with a pool for each model."
        }
        "server" => "is not imported: see `listen.gateway`.",
        "health_check" => "is not imported: see `pools[].health` and `pools[].down`.",
        "discovery" => {
            "has no equivalent here: mDNS is not supported; `endpoints` takes lists, DNS names, files and InferencePools."
        }
        "routing" => {
            "is not imported: see `pools[].scheduler` for the choice of an endpoint, `rewrite` for aliases, `queue.requeues` for max_retries."
        }
        "logging" => "is not imported: see --log and --log-format.",
        _ => "has no equivalent here.",
    }
}
