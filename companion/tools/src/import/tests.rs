//! Tests of imports: the result of each kind of source, and the errors.

mod profiles;

use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use penstock_config::Document;
use penstock_errors::Failure as _;
use serde_json::{Value, json};

use super::{BATCHED_TOKENS, Source, convert};

fn name(source: Source) -> String {
    let value = source.to_possible_value().expect("none is hidden");
    value.get_name().to_owned()
}

/// The result of an import, as text and as values. Fails if it isn't a valid configuration.
fn page(source: Source, text: &str) -> (String, Value) {
    let page = convert(source, text, "f", BATCHED_TOKENS).unwrap_or_else(|error| panic!("{text}\n{error}"));
    Document::parse(&page, "page").unwrap_or_else(|error| panic!("{page}\n{error}"));
    let values = serde_saphyr::from_str(&page).unwrap_or_else(|error| panic!("{page}\n{error}"));
    (page, values)
}

fn error(source: Source, text: &str) -> String {
    match convert(source, text, "f.src", BATCHED_TOKENS) {
        Ok(page) => panic!("{text}\nis accepted:\n{page}"),
        Err(error) => {
            assert_eq!((error.exit_code(), error.has_place()), (2, true));
            error.to_string()
        }
    }
}

/// Checks that each text has an error at its line, with its word.
fn assert_errors(source: Source, cases: &[(&str, u64, &str)]) {
    for (text, line, word) in cases {
        let message = error(source, text);
        assert!(message.starts_with(&format!("f.src:{line}: ")), "{text}\n{message}");
        assert!(message.contains(word), "{text}\n{message}");
    }
}

