//! Dynamo's router policy file: policy classes, their families, buckets, thresholds and limits.
//!
//! Its form is that of `arbitration.classes`; values are checked where they stand, and what goes together by Penstock's
//! own check, whose keys are the source's. What chooses a worker is left out.

use super::page::{Block, text};
use super::section::{Section, no_equal};
use super::sole::Sole;
use super::tree::{self, Node};
use super::{Imported, UNLIMITED, Wrong, pool};

/// Any of these tells a document of this kind.
const KNOWN: [&str; 8] = [
    "default_policy_family",
    "uncached_isl_buckets",
    "policy_classes",
    "models",
    "worker_selection",
    "request_classifier",
    "default_policy_class",
    "uncached_isl_policy_class_tiers",
];
/// Where the classes stand on the page.
const CLASSES: &str = "pools[0].arbitration.classes";

pub(super) fn import(source: &str) -> Result<Imported, Wrong> {
    let roots = tree::yaml(source)?;
    let sole = Sole::find(
        &roots,
        &KNOWN,
        "none of policy_classes, models and worker_selection stands here",
    )?;
    let mut root = Section::new("", sole.node);
    let mut classes = Block::default();
    classes.pair(
        "mode",
        "dynamo",
        "the order of Dynamo 1.6.1; `exact` keeps the ratio of the quanta where heads cost more than a quantum",
    );
    profile(&mut root, &mut classes)?;
    let mut models = Block::default();
    if let Some(found) = root.take(&["models"])? {
        for entry in found.section()?.rest() {
            if !entry.node.is_map() {
                return Err(Wrong::new(
                    entry.line,
                    format!("models.{}: this is a mapping", entry.key),
                ));
            }
            let mut section = Section::new(format!("models.{}", entry.key), &entry.node);
            let mut block = Block::default();
            profile(&mut section, &mut block)?;
            section.leave(&mut block, why);
            if entry.key.contains(['*', '?']) {
                block.comment("`*` and `?` of a name stand for any characters here.");
            }
            models.map(&entry.key, block);
        }
    }
    classes.map("models", models);

    let mut flows = Block::default();
    flows.pair(
        "key",
        "none",
        "a class has one queue; `fairness_id` shares it between tenants",
    );
    let mut arbitration = Block::default();
    arbitration.map("classes", classes);
    arbitration.map("flows", flows);
    arbitration.pair(
        "order",
        "fcfs",
        "Dynamo's default where a class has no queue_policy",
    );

    let mut pool = pool("dynamo");
    let mut queue = Block::default();
    queue.pair(
        "total_capacity",
        UNLIMITED,
        "classes have limits there, the queue has none; here everything has one",
    );
    queue.pair("flow_capacity", UNLIMITED, "");
    queue.pair("ttl", "1h", "there a request waits until its client gives up");
    pool.map("queue", queue);
    let mut stock = Block::default();
    stock.pair(
        "watermark_per_backend",
        "none",
        "only a class's busy thresholds hold a request there; `auto` learns how much a server can take",
    );
    pool.map("stock", stock);
    pool.map("arbitration", arbitration);

    let mut identity = Block::default();
    identity.pair(
        "class",
        "[{header: x-dynamo-meta-policy-class}]",
        "the header that names a family",
    );
    identity.pair("priority", "[]", "Dynamo knows no bands");
    identity.comment(
        "nvext.agent_hints.strict_priority and .priority aren't read from the body; `strict` and `jump` read them from \
         headers.",
    );

    let mut page = Block::default();
    page.map("identity", identity);
    page.list("pools", vec![pool]);
    page.comment(
        "A full class is answered 503 here (`capacity_status`), with Retry-After; Dynamo answers 529.",
    );
    root.leave(&mut page, why);
    sole.leave(&mut page);
    let node = sole.node.clone();
    Ok(Imported {
        page,
        line: Box::new(move |key| line(&node, key.strip_prefix(CLASSES).unwrap_or_default())),
    })
}

/// The default family, the buckets and the classes of the root or of a model.
fn profile(section: &mut Section<'_>, to: &mut Block) -> Result<(), Wrong> {
    if let Some(found) = section.take(&["default_policy_family"])? {
        to.pair("default_policy_family", text(found.text()?), "");
    }
    if let Some(found) = section.take(&["uncached_isl_buckets"])? {
        let mut buckets = Vec::new();
        for (at, node) in found.list()?.iter().enumerate() {
            buckets.push(bucket(&format!("uncached_isl_buckets[{at}]"), node)?);
        }
        to.list("uncached_isl_buckets", buckets);
    }
    if let Some(found) = section.take(&["policy_classes"])? {
        let mut classes = Vec::new();
        for (at, node) in found.list()?.iter().enumerate() {
            classes.push(class(&format!("policy_classes[{at}]"), node)?);
        }
        to.list("policy_classes", classes);
    }
    Ok(())
}

