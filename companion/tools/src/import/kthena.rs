//! Kthena's router: the environment of its fairness scheduling, as variables or out of a manifest.
//!
//! Its rules: within each model the user with the least weighted tokens in the window goes first. A value that Kthena
//! would answer with a silent default is an error here.

use std::time::Duration;

use super::page::Block;
use super::section::{Found, Section, Unit, no_equal};
use super::tree::{self, Entry, Node, Value};
use super::{Imported, UNLIMITED, Wrong, pool};

/// Mappings and lists around an environment.
const WRAPPERS_MAX: usize = 16;
const WINDOW_MIN: Duration = Duration::from_secs(60);
const WINDOW_MAX: Duration = Duration::from_secs(3_600);
/// The Helm values of the chart, by the variables that they set.
const HELM: [(&str, &str); 4] = [
    ("enabled", "ENABLE_FAIRNESS_SCHEDULING"),
    ("windowSize", "FAIRNESS_WINDOW_SIZE"),
    ("inputTokenWeight", "FAIRNESS_INPUT_TOKEN_WEIGHT"),
    ("outputTokenWeight", "FAIRNESS_OUTPUT_TOKEN_WEIGHT"),
];

pub(super) fn import(text: &str) -> Result<Imported, Wrong> {
    let mut entries = Vec::new();
    if tree::is_variables(text) {
        entries.extend(tree::variables(text)?.entries().iter().cloned());
    } else {
        for root in tree::yaml(text)? {
            match root.name {
                Some(key) => entries.push(Entry {
                    key,
                    line: root.node.line,
                    node: root.node,
                }),
                None => collect(&root.node, &mut entries, 0),
            }
        }
    }
    if !entries.iter().any(|it| is_ours(&it.key)) {
        return Err(Wrong::new(
            1,
            "no variable of Kthena's fairness scheduling stands here (ENABLE_FAIRNESS_SCHEDULING, FAIRNESS_...)",
        ));
    }
    // Kthena takes an empty variable for one that isn't there.
    entries.retain(|it| it.node.scalar().is_none_or(|value| !value.trim().is_empty()));
    let mut section = Section::of("", &entries);
    let enabled = section.take(&["ENABLE_FAIRNESS_SCHEDULING"])?;
    let on = enabled.as_ref().map(Found::flag).transpose()?;
    if let Some(found) = section.take(&["ENABLE_SESSION_BOOST", "SESSION_BOOST_ENABLED"])?
        && found.flag()?
        && on == Some(true)
    {
        return Err(found.wrong("fairness scheduling is on as well; Kthena takes one of the two"));
    }

    let mut pool = pool("kthena");
    pool.comment(match on {
        Some(true) => "ENABLE_FAIRNESS_SCHEDULING=true",
        Some(false) => {
            "ENABLE_FAIRNESS_SCHEDULING=false: Kthena lets every request through at once, and so does `stock: \
             {watermark_per_backend: none}` here. Take that and `max_rate` out to have the fairness below."
        }
        None => "ENABLE_FAIRNESS_SCHEDULING isn't said (Kthena: off); what follows is as if it were true.",
    });
    let (queue, stock) = gate(&mut section, on != Some(false))?;
    pool.map("queue", queue);
    pool.map("stock", stock);
    let mut arbitration = Block::default();
    arbitration.pair("per_model", "true", "a queue for each model");
    arbitration.map("flows", flows(&mut section)?);
    pool.map("arbitration", arbitration);
    pool.map("usage", usage(&mut section)?);
    for entry in section.rest() {
        if is_ours(&entry.key) {
            pool.comment(no_equal(entry, why(&entry.key)));
        }
    }

    let mut identity = Block::default();
    identity.comment(
        "Kthena takes the user from its JWT: `user: [{metadata: envoy.filters.http.jwt_authn/payload/sub}]` says so \
         once Envoy checks it. By default it is x-penstock-user, else the body's `user`.",
    );
    identity.pair("priority", "[]", "Kthena knows no bands");
    let mut page = Block::default();
    page.map("identity", identity);
    page.list("pools", vec![pool]);
    page.comment(
        "Who waited too long is answered 503 here (`capacity_status`), with Retry-After; Kthena answers 504.",
    );
    let others: Vec<&str> = section
        .rest()
        .filter(|it| !is_ours(&it.key))
        .map(|it| it.key.as_str())
        .collect();
    if !others.is_empty() {
        page.comment(format!("Not of the queue, and not read: {}", others.join(", ")));
    }
    Ok(page.into())
}