/// Checks values of the first pool, at paths with dots.
fn assert_pool(values: &Value, expected: &[(&str, Value)]) {
    for (path, value) in expected {
        let pointer = format!("/pools/0/{}", path.replace('.', "/"));
        assert_eq!(values.pointer(&pointer), Some(value), "{path} in {values:#}");
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/import")
}

#[test]
fn golden_files_are_current_and_valid() {
    for source in Source::value_variants() {
        let name = name(*source);
        let example = folder().join(format!("{name}.example"));
        let text = std::fs::read_to_string(&example).expect("an example of each source");
        let (page, _) = page(*source, &text);
        let page = page.replacen(" in f.", &format!(" in {name}.example."), 1);
        assert!(page.lines().all(|line| line.chars().count() <= 120), "{page}");
        let golden = folder().join(format!("{name}.golden.yaml"));
        if std::env::var_os("PENSTOCK_REGENERATE").is_some() {
            std::fs::write(&golden, &page).expect("write the golden file");
        }
        let stored = std::fs::read_to_string(&golden).unwrap_or_default();
        assert!(
            stored == page,
            "{} differs from the import of its example; PENSTOCK_REGENERATE=1 writes it\n{page}",
            golden.display()
        );
    }
}

#[test]
fn every_key_of_an_example_is_in_the_result() {
    // As a key, in a note or in a comment.
    let folded = |text: &str| super::section::fold(text);
    for source in Source::value_variants() {
        let text =
            std::fs::read_to_string(folder().join(format!("{}.example", name(*source)))).expect("there");
        let page = folded(&page(*source, &text).0);
        for line in text.lines().map(|line| line.trim().trim_start_matches("- ").trim_start_matches('{')) {
            let key =
                line.split([':', '=', ']', '.']).next().unwrap_or_default().trim_start_matches('[').trim();
            let wrapper = matches!(
                key,
                "apiVersion"
                    | "kind"
                    | "metadata"
                    | "data"
                    | "name"
                    | "namespace"
                    | "default"
                    | "fair_request_queue"
                    | "request_queue_controller"
            );
            let other = line.is_empty() || line.starts_with('#') || wrapper;
            // Sections that aren't about the queue are in the result by their names only.
            let inner = *source == Source::Nexus
                && !matches!(key, "enabled" | "max_size" | "max_wait_seconds")
                && !line.starts_with('[');
            assert!(other || inner || page.contains(&folded(key)), "{key} isn't in\n{page}");
        }
    }
}

const PICKER: &str = "\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl, prepareDataPlugins]
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
  parameters: {hashBlockSize: 64}
- {type: kv-cache-utilization-scorer, name: cache}
- {type: decode-filter}
- {type: round-robin-fairness-policy, name: fair}
- {type: edf-ordering-policy}
- {type: concurrency-detector, name: full, parameters: {maxConcurrency: 32, headroom: 0.25}}
saturationDetector: {pluginRef: full}
flowControl:
  maxRequests: 1k
  maxBytes: 2Gi
  defaultRequestTTL: 90s
  defaultPriorityBand: {fairnessPolicyRef: fair, orderingPolicyRef: edf-ordering-policy}
  priorityBands: [{priority: 10, maxRequests: 100}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3.5}
  - {pluginRef: cache}
- {name: prefill, plugins: []}
dataLayer: {sources: []}
";

#[test]
fn configuration_of_a_picker_is_taken_over_alone_in_a_config_map_and_in_helm_values() {
    let indented = |spaces: usize| {
        PICKER.lines().map(|line| format!("{}{line}\n", " ".repeat(spaces))).collect::<String>()
    };
    let files = [
        PICKER.to_owned(),
        PICKER.replace("llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"),
        format!("apiVersion: v1\nkind: ConfigMap\ndata:\n  epp.yaml: |\n{}", indented(4)),
        format!(
            "inferencepool:\n  inferenceExtension:\n    replicas: 1\n    pluginsCustomConfig:\n      epp.yaml: |\n{}",
            indented(8)
        ),
    ];
    for file in files {
        let (text, values) = page(Source::Gie, &file);
        assert_pool(
            &values,
            &[
                ("queue.total_capacity", json!(1_000)),
                ("queue.flow_capacity", json!(1_000)),
                ("queue.total_bytes", json!(2_u64 << 30)),
                ("queue.ttl", json!("90s")),
                ("stock.watermark_per_backend", json!(32)),
                ("stock.deviation", json!(0.25)),
                ("arbitration.flows.discipline", json!("round_robin")),
                ("arbitration.flows.key", json!("fairness_id")),
                ("arbitration.order", json!("edf")),
                ("scheduler.queue", json!(2)),
                ("scheduler.prefix", json!(3.5)),
                ("scheduler.kv_cache", json!(1)),
            ],
        );
        for word in ["decode-filter", "prefill", "priority 10", "dataLayer"] {
            assert!(text.contains(word), "{word} isn't in\n{text}");
        }
    }
}

#[test]
fn prompts_that_a_picker_has_computed_apart_are_so_here() {
    let picker = |handler: &str, decider: &str| {
        format!(
            "kind: EndpointPickerConfig\nplugins:\n- {{type: disagg-headers-handler}}\n- {{type: queue-scorer}}\n- {{type: prefix-cache-scorer}}\n\
             - {{type: prefill-filter}}\n- {{type: decode-filter}}\n- {handler}\n- {decider}\nschedulingProfiles:\n\
             - {{name: prefill, plugins: [{{pluginRef: queue-scorer, weight: 7}}]}}\n\
             - {{name: decode, plugins: [{{pluginRef: prefix-cache-scorer, weight: 2}}]}}\n\
             - {{name: encode, plugins: []}}\n"
        )
    };
    let by_prefix = "{type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}";
    for (handler, decider, least) in [
        (
            "{type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}",
            by_prefix,
            json!(512),
        ),
        (
            "{type: pd-profile-handler, parameters: {deciderPluginName: prefix-based-pd-decider}}",
            by_prefix,
            json!(512),
        ),
        ("{type: pd-profile-handler}", "{type: prefix-based-pd-decider}", json!(null)),
        (
            "{type: disagg-profile-handler, parameters: {prefillDeciderPluginName: always}}",
            "{type: always-disagg-pd-decider, name: always}",
            json!(1),
        ),
    ] {
        let (text, values) = page(Source::Gie, &picker(handler, decider));
        let expected = [("disaggregation.min_uncached_tokens", least), ("scheduler.prefix", json!(2))];
        assert_pool(&values, &expected);
        assert!(values["pools"][0]["scheduler"].get("queue").is_none(), "the weights of `prefill`: {text}");
        for line in ["The profile `encode` has no equivalent here", "The plugin `prefill-filter`: roles"] {
            assert!(text.contains(line), "{line} isn't in\n{text}");
        }
    }
}

#[test]
fn pickers_that_their_own_system_takes_are_taken() {
    let kind = "kind: EndpointPickerConfig\n";
    for (more, expected) in [
        ("", ("stock.watermark_per_backend", json!("none"))),
        ("plugins: []\nschedulingProfiles: []\n", ("stock.watermark_per_backend", json!("none"))),
        ("featureGates: [flowControl]\n", ("stock.watermark_per_backend", json!("auto"))),
        (
            "featureGates: [flowControl]\nflowControl: {maxRequests: '0', defaultRequestTTL: 0s}\n",
            ("queue.ttl", json!("1h")),
        ),
        (
            "featureGates: [flowControl]\nsaturationDetector: {pluginRef: mine}\nplugins: [{type: x, name: mine}]\n",
            ("stock.watermark_per_backend", json!("auto")),
        ),
        (
            "featureGates: [flowControl]\nplugins: [{type: concurrency-detector, parameters: {concurrencyMode: tokens}}]\nflowControl: {saturationDetector: {pluginRef: concurrency-detector}}\n",
            ("stock.watermark_per_backend", json!(1_000_000)),
        ),
        (
            "featureGates: [flowControl]\nflowControl: {priorityBands: [{priority: 0, fairnessPolicyRef: round-robin-fairness-policy}]}\n",
            ("arbitration.flows.discipline", json!("round_robin")),
        ),
        (
            "plugins: [{type: queue-scorer}, {type: strange, parameters: {a: [1, {b: c}]}}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 0}, {pluginRef: strange}]}]\n",
            ("scheduler.queue", json!(0)),
        ),
    ] {
        let (_, values) = page(Source::Gie, &format!("{kind}{more}"));
        assert_pool(&values, &[expected]);
    }
    assert_errors(
        Source::Gie,
        &[
            ("kind: EndpointPickerConfig\nflowControl: {maxRequests: many}", 2, "quantity"),
            ("kind: EndpointPickerConfig\n---\nkind: EndpointPickerConfig", 3, "second"),
        ],
    );
}

#[test]
fn gie_is_read_in_snake_case_and_camel_case_and_any_nesting() {
    let cases = [
        "fair_request_queue: {total_capacity: 7, flow_capacity: 3, queue_ttl: 90}\nrequest_queue_controller: {watermark_per_backend: 4, percentage_deviation_for_bounds: 0.25}",
        "fairRequestQueue: {totalCapacity: \"7\", flowCapacity: 3, queueTTL: 1m30s}\nrequestQueueController: {watermarkPerBackend: 4, percentageDeviationForBounds: \"0.25\"}",
        "totalCapacity: 7\nflow-capacity: 3\nqueueTTL: '90s'\nwatermarkPerBackend: 4\npercentageDeviationForBounds: 0.25",
        "queueing:\n  fairRequestQueue: {totalCapacity: 7, flowCapacity: 3, queueTTL: 90000ms}\n  requestQueueController: {watermarkPerBackend: 4, percentageDeviationForBounds: 0.25}",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: q}\ndata:\n  config.yaml: |-\n    fair_request_queue: {total_capacity: 7, flow_capacity: 3, queue_ttl: 90s}\n    request_queue_controller:\n      watermark_per_backend: 4\n      percentage_deviation_for_bounds: 0.25\n",
    ];
    for text in cases {
        let (page, values) = page(Source::Gie, text);
        assert_pool(
            &values,
            &[
                ("queue.total_capacity", json!(7)),
                ("queue.flow_capacity", json!(3)),
                ("stock.watermark_per_backend", json!(4)),
                ("stock.deviation", json!(0.25)),
                ("arbitration.flows.key", json!(["model", "target_model"])),
                ("arbitration.flows.cost", json!("requests")),
                ("arbitration.flows.discipline", json!("wfq")),
            ],
        );
        let document = Document::parse(&page, "page").expect("valid");
        assert_eq!(document.config().pools[0].policy.queue.ttl.as_secs(), 90, "{text}");
    }
    // Missing keys have the defaults of the source.
    let (_, values) = page(Source::Gie, "fair_request_queue: {}\n");
    assert_pool(
        &values,
        &[
            ("queue.total_capacity", json!(1000)),
            ("queue.flow_capacity", json!(100)),
            ("queue.ttl", json!("30s")),
            ("stock.watermark_per_backend", json!(2)),
            ("stock.deviation", json!(0.1)),
        ],
    );
    let (page, _) =
        page(Source::Gie, "request_queue_controller: {numPoppers: 4, colour: red}\nother: {a: 1}\n");
    for word in [
        "`numPoppers: 4` has no equivalent here: nothing polls",
        "`colour: red` has no equivalent",
        "`other: {a: 1}`",
    ] {
        assert!(page.replace("\n    # ", " ").contains(word), "{word} in\n{page}");
    }
}

