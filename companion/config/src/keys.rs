//! The document's keys: one struct for each mapping, one field for each key with its default, and beside it what the key must fulfil
//! and the value of the program that it becomes.
//!
//! Unknown keys are errors. The doc comments of the structs are the descriptions in the JSON Schema and in `docs/reference.md`, so
//! they address operators. Each default is the value itself, because documents are shown with all their values at run time. A range
//! of one value is checked by its type while the document is read, and rules across keys are checked here.

mod arbitration;
mod budgets;
mod classes;
mod effective_defaults;
mod endpoints;
mod eviction;
mod pool;
mod queue;
mod replicas;
mod servers;
mod stock;
mod upstream;
mod usage;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::arbitration::Arbitration;
pub(crate) use self::classes::Classes;
pub use self::endpoints::is_variant;
pub(crate) use self::endpoints::{Endpoint, Endpoints, check_batched_tokens, endpoint_list};
pub(crate) use self::eviction::Eviction;
pub(crate) use self::pool::Pool;
pub(crate) use self::queue::{Credits, Queue};
pub(crate) use self::replicas::Replicas;
pub(crate) use self::servers::{Down, Health, Rewrite, Scheduler, Scrape};
pub(crate) use self::stock::{Stock, Watermark};
pub(crate) use self::upstream::Upstream;
pub(crate) use self::usage::{Model, Slo, Usage, slo};
use super::error::Violation;
use super::name::is_name;
use super::paths::PathLists;
use super::value::{Bytes, Count, FlowCount, List, PositiveDuration};
use super::{Admin, Alias, BindError, Config, Identity, Listen, Picker, Queued, Tls, compiled};

/// Penstock's configuration. Only the names of the pools and their endpoints are required; every other key has a default.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = require_pools)]
pub(crate) struct Document {
    /// The addresses to listen on. They can't change at run time.
    pub(crate) listen: Listen,
    /// Mutual TLS on `listen.grpc`. Required unless `listen.grpc` is a loopback address or a unix socket. It can't change at
    /// run time.
    pub(crate) tls: Option<Tls>,
    /// The companion as the endpoint picker of InferencePools. It can't change at run time.
    pub(crate) picker: Picker,
    /// Several companions for one gateway, of which one is the leader. Null: there is one companion. It can't change at run
    /// time.
    pub(crate) replicas: Option<Replicas>,
    /// Protection of the HTTP API.
    pub(crate) admin: Admin,
    /// The sources of a request's identity, and the trusted clients.
    pub(crate) identity: Identity,
    /// What happens to requests, by their paths.
    pub(crate) paths: PathLists,
    /// Each pool has one queue in front of model servers that serve the same models. A request goes to the first pool that
    /// serves its model. A change of the configuration finds a pool by its name.
    #[schemars(length(min = 1))]
    pub(crate) pools: Vec<Pool>,
    /// The effects of SIGTERM.
    pub(crate) shutdown: Shutdown,
    /// The longest time that a starting companion waits until all Envoy workers have reported their requests. Until then it
    /// grants nothing.
    pub(crate) startup_wait: PositiveDuration,
    /// Limits of memory.
    pub(crate) limits: Limits,
    /// The metrics at `/metrics`.
    pub(crate) metrics: Metrics,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            tls: None,
            picker: Picker::default(),
            replicas: None,
            admin: Admin::default(),
            identity: Identity::default(),
            paths: PathLists::default(),
            pools: Vec::new(),
            shutdown: Shutdown::default(),
            startup_wait: PositiveDuration(penstock_wire::limits::STARTUP_WAIT),
            limits: Limits::default(),
            metrics: Metrics::default(),
        }
    }
}

/// Serde has a default for `pools` so that `convert` can report the missing key; the schema must not show it.
fn require_pools(schema: &mut schemars::Schema) {
    schema.insert("required".into(), serde_json::json!(["pools"]));
    schema.remove("default");
    if let Some(pools) = schema.pointer_mut("/properties/pools").and_then(|pools| pools.as_object_mut()) {
        pools.remove("default");
    }
}

/// The effects of SIGTERM.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shutdown {
    /// What happens to queued requests. The default is `hand_over` with `picker.listen`: gateways can't keep the requests of an endpoint
    /// picker for later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queued: Option<Queued>,
    /// The time that running requests have to finish.
    pub(crate) drain: PositiveDuration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { queued: None, drain: millis(30_000) }
    }
}

impl Shutdown {
    /// `queued`, or its default.
    pub(crate) fn queued(&self, picker: &Picker) -> Queued {
        let default = if picker.listen.is_some() { Queued::HandOver } else { Queued::Reject };
        self.queued.unwrap_or(default)
    }
}

