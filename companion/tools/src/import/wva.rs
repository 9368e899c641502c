//! Imports the ConfigMap of llm-d's Workload Variant Autoscaler (WVA): entries for models, and one for the default.
//!
//! WVA scales replicas where Penstock limits requests, by the same latency targets and the same performance model. An entry that
//! names a model becomes a pool, and its bounds follow the learned model.

use std::collections::BTreeSet;

use penstock_config::tree::{Entry, Node};

use super::page::{Block, text};
use super::section::{Found, Section, Unit, fold, no_equivalent};
use super::{Imported, SourceError, pool, tree};

/// A mapping with any of these keys is an entry.
const KNOWN: [&str; 6] =
    ["model_id", "namespace", "slo_multiplier", "tuning_enabled", "target_ttft", "target_itl"];
const DEFAULT: &str = "default";
/// Bytes of a pool's name.
const NAME_MAX: usize = 63;

/// The settings of one model, or of the default.
struct Settings {
    /// The entry's key.
    name: String,
    model: Option<Model>,
    /// The multiplier, and the note with its origin.
    multiplier: Option<(f64, String)>,
    targets: Option<Targets>,
    /// Comments for the entry's other keys.
    comments: Block,
}

struct Model {
    name: String,
    namespace: String,
}

/// Latency targets in Penstock's notation, with the notes of their origins.
struct Targets {
    ttft: (String, String),
    itl: (String, String),
}

impl Settings {
    fn is_default(&self) -> bool {
        self.model.is_none() && self.name == DEFAULT
    }
}

pub(super) fn import(source: &str) -> Result<Imported, SourceError> {
    let mut comments = Block::default();
    let mut settings: Vec<Settings> = Vec::new();
    for (name, node) in entries(source, &mut comments)? {
        settings.push(read_settings(name, &node)?);
    }
    if settings.is_empty() {
        return Err(SourceError::new(1, "this has no entry of a model, and no default"));
    }
    let default = settings.iter().find(|entry| entry.is_default());
    let default_multiplier = default.and_then(|entry| entry.multiplier.clone());
    let mut pools = model_pools(&settings, default_multiplier.as_ref());
    if pools.is_empty() {
        let mut pool = pool(DEFAULT);
        if let Some(default) = default {
            add_targets(&mut pool, default, None);
        }
        pools.push(pool);
    } else {
        let slo = default_multiplier
            .map_or(String::new(), |(multiplier, _)| format!(", slo: {{slo_multiplier: {multiplier}}}"));
        comments.comment(format!(
            "WVA's default is for models without an entry. Here requests for those are answered 404. To serve them too, add \
             as the last pool: {{name: default, endpoints: {{...}}, stock: {{watermark_per_backend: auto}}{slo}}}."
        ));
    }
    for entry in settings.iter().filter(|entry| entry.model.is_none() && !entry.is_default()) {
        comments.comment(format!("`{}` names no model, so WVA never applies it either.", entry.name));
    }
    let mut page = Block::default();
    page.list("pools", pools);
    page.append(comments);
    page.comment(
        "WVA scales replicas, and Penstock doesn't. Let an autoscaler follow penstock_desired_replicas, which is computed \
         from the same model.",
    );
    Ok(page.into())
}

fn model_pools(settings: &[Settings], default_multiplier: Option<&(f64, String)>) -> Vec<Block> {
    let mut pools = Vec::new();
    let mut names = BTreeSet::new();
    let mut models = BTreeSet::new();
    for entry in settings {
        let Some(model) = &entry.model else { continue };
        let mut name = pool_name(model);
        while !names.insert(name.clone()) {
            name = numbered(&name, names.len() + 1);
        }
        let mut pool = pool(&name);
        pool.comment(format!(
            "Or the pods of an InferencePool of {}: endpoints: {{kubernetes: {{inference_pool: NAME, namespace: {}}}}}",
            model.namespace,
            text(&model.namespace)
        ));
        pool.pair("models", format!("[{}]", text(&model.name)), format!("`model_id` of `{}`", entry.name));
        if !models.insert(&model.name) {
            pool.comment(
                "A pool above serves this model for another namespace, and takes every request for it. Run one Penstock for \
                 each namespace, or give the models different names.",
            );
        }
        add_targets(&mut pool, entry, default_multiplier);
        pools.push(pool);
    }
    pools
}

/// The named entries of a ConfigMap or of a mapping, or a single entry. Other keys become comments.
fn entries(source: &str, comments: &mut Block) -> Result<Vec<(String, Node)>, SourceError> {
    let known: Vec<String> = KNOWN.iter().map(|key| fold(key)).collect();
    let is_entry = |node: &Node| node.entries().iter().any(|entry| known.contains(&fold(&entry.key)));
    let mut entries: Vec<(String, Node)> = Vec::new();
    let mut add = |name: &str, line: u64, node: Node| {
        if name == DEFAULT && entries.iter().any(|(name, _)| name == DEFAULT) {
            return Err(SourceError::new(line, "`default` is written twice"));
        }
        entries.push((name.to_owned(), node));
        Ok(())
    };
    let mut skip = |entry: &Entry| comments.comment(no_equivalent(entry, reason(&fold(&entry.key))));
    for root in tree::yaml(source)? {
        let line = root.node.place.line();
        match root.name {
            Some(name) if root.node.is_map() => add(&name, line, root.node)?,
            Some(name) => skip(&Entry { key: name, place: root.node.place.clone(), value: root.node }),
            None if is_entry(&root.node) => {
                let names_model = root.node.entries().iter().any(|entry| fold(&entry.key) == "modelid");
                add(if names_model { "model" } else { DEFAULT }, line, root.node)?;
            }
            None if root.node.is_map() => {
                for entry in root.node.entries() {
                    let node = tree::embedded(source, entry)?;
                    if node.is_map() && (is_entry(&node) || entry.key == DEFAULT) {
                        add(&entry.key, entry.place.line(), node)?;
                    } else {
                        skip(entry);
                    }
                }
            }
            None => {
                return Err(SourceError::new(line, "must be a ConfigMap or a mapping of entries"));
            }
        }
    }
    Ok(entries)
}