#[test]
fn gie_errors_name_the_line() {
    assert_errors(
        Source::Gie,
        &[
            ("\nfair_request_queue:\n  total_capacity: 0", 3, "at least 1"),
            ("fair_request_queue:\n  flow_capacity: 1.5", 2, "whole number"),
            ("fair_request_queue:\n  queue_ttl: 0", 2, "above zero"),
            ("fair_request_queue:\n  queue_ttl: soon", 2, "30s"),
            ("fair_request_queue: 3", 1, "mapping"),
            ("fair_request_queue: {ttl: 1, queue_ttl: 2}", 1, "the same"),
            ("request_queue_controller:\n  watermark_per_backend: 0", 2, "at least 1"),
            ("request_queue_controller:\n  percentage_deviation_for_bounds: 1", 2, "below 1"),
            ("request_queue_controller:\n  percentage_deviation_for_bounds: 15%", 2, "number"),
            ("request_queue_controller:\n  lower_bound_per_backend: 3", 2, "at most the watermark, 2"),
            (
                "request_queue_controller:\n  watermarkPerBackend: 9\n  upperBoundPerBackend: 8",
                3,
                "at least the watermark, 9",
            ),
            ("kind: ConfigMap\ndata:\n  q: |\n    fair_request_queue:\n\n      queue_ttl: x\n", 6, "30s"),
            ("kind: ConfigMap\ndata:\n  q: |\n    fair_request_queue: [\n", 4, "YAML"),
            ("a: 1\n---\nfair_request_queue: {}\n---\nfair_request_queue: {}\n", 5, "second policy"),
            ("hello: world", 1, "fair_request_queue"),
            ("", 1, "empty"),
            ("a: [", 1, "YAML"),
            ("- 1", 1, "fair_request_queue"),
        ],
    );
}

