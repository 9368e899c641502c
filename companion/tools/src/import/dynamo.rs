//! Imports Dynamo's router policy file: policy classes, their families, buckets, thresholds and limits.
//!
//! The file has the form of `arbitration.classes`. Single values are checked here. Rules across keys are checked by Penstock's
//! configuration, which has the same names of keys. Sections that choose a worker become comments.

use penstock_config::tree::Node;

use super::page::{Block, text};
use super::section::{Found, Section, no_equivalent};
use super::sole::Sole;
use super::{Imported, SourceError, UNLIMITED, pool_with, tree};

/// A document with any of these keys is a router policy.
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
/// The path of the classes in the result.
const CLASSES: &str = "pools[0].arbitration.classes";

/// `batched_tokens`: of every endpoint.
pub(super) fn import(source: &str, batched_tokens: u64) -> Result<Imported, SourceError> {
    let roots = tree::yaml(source)?;
    let sole = Sole::find(
        &roots,
        &KNOWN,
        "this has no router policy: none of policy_classes, models and worker_selection",
    )?;
    let mut root = Section::new("", sole.node);
    let mut pool = pool_with("dynamo", &format!(", defaults: {{max_batched_tokens: {batched_tokens}}}"));
    pool.map("queue", queue());
    pool.map("stock", stock());
    pool.map("arbitration", arbitration(&mut root)?);

    let mut page = Block::default();
    page.map("identity", identity());
    page.list("pools", vec![pool]);
    page.comment(
        "A request to a full class is answered 503 here (`capacity_status`), with Retry-After; Dynamo answers 529.",
    );
    root.comment_rest(&mut page, reason);
    sole.comment_rest(&mut page);
    let node = sole.node.clone();
    Ok(Imported {
        page,
        line_of: Box::new(move |key| node.place_of(key.strip_prefix(CLASSES).unwrap_or_default()).line()),
    })
}

fn arbitration(root: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut classes = Block::default();
    classes.pair(
        "mode",
        "dynamo",
        "the order of Dynamo 1.6.1; `exact` keeps the ratio of the quanta where requests cost more than a quantum",
    );
    profile(root, &mut classes)?;
    classes.map("models", models(root)?);

    let mut flows = Block::default();
    flows.pair("key", "none", "in Dynamo a class has one queue; `fairness_id` shares it between tenants");
    let mut arbitration = Block::default();
    arbitration.map("classes", classes);
    arbitration.map("flows", flows);
    arbitration.pair("order", "fcfs", "Dynamo's default for a class without queue_policy");
    Ok(arbitration)
}

fn models(root: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut models = Block::default();
    let Some(found) = root.take(&["models"])? else {
        return Ok(models);
    };
    for entry in found.section()?.rest() {
        let path = format!("models.{}", entry.key);
        if !entry.value.is_map() {
            return Err(SourceError::new(entry.place.line(), format!("{path}: must be a mapping")));
        }
        let mut section = Section::new(path, &entry.value);
        let mut block = Block::default();
        profile(&mut section, &mut block)?;
        section.comment_rest(&mut block, reason);
        if entry.key.contains(['*', '?']) {
            block.comment("Here `*` and `?` in a name match any characters.");
        }
        models.map(&entry.key, block);
    }
    Ok(models)
}

fn queue() -> Block {
    let mut queue = Block::default();
    queue.pair("total_capacity", UNLIMITED, "in Dynamo only classes have limits; here every queue has one");
    queue.pair("flow_capacity", UNLIMITED, "");
    queue.pair("ttl", "1h", "in Dynamo a request waits until its client gives up");
    queue
}

fn stock() -> Block {
    let mut stock = Block::default();
    stock.pair(
        "watermark_per_backend",
        "none",
        "in Dynamo only a class's busy thresholds hold requests; `auto` learns how much an endpoint can take",
    );
    stock
}

fn identity() -> Block {
    let mut identity = Block::default();
    identity.pair("class", "[{header: x-dynamo-meta-policy-class}]", "the header that names a family");
    identity.pair("priority", "[]", "Dynamo has no criticality levels");
    identity.comment(
        "nvext.agent_hints.strict_priority and .priority are not read from the body; `strict` and `jump` read them from \
         headers.",
    );
    identity
}

