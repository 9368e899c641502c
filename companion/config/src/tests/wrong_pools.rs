//! Tests of wrong keys in pools: every range and every kind of mistake. Each error names the line, the key's path and the
//! allowed values.

use super::{POOL, assert_error};

/// Cases: a mapping of the pool, a key of it with a wrong value, the key's path in the mapping, and a part of the message.
#[test]
fn keys_of_pools_reject_values_out_of_range() {
    let cases = [
        ("queue", "ttl: soon", "ttl", "like 30s, 250ms or 5m, not the text `soon`"),
        ("queue", "ttl: 0s", "ttl", "above zero"),
        ("queue", "ttl: 30", "ttl", "with its unit, like 30s, 250ms or 5m, not 30"),
        ("queue", "ttl: -5s", "ttl", "above zero"),
        ("queue", "ttl: 30 parsecs", "ttl", "30s, 250ms or 5m"),
        ("queue", "ttl: [30s]", "ttl", "not a list"),
        ("queue", "ttl: null", "ttl", "not empty (null)"),
        ("queue", "no_endpoint_ttl: 0ms", "no_endpoint_ttl", "above zero"),
        ("queue", "flow_capacity: 0", "flow_capacity", "at least 1, not 0"),
        ("queue", "flow_capacity: -1", "flow_capacity", "at least 1, not -1"),
        ("queue", "flow_capacity: 1.5", "flow_capacity", "a whole number of at least 1, not 1.5"),
        ("queue", "flow_capacity: '100'", "flow_capacity", "not the text `100`"),
        ("queue", "total_capacity: -1", "total_capacity", "at least 0, not -1"),
        ("queue", "total_capacity: many", "total_capacity", "a whole number of at least 0"),
        ("queue", "total_capacity: 99999999999999999999", "total_capacity", "a whole number"),
        ("queue", "total_bytes: 12 apples", "total_bytes", "a size like 256MiB"),
        ("queue", "total_bytes: -5", "total_bytes", "a size like 256MiB"),
        ("queue", "max_rate: 0", "max_rate", "above 0, in requests per second"),
        ("queue", "max_rate: .nan", "max_rate", "finite"),
        ("queue", "requeues: 1001", "requeues", "from 0 to 1000"),
        ("queue", "requeues: forever", "requeues", "until_ttl"),
        ("queue", "requeue_on: [500]", "requeue_on[0]", "connect, reset, 429 or 503"),
        ("queue", "requeue_on: [connect, timeout]", "requeue_on[1]", "connect, reset, 429 or 503"),
        ("queue", "overflow: drop", "overflow", "displace or reject"),
        ("queue", "admit: critical", "admit", "did you mean `critical_only`?"),
        ("queue", "enabled: yes", "enabled", "true or false"),
        ("queue", "enabled: 'true'", "enabled", "true or false"),
        ("stock", "deviation: 0", "deviation", "above 0 and below 1"),
        ("stock", "deviation: 1", "deviation", "above 0 and below 1"),
        ("stock", "deviation: -0.1", "deviation", "at least 0"),
        ("stock", "deviation: 10%", "deviation", "not the text `10%`"),
        ("stock", "watermark_per_backend: 0", "watermark_per_backend", "at least 1, auto, or none"),
        ("stock", "watermark_per_backend: -2", "watermark_per_backend", "at least 1, auto, or none"),
        ("stock", "watermark_per_backend: 1.5", "watermark_per_backend", "a whole number"),
        ("stock", "watermark_per_backend: all", "watermark_per_backend", "auto, or none"),
        ("stock", "lower_bound_per_backend: -1", "lower_bound_per_backend", "at least 0"),
        ("stock", "unit: bytes", "unit", "requests or tokens"),
        ("stock", "unit: tokens", "unit", "need a watermark_per_backend"),
        ("stock", "auto_initial: 0", "auto_initial", "at least 1"),
        ("arbitration", "order: lifo", "order", "fcfs or wspt or edf or slo_deadline"),
        ("arbitration", "per_model: 1", "per_model", "true or false, not 1"),
        ("arbitration", "bands: {mode: fair}", "bands.mode", "strict or weighted"),
        ("arbitration", "bands: {weights: {critical: 0}}", "bands.weights", "can't all be 0"),
        ("arbitration", "bands: {weights: {critical: -1}}", "bands.weights.critical", "at least 0"),
        (
            "arbitration",
            "bands: {weights: {urgent: 1}}",
            "bands.weights.urgent",
            "critical, default, sheddable",
        ),
        ("arbitration", "bands: {ceiling: {default: 1.5}}", "bands.ceiling.default", "at most 1"),
        ("arbitration", "bands: {ceiling: {default: 0}}", "bands.ceiling.default", "above 0"),
        ("arbitration", "flows: {discipline: fair}", "flows.discipline", "wfq or usage or vtc"),
        (
            "arbitration",
            "flows: {discipline: round-robin}",
            "flows.discipline",
            "did you mean `round_robin`?",
        ),
        ("arbitration", "flows: {key: tenant}", "flows.key", "fairness_id or user"),
        ("arbitration", "flows: {key: [none, user]}", "flows.key", "none stands alone"),
        ("arbitration", "flows: {key: []}", "flows.key", "at least one of fairness_id"),
        ("arbitration", "flows: {key: [user, user]}", "flows.key", "once"),
        ("arbitration", "flows: {cost: bytes}", "flows.cost", "tokens or requests"),
        ("arbitration", "flows: {weights: {acme: 0}}", "flows.weights.acme", "above 0"),
        ("arbitration", "flows: {weights: {acme: .inf}}", "flows.weights.acme", "finite"),
        ("arbitration", "flows: {weights: [acme]}", "flows.weights", "a mapping"),
        ("arbitration", "flows: {default_weight: -1}", "flows.default_weight", "above 0"),
        ("arbitration", "flows: {capacities: {a.b: 0}}", "flows.capacities.a.b", "at least 1"),
        ("arbitration", "flows: {max_in_flight: 0}", "flows.max_in_flight", "at least 1"),
        ("arbitration", "classes: {mode: fair}", "classes.mode", "exact or dynamo"),
        (
            "arbitration",
            "classes: {policy_classes: [{name: x, quantum: 0}]}",
            "classes.policy_classes[0].quantum",
            "at least 1",
        ),
        (
            "arbitration",
            "classes: {policy_classes: [{name: x}]}",
            "classes.policy_classes[0].quantum",
            "missing",
        ),
        (
            "arbitration",
            "classes: {default_policy_family: x}",
            "classes.default_policy_family",
            "no effect without policy_classes",
        ),
        (
            "arbitration",
            "classes: {uncached_isl_buckets: [{min_tokens: 5, bucket: b}], policy_classes: [{name: x, quantum: 1}]}",
            "classes.uncached_isl_buckets[0].min_tokens",
            "begins at 0",
        ),
        ("usage", "window: 0s", "window", "above zero"),
        ("usage", "input_token_weight: -1", "input_token_weight", "at least 0"),
        (
            "usage",
            "input_token_weight: 0.001",
            "input_token_weight",
            "multiply both by the same number), not 0.001",
        ),
        ("usage", "output_token_weight: 1000000000", "output_token_weight", "to 100000"),
        (
            "arbitration",
            "flows: {weights: {acme: 0.000000001}}",
            "flows.weights.acme",
            "multiply all of them",
        ),
        (
            "arbitration",
            "flows: {default_weight: 1000000000}",
            "flows.default_weight",
            "multiply all of them",
        ),
        (
            "arbitration",
            "bands: {weights: {critical: 0.000000001}}",
            "bands.weights.critical",
            "multiply all of them",
        ),
        ("usage", "store: disk", "store", "memory, {redb: PATH}, or {redis: URL}"),
        ("usage", "store: {redis: 'redis://:secret@127.0.0.1/x'}", "store", "not the URL of a redis server"),
        ("slo", "slo_multiplier: 1", "slo_multiplier", "above 1, or 0 for the default"),
        ("slo", "target_ttft: 0", "target_ttft", "above zero"),
        ("slo", "target_itl: -3ms", "target_itl", "above zero"),
        ("slo", "target_itl: 5", "target_itl", "both, or neither"),
        ("slo", "target_ttft: 500ms", "target_ttft", "both, or neither"),
        ("scheduler", "prefix: -1", "prefix", "at least 0"),
        ("scheduler", "latency: 1", "latency", "stock, queue, kv_cache, prefix, lora"),
        ("companion_down", "then: maybe", "then", "open or closed"),
        ("companion_down", "hold: 0s", "hold", "above zero"),
        ("health", "path: health", "path", "begins with /"),
        ("health", "interval: 0s", "interval", "above zero"),
        ("health", "unhealthy_after: 0", "unhealthy_after", "at least 1"),
        ("down", "first: 0s", "first", "above zero"),
        ("down", "first: 31s", "first", "first is at most max"),
        ("scrape", "stale_after: 500ms", "stale_after", "at least interval"),
        ("scrape", "path: '/a b'", "path", "no spaces"),
    ];
    for (within, written, key, word) in cases {
        let key =
            if key.is_empty() { format!("pools[0].{within}") } else { format!("pools[0].{within}.{key}") };
        assert_error(&format!("{POOL}  {within}:\n    {written}\n"), 5, &key, word);
    }
}