#[test]
fn nexus_has_one_flow_in_order_of_arrival() {
    let (page, values) = page(Source::Nexus, "[queue]\nmax_size = 7\nmax_wait_seconds = 5\n");
    assert_pool(
        &values,
        &[
            ("queue.enabled", json!(true)),
            ("queue.total_capacity", json!(7)),
            ("queue.flow_capacity", json!(7)),
            ("queue.ttl", json!("5s")),
            ("queue.overflow", json!("reject")),
            ("arbitration.flows.key", json!("none")),
            ("arbitration.flows.discipline", json!("fifo")),
        ],
    );
    assert_eq!(values["identity"]["priority"], json!([{"header": "x-nexus-priority"}]));
    assert!(page.contains("from `max_size`"), "{page}");
}

#[test]
fn nexus_disabled_queues_are_disabled_here() {
    for (text, enabled, total) in [
        ("[queue]\nenabled = false\n", false, 100),
        ("[queue]\nmax_size = 0\n", false, 0),
        ("[queue]\nmax_wait_seconds = 0\n", false, 100),
        ("[queue]\n", true, 100),
        ("[queue]\nenabled = \"true\"\nmax_size = \"9\"\n", true, 9),
        ("max_size = 9\n", true, 9),
        ("[server]\nport = 8000\n", true, 100),
    ] {
        let (_, values) = page(Source::Nexus, text);
        assert_pool(&values, &[("queue.enabled", json!(enabled)), ("queue.total_capacity", json!(total))]);
    }
    let (page, _) = page(
        Source::Nexus,
        "[queue]\nstrategy = \"lifo\"\n[budget]\nmonthly_limit_usd = 5\n[[backends]]\nname = \"a\"\napi_key = \"sk-secret\"\n",
    );
    for word in [
        "`strategy: lifo` has no equivalent here",
        "[budget] has no equivalent here",
        "[[backends]] is not imported",
    ] {
        assert!(page.contains(word), "{page}");
    }
    assert!(!page.contains("sk-secret"), "{page}");
}

