//! The filter's view of the configuration: the protocol's Policy message, and the plugin configuration that Envoy gives
//! the filter at a cold start, before a companion has connected.

use std::hash::Hasher as _;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_config::{ApiKeys, Config, OtherPaths, PathAction, Per, Pool, Source, Then, Trust};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_envoy::bootstrap::COMPANION_CLUSTER;
use penstock_wire as wire;
use prost::Message as _;
use serde_json::{Value, json};
use siphasher::sip::SipHasher13;

/// APIs that several engines have, by the end of their paths: a path may have a beginning of the deployment's own.
const APIS: [(&str, wire::Api); 5] = [
    ("/chat/completions", wire::Api::ChatCompletions),
    ("/completions", wire::Api::Completions),
    ("/embeddings", wire::Api::Embeddings),
    ("/responses", wire::Api::Responses),
    ("/messages", wire::Api::Messages),
];

/// Ends of the paths of other APIs that generate no tokens.
const WITHOUT_OUTPUT: [&str; 13] = [
    "/classify",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/embedding",
    "/encode",
    "/moderations",
    "/pooling",
    "/predict",
    "/rerank",
    "/reranking",
    "/score",
    "/similarity",
];

/// The policy of this configuration. With `tracing`, filters report what spans need. The digest changes whenever
/// anything else in the message does.
#[must_use]
pub fn frame(config: &Config, tracing: bool) -> wire::Policy {
    let identity = &config.identity;
    let mut policy = wire::Policy {
        digest: String::new(),
        routes: config.paths.all().map(route).collect(),
        others_pass: config.paths.other == OtherPaths::Pass,
        body_bytes_max: config.body_bytes,
        identity: Some(wire::Identity {
            fairness_id: sources(&identity.fairness_id),
            user: sources(&identity.user),
            priority: sources(&identity.priority),
            class: sources(&identity.class),
            strict: sources(&identity.strict),
            jump: sources(&identity.jump),
            trust: Some(trust(identity.trust.as_ref())),
            api_keys: identity.api_keys.as_ref().map(api_keys),
        }),
        pools: config
            .pools
            .iter()
            .map(|pool| wire::Pool {
                name: pool.name.clone(),
                models: pool.models.clone(),
                is_default: pool.is_default,
                hold_ms: millis(pool.hold),
                fallback: match pool.then {
                    Then::Open => wire::Fallback::Open,
                    Then::Closed => wire::Fallback::Closed,
                }
                .into(),
                ttl_ms: millis(pool.policy.queue.ttl),
                no_endpoint_ttl_ms: millis(pool.policy.queue.no_endpoint_ttl),
                capacity_status: u32::from(pool.capacity_status),
                endpoints: pool.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect(),
                fallback_bound: fallback_bound(pool),
                fallback_bound_in_tokens: pool.policy.gate.unit() == StockUnit::Tokens,
                fallback_bound_in_sequences: pool.policy.gate.unit() == StockUnit::Sequences,
                prefix_hashes: wants_hashes(pool),
                first_token: pool.policy.counts_first_tokens(),
                include_usage: pool.include_usage,
                first_byte_ms: pool.timeouts.first_byte.map(whole_millis),
                keep_alive_ms: pool.keep_alive.map(whole_millis),
                idle_ms: pool.timeouts.idle.map(whole_millis),
                requeue_on: Some(requeue_on(pool)),
            })
            .collect(),
        tracing,
        session_per_pool: (config.replicas.as_ref()).is_some_and(|replicas| replicas.per == Per::Pool),
    };
    // Fixed keys and algorithm, so that the digest doesn't change with the Rust release.
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(&policy.encode_to_vec());
    policy.digest = format!("{:016x}", hasher.finish());
    policy
}

/// The filter's plugin configuration: the companion's cluster, this gateway's name, and the policy for a cold start.
#[must_use]
pub fn plugin_configuration(config: &Config, node: &str, tracing: bool) -> Value {
    let policy = STANDARD.encode(frame(config, tracing).encode_to_vec());
    json!({ "companion": COMPANION_CLUSTER, "node": node, "policy": policy })
}

