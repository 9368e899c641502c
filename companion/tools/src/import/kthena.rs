//! Imports the fairness scheduling of Kthena's router from its environment variables, which may be in a manifest.
//!
//! Kthena queues requests by model, and grants first the user with the least weighted tokens in a time window. A value that
//! Kthena would silently replace by a default is an error here.

use std::time::Duration;

use penstock_config::tree::{Entry, Kind, Node};

use super::page::Block;
use super::section::{Found, Section, Unit, no_equivalent};
use super::{Imported, SourceError, UNLIMITED, pool, tree};

/// Levels of mappings and lists around the variables.
const NESTING_MAX: usize = 16;
const WINDOW_MIN: Duration = Duration::from_secs(60);
const WINDOW_MAX: Duration = Duration::from_secs(3_600);
/// The least token weight above 0 that a configuration takes.
const TOKEN_WEIGHT_MIN: f64 = 0.1;
/// A larger factor helps no weight that anybody means.
const SCALE_MAX: f64 = 1e12;
/// Values of the Helm chart, and the variables that they set.
const HELM: [(&str, &str); 4] = [
    ("enabled", "ENABLE_FAIRNESS_SCHEDULING"),
    ("windowSize", "FAIRNESS_WINDOW_SIZE"),
    ("inputTokenWeight", "FAIRNESS_INPUT_TOKEN_WEIGHT"),
    ("outputTokenWeight", "FAIRNESS_OUTPUT_TOKEN_WEIGHT"),
];

pub(super) fn import(text: &str) -> Result<Imported, SourceError> {
    let entries = variables(text)?;
    let mut section = Section::from_entries("", &entries);
    let is_enabled = read_enabled(&mut section)?;
    let mut pool = pool("kthena");
    pool.comment(match is_enabled {
        Some(true) => "ENABLE_FAIRNESS_SCHEDULING=true",
        Some(false) => {
            "ENABLE_FAIRNESS_SCHEDULING=false: Kthena lets every request through at once, and so does `stock: \
             {watermark_per_backend: none}` here. Remove that and `max_rate` to use the fairness below."
        }
        None => {
            "ENABLE_FAIRNESS_SCHEDULING isn't set, so fairness is off in Kthena. The rest is converted as if it were \
             true."
        }
    });
    let mut queue = queue(&mut section)?;
    let stock = limits(&mut section, is_enabled != Some(false), &mut queue)?;
    pool.map("queue", queue);
    pool.map("stock", stock);
    let mut arbitration = Block::default();
    arbitration.pair("per_model", "true", "a queue for each model");
    arbitration.map("flows", flows(&mut section)?);
    pool.map("arbitration", arbitration);
    pool.map("usage", usage(&mut section)?);
    let (queueing, unrelated): (Vec<_>, Vec<_>) = section.rest().partition(|entry| is_queueing(&entry.key));
    for entry in queueing {
        pool.comment(no_equivalent(entry, reason(&entry.key)));
    }

    let mut page = Block::default();
    page.map("identity", identity());
    page.list("pools", vec![pool]);
    page.comment(
        "A request that has waited too long is answered 503 here (`capacity_status`), with Retry-After; Kthena answers 504.",
    );
    if !unrelated.is_empty() {
        let keys: Vec<&str> = unrelated.iter().map(|entry| entry.key.as_str()).collect();
        page.comment(format!("Not about queueing, so not imported: {}", keys.join(", ")));
    }
    Ok(page.into())
}

/// The variables of a list or a manifest. At least one is about queueing.
fn variables(text: &str) -> Result<Vec<Entry>, SourceError> {
    let mut entries = Vec::new();
    if tree::is_variables(text) {
        entries.extend(tree::variables(text)?.entries().iter().cloned());
    } else {
        for root in tree::yaml(text)? {
            match root.name {
                Some(key) => entries.push(Entry { key, place: root.node.place.clone(), value: root.node }),
                None => collect(&root.node, &mut entries, 0),
            }
        }
    }
    if !entries.iter().any(|entry| is_queueing(&entry.key)) {
        return Err(SourceError::new(
            1,
            "this has no variable of Kthena's fairness scheduling (ENABLE_FAIRNESS_SCHEDULING, FAIRNESS_...)",
        ));
    }
    // To Kthena an empty variable is the same as a missing one.
    entries.retain(|entry| entry.value.scalar().is_none_or(|value| !value.trim().is_empty()));
    Ok(entries)
}