/// Limits of memory.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Identities with an account of their own in a pool, beside those that the pool's weights, capacities and budgets name. Further
    /// identities share 64 accounts.
    pub(crate) flows: FlowCount,
    /// The largest body of a request, above 0. A larger body is answered 413.
    pub(crate) body_bytes: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self { flows: FlowCount(penstock_engine::limits::FLOWS_MAX as u64), body_bytes: Bytes(32 << 20) }
    }
}

/// The metrics at `/metrics`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Metrics {
    /// Exports some metrics also under the names of these systems.
    pub(crate) aliases: List<Alias>,
    /// Distinct values of the label `flow`, and of every other label whose values clients choose. Later values are counted as
    /// `other`.
    pub(crate) flows: Count,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { aliases: List::default(), flows: Count(1_000) }
    }
}

const fn millis(millis: u64) -> PositiveDuration {
    PositiveDuration(std::time::Duration::from_millis(millis))
}

impl TryFrom<Document> for Config {
    type Error = Violation;

    fn try_from(raw: Document) -> Result<Self, Violation> {
        if raw.limits.body_bytes.0 == 0 {
            return Err(Violation::new("limits.body_bytes", "the limit is at least 1 byte, not 0"));
        }
        let flows = to_usize(raw.limits.flows.0);
        let trust_is_given = raw.identity.trust.is_some();
        if raw.tls.is_some() {
            compiled::require("tls", cfg!(feature = "tls"), "tls")?;
        }
        let pools = convert_pools(raw.pools, flows)?;
        let replicas = raw.replicas.map(|replicas| replicas::convert(replicas, &raw.listen.grpc));
        let config = Self {
            pools,
            replicas: replicas.transpose()?,
            listen: raw.listen.checked()?,
            tls: raw.tls,
            queued: raw.shutdown.queued(&raw.picker),
            picker: raw.picker,
            admin: raw.admin.checked()?,
            identity: raw.identity.checked()?,
            paths: raw.paths.checked()?,
            drain: raw.shutdown.drain.0,
            startup_wait: raw.startup_wait.0,
            body_bytes: raw.limits.body_bytes.0,
            flows,
            metric_flows: to_usize(raw.metrics.flows.0),
            metric_aliases: check_aliases(raw.metrics.aliases.0)?,
        };
        config
            .check_gateway_address(trust_is_given)
            .and_then(|()| config.check_grpc_address(&config.listen.grpc))
            .map_err(|BindError { key, message }| Violation::new(key, message))?;
        config.check_replicas()?;
        config.check_picker(trust_is_given)?;
        config.check_keep_alive()?;
        Ok(config)
    }
}

fn convert_pools(raw: Vec<Pool>, flows: usize) -> Result<Vec<crate::Pool>, Violation> {
    if raw.is_empty() {
        return Err(Violation::new("pools", "at least one pool is required: {name, endpoints}"));
    }
    let mut names = BTreeSet::new();
    let mut pools = Vec::with_capacity(raw.len());
    for (index, pool) in raw.into_iter().enumerate() {
        let path = format!("pools[{index}]");
        if !names.insert(pool.name.clone()) {
            return Err(Violation::new(
                format!("{path}.name"),
                format!("`{}` is the name of two pools; names are unique", pool.name),
            ));
        }
        pools.push(pool::convert(pool, flows, &path)?);
    }
    choose_default(&mut pools)?;
    Ok(pools)
}

/// Requests that name no model belong to the pool that says so, or to the only one.
fn choose_default(pools: &mut [crate::Pool]) -> Result<(), Violation> {
    if let [only] = pools {
        only.is_default = true;
        return Ok(());
    }
    let mut defaults = pools.iter().enumerate().filter(|(_, pool)| pool.is_default);
    match (defaults.next(), defaults.next()) {
        (Some((_, first)), Some((index, _))) => Err(Violation::new(
            format!("pools[{index}].default"),
            format!("one pool takes the requests that name no model, and that is `{}` already", first.name),
        )),
        _ => Ok(()),
    }
}

/// A count that is larger than the machine's address space is no limit there.
fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn check_aliases(aliases: Vec<Alias>) -> Result<Vec<Alias>, Violation> {
    for (index, alias) in aliases.iter().enumerate() {
        if aliases.iter().take(index).any(|earlier| earlier == alias) {
            return Err(Violation::new(format!("metrics.aliases[{index}]"), "each alias is listed once"));
        }
    }
    Ok(aliases)
}

/// Checks a name of at most `max` bytes; `noun` is its kind, with an article.
fn check_name(text: &str, max: usize, noun: &str, key: &str) -> Result<(), Violation> {
    if is_name(text, max) {
        Ok(())
    } else {
        Err(Violation::new(key, format!("`{text}`: {noun} has 1 to {max} letters, digits, `-`, `_` or `.`")))
    }
}
