//! Imports the configuration of an endpoint picker: `EndpointPickerConfig`, of the Gateway API Inference Extension and of llm-d.
//!
//! It stands alone, in a ConfigMap, or as text in the values of a Helm chart. Taken over are flow control, the saturation detector, the
//! scorers, and when prompts are computed apart. A picker takes a file whatever is in its plugins, so nothing of them ends the import.

use std::borrow::Cow;

use penstock_config::tree::{Entry, Kind, Node};

use super::page::Block;
use super::section::{Section, Unit};
use super::tree::{self, Root};
use super::{Imported, SourceError, pool};

const KIND: &str = "EndpointPickerConfig";
/// Levels of mappings around the configuration.
const NESTING_MAX: usize = 8;
/// The limit of a band that has none.
const BAND_REQUESTS: &str = "5000";
const BAND_BYTES: &str = "1000000000";

/// The configuration in these documents; `None`: there is none.
///
/// # Errors
/// When the text that holds it isn't YAML, or there are two.
pub(super) fn find(text: &str, roots: &[Root]) -> Result<Option<Node>, SourceError> {
    let mut found = Vec::new();
    for root in roots {
        search(text, &root.node, None, 0, &mut found)?;
    }
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [_, second, ..] => {
            Err(SourceError::new(second.place.line(), "this is a second policy; import one at a time"))
        }
    }
}

fn search(
    text: &str,
    node: &Node,
    entry: Option<&Entry>,
    depth: usize,
    found: &mut Vec<Node>,
) -> Result<(), SourceError> {
    if node.get("kind").and_then(|kind| kind.value.scalar()).as_deref() == Some(KIND) {
        found.push(node.clone());
    } else if depth >= NESTING_MAX {
    } else if let (Kind::Text(inner), Some(entry)) = (&node.kind, entry) {
        // Helm values hold it as text.
        if inner.contains(KIND) {
            let inner = tree::embedded(text, entry)?;
            if inner.is_map() {
                search(text, &inner, None, depth + 1, found)?;
            }
        }
    } else {
        for entry in node.entries() {
            search(text, &entry.value, Some(entry), depth + 1, found)?;
        }
    }
    Ok(())
}

pub(super) fn import(node: &Node) -> Result<Imported, SourceError> {
    let mut root = Section::new("", node);
    root.take(&["apiVersion"])?;
    root.take(&["kind"])?;
    let plugins = Plugins::read(&mut root)?;
    let gates = root.take(&["featureGates"])?;
    let has_flow_control = gates.as_ref().is_some_and(|gates| {
        let gates = gates.entry().value.items().unwrap_or_default();
        gates.iter().any(|gate| gate.scalar().as_deref() == Some("flowControl"))
    });
    let mut flow_control = root.section(&["flowControl"])?.unwrap_or_else(|| Section::from_entries("", []));
    let mut comments = Block::default();
    let detector = detector(&mut root, &mut flow_control, &mut comments)?;

    let mut pool = pool("picker");
    let band = band(&mut flow_control)?;
    pool.map("queue", queue(&mut flow_control)?);
    if has_flow_control {
        pool.map("stock", stock(&plugins, detector.as_deref()));
    } else {
        let mut stock = Block::default();
        stock.pair(
            "watermark_per_backend",
            "none",
            "`flowControl` isn't among `featureGates`, so there nothing waits",
        );
        pool.map("stock", stock);
    }
    let mut arbitration = Block::default();
    arbitration.map("flows", flows(&plugins, band.fairness.as_deref()));
    let (order, note) = order(&plugins, band.ordering.as_deref());
    arbitration.pair("order", order, note);
    pool.map("arbitration", arbitration);
    let apart = Apart::of(&plugins);
    pool.map("scheduler", scheduler(&plugins, apart.as_ref(), &mut root)?);
    if let Some(apart) = &apart {
        pool.map("disaggregation", apart.block());
    }
    pool.append(comments);
    pool.append(band.comments);
    flow_control.comment_rest(&mut pool, reason);
    for plugin in plugins.0.iter().filter(|plugin| !plugin.is_known()) {
        let kind = &plugin.kind;
        pool.comment(match (apart.is_some(), plugin.is_of_roles()) {
            (true, true) => format!("The plugin `{kind}`: roles and `disaggregation` do this here"),
            (false, true) if kind == "decode-filter" => {
                format!("The plugin `{kind}`: pods that only compute prompts are no endpoints in `endpoints.kubernetes`")
            }
            _ => format!("The plugin `{kind}` has no equivalent here"),
        });
    }

    let mut page = Block::default();
    page.list("pools", vec![pool]);
    page.comment(
        "A request is critical there with a priority above 0, and sheddable below 0. Name the objectives of clients under \
         `identity.objectives`.",
    );
    root.comment_rest(&mut page, reason);
    Ok(page.into())
}