fn read_settings(name: String, node: &Node) -> Result<Settings, SourceError> {
    let mut section = Section::new(name.clone(), node);
    let mut comments = Block::default();
    if let Some(found) = section.take(&["tuning_enabled"])?
        && !found.flag()?
    {
        comments.comment(no_equivalent(
            found.entry(),
            "without tuning nothing learns alpha, beta and gamma, so WVA can't size anything; here `auto` measures what the servers \
             take. For a fixed bound, set stock.watermark_per_backend to a number",
        ));
    }
    let multiplier = read_multiplier(&mut section)?;
    let targets = read_targets(&mut section, &name, node)?;
    let model = read_model(&mut section, &name)?;
    section.comment_rest(&mut comments, reason);
    Ok(Settings { name, model, multiplier, targets, comments })
}

fn read_multiplier(section: &mut Section<'_>) -> Result<Option<(f64, String)>, SourceError> {
    let Some(found) = section.take(&["slo_multiplier"])? else {
        return Ok(None);
    };
    match found.number()? {
        0.0 => Ok(None),
        number if number > 1.0 => Ok(Some((number, found.note()))),
        number => Err(found.error(format!("must be above 1, or 0 for the default of 3, not {number}"))),
    }
}

fn read_targets(section: &mut Section<'_>, name: &str, node: &Node) -> Result<Option<Targets>, SourceError> {
    let mut target = |key: &str| match section.take(&[key])? {
        Some(found) => read_target(&found),
        None => Ok(None),
    };
    match (target("target_ttft")?, target("target_itl")?) {
        (Some(ttft), Some(itl)) => Ok(Some(Targets { ttft, itl })),
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            let first = node.entries().iter().find(|entry| fold(&entry.key).starts_with("target"));
            let place = first.map_or(&node.place, |entry| &entry.place);
            Err(SourceError::new(
                place.line(),
                format!("{name}: give targetTTFT and targetITL both, or neither (0 counts as not given)"),
            ))
        }
    }
}

fn read_model(section: &mut Section<'_>, name: &str) -> Result<Option<Model>, SourceError> {
    let mut named = |key: &str| -> Result<Option<(String, u64)>, SourceError> {
        let Some(found) = section.take(&[key])? else {
            return Ok(None);
        };
        let text = found.text()?;
        Ok((!text.is_empty()).then(|| (text.into_owned(), found.entry().place.line())))
    };
    match (named("model_id")?, named("namespace")?) {
        (Some((name, _)), Some((namespace, _))) => Ok(Some(Model { name, namespace })),
        (None, None) => Ok(None),
        (Some((_, line)), None) | (None, Some((_, line))) => {
            Err(SourceError::new(line, format!("{name}: give model_id and namespace both, or neither")))
        }
    }
}

/// A number of milliseconds, or a duration with its unit. 0 means no target.
fn read_target(found: &Found<'_>) -> Result<Option<(String, String)>, SourceError> {
    let (duration, written) = found.duration(Unit::Millis)?;
    Ok((!duration.is_zero()).then(|| (written, found.note())))
}

/// Adds the latency targets, and a bound that follows them.
fn add_targets(pool: &mut Block, settings: &Settings, default_multiplier: Option<&(f64, String)>) {
    let mut stock = Block::default();
    stock.pair("watermark_per_backend", "auto", "`tuningEnabled`: the model is learned, and sets the bounds");
    pool.map("stock", stock);
    let mut slo = Block::default();
    match (&settings.multiplier, default_multiplier) {
        (Some((number, note)), _) => slo.pair("slo_multiplier", number.to_string(), note),
        (None, Some((number, _))) => slo.pair("slo_multiplier", number.to_string(), "from `default`"),
        (None, None) => slo.pair("slo_multiplier", "3", "WVA's default"),
    }
    match &settings.targets {
        Some(Targets { ttft, itl }) if settings.model.is_some() => {
            slo.pair("target_ttft", &ttft.0, &ttft.1);
            slo.pair("target_itl", &itl.0, &itl.1);
        }
        Some(Targets { ttft, itl }) => slo.comment(format!(
            "WVA ignores the targets of its default. To use them: target_ttft: {}, target_itl: {}",
            ttft.0, itl.0
        )),
        None => {}
    }
    pool.map("slo", slo);
    pool.append(settings.comments.clone());
}

/// A pool's name from the model and its namespace, with `-` for characters that a name can't have.
fn pool_name(model: &Model) -> String {
    let allowed = |char: char| {
        if char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.') { char } else { '-' }
    };
    format!("{}.{}", model.namespace, model.name).chars().map(allowed).take(NAME_MAX).collect()
}

fn numbered(name: &str, number: usize) -> String {
    let tail = format!("-{number}");
    let head: String = name.chars().take(NAME_MAX - tail.len()).collect();
    format!("{head}{tail}")
}

/// The reason why a key has no equivalent; empty if there is none to give.
fn reason(key: &str) -> &'static str {
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
        | "priority" => "it decides when to scale replicas",
        _ => "",
    }
}
