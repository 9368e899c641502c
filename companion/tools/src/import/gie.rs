//! Imports the queueing configuration of the Gateway API Inference Extension: `fair_request_queue` and
//! `request_queue_controller`. An `EndpointPickerConfig` is [`super::picker`]'s.
//!
//! Keys may be in snake case or camel case. The settings of its polling (poppers, clean-up) have no equivalent, because Penstock
//! doesn't poll.

use super::page::Block;
use super::section::{Section, Unit};
use super::sole::Sole;
use super::{Imported, SourceError, picker, pool, tree};

const QUEUE: [&str; 4] = ["fair_request_queue", "fairRequestQueueConfig", "request_queue", "queue"];
const CONTROLLER: [&str; 4] =
    ["request_queue_controller", "requestQueueControllerConfig", "queue_controller", "controller"];
const TOTAL: [&str; 3] = ["total_capacity", "total_queue_capacity", "max_total_requests"];
const FLOW: [&str; 4] = ["flow_capacity", "per_flow_capacity", "model_queue_capacity", "flow_queue_capacity"];
const TTL: [&str; 3] = ["queue_ttl", "ttl", "request_ttl"];
const WATERMARK: [&str; 2] = ["watermark_per_backend", "target_watermark_per_backend"];
const DEVIATION: [&str; 4] =
    ["percentage_deviation_for_bounds", "deviation_for_bounds", "percentage_deviation", "deviation"];
const LOWER: [&str; 2] = ["lower_bound_per_backend", "lower_bound"];
const UPPER: [&str; 2] = ["upper_bound_per_backend", "upper_bound"];
/// A document with any of these keys is such a configuration.
const KNOWN: [&[&str]; 9] =
    [&QUEUE, &CONTROLLER, &TOTAL, &FLOW, &TTL, &WATERMARK, &DEVIATION, &LOWER, &UPPER];

pub(super) fn import(text: &str) -> Result<Imported, SourceError> {
    let roots = tree::yaml(text)?;
    if let Some(config) = picker::find(text, &roots)? {
        return picker::import(&config);
    }
    let known = KNOWN.concat();
    let missing =
        "this has no fair_request_queue, no request_queue_controller, and is no EndpointPickerConfig";
    let sole = Sole::find(&roots, &known, missing)?;
    let mut root = Section::new("", sole.node);
    let queue = root.section(&QUEUE)?;
    let controller = root.section(&CONTROLLER)?;
    // Without the two sections, all keys are in one mapping.
    let is_flat = queue.is_none() && controller.is_none();
    let empty = || Section::from_entries("", []);
    let (mut queue, mut controller) = if is_flat {
        (std::mem::replace(&mut root, empty()), None)
    } else {
        (queue.unwrap_or_else(empty), Some(controller.unwrap_or_else(empty)))
    };

    let mut pool = pool("gie");
    pool.map("queue", capacity(&mut queue)?);
    pool.map("stock", stock(controller.as_mut().unwrap_or(&mut queue))?);
    let mut flows = Block::default();
    flows.pair("discipline", "wfq", "the least virtual finish time goes first");
    flows.pair("key", "[model, target_model]", "there a flow is a model and its target");
    flows.pair("cost", "requests", "there the size of a request is 1");
    flows.comment("There flows have no weights; here `weights: {MODEL/TARGET: 2}` doubles the share of one.");
    let mut arbitration = Block::default();
    arbitration.map("flows", flows);
    pool.map("arbitration", arbitration);
    queue.comment_rest(&mut pool, reason);
    if let Some(controller) = &controller {
        controller.comment_rest(&mut pool, reason);
    }
    root.comment_rest(&mut pool, reason);

    let mut page = Block::default();
    page.list("pools", vec![pool]);
    sole.comment_rest(&mut page);
    Ok(page.into())
}

fn capacity(section: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut queue = Block::default();
    match section.take(&TOTAL)? {
        Some(found) => queue.pair("total_capacity", found.whole(1)?.to_string(), found.note()),
        None => queue.pair("total_capacity", "1000", "the design's default"),
    }
    match section.take(&FLOW)? {
        Some(found) => queue.pair("flow_capacity", found.whole(1)?.to_string(), found.note()),
        None => queue.pair("flow_capacity", "100", "the design's default"),
    }
    let (ttl, note) = match section.take(&TTL)? {
        Some(found) => {
            let (duration, written) = found.duration(Unit::Seconds)?;
            if duration.is_zero() {
                return Err(found.error("must be a duration above zero"));
            }
            (written, found.note())
        }
        None => ("30s".to_owned(), "the design's default".to_owned()),
    };
    queue.pair("ttl", ttl.clone(), note);
    queue.pair("no_endpoint_ttl", ttl, "there the same limit applies while no endpoint is ready");
    queue.comment(
        "Here total_capacity is a hard limit: a more critical request takes the place of a less critical one (`overflow: \
         displace`). There it only keeps new flows out.",
    );
    queue.pair(
        "admit",
        "all",
        "the design's first stage queues only critical requests and rejects the rest; for that, set `critical_only` \
         and name the critical ones in `identity.objectives`",
    );
    Ok(queue)
}

fn stock(section: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut stock = Block::default();
    let watermark = match section.take(&WATERMARK)? {
        Some(found) => {
            let watermark = found.whole(1)?;
            stock.pair("watermark_per_backend", watermark.to_string(), found.note());
            watermark
        }
        None => {
            stock.pair("watermark_per_backend", "2", "the design's default");
            2
        }
    };
    match section.take(&DEVIATION)? {
        Some(found) => {
            let deviation = found.number()?;
            if deviation <= 0.0 || deviation >= 1.0 {
                return Err(found.error(format!("must be above 0 and below 1, not {deviation}")));
            }
            stock.pair("deviation", deviation.to_string(), found.note());
        }
        None => stock.pair("deviation", "0.1", "the design's default"),
    }
    if let Some(found) = section.take(&LOWER)? {
        let lower = found.whole(0)?;
        if lower > watermark {
            return Err(found.error(format!("must be at most the watermark, {watermark}, not {lower}")));
        }
        stock.pair("lower_bound_per_backend", lower.to_string(), found.note());
    }
    if let Some(found) = section.take(&UPPER)? {
        let upper = found.whole(0)?;
        if upper < watermark {
            return Err(found.error(format!("must be at least the watermark, {watermark}, not {upper}")));
        }
        stock.pair("upper_bound_per_backend", upper.to_string(), found.note());
    }
    Ok(stock)
}

/// The reason why a key has no equivalent; empty if there is none to give.
fn reason(key: &str) -> &'static str {
    match key {
        "numpoppers"
        | "popperwait"
        | "popperwaitbase"
        | "popperwaitjitter"
        | "popperwaitjittermax"
        | "popperwaittime" => {
            "nothing polls the queue; each arrival, completion and timer causes the next decision at once"
        }
        "expirycleanupinterval" => {
            "nothing sweeps the queue; each request has its timer and is answered when it expires"
        }
        _ => "",
    }
}