/// The plugins of the configuration.
struct Plugins(Vec<Plugin>);

struct Plugin {
    name: String,
    kind: String,
    parameters: Option<Node>,
}

impl Plugins {
    fn read(root: &mut Section<'_>) -> Result<Self, SourceError> {
        let Some(found) = root.take(&["plugins"])? else { return Ok(Self(Vec::new())) };
        let text = |node: &Node, key: &str| {
            node.get(key)
                .and_then(|entry| entry.value.scalar())
                .map(Cow::into_owned)
                .filter(|text| !text.is_empty())
        };
        let plugins = found.list()?.iter().filter_map(|node| {
            let kind = text(node, "type")?;
            Some(Plugin {
                name: text(node, "name").unwrap_or_else(|| kind.clone()),
                kind,
                parameters: node.get("parameters").map(|entry| entry.value.clone()),
            })
        });
        Ok(Self(plugins.collect()))
    }

    fn get(&self, name: &str) -> Option<&Plugin> {
        self.0.iter().find(|plugin| plugin.name == name)
    }

    /// The type of a plugin. A policy may be named without being listed.
    fn kind<'a>(&'a self, name: &'a str) -> &'a str {
        self.get(name).map_or(name, |plugin| &plugin.kind)
    }
}

impl Plugin {
    /// It is taken over, or its work is done here in any case.
    fn is_known(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "concurrency-detector"
                | "utilization-detector"
                | "round-robin-fairness-policy"
                | "global-strict-fairness-policy"
                | "fcfs-ordering-policy"
                | "edf-ordering-policy"
                | "slo-deadline-ordering-policy"
                | "max-score-picker"
                | "single-profile-handler"
                | "openai-parser"
        ) || scorer(&self.kind).is_some()
    }

    /// It chooses servers by their roles, or has prompts computed apart.
    fn is_of_roles(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "decode-filter"
                | "prefill-filter"
                | "disagg-headers-handler"
                | "prefill-header-handler"
                | "disagg-profile-handler"
                | "pd-profile-handler"
                | "prefix-based-pd-decider"
                | "always-disagg-pd-decider"
        )
    }

    fn parameter(&self, key: &str) -> Option<String> {
        let entry = self.parameters.as_ref()?.get(key)?;
        entry.value.scalar().map(|text| text.trim().to_owned())
    }
}

/// Prompts are computed by servers of their own.
struct Apart {
    decode: String,
    prefill: String,
    /// The fewest tokens of such a prompt that aren't cached, and where they are from; `None`: none is computed apart.
    least: Option<(u64, String)>,
    decider: String,
}

impl Apart {
    /// Reads the parameters of `disagg-profile-handler` or `pd-profile-handler`, in any of their forms; `None`: no such plugin is listed.
    fn of(plugins: &Plugins) -> Option<Self> {
        let is_handler = |plugin: &&Plugin| {
            matches!(plugin.kind.as_str(), "disagg-profile-handler" | "pd-profile-handler")
        };
        let handler = plugins.0.iter().find(is_handler)?;
        let inner = |group: &str, key: &str| {
            let entry = handler.parameters.as_ref()?.get(group)?.value.get(key)?;
            entry.value.scalar().map(Cow::into_owned)
        };
        let profile = |role: &str, older: &str| {
            let named = inner("profiles", role).or_else(|| handler.parameter(older));
            named.filter(|name| !name.is_empty()).unwrap_or_else(|| role.to_owned())
        };
        let decider = inner("deciders", "prefill")
            .or_else(|| handler.parameter("prefillDeciderPluginName"))
            .or_else(|| handler.parameter("deciderPluginName"))
            .unwrap_or_else(|| "prefix-based-pd-decider".to_owned());
        let least = match plugins.kind(&decider) {
            "prefix-based-pd-decider" => {
                let tokens = plugins.get(&decider).and_then(|plugin| plugin.parameter("nonCachedTokens"));
                // 0, the default, is never there.
                let tokens = tokens.and_then(|text| text.parse::<u64>().ok()).filter(|tokens| *tokens > 0);
                tokens.map(|tokens| (tokens, format!("from `nonCachedTokens` of `{decider}`")))
            }
            "always-disagg-pd-decider" => Some((1, format!("`{decider}`"))),
            _ => None,
        };
        Some(Self {
            decode: profile("decode", "decodeProfile"),
            prefill: profile("prefill", "prefillProfile"),
            least,
            decider: plugins.kind(&decider).to_owned(),
        })
    }