/// How long, how many, how fast.
fn gate(section: &mut Section<'_>, on: bool) -> Result<(Block, Block), Wrong> {
    let mut queue = Block::default();
    queue.pair(
        "total_capacity",
        UNLIMITED,
        "Kthena's queue has no limit; here everything has one",
    );
    queue.pair("flow_capacity", UNLIMITED, "");
    let (ttl, note) = match section.take(&["FAIRNESS_QUEUE_TIMEOUT"])? {
        Some(found) => {
            let (span, spelt) = found.span(Unit::Written)?;
            if span.is_zero() {
                return Err(
                    found.wrong("this is a duration above zero; Kthena would take 60s without a word")
                );
            }
            (spelt, found.note())
        }
        None => ("60s".to_owned(), "Kthena's default".to_owned()),
    };
    queue.pair("ttl", ttl.clone(), note);
    queue.pair(
        "no_endpoint_ttl",
        ttl,
        "there the same time counts when no server is ready",
    );

    let concurrent = section.take(&["FAIRNESS_MAX_CONCURRENT"])?;
    let bound = concurrent
        .as_ref()
        .map(|it| it.whole(0))
        .transpose()?
        .unwrap_or(0);
    let rate = section.take(&["FAIRNESS_MAX_QPS", "FAIRNESS_QUEUE_QPS"])?;
    let per_second = rate.as_ref().map(|it| it.whole(1)).transpose()?.unwrap_or(100);
    let mut stock = Block::default();
    if on && bound > 0 {
        let bound = bound.to_string();
        stock.comment(
            "FAIRNESS_MAX_CONCURRENT is of all servers of a model together; a bound here is of each server. Divide it by \
             their number.",
        );
        stock.pair(
            "watermark_per_backend",
            &bound,
            concurrent.map_or(String::new(), |it| it.note()),
        );
        stock.pair("lower_bound_per_backend", &bound, "one goes as soon as one ends");
        stock.pair("upper_bound_per_backend", bound, "");
        if let Some(rate) = rate {
            queue.comment(no_equal(
                rate.entry(),
                "Kthena doesn't use it beside FAIRNESS_MAX_CONCURRENT",
            ));
        }
    } else {
        stock.pair(
            "watermark_per_backend",
            "none",
            "FAIRNESS_MAX_CONCURRENT=0: the rate alone holds requests back, however busy the servers are; `auto` \
             learns how much they can take",
        );
        if on {
            let note = rate.map_or("FAIRNESS_MAX_QPS, Kthena's default".to_owned(), |it| it.note());
            queue.pair(
                "max_rate",
                per_second.to_string(),
                format!("{note}; there of each model, here of the pool"),
            );
        }
    }
    Ok((queue, stock))
}

/// Who goes first.
fn flows(section: &mut Section<'_>) -> Result<Block, Wrong> {
    let tokens = section.take(&["FAIRNESS_PRIORITY_TOKEN_WEIGHT"])?;
    let requests = section.take(&["FAIRNESS_PRIORITY_REQUEST_NUM_WEIGHT"])?;
    let by_tokens = tokens.as_ref().map(Found::number).transpose()?.unwrap_or(1.0);
    let by_requests = requests.as_ref().map(Found::number).transpose()?.unwrap_or(0.0);
    let mut flows = Block::default();
    flows.pair(
        "key",
        "user",
        "fairness between users; who says no user goes last, as there",
    );
    if by_tokens == 0.0 && by_requests == 0.0 {
        flows.pair(
            "discipline",
            "fifo",
            "both weights of the priority are 0: order of arrival",
        );
        return Ok(flows);
    }
    flows.pair("discipline", "usage", "the least used in the window goes first");
    if by_tokens == 0.0 {
        flows.pair(
            "cost",
            "requests",
            "FAIRNESS_PRIORITY_TOKEN_WEIGHT is 0: requests count, tokens don't",
        );
        return Ok(flows);
    }
    flows.pair("cost", "tokens", "");
    if let Some(found) = tokens {
        flows.comment(format!(
            "`{}: {by_tokens}`: alone it scales every user's sum alike; the order is the same.",
            found.entry().key
        ));
    }
    if let Some(found) = requests.filter(|_| by_requests > 0.0) {
        flows.comment(no_equal(
            found.entry(),
            "usage is in tokens or in requests (`cost`), not in a sum of both",
        ));
    }
    Ok(flows)
}

