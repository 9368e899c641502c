//! llm-d's Workload Variant Autoscaler: the ConfigMap of its queueing model, an entry each for the default and models.
//!
//! It scales replicas where Penstock gates requests: the same targets and the same model, for another decision. An entry
//! that names a model becomes a pool whose bound follows the model that is learnt.

use std::collections::BTreeSet;

use super::page::{Block, text};
use super::section::{Found, Section, Unit, fold, no_equal};
use super::tree::{self, Entry, Node};
use super::{Imported, Wrong, pool};

/// Any of these tells an entry.
const KNOWN: [&str; 6] = [
    "model_id",
    "namespace",
    "slo_multiplier",
    "tuning_enabled",
    "target_ttft",
    "target_itl",
];
const DEFAULT: &str = "default";
/// Bytes of a pool's name.
const NAME_MAX: usize = 63;

/// What an entry says.
struct Said {
    name: String,
    /// Model and namespace.
    of: Option<(String, String)>,
    multiplier: Option<(f64, String)>,
    /// Time to the first token, and between tokens.
    targets: Option<[(String, String); 2]>,
    rest: Block,
}

pub(super) fn import(source: &str) -> Result<Imported, Wrong> {
    let mut page = Block::default();
    let mut said: Vec<Said> = Vec::new();
    for (name, node) in entries(source, &mut page)? {
        said.push(entry(name, &node)?);
    }
    if said.is_empty() {
        return Err(Wrong::new(1, "no entry of a model, and no default, stands here"));
    }
    let default = said.iter().find(|it| it.of.is_none() && it.name == DEFAULT);
    let multiplier = default.and_then(|it| it.multiplier.clone());
    let mut pools = Vec::new();
    let mut names = BTreeSet::new();
    let mut models = BTreeSet::new();
    for entry in said.iter().filter(|it| it.of.is_some()) {
        let (model, namespace) = entry.of.as_ref().expect("invariant: filtered");
        let mut name = pool_name(namespace, model);
        while !names.insert(name.clone()) {
            name = numbered(&name, names.len() + 1);
        }
        let mut pool = pool(&name);
        pool.comment(format!(
            "Or the pods of an InferencePool of {namespace}: endpoints: {{kubernetes: {{inference_pool: NAME, namespace: {}}}}}",
            text(namespace)
        ));
        pool.pair(
            "models",
            format!("[{}]", text(model)),
            format!("`model_id` of `{}`", entry.name),
        );
        if !models.insert(model.clone()) {
            pool.comment(
                "This model stands in another namespace above, and its pool takes every request for it: one Penstock \
                 for each namespace, or other names for the models.",
            );
        }
        promise(&mut pool, entry, multiplier.as_ref());
        pools.push(pool);
    }
    if pools.is_empty() {
        let mut pool = pool(DEFAULT);
        if let Some(entry) = default {
            promise(&mut pool, entry, None);
        }
        pools.push(pool);
    } else {
        let multiplier = multiplier.map_or(String::new(), |(number, _)| {
            format!(", slo: {{slo_multiplier: {number}}}")
        });
        page.comment(format!(
            "WVA's default is for models that no entry names; here their requests are answered 404. To serve them as \
             well, put as the last pool: {{name: default, endpoints: {{...}}, stock: {{watermark_per_backend: \
             auto}}{multiplier}}}."
        ));
    }
    for entry in said.iter().filter(|it| it.of.is_none() && it.name != DEFAULT) {
        page.comment(format!(
            "`{}` names no model; WVA never applies it either.",
            entry.name
        ));
    }
    let mut whole = Block::default();
    whole.list("pools", pools);
    whole.append(page);
    whole.comment(
        "WVA scales replicas; Penstock scales nothing. Let an autoscaler follow penstock_desired_replicas, which is \
         computed from the same model.",
    );
    Ok(whole.into())
}

/// The entries of a ConfigMap, of a mapping, or a single one; with names.
fn entries(source: &str, page: &mut Block) -> Result<Vec<(String, Node)>, Wrong> {
    let known: Vec<String> = KNOWN.iter().map(|it| fold(it)).collect();
    let is_entry = |node: &Node| node.entries().iter().any(|it| known.contains(&fold(&it.key)));
    let mut entries = Vec::new();
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut add = |name: &str, line: u64, node: Node| {
        // Two models may be named by no key at all.
        if name != DEFAULT || names.insert(name.to_owned()) {
            entries.push((name.to_owned(), node));
            Ok(())
        } else {
            Err(Wrong::new(line, "`default` stands here twice"))
        }
    };
    let mut left = |entry: &Entry| page.comment(no_equal(entry, scales(&fold(&entry.key))));
    for root in tree::yaml(source)? {
        let line = root.node.line;
        match root.name {
            Some(name) if root.node.is_map() => add(&name, line, root.node)?,
            Some(name) => left(&Entry {
                key: name,
                line,
                node: root.node,
            }),
            None if is_entry(&root.node) => {
                let model = root.node.entries().iter().any(|it| fold(&it.key) == "modelid");
                add(if model { "model" } else { DEFAULT }, line, root.node)?;
            }
            None if root.node.is_map() => {
                for entry in root.node.entries() {
                    let node = tree::held(source, entry)?;
                    if node.is_map() && (is_entry(&node) || entry.key == DEFAULT) {
                        add(&entry.key, entry.line, node)?;
                    } else {
                        left(entry);
                    }
                }
            }
            None => return Err(Wrong::new(line, "this is a ConfigMap, or a mapping of entries")),
        }
    }
    Ok(entries)
}

