//! `endpoints`: a pool's model servers, or how they are found.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use penstock_engine::input::Role;
use penstock_engine::limits::ENDPOINTS_MAX;
use penstock_engine::units::Decimal;
use penstock_wire::limits::NAME_BYTES_MAX;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::{check_name, millis};
use crate::error::Violation;
use crate::name::{HOST_BYTES_MAX, LABEL_BYTES_MAX};
use crate::upstream::system_authorities;
use crate::value::{Count, ExactDecimal, List, OneOrMany, Port, PositiveDuration, Share, Short, Shortened};
use crate::{Discovery, KubernetesObject, PodLabels, PodSelector, compiled};

/// The model servers: exactly one of these keys.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = [
    {"required": ["static"], "properties": {"static": {"type": "array"}}},
    {"required": ["dns"], "properties": {"dns": {"type": "object"}}},
    {"required": ["file"], "properties": {"file": {"type": "string"}}},
    {"required": ["kubernetes"], "properties": {"kubernetes": {"type": "object"}}},
]))]
pub(crate) struct Endpoints {
    /// A list of endpoints. Each is an address, `"ip:port"`, or a mapping with more keys.
    #[serde(rename = "static")]
    pub(crate) listed: Option<Vec<Shortened<Endpoint>>>,
    /// All addresses of a DNS name, looked up regularly.
    pub(crate) dns: Option<Dns>,
    /// The path of a file with a list like that of `static`. It is read again when it changes.
    pub(crate) file: Option<PathBuf>,
    /// The ready pods of an InferencePool.
    pub(crate) kubernetes: Option<Kubernetes>,
    /// The values of every endpoint that doesn't have its own.
    pub(crate) defaults: EndpointDefaults,
    /// When an endpoint whose answers fail is kept away. Null: never.
    #[serde(default = "failing")]
    pub(crate) failing: Option<Failing>,
}

#[expect(clippy::unnecessary_wraps, reason = "the default of an optional key")]
fn failing() -> Option<Failing> {
    Some(Failing::default())
}

impl Default for Endpoints {
    fn default() -> Self {
        Self {
            listed: None,
            dns: None,
            file: None,
            kubernetes: None,
            defaults: EndpointDefaults::default(),
            failing: failing(),
        }
    }
}

/// When an endpoint whose answers fail is kept away: only beside others that succeed at the same kind of request.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Failing {
    /// So many different requests fail there in a row.
    pub(crate) consecutive: Count,
    /// Or this share of its answers in the window are errors of the server, at least `consecutive` of them.
    pub(crate) ratio: Share,
    /// The window. An endpoint that refuses every request (429, 503) for so long is failing, too.
    pub(crate) window: PositiveDuration,
    /// The time between two requests with which a failing endpoint is probed. The first one that it serves ends the state.
    pub(crate) probe_every: PositiveDuration,
}

impl Default for Failing {
    fn default() -> Self {
        Self {
            consecutive: Count(5),
            ratio: Share(Decimal::from_billionths(Decimal::ONE / 2)),
            window: millis(30_000),
            probe_every: millis(5_000),
        }
    }
}

impl Failing {
    /// The engine's rule.
    pub(super) fn policy(&self) -> penstock_engine::policy::Failing {
        penstock_engine::policy::Failing {
            consecutive: u32::try_from(self.consecutive.0).unwrap_or(u32::MAX),
            ratio: self.ratio.0.to_f64(),
            window: self.window.0,
            probe_every: self.probe_every.0,
        }
    }
}

/// The values of every endpoint of `static`, `dns`, `file` and `kubernetes` that doesn't have its own.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EndpointDefaults {
    /// Endpoints of one variant have the same accelerator, model and flags. They share one performance model, and replicas are
    /// counted by variant.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(crate) variant: String,
    /// The most requests that an endpoint runs in one batch; vLLM's `--max-num-seqs`. 256, the default, is an assumption for the number of
    /// replicas until `watermark_per_backend: auto` has measured it; any other number is also the most that `auto` allows.
    pub(crate) max_batch: Count,
    /// The most tokens that an endpoint computes in one iteration; vLLM's `--max-num-batched-tokens`. Null: unknown. A class's
    /// `prefill_busy_threshold_frac` needs it.
    pub(crate) max_batched_tokens: Option<Count>,
}