#[test]
fn nexus_errors_name_the_line() {
    assert_errors(
        Source::Nexus,
        &[
            ("[queue]\nmax_size = -1\n", 2, "at least 0"),
            ("[queue]\nmax_size = 1.5\n", 2, "whole number"),
            ("[queue]\nmax_size = [1]\n", 2, "one value"),
            ("[queue]\nenabled = \"maybe\"\n", 2, "true or false"),
            ("[queue]\n\nmax_wait_seconds = \"soon\"\n", 3, "number of seconds"),
            ("[queue]\nmax_size = 1\nmax_size = 2\n", 3, "TOML"),
            ("[queue\n", 1, "TOML"),
            ("queue = 3\n", 1, "mapping"),
            ("", 1, "[queue]"),
        ],
    );
}

#[test]
fn kthenas_window_and_weights_become_usage() {
    let cases = [
        "ENABLE_FAIRNESS_SCHEDULING=true\nFAIRNESS_WINDOW_SIZE=10m\nFAIRNESS_OUTPUT_TOKEN_WEIGHT=3\n",
        "# router\nexport ENABLE_FAIRNESS_SCHEDULING=\"1\"\nexport FAIRNESS_WINDOW_SIZE='10m' # long\nFAIRNESS_OUTPUT_TOKEN_WEIGHT=3.0\n",
        "env:\n- name: ENABLE_FAIRNESS_SCHEDULING\n  value: \"true\"\n- {name: FAIRNESS_WINDOW_SIZE, value: 10m}\n- {name: FAIRNESS_OUTPUT_TOKEN_WEIGHT, value: \"3\"}\n",
        "kind: ConfigMap\ndata:\n  ENABLE_FAIRNESS_SCHEDULING: \"true\"\n  FAIRNESS_WINDOW_SIZE: 10m\n  FAIRNESS_OUTPUT_TOKEN_WEIGHT: \"3\"\n",
        "kind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n      - name: kthena-router\n        env:\n        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}\n        - {name: ENABLE_FAIRNESS_SCHEDULING, value: \"true\"}\n        - {name: FAIRNESS_WINDOW_SIZE, value: 600s}\n        - {name: FAIRNESS_OUTPUT_TOKEN_WEIGHT, value: \"3\"}\n",
        "networking:\n  kthenaRouter:\n    fairness: {enabled: true, windowSize: 10m, outputTokenWeight: 3}\n",
    ];
    for text in cases {
        let (page, values) = page(Source::Kthena, text);
        assert_pool(
            &values,
            &[
                ("arbitration.per_model", json!(true)),
                ("arbitration.flows.key", json!("user")),
                ("arbitration.flows.discipline", json!("usage")),
                ("arbitration.flows.cost", json!("tokens")),
                ("queue.max_rate", json!(100)),
                ("queue.ttl", json!("60s")),
                ("stock.watermark_per_backend", json!("none")),
            ],
        );
        let document = Document::parse(&page, "page").expect("valid");
        let policy = &document.config().pools[0].policy;
        assert_eq!(policy.usage_window.as_secs(), 600, "{text}");
        assert_eq!((policy.weights.input, policy.weights.output), (1.0, 3.0), "{text}");
    }
}