fn bucket(path: &str, node: &Node) -> Result<Block, Wrong> {
    let mut section = mapping(path, node)?;
    let mut block = Block::default();
    match section.take(&["min_tokens"])? {
        Some(found) => block.pair("min_tokens", found.whole(0)?.to_string(), ""),
        None => return Err(Wrong::new(node.line, format!("{path}: min_tokens is needed"))),
    }
    match section.take(&["bucket"])? {
        Some(found) => block.pair("bucket", text(found.text()?), ""),
        None => return Err(Wrong::new(node.line, format!("{path}: bucket is needed"))),
    }
    section.leave(&mut block, why);
    Ok(block)
}

fn class(path: &str, node: &Node) -> Result<Block, Wrong> {
    let mut section = mapping(path, node)?;
    let mut block = Block::default();
    match section.take(&["name"])? {
        Some(found) => block.pair("name", text(found.text()?), ""),
        None => return Err(Wrong::new(node.line, format!("{path}: name is needed"))),
    }
    for key in ["policy_family", "cache_bucket"] {
        if let Some(found) = section.take(&[key])? {
            block.pair(key, text(found.text()?), "");
        }
    }
    if let Some(found) = section.take(&["queue_policy"])? {
        let order = found.text()?;
        if !matches!(order, "fcfs" | "wspt") {
            return Err(found.wrong(format!("this is fcfs or wspt, not `{order}`")));
        }
        block.pair("queue_policy", order, "");
    }
    match section.take(&["quantum"])? {
        Some(found) => block.pair("quantum", found.whole(1)?.to_string(), ""),
        None => return Err(Wrong::new(node.line, format!("{path}: quantum is needed"))),
    }
    let mut threshold = false;
    if let Some(found) = section.take(&["prefill_busy_threshold"])? {
        threshold = true;
        block.pair("prefill_busy_threshold", found.whole(0)?.to_string(), "");
    }
    if let Some(found) = section.take(&["prefill_busy_threshold_frac"])? {
        threshold = true;
        block.pair("prefill_busy_threshold_frac", found.number()?.to_string(), "");
    }
    for key in [
        "request_queue_limit_per_worker",
        "raw_isl_token_queue_limit_per_worker",
        "cached_token_queue_limit_per_worker",
    ] {
        if let Some(found) = section.take(&[key])? {
            block.pair(key, found.whole(0)?.to_string(), "");
        }
    }
    if let Some(found) = section.take(&["busy_worker_ratio"])? {
        let ratio = found.number()?;
        if ratio <= 0.0 || ratio > 1.0 {
            return Err(found.wrong(format!("this is above 0 and at most 1, not {ratio}")));
        }
        if !threshold {
            return Err(
                found.wrong("prefill_busy_threshold or prefill_busy_threshold_frac is needed with it")
            );
        }
        block.comment(no_equal(found.entry(), why("busyworkerratio")));
    }
    section.leave(&mut block, why);
    Ok(block)
}

fn mapping<'a>(path: &str, node: &'a Node) -> Result<Section<'a>, Wrong> {
    if node.is_map() {
        Ok(Section::new(path, node))
    } else {
        Err(Wrong::new(node.line, format!("{path}: this is a mapping")))
    }
}

/// Why a key has no equal.
fn why(key: &str) -> &'static str {
    match key {
        "busyworkerratio" => "a class goes as soon as one of its endpoints is below the threshold",
        "queueadmission" => "sessions aren't told apart; see `scheduler.prefix` for their prompts",
        "workerselection" | "requestclassifier" | "router" => {
            "see `pools[].scheduler` for how an endpoint is chosen"
        }
        "defaultpolicyclass" | "uncachedislpolicyclasstiers" => {
            "Dynamo doesn't take this form any more either; write default_policy_family, uncached_isl_buckets and \
             policy_classes"
        }
        _ => "",
    }
}

/// The line of a path below the classes, or of the deepest part of it that is written.
fn line(node: &Node, path: &str) -> u64 {
    let rest = path.trim_start_matches('.');
    if let Some((index, rest)) = rest.strip_prefix('[').and_then(|it| it.split_once(']')) {
        let item = match &node.value {
            tree::Value::List(nodes) => index.parse::<usize>().ok().and_then(|at| nodes.get(at)),
            tree::Value::Null | tree::Value::Scalar(_) | tree::Value::Map(_) => None,
        };
        return item.map_or(node.line, |item| line(item, rest));
    }
    // A model's name may hold dots itself: the longest key that fits.
    let next = node
        .entries()
        .iter()
        .filter_map(|entry| Some((entry, rest.strip_prefix(entry.key.as_str())?)))
        .filter(|(_, rest)| rest.is_empty() || rest.starts_with(['.', '[']))
        .max_by_key(|(entry, _)| entry.key.len());
    match next {
        Some((entry, "")) => entry.line,
        Some((entry, rest)) => line(&entry.node, rest).max(entry.line),
        None => node.line,
    }
}