impl Default for EndpointDefaults {
    fn default() -> Self {
        Self {
            variant: "default".into(),
            // vLLM's default.
            max_batch: Count(256),
            max_batched_tokens: None,
        }
    }
}

/// All addresses of a DNS name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dns {
    /// The DNS name, or `https://NAME` for TLS.
    #[schemars(length(min = 1, max = 261))]
    pub(crate) name: String,
    /// The port of every endpoint.
    pub(crate) port: Port,
    /// The time between two lookups.
    #[serde(default = "default_refresh")]
    pub(crate) refresh: PositiveDuration,
    /// The name servers to ask, `"ip:port"` each, for example those of Consul. They are asked for exactly this name. Empty: the system's
    /// name servers, with its search domains and `/etc/hosts`.
    #[serde(default)]
    pub(crate) resolver: List<String>,
}

const fn default_refresh() -> PositiveDuration {
    millis(30_000)
}

/// The ready pods of an InferencePool, or the ready endpoints of a Service. Exactly one of `inference_pool` and `service`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kubernetes {
    /// The name of the InferencePool.
    #[serde(default)]
    #[schemars(length(min = 1, max = 253))]
    pub(crate) inference_pool: Option<String>,
    /// The name of the Service.
    #[serde(default)]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) service: Option<String>,
    /// The name of the Service's port. Null: it has one port.
    #[serde(default)]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) port: Option<String>,
    /// The namespace of the object. Null: that of the companion's pod, or of the context in `KUBECONFIG`.
    #[serde(default)]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) namespace: Option<String>,
    /// The pod labels or annotations that describe a model server, so that mixed accelerators of one pool are learned apart.
    #[serde(default)]
    pub(crate) labels: PodLabels,
    /// Only pods with all of these labels are endpoints of the InferencePool: a value for each label, or a list of values.
    #[serde(default)]
    pub(crate) match_labels: LabelValues,
    /// Pods with one of these labels and values are no endpoints of the InferencePool, unless `match_labels` or the InferencePool's own
    /// selector names both. By default, pods that only encode or prefill take no requests of clients; under `disaggregation`, the
    /// default leaves `prefill` out.
    #[serde(default = "default_exclusion")]
    pub(crate) exclude_labels: LabelValues,
    /// The InferenceObjectives that name the InferencePool give the priority of requests that name one: above 0 `critical`, below 0
    /// `sheddable`. `identity.objectives` comes first.
    #[serde(default)]
    pub(crate) objectives: bool,
    /// The InferenceModelRewrites that name the InferencePool replace the models of requests. `pools[].rewrite` comes first.
    #[serde(default)]
    pub(crate) rewrites: bool,
}

/// Values by the name of a label.
type LabelValues = BTreeMap<String, OneOrMany<String>>;

/// llm-d's label of a pod's role.
const ROLE_LABEL: &str = "llm-d.ai/role";

/// The roles of llm-d whose pods can't answer a request by themselves.
fn default_exclusion() -> LabelValues {
    exclusion(&["prefill", "encode", "encode-prefill"])
}

fn exclusion(roles: &[&str]) -> LabelValues {
    let roles = roles.iter().map(|&role| role.to_owned()).collect();
    LabelValues::from([(ROLE_LABEL.to_owned(), OneOrMany(roles))])
}

/// A model server.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// The endpoint's address, `ip:port`, or `https://ip:port` for TLS.
    pub(crate) address: String,
    /// The endpoint's variant. Null means that of `defaults`.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(crate) variant: Option<String>,
    /// The most requests that the endpoint runs in one batch. Null means that of `defaults`.
    #[serde(default)]
    pub(crate) max_batch: Option<Count>,
    /// The most tokens that the endpoint computes in one iteration. Null means that of `defaults`.
    #[serde(default)]
    pub(crate) max_batched_tokens: Option<Count>,
    /// Scales the endpoint's bounds. Under `watermark_per_backend: auto` it scales `auto_initial` only.
    #[serde(default = "default_weight")]
    #[schemars(transform = above_zero)]
    pub(crate) weight: ExactDecimal,
    /// Labels for people, shown in the endpoint's status.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// The endpoint takes only requests that tolerate all of these, by the header `x-penstock-tolerate` of a trusted client.
    #[serde(default)]
    pub(crate) taints: List<String>,
    /// What the endpoint computes of a request, under `disaggregation`.
    #[serde(default)]
    pub(crate) role: EndpointRole,
}

