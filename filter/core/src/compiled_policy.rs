//! A policy in the form in which the filter applies it: compiled globs, numbered body keys, durations.
//!
//! A compiled policy is immutable and shared. A request keeps the policy that applied at its arrival; a new policy applies
//! from the next request on.

use core::time::Duration;
use std::sync::Arc;

use penstock_wire::limits::NAME_BYTES_MAX;
use penstock_wire::{self as wire, Api};
use wildmatch::WildMatch;

use crate::api_keys::ApiKeys;
use crate::header_sanitizer::HeaderEdit;
use crate::headers::Headers;
use crate::identity::{Rule, Source, Sources};
use crate::limits::{BODY_KEYS_MAX, POLICY_LIST_MAX};
use crate::local_reply::Failure;
use crate::metadata;
use crate::paths::{PathUse, Paths};
use crate::requeue_on::RequeueOn;
use crate::trust::Trust;

/// The rules that the filter applies to a request.
#[derive(Clone, Debug)]
pub struct CompiledPolicy {
    /// Identifies the policy.
    pub digest: String,
    /// A larger body is refused.
    pub body_bytes_max: u64,
    /// The top-level body strings that identity sources read.
    pub body_keys: Arc<[String]>,
    /// A registration carries the client's `traceparent`.
    pub tracing: bool,
    /// A pool wants hashes of prompt prefixes.
    pub prefix_hashes: bool,
    /// The identity sources.
    pub sources: Sources,
    /// The tenants' API keys; `None`: requests need none.
    api_keys: Option<ApiKeys>,
    /// The clients that may make privileged claims.
    pub trust: Trust,
    /// Header sources of class, strict tier and head start, which only trusted clients may send.
    pub privileged_headers: Arc<[Arc<str>]>,
    paths: Paths,
    pools: Vec<Arc<PoolPolicy>>,
}

/// The settings of a pool that the filter applies.
#[derive(Clone, Debug)]
pub struct PoolPolicy {
    /// The pool's name, which is also the value of the pool header.
    pub name: String,
    /// How long requests wait for a companion that is down before the fallback applies.
    pub hold: Duration,
    /// How long requests may wait, from their arrival.
    pub ttl: Duration,
    /// The `ttl` while the pool has no ready endpoint, if it is longer.
    pub no_endpoint_ttl: Duration,
    /// The HTTP status of an expired request.
    pub capacity_status: u32,
    /// Whether the filter admits requests by itself once the companion has been down for `hold`.
    pub fails_open: bool,
    /// The endpoints that the policy names.
    pub endpoints: Vec<String>,
    /// How much this Envoy may have in flight while the companion is down, until the companion sends a newer bound; `None`:
    /// no limit.
    pub fallback_bound: Option<u64>,
    /// `fallback_bound` counts tokens instead of requests.
    pub fallback_bound_in_tokens: bool,
    /// `fallback_bound` counts sequences instead of requests.
    pub fallback_bound_in_sequences: bool,
    /// Registrations for this pool carry hashes of the prompt's prefixes.
    pub prefix_hashes: bool,
    /// The companion wants to know when the first byte of a streamed response arrives.
    pub first_token: bool,
    /// The filter asks servers for token counts in streams.
    pub(crate) include_usage: bool,
    /// How long a server may take to the first byte of an answer's body; `None`: for ever.
    pub(crate) first_byte: Option<Duration>,
    /// How long a stream waits silently; `None`: for ever.
    pub(crate) keep_alive: Option<Duration>,
    /// How long a server may pause between two bytes; `None`: for ever.
    pub(crate) idle: Option<Duration>,
    /// The failures after which a request is sent again.
    pub(crate) requeue_on: RequeueOn,
    /// Requests that name no model belong to this pool.
    is_default: bool,
    models: Vec<WildMatch>,
}

