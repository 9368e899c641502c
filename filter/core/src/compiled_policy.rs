//! A policy made ready for use: globs compiled, body keys numbered, numbers in their units.
//!
//! A policy is immutable and shared: a request keeps the one that was in force when it came, a new one counts from the next
//! request on.

use core::time::Duration;
use std::sync::Arc;

use penstock_wire::{self as wire, Api, limits::NAME_BYTES_MAX};
use wildmatch::WildMatch;

use crate::{
    identity::{Rule, Source, Sources},
    limits::{BODY_KEYS_MAX, POLICY_LIST_MAX},
    metadata,
    trust::Trust,
};

/// What is in force for a request.
#[derive(Clone, Debug)]
pub struct CompiledPolicy {
    /// Names the policy this was made of.
    pub digest: String,
    /// A body over this many bytes is refused.
    pub body_bytes_max: u64,
    /// The top-level strings of the body that some identity wants.
    pub body_keys: Arc<[String]>,
    /// Registrations carry the client's `traceparent`.
    pub tracing: bool,
    /// Some pool wants hashes of prompts' beginnings.
    pub hashes: bool,
    /// Where identities are read.
    pub sources: Sources,
    /// Whose claims count.
    pub trust: Trust,
    /// The headers with claims that only who is trusted may make: a class, a tier, a head start.
    pub privileges: Arc<[Arc<str>]>,
    routes: Vec<(String, Api)>,
    pools: Vec<Arc<PoolPolicy>>,
}

/// What the filter knows of a pool.
#[derive(Clone, Debug)]
pub struct PoolPolicy {
    /// Its name, also the value of the pool header.
    pub name: String,
    /// How long its requests wait for a companion that went away.
    pub hold: Duration,
    /// How long they may wait in all.
    pub ttl: Duration,
    /// The same while no endpoint is ready.
    pub no_endpoint_ttl: Duration,
    /// The status of an expired wait.
    pub capacity_status: u32,
    /// Its requests go without the companion when they have waited for it long enough.
    pub fails_open: bool,
    /// Its servers, as far as the policy names them.
    pub endpoints: Vec<String>,
    /// What this Envoy may have in flight in it then, until the companion has said something newer; `None`: any number.
    pub fallback_bound: Option<u64>,
    /// That bound counts tokens, not requests.
    pub fallback_bound_in_tokens: bool,
    /// Registrations of its requests carry hashes of the prompt's beginnings.
    pub prefix_hashes: bool,
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
            prefix_hashes: pool.prefix_hashes,
            capacity_status: if pool.capacity_status == 429 { 429 } else { 503 },
            models: pool
                .models
                .iter()
                .take(POLICY_LIST_MAX)
                .map(|glob| WildMatch::new(glob))
                .collect(),
        }
    }

    fn serves(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|glob| glob.matches(model))
    }
}

impl CompiledPolicy {
    /// Compiles a policy. What is beyond a limit, or of a later version, is left out.
    #[must_use]
    pub fn new(policy: &wire::Policy) -> Self {
        let mut keys = Vec::new();
        let identity = policy.identity.clone().unwrap_or_default();
        let sources = Sources {
            fairness_id: compile(&identity.fairness_id, &mut keys),
            user: compile(&identity.user, &mut keys),
            priority: compile(&identity.priority, &mut keys),
            class: compile(&identity.class, &mut keys),
            strict: compile(&identity.strict, &mut keys),
            jump: compile(&identity.jump, &mut keys),
        };
        Self {
            privileges: privileges(&sources),
            trust: Trust::new(identity.trust.as_ref()),
            digest: policy.digest.clone(),
            tracing: policy.tracing,
            hashes: policy
                .pools
                .iter()
                .take(POLICY_LIST_MAX)
                .any(|pool| pool.prefix_hashes),
            body_bytes_max: policy.body_bytes_max,
            body_keys: keys.into(),
            sources,
            routes: policy
                .routes
                .iter()
                .take(POLICY_LIST_MAX)
                .map(|route| (route.path.clone(), route.api()))
                .collect(),
            pools: policy
                .pools
                .iter()
                .take(POLICY_LIST_MAX)
                .map(|pool| Arc::new(PoolPolicy::new(pool)))
                .collect(),
        }
    }

    /// The API of a request that is queued; none: it passes through. The path may carry a query.
    #[must_use]
    pub fn route(&self, method: &[u8], path: &[u8]) -> Option<Api> {
        if method != b"POST" {
            return None;
        }
        let path = path.split(|byte| matches!(byte, b'?' | b'#')).next()?;
        self.routes
            .iter()
            .find(|(route, _)| route.as_bytes() == path)
            .map(|(_, api)| *api)
    }

    /// The pool of a model.
    ///
    /// # Errors
    /// There are pools, and none serves it.
    pub fn pool(&self, model: &str) -> Result<Option<Arc<PoolPolicy>>, NoPool> {
        if self.pools.is_empty() {
            return Ok(None);
        }
        self.pools
            .iter()
            .find(|pool| pool.serves(model))
            .cloned()
            .map(Some)
            .ok_or(NoPool)
    }

    /// The pools whose requests go without the companion when it is away for long.
    pub fn fail_open_pools(&self) -> impl Iterator<Item = &PoolPolicy> {
        self.pools.iter().map(Arc::as_ref).filter(|pool| pool.fails_open)
    }

    /// The pool of what passes through.
    #[must_use]
    pub fn first_pool(&self) -> Option<&PoolPolicy> {
        self.pools.first().map(Arc::as_ref)
    }
}

/// No pool serves a request's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPool;

/// The headers of these sources; a pseudo-header no request can do without.
fn privileges(sources: &Sources) -> Arc<[Arc<str>]> {
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
    use wire::source::From as Of;
    let mut compiled = Vec::new();
    for source in sources.iter().take(POLICY_LIST_MAX) {
        compiled.push(match &source.from {
            Some(Of::Header(name)) => Source::Header(name.to_ascii_lowercase()),
            Some(Of::Body(key)) => {
                let known = keys.iter().position(|known| known == key);
                if known.is_none() && (keys.len() >= BODY_KEYS_MAX || key.len() > NAME_BYTES_MAX) {
                    continue;
                }
                Source::Body(known.unwrap_or_else(|| {
                    keys.push(key.clone());
                    keys.len().saturating_sub(1)
                }))
            }
            Some(Of::Metadata(path)) => Source::Metadata(metadata::keys(path)),
            Some(Of::Model(table)) => Source::Model(
                table
                    .rules
                    .iter()
                    .take(POLICY_LIST_MAX)
                    .map(|rule| Rule {
                        glob: WildMatch::new(&rule.glob),
                        value: rule.value.clone(),
                    })
                    .collect(),
            ),
            None => continue,
        });
    }
    compiled
}