/// What an endpoint computes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum EndpointRole {
    /// Prompt and answer.
    #[default]
    Both,
    /// Prompts for `decode` endpoints. Whole requests only while no other endpoint has room, and then up to half of its bound; while no other
    /// one is ready, up to its bound.
    Prefill,
    /// Answers, and prompts that no `prefill` endpoint computes. Behind a sidecar that reads the header `x-prefiller-host-port`.
    Decode,
}

impl From<EndpointRole> for Role {
    fn from(role: EndpointRole) -> Self {
        match role {
            EndpointRole::Both => Self::Both,
            EndpointRole::Prefill => Self::Prefill,
            EndpointRole::Decode => Self::Decode,
        }
    }
}

/// An endpoint that takes no requests isn't listed, so 0 isn't allowed.
fn above_zero(schema: &mut Schema) {
    schema.remove("minimum");
    schema.insert("exclusiveMinimum".into(), 0.into());
}

const fn default_weight() -> ExactDecimal {
    ExactDecimal(penstock_engine::units::Decimal::whole(1))
}

impl From<String> for Endpoint {
    fn from(address: String) -> Self {
        Self {
            address,
            variant: None,
            max_batch: None,
            max_batched_tokens: None,
            weight: default_weight(),
            labels: BTreeMap::new(),
            taints: List::default(),
            role: EndpointRole::Both,
        }
    }
}

impl Short for Endpoint {
    const ALLOWED: &'static str = "an address like \"127.0.0.1:8001\", or {address: ...}";
}

/// The beginning of an address whose server speaks TLS, with a certificate of an authority that the operating system trusts.
const HTTPS: &str = "https://";

/// The most labels of one endpoint, and the most taints.
const LABELS_MAX: usize = penstock_wire::limits::LIST_MAX;
/// The most name servers of a lookup; a system's configuration has three.
const RESOLVERS_MAX: usize = 3;

/// The endpoints of a pool, or the way to find them.
pub(super) struct Found {
    pub(super) listed: Vec<crate::Endpoint>,
    pub(super) discovery: Option<Discovery>,
    pub(super) defaults: crate::EndpointDefaults,
    /// The addresses, or the DNS name, begin with `https://`.
    pub(super) is_https: bool,
}

/// Checks `endpoints`, which is a list or one kind of discovery; `path` is the pool's.
/// `has_roles`: the pool separates prefill from decoding.
pub(super) fn convert(raw: Endpoints, has_roles: bool, path: &str) -> Result<Found, Violation> {
    let path = format!("{path}.endpoints");
    let Endpoints { listed, dns: by_name, file, kubernetes: by_pool, defaults, failing: _ } = raw;
    check_name(&defaults.variant, LABEL_BYTES_MAX, "a variant", &format!("{path}.defaults.variant"))?;
    let defaults = crate::EndpointDefaults {
        variant: defaults.variant,
        max_batch: defaults.max_batch.0,
        max_batched_tokens: defaults.max_batched_tokens.map(|tokens| tokens.0),
        role: Role::Both,
    };
    let is_https_name = by_name.as_ref().is_some_and(|dns| dns.name.starts_with(HTTPS));
    let (listed, discovery) = match (listed, by_name, file, by_pool) {
        (Some(list), None, None, None) => {
            let path = format!("{path}.static");
            check_roles(&list, has_roles, &path)?;
            (endpoint_list(list, &defaults, &path)?, None)
        }
        (None, Some(raw), None, None) => (Vec::new(), Some(dns(raw, &format!("{path}.dns"))?)),
        (None, None, Some(file), None) if file.as_os_str().is_empty() => {
            return Err(Violation::new(format!("{path}.file"), "must be the path of a file, not empty"));
        }
        (None, None, Some(file), None) => (Vec::new(), Some(Discovery::File(file))),
        (None, None, None, Some(raw)) => {
            let discovery = kubernetes(raw, has_roles, &format!("{path}.kubernetes"))?;
            (Vec::new(), Some(discovery))
        }
        _ => {
            return Err(Violation::new(path, "exactly one of static, dns, file and kubernetes is required"));
        }
    };
    let is_https = is_https_name || listed.iter().any(|endpoint| endpoint.is_https);
    Ok(Found { listed, discovery, defaults, is_https })
}