#[test]
fn what_does_not_fit_together_is_assert_error() {
    let order = "0 <= lower_bound_per_backend <= watermark_per_backend <= upper_bound_per_backend";
    for (written, key, word) in [
        ("stock: {lower_bound_per_backend: 3}", "stock.lower_bound_per_backend", order),
        (
            "stock: {watermark_per_backend: 2, upper_bound_per_backend: 1}",
            "stock.upper_bound_per_backend",
            order,
        ),
        (
            "stock: {lower_bound_per_backend: 3, upper_bound_per_backend: 1}",
            "stock.lower_bound_per_backend",
            order,
        ),
        (
            "stock: {watermark_per_backend: auto, lower_bound_per_backend: 1}",
            "stock.lower_bound_per_backend",
            "leave this out",
        ),
        ("stock: {watermark_per_backend: auto, unit: tokens}", "stock.unit", "whole number of tokens"),
        ("usage: {input_token_weight: 0, output_token_weight: 0}", "usage", "can't both be 0"),
        (
            "usage: {store: {redb: f, redis: 'redis://h'}}",
            "usage.store",
            "memory, {redb: PATH}, or {redis: URL}",
        ),
        ("capacity_status: 500", "capacity_status", "503 or 429, not 500"),
        ("capacity_status: '503'", "capacity_status", "not the text `503`"),
        ("reject_unmeetable: maybe", "reject_unmeetable", "true or false"),
        ("models: llama", "models", "a list, not the text `llama`"),
        ("models: [7]", "models[0]", "a text, not 7"),
        ("models: [a, '']", "models[1]", "isn't empty"),
        ("queue: [ttl]", "queue", "a mapping of keys to values, not a list"),
        ("queue:", "queue", "not empty (null)"),
        ("queues: {ttl: 3s}", "queues", "did you mean `queue`?"),
        ("colour: red", "colour", "there is no key `colour` here; known: name, models"),
        ("queue: {tll: 3s}", "queue.tll", "did you mean `ttl`?"),
        ("rewrite: [{model: a, targets: []}]", "rewrite[0].targets", "at least one target"),
        ("rewrite: [{model: a, targets: [{name: b, weight: 0}]}]", "rewrite[0].targets[0].weight", "above 0"),
        ("rewrite: [{model: a, targets: [{name: b}, {name: b}]}]", "rewrite[0].targets[1].name", "twice"),
        ("rewrite: [{targets: [{name: b}]}]", "rewrite[0].model", "missing"),
    ] {
        assert_error(&format!("{POOL}  {written}\n"), 4, &format!("pools[0].{key}"), word);
    }
}

