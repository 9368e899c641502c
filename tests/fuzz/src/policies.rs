//! The configurations that frames are fuzzed with: small limits, so that a short input reaches them.

use std::sync::OnceLock;

use penstock_config::Config;

/// The documents, which are also the seeds of the configuration target.
pub const DOCUMENTS: [&str; 5] = [
    "pools: [{name: chat, endpoints: {static: ['127.0.0.1:8001', '127.0.0.1:8002']}}]\n",
    "\
identity:
  trust: [10.0.0.0/8, '::1/128']
  priority: [{header: x-penstock-priority}, {model: {\"bulk-*\": sheddable, \"*\": default}}]
  strict: [{header: x-penstock-strict-priority}]
  jump: [{header: x-penstock-priority-jump}]
  objectives: {gold: critical}
pools:
- name: chat
  models: [\"m*\"]
  endpoints: {static: [{address: '127.0.0.1:8001', weight: 2}, '127.0.0.1:8002']}
  health: {path: null}
  queue: {total_capacity: 4, total_bytes: 64KiB, flow_capacity: 2, ttl: 1s, no_endpoint_ttl: 2s}
  stock: {watermark_per_backend: 1, lower_bound_per_backend: 1, upper_bound_per_backend: 1}
  companion_down: {hold: 1s, then: closed}
- name: rest
  models: [\"*\"]
  endpoints: {static: ['127.0.0.1:8003']}
  health: {path: null}
  capacity_status: 429
  queue: {enabled: false}
",
    "\
pools:
- name: chat
  endpoints: {static: ['127.0.0.1:8001', '127.0.0.1:8002', '[::1]:8003']}
  health: {path: null}
  queue: {total_capacity: 6, flow_capacity: 3, ttl: 500ms, overflow: reject, max_rate: 100}
  stock: {unit: tokens, watermark_per_backend: 512, lower_bound_per_backend: 256, upper_bound_per_backend: 1024}
  arbitration:
    per_model: true
    bands: {mode: weighted, weights: {critical: 70, default: 20, sheddable: 10}, ceiling: {sheddable: 0.5}}
    flows: {discipline: usage, key: [fairness_id, model], weights: {acme: 3}, max_in_flight: 2}
    order: wspt
",
    "\
pools:
- name: chat
  endpoints: {static: ['127.0.0.1:8001', '127.0.0.1:8002']}
  health: {path: null}
  queue: {total_capacity: 8, flow_capacity: 4, ttl: 2s}
  stock: {watermark_per_backend: 1}
  arbitration:
    classes:
      default_policy_family: agents
      uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 64, bucket: long}]
      policy_classes:
      - {name: a-short, policy_family: agents, cache_bucket: short, quantum: 64, queue_policy: fcfs}
      - {name: a-long, policy_family: agents, cache_bucket: long, quantum: 32, queue_policy: wspt, request_queue_limit_per_worker: 1}
    flows: {discipline: drr, key: user, max_in_flight_per_endpoint: 1}
    order: edf
",
    "\
identity: {trust: none}
pools:
- name: chat
  endpoints: {static: ['127.0.0.1:8001']}
  health: {path: null}
  queue: {total_capacity: 3, admit: critical_only, ttl: 1s}
  stock: {watermark_per_backend: 2}
  arbitration: {flows: {discipline: vtc, cost: requests}}
  companion_down: {hold: 2s, then: open}
",
];

/// The parsed documents.
///
/// # Panics
///
/// If a document isn't valid.
pub fn configs() -> &'static [Config] {
    static CONFIGS: OnceLock<Vec<Config>> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let parse =
            |text: &&str| Config::parse(text, "f.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"));
        DOCUMENTS.iter().map(parse).collect()
    })
}