    fn block(&self) -> Block {
        let mut block = Block::default();
        match &self.least {
            Some((tokens, note)) => block.pair("min_uncached_tokens", tokens.to_string(), note.clone()),
            None if self.decider == "prefix-based-pd-decider" => {
                block.pair(
                    "min_uncached_tokens",
                    "null",
                    "`nonCachedTokens` is 0: no prompt is computed apart",
                );
            }
            None => block.pair("min_uncached_tokens", "null", format!("`{}` isn't known here", self.decider)),
        }
        block.comment(
            "The roles of servers are the label `llm-d.ai/role` of their pods (`endpoints.kubernetes`), or `role` of an endpoint in \
             `static`. Such a pool needs a fixed `stock.watermark_per_backend`",
        );
        block
    }
}

/// The settings of the band that has most requests.
struct Band {
    fairness: Option<String>,
    ordering: Option<String>,
    comments: Block,
}

/// The policies of requests of priority 0: their own band's, else those of the template.
fn band(flow_control: &mut Section<'_>) -> Result<Band, SourceError> {
    let mut band = Band { fairness: None, ordering: None, comments: Block::default() };
    let bands = flow_control.take(&["priorityBands"])?;
    let bands = bands.as_ref().map(|found| found.list()).transpose()?.unwrap_or_default();
    let template = flow_control.take(&["defaultPriorityBand"])?;
    let is_default = |node: &&Node| {
        node.get("priority").is_none_or(|priority| priority.value.scalar().as_deref() == Some("0"))
    };
    let chosen =
        bands.iter().find(is_default).or_else(|| template.as_ref().map(|found| &found.entry().value));
    let chosen = chosen.or_else(|| bands.first());
    let policy = |key: &str| chosen?.get(key)?.value.scalar().map(Cow::into_owned);
    band.fairness = policy("fairnessPolicyRef");
    band.ordering = policy("orderingPolicyRef");
    for node in bands {
        let priority =
            node.get("priority").and_then(|priority| priority.value.scalar()).unwrap_or("0".into());
        let limits: Vec<String> = (node.entries().iter())
            .filter(|entry| entry.key != "priority")
            .map(|entry| format!("{}: {}", entry.key, entry.value))
            .collect();
        if !limits.is_empty() {
            band.comments.comment(format!(
                "The band of priority {priority} ({}): here the bands `critical`, `default` and `sheddable` share the limits and \
                 policies of the pool",
                limits.join(", ")
            ));
        }
    }
    Ok(band)
}

fn queue(flow_control: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut queue = Block::default();
    let count = |text: &str| quantity(text).map(|number| number.to_string());
    let mut limit = |names: &[&str]| -> Result<Option<(String, String)>, SourceError> {
        let Some(found) = flow_control.take(names)? else { return Ok(None) };
        let text = found.text()?;
        let number = count(&text)
            .ok_or_else(|| found.error(format!("must be a quantity like 500, 1k or 2Gi, not `{text}`")))?;
        // 0 is no limit there.
        Ok((number != "0").then(|| (number, found.note())))
    };
    let (requests, note) = limit(&["maxRequests"])?
        .unwrap_or_else(|| (BAND_REQUESTS.to_owned(), "the default of each band".to_owned()));
    queue.pair("total_capacity", requests.clone(), note);
    queue.pair("flow_capacity", requests, "there a flow has no limit of its own");
    let (bytes, note) = limit(&["maxBytes"])?
        .unwrap_or_else(|| (BAND_BYTES.to_owned(), "the default of each band".to_owned()));
    queue.pair("total_bytes", bytes, note);
    let ttl = match flow_control.take(&["defaultRequestTTL"])? {
        Some(found) => {
            let (duration, written) = found.duration(Unit::Required)?;
            (!duration.is_zero()).then(|| (written, found.note()))
        }
        None => None,
    };
    let (ttl, note) = ttl
        .unwrap_or_else(|| ("1h".to_owned(), "there a request waits until its client gives up".to_owned()));
    queue.pair("ttl", ttl.clone(), note);
    queue.pair("no_endpoint_ttl", ttl, "");
    Ok(queue)
}