fn route((path, action): (&str, PathAction)) -> wire::Route {
    let api = || {
        let path = path.trim_end_matches('/').to_ascii_lowercase();
        let known = APIS.iter().find(|(end, _)| path.ends_with(end)).map(|(_, api)| *api);
        known.unwrap_or(match WITHOUT_OUTPUT.iter().any(|end| path.ends_with(end)) {
            true => wire::Api::OtherWithoutOutput,
            false => wire::Api::Other,
        })
    };
    let (api, action) = match action {
        PathAction::Queue => (api(), wire::PathAction::Queue),
        PathAction::Pass => (wire::Api::Unspecified, wire::PathAction::Pass),
        PathAction::Refuse => (wire::Api::Unspecified, wire::PathAction::Refuse),
    };
    wire::Route { path: path.to_owned(), api: api.into(), action: action.into() }
}

fn requeue_on(pool: &Pool) -> wire::RequeueOn {
    let causes = &pool.requeue_on;
    wire::RequeueOn {
        connect: causes.connect,
        reset: causes.reset,
        statuses: causes.statuses.iter().map(|status| u32::from(*status)).collect(),
    }
}

fn trust(trust: Option<&Trust>) -> wire::Trust {
    let network = |network: &ipnet::IpNet| wire::Network {
        address: match network.network() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        },
        prefix: u32::from(network.prefix_len()),
    };
    match trust {
        None | Some(Trust::All) => wire::Trust { all: true, networks: Vec::new() },
        Some(Trust::Networks(networks)) => {
            wire::Trust { all: false, networks: networks.iter().map(network).collect() }
        }
    }
}

fn api_keys(keys: &ApiKeys) -> wire::ApiKeys {
    let entries = keys
        .table
        .iter()
        .map(|(digest, tenant)| wire::ApiKey { sha256: digest.to_vec(), tenant: tenant.into() });
    wire::ApiKeys {
        headers: keys.headers.clone(),
        required: keys.required,
        forward: keys.forward,
        keys: entries.collect(),
    }
}

/// The requests that an Envoy may run before it has ever reached a companion: the sum of the endpoints' bounds, as if
/// there were no other Envoy, and at least 1. `None`: unlimited.
fn fallback_bound(pool: &Pool) -> Option<u64> {
    match pool.policy.gate {
        Gate::Open | Gate::Manual => None,
        Gate::Auto { initial: upper } | Gate::Bounded { upper, .. } => {
            let share = |weight: Decimal| upper.billionths().saturating_mul(weight.billionths());
            let sum = pool
                .endpoints
                .iter()
                .fold(0, |sum: u128, endpoint| sum.saturating_add(share(endpoint.weight)));
            let whole = sum.div_ceil(Decimal::ONE * Decimal::ONE);
            Some(u64::try_from(whole).unwrap_or(u64::MAX).max(1))
        }
    }
}

/// Whether filters hash prompts: to count cached tokens, or for prefix affinity, which matters only where there is a choice
/// of endpoints.
fn wants_hashes(pool: &Pool) -> bool {
    let has_choice = pool.endpoints.len() > 1 || pool.discovery.is_some();
    pool.policy.counts_cached_tokens() || pool.policy.scheduler.prefix > 0.0 && has_choice
}

fn sources(sources: &[Source]) -> Vec<wire::Source> {
    use wire::source::From;
    sources
        .iter()
        .map(|source| wire::Source {
            from: Some(match source {
                Source::Header(name) => From::Header(name.clone()),
                Source::Body(name) => From::Body(name.clone()),
                Source::Metadata(path) => From::Metadata(path.clone()),
                Source::Model(rules) => From::Model(wire::ModelTable {
                    rules: rules
                        .iter()
                        .map(|(glob, value)| wire::ModelRule { glob: glob.clone(), value: value.clone() })
                        .collect(),
                }),
            }),
        })
        .collect()
}