/// Converts the default family, the buckets and the classes of the root or of a model.
fn profile(section: &mut Section<'_>, block: &mut Block) -> Result<(), SourceError> {
    if let Some(found) = section.take(&["default_policy_family"])? {
        block.pair("default_policy_family", text(&found.text()?), "");
    }
    if let Some(found) = section.take(&["uncached_isl_buckets"])? {
        let mut buckets = Vec::new();
        for (index, node) in found.list()?.iter().enumerate() {
            buckets.push(bucket(&format!("uncached_isl_buckets[{index}]"), node)?);
        }
        block.list("uncached_isl_buckets", buckets);
    }
    if let Some(found) = section.take(&["policy_classes"])? {
        let mut classes = Vec::new();
        for (index, node) in found.list()?.iter().enumerate() {
            classes.push(class(&format!("policy_classes[{index}]"), node)?);
        }
        block.list("policy_classes", classes);
    }
    Ok(())
}

fn bucket(path: &str, node: &Node) -> Result<Block, SourceError> {
    let mut section = mapping(path, node)?;
    let mut block = Block::default();
    let min_tokens = required(&mut section, "min_tokens", path, node)?.whole(0)?;
    block.pair("min_tokens", min_tokens.to_string(), "");
    let name = required(&mut section, "bucket", path, node)?;
    block.pair("bucket", text(&name.text()?), "");
    section.comment_rest(&mut block, reason);
    Ok(block)
}

fn class(path: &str, node: &Node) -> Result<Block, SourceError> {
    let mut section = mapping(path, node)?;
    let mut block = Block::default();
    let name = required(&mut section, "name", path, node)?;
    block.pair("name", text(&name.text()?), "");
    for key in ["policy_family", "cache_bucket"] {
        if let Some(found) = section.take(&[key])? {
            block.pair(key, text(&found.text()?), "");
        }
    }
    if let Some(found) = section.take(&["queue_policy"])? {
        let order = found.text()?;
        if !matches!(&*order, "fcfs" | "wspt") {
            return Err(found.error(format!("must be fcfs or wspt, not `{order}`")));
        }
        block.pair("queue_policy", order, "");
    }
    match (section.take(&["quantum"])?, section.take(&["weight"])?) {
        (None, Some(weight)) => {
            // Only the ratio between classes counts.
            let thousandths = (weight.number()? * 1_000.0).round().max(1.0);
            block.pair("quantum", thousandths.to_string(), "`weight` in thousandths");
        }
        (None, None) => {
            return Err(SourceError::new(node.place.line(), format!("{path}: quantum is required")));
        }
        (Some(quantum), weight) => {
            block.pair("quantum", quantum.whole(1)?.to_string(), "");
            if let Some(weight) = weight {
                block.comment(no_equivalent(weight.entry(), "the quantum is the share"));
            }
        }
    }
    let mut has_threshold = false;
    if let Some(found) = section.take(&["prefill_busy_threshold"])? {
        has_threshold = true;
        block.pair("prefill_busy_threshold", found.whole(0)?.to_string(), "");
    }
    if let Some(found) = section.take(&["prefill_busy_threshold_frac"])? {
        has_threshold = true;
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
            return Err(found.error(format!("must be above 0 and at most 1, not {ratio}")));
        }
        if !has_threshold {
            return Err(
                found.error("this needs prefill_busy_threshold or prefill_busy_threshold_frac beside it")
            );
        }
        block.comment(no_equivalent(found.entry(), reason("busyworkerratio")));
    }
    section.comment_rest(&mut block, reason);
    Ok(block)
}

fn required<'a>(
    section: &mut Section<'a>,
    key: &str,
    path: &str,
    node: &Node,
) -> Result<Found<'a>, SourceError> {
    section
        .take(&[key])?
        .ok_or_else(|| SourceError::new(node.place.line(), format!("{path}: {key} is required")))
}

fn mapping<'a>(path: &str, node: &'a Node) -> Result<Section<'a>, SourceError> {
    if node.is_map() {
        Ok(Section::new(path, node))
    } else {
        Err(SourceError::new(node.place.line(), format!("{path}: must be a mapping")))
    }
}

/// The reason why a key has no equivalent; empty if there is none to give.
fn reason(key: &str) -> &'static str {
    match key {
        "busyworkerratio" => "a class is held only while all of its endpoints are above the threshold",
        "queueadmission" => {
            "Penstock doesn't distinguish sessions; see `scheduler.prefix` for the reuse of prompts"
        }
        "workerselection" | "requestclassifier" | "router" => {
            "see `pools[].scheduler` for the choice of an endpoint"
        }
        "defaultpolicyclass" | "uncachedislpolicyclasstiers" => {
            "Dynamo no longer accepts this form either; write default_policy_family, uncached_isl_buckets and \
             policy_classes"
        }
        _ => "",
    }
}
