//! The configuration: from a text to types that can only hold valid values.
//!
//! 1. [`yaml`] reads the text into a [`tree`] that remembers lines, and [`Environment`] writes variables into the tree.
//! 2. `reader` reads the tree into the types of `keys`, which have a field for every key. Their scalars come from `value`, so
//!    ranges are checked here.
//! 3. `keys` checks rules across keys and makes [`Config`], which the rest of the program uses.
//!
//! An error names the file, the line, the key's path and the values that are allowed. [`Document`] keeps the keys and values as
//! they are written, for changes at run time.

mod api_keys;
mod bind_check;
mod compiled;
mod cors;
mod document;
mod environment;
mod error;
mod identity;
mod keys;
mod listen;
mod name;
mod nearest;
mod patch;
mod paths;
mod picker;
mod pool;
mod reader;
mod redis_url;
mod reference;
mod replicas;
mod schema;
#[cfg(test)]
mod tests;
pub mod tree;
mod upstream;
mod value;
pub mod yaml;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

pub use penstock_autopilot::PendingServers;
pub use penstock_engine::policy::{MaxPriority, Rewrite};

pub use self::api_keys::{ApiKeyTable, ApiKeys, DIGEST_PREFIX, Digest};
pub use self::bind_check::BindError;
pub use self::cors::Cors;
pub use self::document::{Document, http_address, parse_endpoints};
pub use self::environment::Environment;
pub use self::error::Error;
pub use self::identity::{Identity, Source};
pub use self::keys::is_variant;
pub use self::listen::{Address, AddressError, Admin, Listen, ListenTls, Tls};
pub use self::paths::{DEFAULTS as DEFAULT_PATHS, DefaultPath, OtherPaths, PathAction, Paths, paths_page};
pub use self::picker::{Picker, PickerTls};
pub use self::pool::{
    Discovered, Discovery, Endpoint, EndpointDefaults, Health, KubernetesObject, PodLabels, PodSelector,
    Pool, RequeueOn, Scrape, Store, Then, Timeouts,
};
pub use self::redis_url::RedisUrl;
pub use self::reference::reference;
pub use self::replicas::{Companions, Lease, Per, Replicas};
pub use self::schema::schema;
pub use self::upstream::{CREDENTIAL_HEADERS, Secret, Upstream, UpstreamHeader, UpstreamTls, read_secret};
pub use self::value::{List, Trust};

/// The configuration of a companion.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses to listen on.
    pub listen: Listen,
    /// Mutual TLS on gRPC. `None`: plain text, on loopback or a unix socket only.
    pub tls: Option<Tls>,
    /// The companion as an endpoint picker.
    pub picker: Picker,
    /// Several companions for the gateway. `None`: this companion is the only one.
    pub replicas: Option<Replicas>,
    /// Protection of the HTTP API.
    pub admin: Admin,
    /// The sources of a request's identity.
    pub identity: Identity,
    /// What happens to requests, by their paths.
    pub paths: Paths,
    /// At least one. Names are unique.
    pub pools: Vec<Pool>,
    /// The end of queued requests at SIGTERM.
    pub queued: Queued,
    /// The time that running requests have to finish after SIGTERM.
    pub drain: Duration,
    /// The longest time that a starting companion waits for the sessions that it expects.
    pub startup_wait: Duration,
    /// The largest request body, in bytes.
    pub body_bytes: u64,
    /// Flows with state of their own, per pool.
    pub flows: usize,
    /// Distinct values of the metric label `flow`.
    pub metric_flows: usize,
    /// Systems that lend their metric names: some metrics are exported under those names too.
    pub metric_aliases: Vec<Alias>,
}

/// A system that lends its metric names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Alias {
    /// `nexus_queue_depth`: the number of queued requests in all pools.
    Nexus,
}

/// The end of queued requests at SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Queued {
    /// Queued requests are answered 503, and running ones may finish.
    Reject,
    /// The companion ends at once. Queued and running requests stay in Envoy for the next companion, which must start within
    /// `companion_down.hold`. With `picker.listen`, the companion ends when the requests that wait or run through the picker have ended, at
    /// most `shutdown.drain` later: with `replicas` by the decisions of the next leader, without by its own.
    HandOver,
}