#[test]
fn endpoints_have_exactly_one_source() {
    for (endpoints, key, word) in [
        ("{}", "", "exactly one of static, dns, file and kubernetes"),
        ("{static: ['127.0.0.1:1'], file: f}", "", "exactly one of static, dns, file and kubernetes"),
        ("{static: []}", ".static", "at least one address"),
        ("{static: '127.0.0.1:1'}", ".static", "a list"),
        ("{static: [nowhere]}", ".static[0]", "write ip:port"),
        ("{static: [127.0.0.1]}", ".static[0]", "write ip:port"),
        ("{static: ['127.0.0.1:0']}", ".static[0]", "1 to 65535"),
        ("{static: [8001]}", ".static[0]", "an address like \"127.0.0.1:8001\""),
        ("{static: ['127.0.0.1:1', '127.0.0.1:1']}", ".static[1]", "listed twice"),
        ("{static: [{weight: 2}]}", ".static[0].address", "missing"),
        ("{static: [{address: '127.0.0.1:1', weight: 0}]}", ".static[0].weight", "above 0"),
        ("{static: [{address: '127.0.0.1:1', max_batch: 0}]}", ".static[0].max_batch", "at least 1"),
        ("{static: [{address: '127.0.0.1:1', variant: 'a b'}]}", ".static[0].variant", "1 to 63"),
        (
            "{static: [{address: '127.0.0.1:1', max_batched_tokens: 0}]}",
            ".static[0].max_batched_tokens",
            "at least 1",
        ),
        ("{static: ['127.0.0.1:1'], defaults: {variant: 'a b'}}", ".defaults.variant", "1 to 63"),
        ("{static: ['127.0.0.1:1'], defaults: {weight: 2}}", ".defaults.weight", "no key"),
        ("{static: [{address: '127.0.0.1:1', taints: [a, a]}]}", ".static[0].taints[1]", "listed twice"),
        ("{static: [{address: '127.0.0.1:1', taints: ['a,b']}]}", ".static[0].taints[0]", "1 to 63"),
        ("{static: [{address: '127.0.0.1:1', labels: {gpu: 8}}]}", ".static[0].labels.gpu", "a text, not 8"),
        ("{static: [{adress: '127.0.0.1:1'}]}", ".static[0].adress", "did you mean `address`?"),
        ("{dns: {name: servers.example}}", ".dns.port", "missing"),
        ("{dns: {name: servers.example, port: 0}}", ".dns.port", "from 1 to 65535"),
        ("{dns: {name: 10.0.0.1, port: 80}}", ".dns.name", "list addresses under static"),
        ("{dns: {name: 'a b', port: 80}}", ".dns.name", "1 to 253"),
        ("{dns: {name: a, port: 80, refresh: 0s}}", ".dns.refresh", "above zero"),
        ("{kubernetes: {namespace: x}}", ".kubernetes", "exactly one of inference_pool and service"),
        (
            "{kubernetes: {inference_pool: a, service: b}}",
            ".kubernetes",
            "exactly one of inference_pool and service",
        ),
        ("{kubernetes: {inference_pool: a, port: http}}", ".kubernetes.port", "belongs to service"),
        ("{kubernetes: {service: 'a b'}}", ".kubernetes.service", "1 to 253"),
        (
            "{kubernetes: {service: a, labels: {variant: b}}}",
            ".kubernetes.labels.variant",
            "endpoints.defaults",
        ),
        ("{kubernetes: {inference_pool: ''}}", ".kubernetes.inference_pool", "1 to 253"),
    ] {
        let text = format!("pools:\n- name: a\n  endpoints: {endpoints}\n");
        assert_error(&text, 3, &format!("pools[0].endpoints{key}"), word);
    }
}

#[test]
fn names_are_required_and_unique() {
    let server = "endpoints: {static: ['127.0.0.1:1']}";
    for (name, word) in [
        ("''", "1 to 63"),
        ("a b", "1 to 63"),
        ("7", "a text, not 7"),
        ("[a]", "a text, not a list"),
        ("null", "a text, not empty (null)"),
    ] {
        assert_error(&format!("pools:\n- {server}\n  name: {name}\n"), 3, "pools[0].name", word);
    }
    assert_error(&format!("pools:\n- {server}\n"), 2, "pools[0].name", "missing");
    assert_error("pools:\n- name: a\n", 2, "pools[0].endpoints", "missing");
    let later = "# one\ntls:\n  cert: f\n  key: f\npools: []\n";
    assert_error(later, 2, "tls.client_ca", "missing");
    let twice = format!("pools:\n- name: a\n  {server}\n- name: a\n  {server}\n");
    assert_error(&twice, 4, "pools[1].name", "names are unique");
}