/// Checks that no endpoint listed at `path` has a role that the pool doesn't use.
fn check_roles(list: &[Shortened<Endpoint>], has_roles: bool, path: &str) -> Result<(), Violation> {
    let mut roles = list.iter().map(|Shortened(endpoint)| endpoint.role);
    match roles.position(|role| role != EndpointRole::Both) {
        Some(index) if !has_roles => Err(Violation::new(
            format!("{path}[{index}].role"),
            "a role needs disaggregation.min_uncached_tokens, the length from which prompts have an endpoint of their own",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Checks that the endpoints listed at `path` all have `max_batched_tokens`.
pub(crate) fn check_batched_tokens(endpoints: &[crate::Endpoint], path: &str) -> Result<(), Violation> {
    let mut unknown = endpoints.iter().enumerate();
    match unknown.find(|(_, endpoint)| endpoint.max_batched_tokens.is_none()) {
        None => Ok(()),
        Some((index, endpoint)) => Err(Violation::new(
            format!("{path}[{index}]"),
            format!(
                "endpoint {} has no max_batched_tokens, which a class's prefill_busy_threshold_frac needs; set it here, or \
                 for all endpoints in endpoints.defaults",
                endpoint.address
            ),
        )),
    }
}

/// Whether a text is allowed as a variant.
#[must_use]
pub fn is_variant(text: &str) -> bool {
    check_name(text, LABEL_BYTES_MAX, "a variant", "").is_ok()
}

/// Checks a list of endpoints at `path`.
pub(crate) fn endpoint_list(
    list: Vec<Shortened<Endpoint>>,
    defaults: &crate::EndpointDefaults,
    path: &str,
) -> Result<Vec<crate::Endpoint>, Violation> {
    if list.is_empty() {
        return Err(Violation::new(path, "at least one address is required"));
    }
    if list.len() > ENDPOINTS_MAX {
        return Err(Violation::new(
            path,
            format!("a pool has at most {ENDPOINTS_MAX} endpoints, not {}", list.len()),
        ));
    }
    let mut seen = BTreeSet::new();
    let endpoints: Result<Vec<_>, _> = list
        .into_iter()
        .enumerate()
        .map(|(index, Shortened(raw))| {
            let key = format!("{path}[{index}]");
            let endpoint = endpoint(raw, defaults, &key)?;
            if seen.insert(endpoint.address) {
                Ok(endpoint)
            } else {
                Err(Violation::new(key, format!("`{}` is listed twice", endpoint.address)))
            }
        })
        .collect();
    let endpoints = endpoints?;
    let is_https = endpoints.first().is_some_and(|endpoint| endpoint.is_https);
    if let Some(other) = endpoints.iter().position(|endpoint| endpoint.is_https != is_https) {
        return Err(Violation::new(
            format!("{path}[{other}]"),
            "the addresses of a pool begin all with https:// or none does; put the others into a pool of their own",
        ));
    }
    if is_https {
        compiled::require("tls", cfg!(feature = "tls"), path)?;
        system_authorities().map_err(|why| Violation::new(path, why))?;
    }
    Ok(endpoints)
}

fn endpoint(
    raw: Endpoint,
    defaults: &crate::EndpointDefaults,
    key: &str,
) -> Result<crate::Endpoint, Violation> {
    let https = raw.address.strip_prefix(HTTPS);
    let host = https.or_else(|| raw.address.strip_prefix("http://")).unwrap_or(&raw.address);
    let address: SocketAddr = host.strip_suffix('/').unwrap_or(host).parse().map_err(|_| {
        Violation::new(
            key,
            format!("`{}` is not an address; write ip:port, like 127.0.0.1:8001", raw.address),
        )
    })?;
    if address.port() == 0 {
        return Err(Violation::new(key, format!("`{address}`: a port is 1 to 65535")));
    }
    if raw.weight.0 == Decimal::default() {
        return Err(Violation::new(format!("{key}.weight"), "a weight is above 0"));
    }
    if let Some(variant) = &raw.variant {
        check_name(variant, LABEL_BYTES_MAX, "a variant", &format!("{key}.variant"))?;
    }
    check_labels(&raw, key)?;
    let default = defaults.endpoint(address);
    Ok(crate::Endpoint {
        address,
        weight: raw.weight.0,
        variant: raw.variant.unwrap_or(default.variant),
        max_batch: raw.max_batch.map_or(default.max_batch, |requests| requests.0),
        max_batched_tokens: raw.max_batched_tokens.map(|tokens| tokens.0).or(default.max_batched_tokens),
        labels: raw.labels,
        taints: raw.taints.0,
        role: raw.role.into(),
        is_https: https.is_some(),
    })
}

fn check_labels(raw: &Endpoint, key: &str) -> Result<(), Violation> {
    let fits = |text: &str| text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control);
    for (name, value) in &raw.labels {
        if name.is_empty() || !fits(name) || !fits(value) {
            return Err(Violation::new(
                format!("{key}.labels.{name}"),
                format!(
                    "a label and its value have at most {NAME_BYTES_MAX} bytes, none of them a control character"
                ),
            ));
        }
    }
    for (index, taint) in raw.taints.0.iter().enumerate() {
        let key = format!("{key}.taints[{index}]");
        check_name(taint, LABEL_BYTES_MAX, "a taint", &key)?;
        if raw.taints.0.iter().take(index).any(|earlier| earlier == taint) {
            return Err(Violation::new(key, format!("`{taint}` is listed twice")));
        }
    }
    for (kind, count) in [("labels", raw.labels.len()), ("taints", raw.taints.0.len())] {
        if count > LABELS_MAX {
            return Err(Violation::new(
                format!("{key}.{kind}"),
                format!("an endpoint has at most {LABELS_MAX} {kind}, not {count}"),
            ));
        }
    }
    Ok(())
}

fn dns(mut raw: Dns, path: &str) -> Result<Discovery, Violation> {
    if let Some(name) = raw.name.strip_prefix(HTTPS) {
        raw.name = name.to_owned();
    }
    if raw.name.parse::<IpAddr>().is_ok() {
        return Err(Violation::new(
            format!("{path}.name"),
            format!("`{}` is an address; list addresses under static", raw.name),
        ));
    }
    check_host(&raw.name, &format!("{path}.name"))?;
    Ok(Discovery::Dns {
        name: raw.name,
        port: u16::try_from(raw.port.0).expect("invariant: a port is at most 65535"),
        refresh: raw.refresh.0,
        resolver: resolvers(&raw.resolver, &format!("{path}.resolver"))?,
    })
}

fn resolvers(raw: &[String], path: &str) -> Result<Vec<SocketAddr>, Violation> {
    if raw.len() > RESOLVERS_MAX {
        return Err(Violation::new(
            path,
            format!("a name has at most {RESOLVERS_MAX} name servers, not {}", raw.len()),
        ));
    }
    let addresses = raw.iter().enumerate().map(|(index, text)| match text.parse::<SocketAddr>() {
        Ok(address) if address.port() > 0 => Ok(address),
        Ok(_) | Err(_) => Err(Violation::new(
            format!("{path}[{index}]"),
            format!("`{text}` is not an address; write ip:port, like 127.0.0.1:53"),
        )),
    });
    addresses.collect()
}

fn kubernetes(mut raw: Kubernetes, has_roles: bool, path: &str) -> Result<Discovery, Violation> {
    compiled::require("kubernetes", cfg!(feature = "kubernetes"), path)?;
    let object = kubernetes_object(raw.inference_pool, raw.service, raw.port, path)?;
    if let Some(namespace) = &raw.namespace {
        check_host(namespace, &format!("{path}.namespace"))?;
    }
    if raw.labels.role.is_some() && !has_roles {
        return Err(Violation::new(
            format!("{path}.labels.role"),
            "a role needs disaggregation.min_uncached_tokens, the length from which prompts have an endpoint of their own",
        ));
    }
    let PodLabels { variant, max_batch, max_batched_tokens, role } = &raw.labels;
    for (key, label) in [
        ("variant", variant),
        ("max_batch", max_batch),
        ("max_batched_tokens", max_batched_tokens),
        ("role", role),
    ] {
        if let Some(label) = label {
            if let KubernetesObject::Service { .. } = &object {
                return Err(Violation::new(
                    format!("{path}.labels.{key}"),
                    "the endpoints of a Service have no labels of pods; use inference_pool, or endpoints.defaults",
                ));
            }
            check_pod_label(label, &format!("{path}.labels.{key}"))?;
        }
    }
    let has_selector = !raw.match_labels.is_empty() || raw.exclude_labels != default_exclusion();
    if has_selector && matches!(object, KubernetesObject::Service { .. }) {
        let key = if raw.match_labels.is_empty() { "exclude_labels" } else { "match_labels" };
        return Err(Violation::new(
            format!("{path}.{key}"),
            "the endpoints of a Service have no labels of pods; use inference_pool, or the selector of the Service",
        ));
    }
    let is_pool = matches!(object, KubernetesObject::InferencePool(_));
    if has_roles && is_pool {
        raw.labels.role.get_or_insert_with(|| ROLE_LABEL.to_owned());
        if raw.exclude_labels == default_exclusion() {
            raw.exclude_labels = exclusion(&["encode", "encode-prefill"]);
        }
    }
    let selector = PodSelector {
        match_labels: label_values(raw.match_labels, &format!("{path}.match_labels"))?,
        exclude_labels: label_values(raw.exclude_labels, &format!("{path}.exclude_labels"))?,
    };
    let (objectives, rewrites) = (raw.objectives, raw.rewrites);
    if objectives && matches!(object, KubernetesObject::Service { .. }) {
        return Err(Violation::new(
            format!("{path}.objectives"),
            "an InferenceObjective names an InferencePool; use inference_pool, or identity.objectives",
        ));
    }
    if rewrites && matches!(object, KubernetesObject::Service { .. }) {
        return Err(Violation::new(
            format!("{path}.rewrites"),
            "an InferenceModelRewrite names an InferencePool; use inference_pool, or the pool's rewrite",
        ));
    }
    let (namespace, labels) = (raw.namespace, raw.labels);
    Ok(Discovery::Kubernetes { object, namespace, labels, selector, objectives, rewrites })
}

/// Checks labels of pods with their values.
fn label_values(raw: LabelValues, path: &str) -> Result<BTreeMap<String, Vec<String>>, Violation> {
    if raw.len() > LABELS_MAX {
        return Err(Violation::new(
            path,
            format!("at most {LABELS_MAX} labels are allowed, not {}", raw.len()),
        ));
    }
    for (label, OneOrMany(values)) in &raw {
        let key = format!("{path}.{label}");
        check_pod_label(label, &key)?;
        if values.is_empty() || values.len() > LABELS_MAX {
            return Err(Violation::new(
                key,
                format!("a label has 1 to {LABELS_MAX} values, not {}", values.len()),
            ));
        }
        for value in values.iter().filter(|value| !value.is_empty()) {
            check_name(value, LABEL_BYTES_MAX, "a label's value", &key)?;
        }
    }
    Ok(raw.into_iter().map(|(label, OneOrMany(values))| (label, values)).collect())
}

fn kubernetes_object(
    inference_pool: Option<String>,
    service: Option<String>,
    port: Option<String>,
    path: &str,
) -> Result<KubernetesObject, Violation> {
    match (inference_pool, service) {
        (Some(name), None) => {
            check_host(&name, &format!("{path}.inference_pool"))?;
            if port.is_some() {
                return Err(Violation::new(
                    format!("{path}.port"),
                    "the ports of an InferencePool are in its spec; port belongs to service",
                ));
            }
            Ok(KubernetesObject::InferencePool(name))
        }
        (None, Some(name)) => {
            check_host(&name, &format!("{path}.service"))?;
            if let Some(port) = &port {
                check_host(port, &format!("{path}.port"))?;
            }
            Ok(KubernetesObject::Service { name, port })
        }
        _ => Err(Violation::new(path.to_owned(), "exactly one of inference_pool and service is required")),
    }
}

/// Checks the name of a pod's label: a name, which may follow the name of a domain and a slash.
fn check_pod_label(label: &str, key: &str) -> Result<(), Violation> {
    let (domain, name) = label.rsplit_once('/').unwrap_or(("example.com", label));
    check_name(domain, HOST_BYTES_MAX, "a label's domain", key)?;
    check_name(name, LABEL_BYTES_MAX, "a label's name", key)
}

/// Checks a name of DNS or Kubernetes.
fn check_host(text: &str, key: &str) -> Result<(), Violation> {
    check_name(text, HOST_BYTES_MAX, "a name", key)
}