#[test]
fn kthenas_limits_become_a_rate_or_a_bound() {
    let with = |more: &str| page(Source::Kthena, &format!("ENABLE_FAIRNESS_SCHEDULING=true\n{more}\n"));
    let (page, values) = with("FAIRNESS_MAX_CONCURRENT=8\nFAIRNESS_MAX_QPS=5");
    for bound in ["watermark", "lower_bound", "upper_bound"] {
        assert_pool(&values, &[(&format!("stock.{bound}_per_backend"), json!(8))]);
    }
    assert_eq!(values.pointer("/pools/0/queue/max_rate"), None);
    assert!(page.contains("`FAIRNESS_MAX_QPS: 5` has no equivalent here"), "{page}");
    let (_, values) = with("FAIRNESS_MAX_CONCURRENT=0\nFAIRNESS_MAX_QPS=5\nFAIRNESS_QUEUE_TIMEOUT=1m30s");
    assert_pool(&values, &[("queue.max_rate", json!(5)), ("queue.ttl", json!("90s"))]);
    let (page, values) = with("FAIRNESS_INPUT_TOKEN_WEIGHT=0.001\nFAIRNESS_OUTPUT_TOKEN_WEIGHT=0.002");
    assert_pool(
        &values,
        &[("usage.input_token_weight", json!(0.1)), ("usage.output_token_weight", json!(0.2))],
    );
    assert!(page.contains("times 100: only the ratio"), "{page}");
    // The order is by tokens, by requests, or by arrival.
    for (more, discipline, cost) in [
        ("FAIRNESS_PRIORITY_TOKEN_WEIGHT=0.5", "usage", Some("tokens")),
        (
            "FAIRNESS_PRIORITY_TOKEN_WEIGHT=0\nFAIRNESS_PRIORITY_REQUEST_NUM_WEIGHT=1",
            "usage",
            Some("requests"),
        ),
        ("FAIRNESS_PRIORITY_TOKEN_WEIGHT=0", "fifo", None),
    ] {
        let (_, values) = with(more);
        assert_pool(&values, &[("arbitration.flows.discipline", json!(discipline))]);
        assert_eq!(values.pointer("/pools/0/arbitration/flows/cost"), cost.map(|cost| json!(cost)).as_ref());
    }
    let (page, values) =
        super::tests::page(Source::Kthena, "ENABLE_FAIRNESS_SCHEDULING=false\nFAIRNESS_MAX_CONCURRENT=8\n");
    assert_pool(&values, &[("stock.watermark_per_backend", json!("none"))]);
    assert_eq!(values.pointer("/pools/0/queue/max_rate"), None);
    assert!(page.contains("lets every request through"), "{page}");
    let (page, _) = super::tests::page(
        Source::Kthena,
        "FAIRNESS_WINDOW_SIZE=\nFAIRNESS_COLOUR=red\nREDIS_PASSWORD=hunter2\n",
    );
    assert!(page.contains("`FAIRNESS_COLOUR: red` has no equivalent"), "{page}");
    assert!(
        page.contains("isn't set") && page.contains("REDIS_PASSWORD") && !page.contains("hunter2"),
        "{page}"
    );
}

