//! The plugin configuration: JSON that is parsed once into typed values. Unknown keys are errors.
//!
//! It contains the companion's cluster, and the policy for a start without a companion. A `Policy` command of the companion
//! replaces that policy.

use core::fmt;
use core::net::IpAddr;
use std::collections::BTreeMap;

use penstock_wire as wire;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::hex::hex_byte;

/// A parsed plugin configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the companion's Envoy cluster.
    pub companion: String,
    /// Name of this Envoy in /status.
    pub node: String,
    /// The address of this Envoy's requeue listener, to which Envoy sends a request that no server accepted.
    pub requeue_listener: Option<String>,
    /// This filter runs in the requeue listener.
    pub is_requeue_listener: bool,
    /// The routes set the served-endpoint header of every response to the address of the server that sent it.
    pub routes_report_endpoint: bool,
    /// Envoy's log of attempts calls the filter for each one that a server refuses. Otherwise the companion would take a
    /// refusal for a failed connection, so refusals are passed on to the client.
    pub logs_attempts: bool,
    /// The routes send a request whose token is in [`wire::names::REQUEUE_PROPERTY`] to its endpoint, and after a failure that counts
    /// by default once more, to the requeue listener. Otherwise headers of each request say so.
    pub routes_requeue: bool,
    /// The policy until the companion sends one.
    pub policy: wire::Policy,
}

impl Config {
    /// Parses the plugin's configuration.
    ///
    /// # Errors
    /// Serde's error, which names the key and its position.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let raw: RawConfig = serde_json::from_slice(json)?;
        Ok(Self {
            companion: raw.companion,
            node: raw.node,
            requeue_listener: raw.requeue,
            is_requeue_listener: raw.reenters,
            routes_report_endpoint: raw.routes_tell,
            logs_attempts: raw.attempts_logged,
            routes_requeue: raw.routes_requeue,
            policy: raw.policy.into(),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    companion: String,
    #[serde(default)]
    node: String,
    #[serde(default)]
    requeue: Option<String>,
    #[serde(default)]
    reenters: bool,
    #[serde(default)]
    routes_tell: bool,
    #[serde(default)]
    attempts_logged: bool,
    #[serde(default)]
    routes_requeue: bool,
    policy: RawPolicy,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    #[serde(default)]
    digest: String,
    body_bytes_max: u64,
    routes: Vec<RawRoute>,
    #[serde(default)]
    identity: RawIdentity,
    pools: Vec<RawPool>,
    #[serde(default)]
    tracing: bool,
    #[serde(default)]
    session_per_pool: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRoute {
    path: String,
    api: RawApi,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawApi {
    ChatCompletions,
    Completions,
    Embeddings,
    Responses,
    Messages,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawIdentity {
    fairness_id: Vec<RawSource>,
    user: Vec<RawSource>,
    priority: Vec<RawSource>,
    class: Vec<RawSource>,
    strict: Vec<RawSource>,
    jump: Vec<RawSource>,
    trust: Option<RawTrust>,
    api_keys: Option<RawApiKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawApiKeys {
    headers: Vec<String>,
    required: bool,
    forward: bool,
    /// SHA-256 digests by tenant.
    keys: BTreeMap<String, Vec<Sha256>>,
}

/// A digest as 64 hexadecimal digits.
struct Sha256([u8; 32]);

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The error doesn't show the text, which may be a key.
        sha256(&text)
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("a digest isn't 64 hexadecimal digits"))
    }
}

fn sha256(text: &str) -> Option<[u8; 32]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let bytes: Option<Vec<u8>> = pairs.iter().map(|pair| hex_byte(*pair)).collect();
    bytes?.try_into().ok()
}

/// `"all"`, or networks as `address/prefix`; an empty list trusts no client.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawTrust {
    All,
    Networks(Vec<Network>),
}

/// A network as `address/prefix`.
struct Network(wire::Network);

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        network(&text).map(Self).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "`{text}` is not a network: write address/prefix, for example 10.0.0.0/8"
            ))
        })
    }
}

fn network(text: &str) -> Option<wire::Network> {
    let (address, prefix) = text.split_once('/')?;
    let (address, bits) = match address.parse().ok()? {
        IpAddr::V4(address) => (address.octets().to_vec(), 32),
        IpAddr::V6(address) => (address.octets().to_vec(), 128),
    };
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= bits)?;
    Some(wire::Network { address, prefix })
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawSource {
    Header(String),
    Body(String),
    Metadata(String),
    Model(RawModelTable),
}