/// A pool's `slo` as a part of another kind of document.
#[derive(Clone, Copy, Debug, Default)]
pub struct SloKeys(pub penstock_model::slo::Policy);

impl<'de> Deserialize<'de> for SloKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = keys::Slo::deserialize(deserializer)?;
        keys::slo(&raw, "").map(Self).map_err(|violation| D::Error::custom(violation.message))
    }
}

impl Config {
    /// Reads and checks a file, with the variables of the environment applied.
    ///
    /// # Errors
    /// When the file can't be read, isn't YAML, or has a value that isn't allowed.
    pub fn read(path: &Path, environment: &Environment) -> Result<Self, Error> {
        Document::read(path, environment).map(Document::into_config)
    }

    /// This configuration with the content of the files that it names: the API keys of `identity.api_keys`, and the credentials for model
    /// servers.
    ///
    /// # Errors
    /// When a file can't be read or isn't valid.
    pub fn read_secrets(mut self) -> Result<Self, Error> {
        if let Some(keys) = &mut self.identity.api_keys {
            keys.table = ApiKeyTable::read(&keys.file)?;
        }
        self.read_upstream_files()
    }

    /// This configuration with the credentials for model servers that are in files.
    ///
    /// # Errors
    /// When a file can't be read or isn't valid.
    pub fn read_upstream_files(mut self) -> Result<Self, Error> {
        for pool in &mut self.pools {
            let scrape = pool.scrape.as_mut().and_then(|scrape| scrape.tls.as_mut());
            for (tls, key) in [(pool.upstream.tls.as_mut(), "upstream"), (scrape, "scrape")] {
                if let Some(tls) = tls {
                    tls.read(&format!("{key}.tls of pool {}", pool.name))?;
                }
            }
            for header in &mut pool.upstream.headers {
                if let Some(file) = &header.file {
                    let key = format!("upstream.headers.{} of pool {}", header.name, pool.name);
                    header.value = Some(read_secret(file, &key)?);
                }
            }
        }
        Ok(self)
    }

    /// Takes what [`Config::read_secrets`] has read for `other`, which comes of the same document.
    pub fn copy_secrets(&mut self, other: &Self) {
        self.identity.clone_from(&other.identity);
        for (pool, before) in self.pools.iter_mut().zip(&other.pools) {
            pool.upstream.headers.clone_from(&before.upstream.headers);
            let scrape = pool.scrape.as_mut().and_then(|scrape| scrape.tls.as_mut());
            let scrape_before = before.scrape.as_ref().and_then(|scrape| scrape.tls.as_ref());
            for (tls, before) in
                [(pool.upstream.tls.as_mut(), before.upstream.tls.as_ref()), (scrape, scrape_before)]
            {
                if let (Some(tls), Some(before)) = (tls, before) {
                    tls.digest = before.digest;
                }
            }
        }
    }

    /// The files that [`Config::read_secrets`] reads.
    #[must_use]
    pub fn secret_files(&self) -> BTreeSet<PathBuf> {
        let keys = self.identity.api_keys.iter().map(|keys| keys.file.clone());
        let pools = self.pools.iter().flat_map(|pool| {
            let scrape = pool.scrape.iter().filter_map(|scrape| scrape.tls.as_ref());
            let tls = pool.upstream.tls.iter().chain(scrape);
            let tls = tls.flat_map(|tls| tls.files().map(|(file, _)| file.to_owned()));
            tls.chain(pool.upstream.headers.iter().filter_map(|header| header.file.clone()))
        });
        keys.chain(pools).collect()
    }

    /// Checks a text. `file` names it in errors.
    ///
    /// # Errors
    /// When the text isn't YAML, or has a value that isn't allowed.
    pub fn parse(text: &str, file: &str) -> Result<Self, Error> {
        Document::parse(text, file).map(Document::into_config)
    }
}