#[test]
fn values_that_kthena_replaces_silently_are_errors() {
    assert_errors(
        Source::Kthena,
        &[
            ("FAIRNESS_WINDOW_SIZE=30s\n", 1, "1m to 1h"),
            ("A=1\nFAIRNESS_WINDOW_SIZE=2h\n", 2, "1m to 1h"),
            ("FAIRNESS_WINDOW_SIZE=300\n", 1, "like 30s"),
            ("FAIRNESS_INPUT_TOKEN_WEIGHT=-1\n", 1, "at least 0"),
            ("FAIRNESS_OUTPUT_TOKEN_WEIGHT=NaN\n", 1, "at least 0"),
            ("FAIRNESS_INPUT_TOKEN_WEIGHT=0\nFAIRNESS_OUTPUT_TOKEN_WEIGHT=0\n", 2, "both be 0"),
            ("FAIRNESS_QUEUE_TIMEOUT=0s\n", 1, "above zero"),
            ("FAIRNESS_QUEUE_TIMEOUT=-5s\n", 1, "duration"),
            ("FAIRNESS_MAX_CONCURRENT=-1\n", 1, "at least 0"),
            ("FAIRNESS_MAX_CONCURRENT=many\n", 1, "whole number"),
            ("FAIRNESS_MAX_QPS=0\n", 1, "at least 1"),
            ("FAIRNESS_PRIORITY_TOKEN_WEIGHT=heavy\n", 1, "at least 0"),
            ("ENABLE_FAIRNESS_SCHEDULING=maybe\n", 1, "true or false"),
            ("ENABLE_FAIRNESS_SCHEDULING=true\nENABLE_SESSION_BOOST=true\n", 2, "one of the two"),
            ("ENABLE_FAIRNESS_SCHEDULING=true\nENABLE_FAIRNESS_SCHEDULING=true\n", 2, "twice"),
            ("ENABLE_FAIRNESS_SCHEDULING=true\nhello\n", 2, "KEY=VALUE"),
            ("ENABLE_FAIRNESS_SCHEDULING=\"true\n", 1, "quotes"),
            ("PATH=/bin\n", 1, "fairness"),
            ("env:\n- name: FAIRNESS_MAX_QPS\n  value: none\n", 3, "whole number"),
        ],
    );
}

#[test]
fn values_of_the_source_stay_inside_comments_and_texts() {
    // A value may contain any characters; the result stays one document with the same keys.
    let evil = "a\\npools: []\\u2028\\u0085\\r b: [c";
    let text = format!("fair_request_queue: {{\"k\\n{evil}\": \"{evil}\", total_capacity: 5}}\n");
    let (_, values) = page(Source::Gie, &text);
    assert_pool(&values, &[("queue.total_capacity", json!(5))]);
    let (_, values) =
        page(Source::Wva, &format!("\"{evil}\": {{model_id: \"{evil}\", namespace: \"{evil}\"}}\n"));
    assert_eq!(values["pools"].as_array().map(Vec::len), Some(1));
    assert!(values["pools"][0]["models"][0].as_str().is_some_and(|model| model.starts_with("a\npools: []")));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]

    /// Any text is converted into a valid configuration, or is an error at one of its lines.
    #[test]
    fn any_text_is_converted_or_an_error_with_a_line(cut in 0usize..2_000, source in 0usize..5, from in 0usize..5, junk in "[ -~\n]{0,12}") {
        let source = Source::value_variants()[source];
        let example = folder().join(format!("{}.example", name(Source::value_variants()[from])));
        let mut text = std::fs::read_to_string(example).expect("there");
        let mut offset = cut.min(text.len());
        while !text.is_char_boundary(offset) { offset -= 1; }
        text.insert_str(offset, &junk);
        match convert(source, &text, "f", BATCHED_TOKENS) {
            Ok(page) => { Document::parse(&page, "page").expect("valid"); }
            Err(super::Error::Line { line, .. }) => {
                proptest::prop_assert!((1..=text.lines().count() as u64 + 1).contains(&line), "{line} of\n{text}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
