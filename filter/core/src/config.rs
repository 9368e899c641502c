//! The plugin configuration: JSON, in which the policy is the protocol's message in base64. Unknown keys are errors.
//!
//! It contains the companion's cluster, and the policy for a start without a companion. A `Policy` command of the companion
//! replaces that policy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_wire as wire;
use prost::Message as _;
use serde::{Deserialize, Deserializer};

/// A parsed plugin configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the companion's Envoy cluster.
    pub companion: String,
    /// Name of this Envoy in /status.
    #[serde(default)]
    pub node: String,
    /// The address of this Envoy's requeue listener, to which Envoy sends a request that no server accepted.
    #[serde(default, rename = "requeue")]
    pub requeue_listener: Option<String>,
    /// This filter runs in the requeue listener.
    #[serde(default, rename = "reenters")]
    pub is_requeue_listener: bool,
    /// The routes set the served-endpoint header of every response to the address of the server that sent it.
    #[serde(default, rename = "routes_tell")]
    pub routes_report_endpoint: bool,
    /// Envoy's log of attempts calls the filter for each one that a server refuses. Otherwise the companion would take a
    /// refusal for a failed connection, so refusals are passed on to the client.
    #[serde(default, rename = "attempts_logged")]
    pub logs_attempts: bool,
    /// The routes send a request whose token is in [`wire::names::REQUEUE_PROPERTY`] to its endpoint, and after a failure that counts
    /// by default once more, to the requeue listener. Otherwise headers of each request say so.
    #[serde(default)]
    pub routes_requeue: bool,
    /// The host can restart a stream, so that a request that no server took comes in again without a requeue listener.
    #[serde(default)]
    pub restarts: bool,
    /// The routes send a request with [`wire::names::KEEP_ALIVE_HEADER`] to a companion, which sends it back to the requeue listener's filter.
    #[serde(default)]
    pub keeps_alive: bool,
    /// The host is the endpoint picker of a companion, which is the first to be asked who leads.
    #[serde(skip)]
    pub is_picker: bool,
    /// The policy until the companion sends one.
    #[serde(deserialize_with = "policy")]
    pub policy: wire::Policy,
}

impl Config {
    /// Parses the plugin's configuration.
    ///
    /// # Errors
    /// Serde's error, which names the key and its position.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<wire::Policy, D::Error> {
    let text = String::deserialize(deserializer)?;
    let policy = STANDARD.decode(text).ok().and_then(|bytes| wire::Policy::decode(&*bytes).ok());
    // The error doesn't show the text, which has the digests of API keys.
    policy.ok_or_else(|| {
        serde::de::Error::custom(
            "policy: not a message of Penstock's protocol in base64. Copy the plugin's whole configuration from the output of \
             `penstock envoy-config` or `penstock gateway-resources`",
        )
    })
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// A configuration with this policy, as JSON.
    fn json(policy: &str) -> String {
        format!(
            r#"{{"companion": "penstock_companion", "node": "edge", "requeue": "127.0.0.1:9", "reenters": true, "policy": {policy}}}"#
        )
    }

    fn encoded(policy: &wire::Policy) -> String {
        format!(r#""{}""#, STANDARD.encode(policy.encode_to_vec()))
    }

    #[test]
    fn full_configuration_is_parsed() {
        let policy = wire::Policy {
            digest: "d1".into(),
            body_bytes_max: 1 << 25,
            pools: vec![wire::Pool { name: "chat".into(), fallback_bound: Some(7), ..wire::Pool::default() }],
            ..wire::Policy::default()
        };
        let expected = Config {
            companion: "penstock_companion".into(),
            node: "edge".into(),
            requeue_listener: Some("127.0.0.1:9".into()),
            is_requeue_listener: true,
            routes_report_endpoint: false,
            logs_attempts: false,
            routes_requeue: false,
            restarts: false,
            keeps_alive: false,
            is_picker: false,
            policy,
        };
        assert_eq!(Config::parse(json(&encoded(&expected.policy)).as_bytes()).unwrap(), expected);
    }

    #[test]
    fn error_names_the_unknown_or_missing_key() {
        let whole = json(&encoded(&wire::Policy::default()));
        for (from, to, word) in [
            ("\"node\"", "\"nodes\"", "nodes"),
            ("\"reenters\": true", "\"reenters\": 1", "expected a boolean"),
            ("\"companion\"", "\"node\"", "duplicate"),
            ("\"companion\": \"penstock_companion\", ", "", "companion"),
            (", \"policy\": \"\"", "", "policy"),
        ] {
            assert!(whole.contains(from), "{from}");
            let error = Config::parse(whole.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn error_of_another_policy_says_where_to_get_one() {
        let truncated = r#""CgJkMQ""#;
        for policy in [r#""not base64""#, r#""/w==""#, truncated] {
            let error = Config::parse(json(policy).as_bytes()).unwrap_err().to_string();
            assert!(error.contains("base64") && error.contains("penstock envoy-config"), "{error}");
        }
        let error = Config::parse(json(r#"{"digest": "d1"}"#).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("expected a string"), "{error}");
    }
}