/// Whether fairness scheduling is enabled; `None` if the source doesn't set it.
fn read_enabled(section: &mut Section<'_>) -> Result<Option<bool>, SourceError> {
    let enabled = section.take(&["ENABLE_FAIRNESS_SCHEDULING"])?;
    let is_enabled = enabled.as_ref().map(Found::flag).transpose()?;
    if let Some(found) = section.take(&["ENABLE_SESSION_BOOST", "SESSION_BOOST_ENABLED"])?
        && found.flag()?
        && is_enabled == Some(true)
    {
        return Err(found.error("fairness scheduling is enabled too; Kthena allows one of the two"));
    }
    Ok(is_enabled)
}

fn identity() -> Block {
    let mut identity = Block::default();
    identity.comment(
        "Kthena reads the user from its JWT. When Envoy checks the JWT, `user: [{metadata: \
         envoy.filters.http.jwt_authn/payload/sub}]` does the same. The default is x-penstock-user, else the body's `user`.",
    );
    identity.pair("priority", "[]", "Kthena has no criticality levels");
    identity
}

/// `queue`: how many requests wait, and how long.
fn queue(section: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut queue = Block::default();
    queue.pair("total_capacity", UNLIMITED, "Kthena's queue has no limit; here everything has one");
    queue.pair("flow_capacity", UNLIMITED, "");
    let (ttl, note) = match section.take(&["FAIRNESS_QUEUE_TIMEOUT"])? {
        Some(found) => {
            let (duration, written) = found.duration(Unit::Required)?;
            if duration.is_zero() {
                return Err(found.error("must be a duration above zero; Kthena would silently use 60s"));
            }
            (written, found.note())
        }
        None => ("60s".to_owned(), "Kthena's default".to_owned()),
    };
    queue.pair("ttl", ttl.clone(), note);
    queue.pair("no_endpoint_ttl", ttl, "there the same limit applies while no endpoint is ready");
    Ok(queue)
}

/// `stock`, and the rate in `queue`: how many requests run, and how fast they are granted.
fn limits(section: &mut Section<'_>, is_enabled: bool, queue: &mut Block) -> Result<Block, SourceError> {
    let concurrent = section.take(&["FAIRNESS_MAX_CONCURRENT"])?;
    let bound = match &concurrent {
        Some(found) => found.whole(0)?,
        None => 0,
    };
    let rate = section.take(&["FAIRNESS_MAX_QPS", "FAIRNESS_QUEUE_QPS"])?;
    let (per_second, note) = match &rate {
        Some(found) => (found.whole(1)?, found.note()),
        None => (100, "FAIRNESS_MAX_QPS, Kthena's default".to_owned()),
    };
    let mut stock = Block::default();
    if is_enabled && bound > 0 {
        let bound = bound.to_string();
        stock.comment(
            "FAIRNESS_MAX_CONCURRENT is for all servers of a model together, and the bounds here are for each server. Divide \
             them by the number of servers.",
        );
        let note = concurrent.map_or(String::new(), |found| found.note());
        stock.pair("watermark_per_backend", &bound, note);
        stock.pair("lower_bound_per_backend", &bound, "a request is granted as soon as another ends");
        stock.pair("upper_bound_per_backend", bound, "");
        if let Some(rate) = rate {
            queue.comment(no_equivalent(
                rate.entry(),
                "Kthena ignores it when FAIRNESS_MAX_CONCURRENT is set",
            ));
        }
        return Ok(stock);
    }
    stock.pair(
        "watermark_per_backend",
        "none",
        "FAIRNESS_MAX_CONCURRENT=0: only the rate limits requests, however busy the servers are; `auto` learns how \
         much they can take",
    );
    if is_enabled {
        queue.pair(
            "max_rate",
            per_second.to_string(),
            format!("{note}; there for each model, here for the pool"),
        );
    }
    Ok(stock)
}

/// `arbitration.flows`: the order of users.
fn flows(section: &mut Section<'_>) -> Result<Block, SourceError> {
    let tokens = section.take(&["FAIRNESS_PRIORITY_TOKEN_WEIGHT"])?;
    let requests = section.take(&["FAIRNESS_PRIORITY_REQUEST_NUM_WEIGHT"])?;
    let by_tokens = tokens.as_ref().map(Found::number).transpose()?.unwrap_or(1.0);
    let by_requests = requests.as_ref().map(Found::number).transpose()?.unwrap_or(0.0);
    let mut flows = Block::default();
    flows.pair("key", "user", "fairness between users; requests without a user come last, as there");
    if by_tokens == 0.0 && by_requests == 0.0 {
        flows.pair("discipline", "fifo", "both priority weights are 0, so requests are in order of arrival");
        return Ok(flows);
    }
    flows.pair("discipline", "usage", "the user with the least usage in the window goes first");
    if by_tokens == 0.0 {
        flows.pair(
            "cost",
            "requests",
            "FAIRNESS_PRIORITY_TOKEN_WEIGHT is 0, so requests count and tokens don't",
        );
        return Ok(flows);
    }
    flows.pair("cost", "tokens", "");
    if let Some(found) = tokens {
        flows.comment(format!(
            "`{}: {by_tokens}` scales the usage of all users equally, so the order is the same.",
            found.entry().key
        ));
    }
    if let Some(found) = requests.filter(|_| by_requests > 0.0) {
        flows.comment(no_equivalent(
            found.entry(),
            "usage is counted in tokens or in requests (`cost`), not in a sum of both",
        ));
    }
    Ok(flows)
}