fn entry(name: String, node: &Node) -> Result<Said, Wrong> {
    let mut section = Section::new(name.clone(), node);
    let mut rest = Block::default();
    if let Some(found) = section.take(&["tuning_enabled"])?
        && !found.flag()?
    {
        return Err(found.wrong(
                "without tuning nothing learns alpha, beta and gamma, and there are no other: WVA can't size anything \
                 with it, and the bound of a Penstock pool would stay where it begins. Take the line out (the default is \
                 true), or choose a fixed stock.watermark_per_backend by yourself",
            ));
    }
    let multiplier = match section.take(&["slo_multiplier"])? {
        Some(found) => match found.number()? {
            0.0 => None,
            number if number > 1.0 => Some((number, found.note())),
            number => {
                return Err(found.wrong(format!(
                    "this is above 1, or 0 for the default of 3, not {number}"
                )));
            }
        },
        None => None,
    };
    let ttft = section
        .take(&["target_ttft"])?
        .map(|it| target(&it))
        .transpose()?
        .flatten();
    let itl = section
        .take(&["target_itl"])?
        .map(|it| target(&it))
        .transpose()?
        .flatten();
    let targets = match (ttft, itl) {
        (Some(ttft), Some(itl)) => Some([ttft, itl]),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            let one = node
                .entries()
                .iter()
                .find(|it| fold(&it.key).starts_with("target"));
            let line = one.map_or(node.line, |it| it.line);
            return Err(Wrong::new(
                line,
                format!(
                    "{name}: targetTTFT and targetITL are given both, or neither (0 counts as not given)"
                ),
            ));
        }
    };
    let mut named = |key: &str| -> Result<Option<(String, u64)>, Wrong> {
        let found = section.take(&[key])?;
        let text = found.as_ref().map(Found::text).transpose()?.unwrap_or_default();
        Ok((!text.is_empty()).then(|| (text.to_owned(), found.map_or(node.line, |it| it.entry().line))))
    };
    let of = match (named("model_id")?, named("namespace")?) {
        (Some((model, _)), Some((namespace, _))) => Some((model, namespace)),
        (None, None) => None,
        (Some((_, line)), None) | (None, Some((_, line))) => {
            return Err(Wrong::new(
                line,
                format!("{name}: model_id and namespace are given both, or neither"),
            ));
        }
    };
    section.leave(&mut rest, scales);
    Ok(Said {
        name,
        of,
        multiplier,
        targets,
        rest,
    })
}

/// Milliseconds, or with a unit; 0 is none.
fn target(found: &Found<'_>) -> Result<Option<(String, String)>, Wrong> {
    let (span, spelt) = found.span(Unit::Millis)?;
    Ok((!span.is_zero()).then(|| (spelt, found.note())))
}

/// What the servers owe, and that the bound follows from it.
fn promise(pool: &mut Block, said: &Said, default: Option<&(f64, String)>) {
    let mut stock = Block::default();
    stock.pair(
        "watermark_per_backend",
        "auto",
        "`tuningEnabled`: the model is learnt, and sets the bound",
    );
    pool.map("stock", stock);
    let mut slo = Block::default();
    match (&said.multiplier, default) {
        (Some((number, note)), _) => slo.pair("slo_multiplier", number.to_string(), note),
        (None, Some((number, _))) => slo.pair("slo_multiplier", number.to_string(), "from `default`"),
        (None, None) => slo.pair("slo_multiplier", "3", "WVA's default"),
    }
    match &said.targets {
        Some([(ttft, of_ttft), (itl, of_itl)]) if said.of.is_some() => {
            slo.pair("target_ttft", ttft, of_ttft);
            slo.pair("target_itl", itl, of_itl);
        }
        Some([(ttft, _), (itl, _)]) => slo.comment(format!(
            "WVA takes no targets from its default. To give them: target_ttft: {ttft}, target_itl: {itl}"
        )),
        None => {}
    }
    pool.map("slo", slo);
    pool.append(said.rest.clone());
}

/// A name that says both, in the letters that a pool's may have.
fn pool_name(namespace: &str, model: &str) -> String {
    let plain = |it: char| {
        if it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.') {
            it
        } else {
            '-'
        }
    };
    format!("{namespace}.{model}")
        .chars()
        .map(plain)
        .take(NAME_MAX)
        .collect()
}

fn numbered(name: &str, number: usize) -> String {
    let tail = format!("-{number}");
    let head: String = name.chars().take(NAME_MAX - tail.len()).collect();
    format!("{head}{tail}")
}

/// Why a key has no equal.
fn scales(key: &str) -> &'static str {
    match key {
        "kvcachethreshold"
        | "queuelengththreshold"
        | "kvsparetrigger"
        | "queuesparetrigger"
        | "scaleupthreshold"
        | "scaledownboundary"
        | "enablelimiter"
        | "analyzername"
        | "analyzers"
        | "priority" => "it says when to scale replicas",
        _ => "",
    }
}