/// At least 1, because 0 means no limit to Envoy.
fn whole_millis(duration: std::time::Duration) -> u64 {
    millis(duration).max(1)
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_contains_the_api_keys_and_its_digest_changes_with_them() {
        let text = "identity: {api_keys: {file: k, required: false}}
pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]";
        let config = |digests: &str| {
            let mut config = Config::parse(text, "f.yaml").expect("valid");
            let keys = config.identity.api_keys.as_mut().expect("present");
            keys.table = penstock_config::ApiKeyTable::parse(digests, "k").expect("valid");
            config
        };
        let [one, two] = ["01", "02"].map(|byte| format!("sha256:{}", byte.repeat(32)));
        let first = config(&format!("acme: ['{two}']\nother: ['{one}']"));
        let keys = frame(&first, false).identity.and_then(|identity| identity.api_keys).expect("present");
        assert_eq!(keys.headers, ["authorization", "x-api-key", "api-key"]);
        assert_eq!((keys.required, keys.forward), (false, false));
        let listed: Vec<_> = keys.keys.iter().map(|key| (key.sha256.as_slice(), &*key.tenant)).collect();
        assert_eq!(listed, [(&[1; 32][..], "other"), (&[2; 32][..], "acme")]);
        let second = config(&format!("acme: ['{two}']"));
        assert_ne!(frame(&first, false).digest, frame(&second, false).digest);
    }

    #[test]
    fn the_policy_contains_the_sources_of_class_tier_and_head_start() {
        use wire::source::From;
        let text = "identity: {strict: [{header: X-Tier}], jump: [{model: {'z*': 30, '*': 5}}]}
pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]";
        let config = Config::parse(text, "f.yaml").expect("valid");
        let identity = frame(&config, false).identity.expect("present");
        let from = |source: &wire::Source| source.from.clone();
        let classes = ["x-penstock-class", "x-dynamo-meta-policy-class", "x-dynamo-policy-class"];
        assert_eq!(
            identity.class.iter().filter_map(from).collect::<Vec<_>>(),
            classes.map(|name| From::Header(name.into()))
        );
        assert_eq!(
            identity.strict.iter().filter_map(from).collect::<Vec<_>>(),
            [From::Header("x-tier".into())]
        );
        let Some(From::Model(table)) = &identity.jump[0].from else { panic!("a table") };
        let rules: Vec<_> = table.rules.iter().map(|rule| (&*rule.glob, &*rule.value)).collect();
        assert_eq!(rules, [("z*", "30"), ("*", "5")]);
    }

    /// A pool's message, from its keys.
    fn message(keys: &str) -> wire::Pool {
        let text = format!("pools: [{{name: a, {keys}}}]");
        let config = Config::parse(&text, "f.yaml").expect("valid");
        frame(&config, false).pools.remove(0)
    }

    #[test]
    fn filters_know_after_which_failures_a_request_is_sent_again() {
        for (listed, connect, reset, statuses) in [
            ("[connect, reset, 504, 429, 503]", true, true, &[429, 503, 504][..]),
            ("[]", false, false, &[]),
            ("[503, connect]", true, false, &[503]),
        ] {
            let keys = format!("endpoints: {{static: ['127.0.0.1:1']}}, queue: {{requeue_on: {listed}}}");
            let expected = wire::RequeueOn { connect, reset, statuses: statuses.to_vec() };
            assert_eq!(message(&keys).requeue_on, Some(expected), "{listed}");
        }
        let all = wire::RequeueOn { connect: true, reset: true, statuses: vec![429, 500, 502, 503, 504] };
        assert_eq!(message("endpoints: {static: ['127.0.0.1:1']}").requeue_on, Some(all), "the default");
    }

    #[test]
    fn filters_hash_prompts_for_cached_tokens_or_a_choice_of_endpoints() {
        let (one, two) =
            ("endpoints: {static: ['127.0.0.1:1']}", "endpoints: {static: ['127.0.0.1:1', '127.0.0.1:2']}");
        let by_requests = "arbitration: {flows: {cost: requests}}";
        let classes =
            "arbitration: {flows: {cost: requests}, classes: {policy_classes: [{name: c, quantum: 1}]}}";
        for (endpoints, keys, expected) in [
            (one, "scheduler: {prefix: 0}", true),
            (one, by_requests, false),
            (two, by_requests, true),
            (two, "arbitration: {flows: {cost: requests}}, scheduler: {prefix: 0}", false),
            (one, classes, true),
            (one, "arbitration: {flows: {cost: requests}, order: wspt}", true),
            (one, "usage: {input_token_weight: 0}", false),
        ] {
            let pool = message(&format!("{endpoints}, {keys}"));
            assert_eq!(pool.prefix_hashes, expected, "{endpoints}, {keys}");
        }
    }

    #[test]
    fn filters_report_first_tokens_for_prefill_thresholds() {
        let with = |class: &str| {
            let pool = message(&format!(
                "endpoints: {{static: ['127.0.0.1:1']}}, \
                 arbitration: {{classes: {{policy_classes: [{{name: c, quantum: 1{class}}}]}}}}"
            ));
            pool.first_token
        };
        assert!(!with(""));
        assert!(with(", prefill_busy_threshold: 0"));
        assert!(with(", prefill_busy_threshold_frac: 0"));
    }

    #[test]
    fn the_policy_contains_trust_and_the_limits_without_a_companion() {
        let text = "identity: {trust: [10.0.0.0/8, 'fd00::/8']}
pools:
- {name: a, endpoints: {static: ['127.0.0.1:1', {address: '[::1]:2', weight: 2.5}]}, companion_down: {then: open}}
- {name: b, endpoints: {static: ['127.0.0.1:3']}, stock: {unit: tokens, watermark_per_backend: 100}}
- {name: c, endpoints: {static: ['127.0.0.1:4']}, stock: {watermark_per_backend: none}}";
        let config = Config::parse(text, "f.yaml").expect("valid");
        let policy = frame(&config, false);
        let trust = policy.identity.and_then(|identity| identity.trust).expect("present");
        let networks: Vec<_> = trust
            .networks
            .iter()
            .map(|network| (network.address.len(), network.address[0], network.prefix))
            .collect();
        assert_eq!((trust.all, networks), (false, vec![(4, 10, 8), (16, 0xfd, 8)]));
        let pools: Vec<_> = policy
            .pools
            .iter()
            .map(|pool| {
                (pool.fallback(), pool.endpoints.len(), pool.fallback_bound, pool.fallback_bound_in_tokens)
            })
            .collect();
        use wire::Fallback::{Closed, Open};
        assert_eq!(
            pools,
            [(Open, 2, Some(8), false), (Closed, 1, Some(110), true), (Closed, 1, None, false)],
            "3.5 times 2.2 of the first pool, rounded up"
        );
        assert_eq!(policy.pools[0].endpoints, ["127.0.0.1:1", "[::1]:2"]);
        let small = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]";
        let config = Config::parse(small, "f.yaml").expect("valid");
        let trust = frame(&config, false).identity.and_then(|identity| identity.trust).expect("present");
        assert!(trust.all && trust.networks.is_empty());
    }

    #[test]
    fn the_plugin_has_the_policy_in_base64() {
        let config = Config::parse("pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]", "f.yaml");
        let config = config.expect("valid");
        let plugin = plugin_configuration(&config, "edge", false);
        assert_eq!((&plugin["companion"], &plugin["node"]), (&json!(COMPANION_CLUSTER), &json!("edge")));
        let policy = STANDARD.decode(plugin["policy"].as_str().expect("text")).expect("base64");
        assert_eq!(wire::Policy::decode(&*policy), Ok(frame(&config, false)));
    }
}