/// Globs and values in the order of the document: the first glob that matches wins.
struct RawModelTable(Vec<wire::ModelRule>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPool {
    name: String,
    #[serde(default)]
    models: Vec<String>,
    hold_ms: u64,
    then: RawFallback,
    ttl_ms: u64,
    no_endpoint_ttl_ms: u64,
    capacity_status: u32,
    #[serde(default)]
    endpoints: Vec<String>,
    #[serde(default)]
    open_bound: Option<u64>,
    #[serde(default)]
    open_in_tokens: bool,
    #[serde(default)]
    prefix_hashes: bool,
    #[serde(default)]
    first_byte: bool,
    #[serde(default)]
    requeue_on: Option<Vec<RawFailure>>,
}

/// A failure after which a request is sent again: a name, or an HTTP status.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum RawFailure {
    Connection(RawConnectionFailure),
    Status(u32),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawConnectionFailure {
    Connect,
    Reset,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawFallback {
    Closed,
    Open,
}

impl<'de> Deserialize<'de> for RawModelTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rules;
        impl<'de> Visitor<'de> for Rules {
            type Value = RawModelTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of model globs and values, or a list of such pairs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawModelTable, A::Error> {
                let mut rules = Vec::new();
                while let Some((glob, value)) = map.next_entry()? {
                    rules.push(wire::ModelRule { glob, value });
                }
                Ok(RawModelTable(rules))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawModelTable, A::Error> {
                let mut rules = Vec::new();
                while let Some((glob, value)) = list.next_element()? {
                    rules.push(wire::ModelRule { glob, value });
                }
                Ok(RawModelTable(rules))
            }
        }
        deserializer.deserialize_any(Rules)
    }
}

impl From<RawPolicy> for wire::Policy {
    fn from(raw: RawPolicy) -> Self {
        Self {
            digest: raw.digest,
            routes: raw.routes.into_iter().map(Into::into).collect(),
            body_bytes_max: raw.body_bytes_max,
            identity: Some(raw.identity.into()),
            pools: raw.pools.into_iter().map(Into::into).collect(),
            tracing: raw.tracing,
            session_per_pool: raw.session_per_pool,
        }
    }
}

impl From<RawRoute> for wire::Route {
    fn from(raw: RawRoute) -> Self {
        let api = match raw.api {
            RawApi::ChatCompletions => wire::Api::ChatCompletions,
            RawApi::Completions => wire::Api::Completions,
            RawApi::Embeddings => wire::Api::Embeddings,
            RawApi::Responses => wire::Api::Responses,
            RawApi::Messages => wire::Api::Messages,
        };
        Self { path: raw.path, api: api.into() }
    }
}

impl From<RawIdentity> for wire::Identity {
    fn from(raw: RawIdentity) -> Self {
        let sources = |list: Vec<RawSource>| list.into_iter().map(Into::into).collect();
        Self {
            fairness_id: sources(raw.fairness_id),
            user: sources(raw.user),
            priority: sources(raw.priority),
            class: sources(raw.class),
            strict: sources(raw.strict),
            jump: sources(raw.jump),
            trust: raw.trust.map(|trust| match trust {
                RawTrust::All => wire::Trust { all: true, networks: Vec::new() },
                RawTrust::Networks(networks) => wire::Trust {
                    all: false,
                    networks: networks.into_iter().map(|Network(network)| network).collect(),
                },
            }),
            api_keys: raw.api_keys.map(Into::into),
        }
    }
}

impl From<RawApiKeys> for wire::ApiKeys {
    fn from(raw: RawApiKeys) -> Self {
        let keys = raw.keys.iter().flat_map(|(tenant, digests)| {
            digests
                .iter()
                .map(|Sha256(digest)| wire::ApiKey { sha256: digest.to_vec(), tenant: tenant.clone() })
        });
        Self { headers: raw.headers, required: raw.required, forward: raw.forward, keys: keys.collect() }
    }
}

impl From<RawSource> for wire::Source {
    fn from(raw: RawSource) -> Self {
        use wire::source::From as SourceFrom;
        let from = match raw {
            RawSource::Header(name) => SourceFrom::Header(name.to_ascii_lowercase()),
            RawSource::Body(key) => SourceFrom::Body(key),
            RawSource::Metadata(path) => SourceFrom::Metadata(path),
            RawSource::Model(RawModelTable(rules)) => SourceFrom::Model(wire::ModelTable { rules }),
        };
        Self { from: Some(from) }
    }
}

impl From<RawPool> for wire::Pool {
    fn from(raw: RawPool) -> Self {
        let fallback = match raw.then {
            RawFallback::Closed => wire::Fallback::Closed,
            RawFallback::Open => wire::Fallback::Open,
        };
        Self {
            name: raw.name,
            models: raw.models,
            hold_ms: raw.hold_ms,
            fallback: fallback.into(),
            ttl_ms: raw.ttl_ms,
            no_endpoint_ttl_ms: raw.no_endpoint_ttl_ms,
            capacity_status: raw.capacity_status,
            endpoints: raw.endpoints,
            fallback_bound: raw.open_bound,
            fallback_bound_in_tokens: raw.open_in_tokens,
            prefix_hashes: raw.prefix_hashes,
            first_byte: raw.first_byte,
            requeue_on: raw.requeue_on.map(requeue_on),
        }
    }
}

fn requeue_on(failures: Vec<RawFailure>) -> wire::RequeueOn {
    let mut requeue_on = wire::RequeueOn::default();
    for failure in failures {
        match failure {
            RawFailure::Connection(RawConnectionFailure::Connect) => requeue_on.connect = true,
            RawFailure::Connection(RawConnectionFailure::Reset) => requeue_on.reset = true,
            RawFailure::Status(status) => requeue_on.statuses.push(status),
        }
    }
    requeue_on
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    const FULL: &str = r#"{"companion": "penstock_companion", "node": "edge", "requeue": "127.0.0.1:9", "policy": {
        "digest": "d1", "body_bytes_max": 33554432,
        "routes": [{"path": "/v1/chat/completions", "api": "chat_completions"}, {"path": "/v1/messages", "api": "messages"}],
        "identity": {"fairness_id": [{"header": "X-A"}, {"body": "user"}, {"metadata": "a/b"},
                                     {"model": {"chat-*": "critical", "*": "default"}}],
                     "class": [{"model": [["z*", "slow"], ["*", "fast"]]}],
                     "trust": {"networks": ["10.0.0.0/8", "fd00::/64"]},
                     "api_keys": {"headers": ["authorization"], "required": true, "forward": false, "keys": {"acme":
                         ["0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF"]}}},
        "pools": [{"name": "chat", "models": ["m*"], "hold_ms": 5000, "then": "closed", "ttl_ms": 30000,
                   "no_endpoint_ttl_ms": 60000, "capacity_status": 503,
                   "endpoints": ["127.0.0.1:1"], "open_bound": 7}]}}"#;

    #[test]
    fn full_configuration_is_parsed() {
        use wire::source::From as SourceFrom;
        let config = Config::parse(FULL.as_bytes()).unwrap();
        assert_eq!(config.companion, "penstock_companion");
        assert_eq!(config.node, "edge");
        assert_eq!(config.policy.routes[1].api(), wire::Api::Messages);
        assert_eq!(config.policy.pools[0].fallback(), wire::Fallback::Closed);
        assert_eq!(
            (config.requeue_listener.as_deref(), config.is_requeue_listener),
            (Some("127.0.0.1:9"), false)
        );
        assert_eq!(config.policy.pools[0].fallback_bound, Some(7));
        let identity = config.policy.identity.unwrap();
        let networks = &identity.trust.as_ref().unwrap().networks;
        let prefixes: Vec<_> =
            networks.iter().map(|network| (network.address.len(), network.prefix)).collect();
        assert_eq!(prefixes, [(4, 8), (16, 64)]);
        let keys = identity.api_keys.unwrap();
        assert!(keys.required && !keys.forward);
        assert_eq!((&*keys.headers[0], &*keys.keys[0].tenant), ("authorization", "acme"));
        assert_eq!(keys.keys[0].sha256[24..], 0x0123_4567_89ab_cdef_u64.to_be_bytes());
        assert_eq!(identity.fairness_id[0].from, Some(SourceFrom::Header("x-a".into())));
        let Some(SourceFrom::Model(table)) = &identity.fairness_id[3].from else { panic!("a table") };
        assert_eq!(table.rules[0].glob, "chat-*");
        assert_eq!(table.rules[1].value, "default");
        let Some(SourceFrom::Model(table)) = &identity.class[0].from else { panic!("a table") };
        assert_eq!((table.rules[0].glob.as_str(), table.rules[1].value.as_str()), ("z*", "fast"));
    }

    #[test]
    fn error_names_the_unknown_or_missing_key() {
        for (from, to, word) in [
            ("\"node\"", "\"nodes\"", "nodes"),
            ("\"closed\"", "\"ajar\"", "ajar"),
            ("\"header\"", "\"cookie\"", "cookie"),
            ("\"hold_ms\"", "\"hold\"", "hold"),
            ("10.0.0.0/8", "10.0.0.0/33", "10.0.0.0/33"),
            ("fd00::/64", "fd00", "address/prefix"),
            ("\"companion\"", "\"node\"", "companion"),
            ("ABCDEF", "ABCDEG", "64 hexadecimal digits"),
            ("ABCDEF", "ABCDEF0", "64 hexadecimal digits"),
        ] {
            let error = Config::parse(FULL.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word) || error.contains("duplicate"), "{error}");
        }
    }
}