/// `usage`: the weights of tokens, and the window.
fn usage(section: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut usage = Block::default();
    match section.take(&["FAIRNESS_WINDOW_SIZE"])? {
        Some(found) => {
            let (duration, written) = found.duration(Unit::Required)?;
            if !(WINDOW_MIN..=WINDOW_MAX).contains(&duration) {
                return Err(found.error("this is 1m to 1h; Kthena would silently use 5m"));
            }
            usage.pair("window", written, found.note());
        }
        None => usage.pair("window", "5m", "Kthena's default; its Helm chart sets 1h"),
    }
    let mut last = None;
    let mut weights = Vec::new();
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
        weights.push((key, weight, note));
    }
    let least = weights.iter().map(|(_, weight, _)| *weight).filter(|weight| *weight > 0.0);
    let least = least.fold(f64::INFINITY, f64::min);
    if let Some(found) = last.filter(|_| least.is_infinite()) {
        return Err(found.error("the two token weights can't both be 0, because no token would count"));
    }
    let factor = scale_of(least);
    for (key, weight, mut note) in weights {
        if factor > 1.0 {
            note = format!("{note}, times {factor}: only the ratio of the two counts");
        }
        usage.pair(key, (weight * factor).to_string(), note);
    }
    Ok(usage)
}

/// The power of ten by which the token weights are multiplied, so that the least one above 0 isn't below the least that Penstock takes.
fn scale_of(least: f64) -> f64 {
    let mut factor = 1.0;
    while least * factor < TOKEN_WEIGHT_MIN && factor < SCALE_MAX {
        factor *= 10.0;
    }
    factor
}

/// Collects the variables of a manifest or of Helm values.
fn collect(node: &Node, entries: &mut Vec<Entry>, depth: usize) {
    if depth > NESTING_MAX {
        return;
    }
    for item in node.items().unwrap_or_default() {
        let name = item.get("name").and_then(|entry| entry.value.scalar());
        match (name, item.get("value")) {
            (Some(name), Some(value)) => entries.push(Entry { key: name.into_owned(), ..value.clone() }),
            _ => collect(item, entries, depth + 1),
        }
    }
    for entry in node.entries() {
        match &entry.value.kind {
            Kind::Map(values) if entry.key == "fairness" => {
                entries.extend(
                    values.iter().map(|value| Entry { key: helm_variable(&value.key), ..value.clone() }),
                );
            }
            Kind::Null | Kind::List(_) | Kind::Map(_) => collect(&entry.value, entries, depth + 1),
            _ if is_variable(&entry.key) => entries.push(entry.clone()),
            _ => {}
        }
    }
}

/// The variable that a value of the Helm chart sets.
fn helm_variable(key: &str) -> String {
    match HELM.iter().find(|(helm, _)| *helm == key) {
        Some((_, variable)) => (*variable).to_owned(),
        None => format!("fairness.{key}"),
    }
}

fn is_variable(key: &str) -> bool {
    key.starts_with(|char: char| char.is_ascii_uppercase())
        && key.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Whether a variable is about queueing.
fn is_queueing(key: &str) -> bool {
    let key = key.to_ascii_uppercase();
    key.contains("FAIRNESS") || key.contains("SESSION_BOOST")
}

/// The reason why a variable has no equivalent; empty if there is none to give.
fn reason(key: &str) -> &'static str {
    match key {
        "FAIRNESS_PRIORITY_REFRESH_RETRIES" | "FAIRNESS_REBUILD_THRESHOLD" => {
            "the order always follows the current usage, so no old priorities need a refresh"
        }
        key if key.contains("SESSION_BOOST") => {
            "Penstock doesn't distinguish sessions; `scheduler.prefix` sends a prompt to the endpoint that has its beginning"
        }
        _ => "",
    }
}