/// What is counted, and how far back.
fn usage(section: &mut Section<'_>) -> Result<Block, Wrong> {
    let mut usage = Block::default();
    match section.take(&["FAIRNESS_WINDOW_SIZE"])? {
        Some(found) => {
            let (span, spelt) = found.span(Unit::Written)?;
            if !(WINDOW_MIN..=WINDOW_MAX).contains(&span) {
                return Err(found.wrong("this is 1m to 1h; Kthena would take 5m without a word"));
            }
            usage.pair("window", spelt, found.note());
        }
        None => usage.pair("window", "5m", "Kthena's default; its Helm chart says 1h"),
    }
    let mut last = None;
    let mut sum = 0.0;
    for (name, key, default) in [
        ("FAIRNESS_INPUT_TOKEN_WEIGHT", "input_token_weight", 1.0),
        ("FAIRNESS_OUTPUT_TOKEN_WEIGHT", "output_token_weight", 2.0),
    ] {
        let (weight, note) = match section.take(&[name])? {
            Some(found) => {
                let weight = (found.number()?, found.note());
                last = Some(found);
                weight
            }
            None => (default, "Kthena's default".to_owned()),
        };
        sum += weight;
        usage.pair(key, weight.to_string(), note);
    }
    match last {
        Some(found) if sum == 0.0 => {
            Err(found.wrong("the two token weights can't both be 0: nothing would count"))
        }
        Some(_) | None => Ok(usage),
    }
}

/// Every variable of a manifest or of Helm values.
fn collect(node: &Node, entries: &mut Vec<Entry>, depth: usize) {
    if depth > WRAPPERS_MAX {
        return;
    }
    match &node.value {
        Value::Null | Value::Scalar(_) => {}
        Value::List(nodes) => {
            for node in nodes {
                match (
                    node.get("name").and_then(|it| it.node.scalar()),
                    node.get("value"),
                ) {
                    (Some(name), Some(value)) => entries.push(Entry {
                        key: name.to_owned(),
                        line: value.line,
                        node: value.node.clone(),
                    }),
                    _ => collect(node, entries, depth + 1),
                }
            }
        }
        Value::Map(map) => {
            for entry in map {
                match &entry.node.value {
                    Value::Scalar(_) if is_variable(&entry.key) => entries.push(entry.clone()),
                    Value::Map(values) if entry.key == "fairness" => {
                        entries.extend(values.iter().map(|it| Entry {
                            key:
                                HELM.iter().find(|(key, _)| *key == it.key).map_or_else(
                                    || format!("fairness.{}", it.key),
                                    |(_, name)| (*name).into(),
                                ),
                            ..it.clone()
                        }));
                    }
                    Value::Null | Value::Scalar(_) | Value::List(_) | Value::Map(_) => {
                        collect(&entry.node, entries, depth + 1);
                    }
                }
            }
        }
    }
}

fn is_variable(key: &str) -> bool {
    key.starts_with(|it: char| it.is_ascii_uppercase())
        && key
            .bytes()
            .all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == b'_')
}

/// It is of the queue, and not of the rest of the router.
fn is_ours(key: &str) -> bool {
    let key = key.to_ascii_uppercase();
    key.contains("FAIRNESS") || key.contains("SESSION_BOOST")
}

/// Why a variable has no equal.
fn why(key: &str) -> &'static str {
    match key {
        "FAIRNESS_PRIORITY_REFRESH_RETRIES" | "FAIRNESS_REBUILD_THRESHOLD" => {
            "the order always follows from what is used now; there is no heap of old priorities to refresh"
        }
        key if key.contains("SESSION_BOOST") => {
            "sessions aren't told apart; `scheduler.prefix` sends a prompt to where its beginning is cached"
        }
        _ => "",
    }
}