/// The name of the saturation detector: of the root in the first version, of flow control in a later one.
fn detector<'a>(
    root: &mut Section<'a>,
    flow_control: &mut Section<'a>,
    comments: &mut Block,
) -> Result<Option<String>, SourceError> {
    let mut name = None;
    for section in [root, flow_control] {
        if let Some(mut detector) = section.section(&["saturationDetector"])? {
            let found = detector.take(&["pluginRef"])?;
            name = found.map(|found| found.text().map(Cow::into_owned)).transpose()?.or(name);
            detector.comment_rest(comments, |_| "");
        }
    }
    Ok(name)
}

fn stock(plugins: &Plugins, detector: Option<&str>) -> Block {
    let mut stock = Block::default();
    let detector = detector.unwrap_or("utilization-detector");
    let plugin = plugins.get(detector);
    let parameter = |key: &str| plugin.and_then(|plugin| plugin.parameter(key));
    let number =
        |key: &str| parameter(key).and_then(|text| text.parse::<u64>().ok()).filter(|number| *number > 0);
    match plugins.kind(detector) {
        "concurrency-detector" => {
            let by_tokens = parameter("concurrencyMode").as_deref() == Some("tokens");
            let (key, default) =
                if by_tokens { ("maxTokenConcurrency", 1_000_000) } else { ("maxConcurrency", 100) };
            let (most, note) = match number(key) {
                Some(most) => (most, format!("from `{key}` of `{detector}`")),
                None => (default, format!("the default of `{key}`")),
            };
            if by_tokens {
                stock.pair("unit", "tokens", "from `concurrencyMode`");
            }
            stock.pair("watermark_per_backend", most.to_string(), note);
            let headroom = parameter("headroom").and_then(|text| text.parse::<f64>().ok());
            match headroom.filter(|headroom| *headroom > 0.0 && *headroom < 1.0) {
                Some(headroom) => stock.pair("deviation", headroom.to_string(), "from `headroom`"),
                None => {
                    stock.pair("lower_bound_per_backend", most.to_string(), "there is no headroom");
                    stock.pair("upper_bound_per_backend", most.to_string(), "");
                }
            }
        }
        "utilization-detector" => {
            stock.pair(
                "watermark_per_backend",
                "auto",
                "there the queue and the cache of the servers hold requests back, as their last metrics show them; here the \
                 servers' work is counted, and measurement finds how much they can take",
            );
            for key in
                ["queueDepthThreshold", "kvCacheUtilThreshold", "metricsStalenessThreshold", "headroom"]
            {
                if let Some(value) = parameter(key) {
                    stock.comment(format!("`{key}: {value}` of `{detector}` has no equivalent here"));
                }
            }
        }
        kind => stock.pair("watermark_per_backend", "auto", format!("`{kind}` isn't known here")),
    }
    stock
}

fn flows(plugins: &Plugins, fairness: Option<&str>) -> Block {
    let mut flows = Block::default();
    match plugins.kind(fairness.unwrap_or("global-strict-fairness-policy")) {
        "round-robin-fairness-policy" => {
            flows.pair("discipline", "round_robin", "`round-robin-fairness-policy`; `wfq` shares by tokens");
            flows.pair("key", "fairness_id", "");
            flows.pair("cost", "requests", "there each request counts the same");
        }
        "global-strict-fairness-policy" => {
            flows.pair(
                "discipline",
                "fifo",
                "`global-strict-fairness-policy`, the default; `wfq` shares between tenants",
            );
            flows.pair("key", "none", "");
        }
        kind => {
            flows.pair("discipline", "wfq", format!("`{kind}` isn't known here"));
            flows.pair("key", "fairness_id", "");
        }
    }
    flows
}

fn order(plugins: &Plugins, ordering: Option<&str>) -> (&'static str, String) {
    match plugins.kind(ordering.unwrap_or("fcfs-ordering-policy")) {
        kind @ "edf-ordering-policy" => ("edf", format!("`{kind}`")),
        kind @ "slo-deadline-ordering-policy" => ("slo_deadline", format!("`{kind}`")),
        kind @ "fcfs-ordering-policy" => ("fcfs", format!("`{kind}`")),
        kind => ("fcfs", format!("`{kind}` isn't known here")),
    }
}