impl PoolPolicy {
    fn new(pool: &wire::Pool) -> Self {
        Self {
            name: pool.name.clone(),
            hold: Duration::from_millis(pool.hold_ms),
            ttl: Duration::from_millis(pool.ttl_ms),
            no_endpoint_ttl: Duration::from_millis(pool.no_endpoint_ttl_ms),
            fails_open: pool.fallback() == wire::Fallback::Open,
            endpoints: pool.endpoints.iter().take(POLICY_LIST_MAX).cloned().collect(),
            fallback_bound: pool.fallback_bound,
            fallback_bound_in_tokens: pool.fallback_bound_in_tokens,
            fallback_bound_in_sequences: pool.fallback_bound_in_sequences,
            prefix_hashes: pool.prefix_hashes,
            first_token: pool.first_token,
            include_usage: pool.include_usage,
            first_byte: pool.first_byte_ms.map(Duration::from_millis),
            keep_alive: pool.keep_alive_ms.map(Duration::from_millis),
            idle: pool.idle_ms.map(Duration::from_millis),
            requeue_on: pool.requeue_on.as_ref().map(RequeueOn::new).unwrap_or_default(),
            capacity_status: if pool.capacity_status == 429 { 429 } else { 503 },
            is_default: pool.is_default,
            models: pool.models.iter().take(POLICY_LIST_MAX).map(|glob| WildMatch::new(glob)).collect(),
        }
    }

    /// The longest time that a request may wait: the one while no endpoint is ready.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.ttl.max(self.no_endpoint_ttl)
    }

    fn serves(&self, model: &str) -> bool {
        if model.is_empty() {
            return self.is_default;
        }
        self.models.is_empty() || self.models.iter().any(|glob| glob.matches(model))
    }
}

impl CompiledPolicy {
    /// Compiles a policy. Entries beyond a limit, and sources of a later protocol version, are skipped.
    #[must_use]
    pub fn new(policy: &wire::Policy) -> Self {
        let mut keys = Vec::new();
        let none = wire::Identity::default();
        let identity = policy.identity.as_ref().unwrap_or(&none);
        let sources = Sources {
            fairness_id: compile(&identity.fairness_id, &mut keys),
            user: compile(&identity.user, &mut keys),
            priority: compile(&identity.priority, &mut keys),
            class: compile(&identity.class, &mut keys),
            strict: compile(&identity.strict, &mut keys),
            jump: compile(&identity.jump, &mut keys),
        };
        Self {
            privileged_headers: privileged_headers(&sources),
            api_keys: identity.api_keys.as_ref().map(ApiKeys::new),
            trust: Trust::new(identity.trust.as_ref()),
            digest: policy.digest.clone(),
            tracing: policy.tracing,
            prefix_hashes: policy.pools.iter().take(POLICY_LIST_MAX).any(|pool| pool.prefix_hashes),
            body_bytes_max: policy.body_bytes_max,
            body_keys: keys.into(),
            sources,
            paths: Paths::new(
                policy.routes.get(..POLICY_LIST_MAX).unwrap_or(&policy.routes),
                policy.others_pass,
            ),
            pools: policy
                .pools
                .iter()
                .take(POLICY_LIST_MAX)
                .map(|pool| Arc::new(PoolPolicy::new(pool)))
                .collect(),
        }
    }

    /// What happens to a request, by its method and its path, which may have a query.
    #[must_use]
    pub fn path_use(&self, method: &[u8], path: &[u8]) -> PathUse {
        self.paths.of(method, path)
    }

    /// The tenant that the request's API key verifies; `None`: the sources decide.
    pub(crate) fn tenant(&self, headers: Headers<'_>) -> Result<Option<String>, Failure> {
        let keys = self.api_keys.as_ref();
        let tenant = keys.map_or(Ok(None), |keys| keys.tenant(headers))?;
        Ok(tenant.map(str::to_owned))
    }

    /// The removals of the headers that hold an API key.
    pub(crate) fn key_removals(&self, headers: Headers<'_>) -> impl Iterator<Item = HeaderEdit> {
        let keys = self.api_keys.iter();
        keys.flat_map(move |keys| keys.removals(headers))
    }

    /// The API whose error format a path's client expects: that of the queued path that is the path, or begins it.
    #[must_use]
    pub fn dialect(&self, path: &[u8]) -> Api {
        self.paths.dialect(path)
    }

    /// The pool that serves a model, which is empty if a request names none; `None` if the policy names no pools.
    ///
    /// # Errors
    /// The policy names pools, and none of them serves the model.
    pub fn pool(&self, model: &str) -> Result<Option<Arc<PoolPolicy>>, UnknownModel> {
        if self.pools.is_empty() {
            return Ok(None);
        }
        self.pools.iter().find(|pool| pool.serves(model)).cloned().map(Some).ok_or(UnknownModel)
    }

    /// The pool of a request: the one that its gateway has chosen, or that of its model.
    ///
    /// # Errors
    /// No pool serves the model. If the chosen pool has left the policy, the model chooses.
    pub(crate) fn pool_of(&self, register: &wire::Register) -> Result<Option<Arc<PoolPolicy>>, UnknownModel> {
        match self.named(&register.pool) {
            Some(pool) => Ok(Some(Arc::clone(pool))),
            None => self.pool(&register.model),
        }
    }

    /// The pool with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<PoolPolicy>> {
        if name.is_empty() { None } else { self.pools.iter().find(|pool| pool.name == name) }
    }

    /// The pools that fail open: the filter admits their requests by itself while the companion is down.
    pub fn fail_open_pools(&self) -> impl Iterator<Item = &PoolPolicy> {
        self.pools.iter().map(Arc::as_ref).filter(|pool| pool.fails_open)
    }

    /// The pool of requests that pass through and name no model.
    #[must_use]
    pub fn default_pool(&self) -> Option<&PoolPolicy> {
        let default = self.pools.iter().find(|pool| pool.is_default);
        default.or_else(|| self.pools.first()).map(Arc::as_ref)
    }

    /// Which pool a request that passes through belongs to may depend on its model.
    #[must_use]
    pub fn has_choice_of_pools(&self) -> bool {
        self.pools.len() > 1
    }
}

/// No pool serves the requested model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownModel;

/// The header sources of class, strict tier and head start. Pseudo-headers are left out, because a request needs them.
fn privileged_headers(sources: &Sources) -> Arc<[Arc<str>]> {
    let lists = [&sources.class, &sources.strict, &sources.jump];
    let mut names: Vec<Arc<str>> = Vec::new();
    for source in lists.into_iter().flatten() {
        if let Source::Header(name) = source
            && !name.starts_with(':')
            && !names.iter().any(|known| **known == **name)
        {
            names.push(name.as_str().into());
        }
    }
    names.into()
}

fn compile(sources: &[wire::Source], keys: &mut Vec<String>) -> Vec<Source> {
    use wire::source::From as SourceFrom;
    let mut compiled = Vec::new();
    for source in sources.iter().take(POLICY_LIST_MAX) {
        compiled.push(match &source.from {
            Some(SourceFrom::Header(name)) => Source::Header(name.to_ascii_lowercase()),
            Some(SourceFrom::Body(key)) => {
                let known = keys.iter().position(|known| known == key);
                if known.is_none() && (keys.len() >= BODY_KEYS_MAX || key.len() > NAME_BYTES_MAX) {
                    continue;
                }
                Source::Body(known.unwrap_or_else(|| {
                    keys.push(key.clone());
                    keys.len().saturating_sub(1)
                }))
            }
            Some(SourceFrom::Metadata(path)) => Source::Metadata(metadata::keys(path)),
            Some(SourceFrom::Model(table)) => Source::Model(
                table
                    .rules
                    .iter()
                    .take(POLICY_LIST_MAX)
                    .map(|rule| Rule { glob: WildMatch::new(&rule.glob), value: rule.value.clone() })
                    .collect(),
            ),
            None => continue,
        });
    }
    compiled
}