/// The key of `scheduler` for a type of scorer.
fn scorer(kind: &str) -> Option<&'static str> {
    match kind {
        "queue-scorer" => Some("queue"),
        "kv-cache-utilization-scorer" | "kv-cache-scorer" => Some("kv_cache"),
        "prefix-cache-scorer" | "precise-prefix-cache-scorer" | "prefix-cache" => Some("prefix"),
        "lora-affinity-scorer" => Some("lora"),
        "running-requests-size-scorer" | "active-request-scorer" | "load-aware-scorer" => Some("stock"),
        _ => None,
    }
}

/// The weights of the profile that chooses the server that answers: the first one without roles.
fn scheduler(plugins: &Plugins, apart: Option<&Apart>, root: &mut Section<'_>) -> Result<Block, SourceError> {
    let mut scheduler = Block::default();
    let Some(found) = root.take(&["schedulingProfiles"])? else { return Ok(scheduler) };
    let profiles = found.list()?;
    let name =
        |profile: &Node| profile.get("name").and_then(|entry| entry.value.scalar()).map(Cow::into_owned);
    let answers = apart.and_then(|apart| {
        profiles.iter().position(|profile| name(profile).as_deref() == Some(apart.decode.as_str()))
    });
    let chosen = answers.unwrap_or(0);
    let Some(profile) = profiles.get(chosen) else { return Ok(scheduler) };
    let refs = profile.get("plugins").and_then(|entry| entry.value.items()).unwrap_or_default();
    let mut weights: Vec<(&'static str, f64, String)> = Vec::new();
    for node in refs {
        let Some(name) = node.get("pluginRef").and_then(|entry| entry.value.scalar()) else { continue };
        let Some(key) = scorer(plugins.kind(&name)) else { continue };
        let weight = node.get("weight").and_then(|entry| entry.value.scalar());
        let weight = weight.and_then(|text| text.trim().parse::<f64>().ok()).unwrap_or(1.0);
        if !weight.is_finite() || weight < 0.0 {
            continue;
        }
        match weights.iter_mut().find(|(known, _, _)| *known == key) {
            Some((_, sum, names)) => {
                *sum += weight;
                *names = format!("{names} and `{name}`");
            }
            None => weights.push((key, weight, format!("from `{name}`"))),
        }
    }
    for (key, weight, note) in weights {
        scheduler.pair(key, weight.to_string(), note);
    }
    let others = profiles.iter().enumerate().filter(|(index, _)| *index != chosen);
    for name in others.filter_map(|(_, profile)| name(profile)) {
        scheduler.comment(match apart {
            Some(apart) if apart.prefill == name => {
                format!(
                    "The profile `{name}`: here the same weights choose the server that computes a prompt"
                )
            }
            _ => format!("The profile `{name}` has no equivalent here"),
        });
    }
    Ok(scheduler)
}

/// The whole number that a Kubernetes quantity is, such as `1k`, `2Gi`, `1e3` or `500`; parts are rounded up.
fn quantity(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("m", 1e-3),
        ("u", 1e-6),
        ("n", 1e-9),
    ];
    let suffix = SUFFIXES.iter().find_map(|(suffix, times)| Some((text.strip_suffix(suffix)?, *times)));
    let (digits, times) = suffix.unwrap_or((text, 1.0));
    let is_number =
        digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    let number = digits.parse::<f64>().ok().filter(|_| is_number)? * times;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the limits")]
    (0.0..=9e15).contains(&number).then(|| number.ceil() as u64)
}

/// The reason why a key has no equivalent; empty if there is none to give.
fn reason(key: &str) -> &'static str {
    match key {
        "datalayer" => "servers are found by `endpoints` and their metrics read by `scrape`",
        "parser" | "requesthandler" => "the API of a request follows from its path",
        "usagelimitpolicypluginref" => "see `arbitration.bands` for ceilings of bands",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_kubernetes_are_whole_numbers() {
        for (text, number) in [
            ("500", 500),
            ("1k", 1_000),
            ("2Gi", 2 << 30),
            ("1.5M", 1_500_000),
            ("1e3", 1_000),
            ("1500m", 2),
            ("0", 0),
            ("512Mi", 512 << 20),
        ] {
            assert_eq!(quantity(text), Some(number), "{text}");
        }
        for text in ["", "k", "1 k", "-1", "many", "1kk", "inf", "NaN", "1E"] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }
}
