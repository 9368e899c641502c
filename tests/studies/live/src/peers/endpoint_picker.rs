//! An endpoint picker of llm-d or of the Gateway API Inference Extension: its process, and Envoy's filter for it.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::pool_api::{NAMESPACE, POOL, PoolApi};
use penstock_tests::ports::free_address;
use penstock_tests::{Process, until};

/// The header in which the picker names the endpoint.
const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";

/// Whether the picker keeps requests in queues by tenant, which its default doesn't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// The default.
    Off,
    /// On, and tenants take turns.
    On,
}

/// A running picker with one endpoint.
pub struct EndpointPicker {
    /// The picker's process.
    pub process: Process,
    _api: PoolApi,
    _folder: TempDir,
}

/// The picker's own defaults, with flow control and the one of its policies that takes turns among tenants.
const FLOW_CONTROL: &str = "\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
- type: core-metrics-extractor
- type: round-robin-fairness-policy
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
flowControl:
  priorityBands:
  - {priority: 0, fairnessPolicyRef: round-robin-fairness-policy}
";

/// The ports of a picker.
#[derive(Clone, Copy)]
struct Ports {
    grpc: u16,
    health: u16,
    metrics: u16,
}

impl EndpointPicker {
    /// Starts the program with its default scheduler. It serves Envoy at `grpc`, and its only endpoint is `model_server`. `prepare` changes
    /// the command, for example its cores.
    ///
    /// # Panics
    /// With its log, if it does not listen in time.
    pub async fn start(
        program: &Path,
        grpc: SocketAddr,
        model_server: SocketAddr,
        flow_control: FlowControl,
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let api = PoolApi::start(model_server).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig()).expect("write the configuration of the client");
        let ports =
            Ports { grpc: grpc.port(), health: free_address().port(), metrics: free_address().port() };
        let mut command = Command::new(program);
        command.args(arguments(ports));
        if flow_control == FlowControl::On {
            command.arg(format!("--config-text={FLOW_CONTROL}"));
        }
        command.env("KUBECONFIG", &kubeconfig);
        prepare(&mut command);
        let process = Process::start("endpoint picker", command).await;
        until("the endpoint picker listens", || async {
            let socket = tokio::net::TcpStream::connect(grpc).await;
            socket.map_err(|error| format!("{error}\n{}", process.tail()))
        })
        .await;
        Self { process, _api: api, _folder: folder }
    }
}

/// The command line. As in the project's own charts: no tracing and log level 1. Without TLS, profiling and authentication of the metrics
/// page, which the other measured gateways don't have either.
fn arguments(ports: Ports) -> Vec<String> {
    vec![
        format!("--pool-name={POOL}"),
        format!("--pool-namespace={NAMESPACE}"),
        format!("--grpc-port={}", ports.grpc),
        format!("--grpc-health-port={}", ports.health),
        format!("--metrics-port={}", ports.metrics),
        "--secure-serving=false".to_owned(),
        "--metrics-endpoint-auth=false".to_owned(),
        "--enable-pprof=false".to_owned(),
        "--tracing=false".to_owned(),
        "--v=1".to_owned(),
    ]
}

/// Envoy's filter for a picker behind a cluster, in the mode that the picker needs: headers and whole bodies of request and response,
/// each body as a stream in both directions. Without the picker's answer a request fails.
#[must_use]
pub fn external_processor(cluster: &str) -> Value {
    json!({
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": cluster}},
            "message_timeout": "10s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "FULL_DUPLEX_STREAMED",
                "request_trailer_mode": "SEND",
                "response_header_mode": "SEND",
                "response_body_mode": "FULL_DUPLEX_STREAMED",
                "response_trailer_mode": "SEND",
            },
        },
    })
}

/// The cluster of model servers: the picker names the server of each request in a header.
#[must_use]
pub fn picked_servers(name: &str) -> Value {
    json!({
        "name": name,
        "type": "ORIGINAL_DST",
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": true, "http_header_name": ENDPOINT_HEADER},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_pool_and_ports_once() {
        let ports = Ports { grpc: 1, health: 2, metrics: 3 };
        let arguments = arguments(ports);
        for wanted in [
            "--pool-name=bench",
            "--pool-namespace=default",
            "--grpc-port=1",
            "--grpc-health-port=2",
            "--metrics-port=3",
            "--secure-serving=false",
            "--tracing=false",
        ] {
            let count = arguments.iter().filter(|argument| *argument == wanted).count();
            assert_eq!(count, 1, "{wanted} in {arguments:?}");
        }
    }

    #[test]
    fn every_part_of_a_request_passes_the_picker_and_a_failure_is_not_allowed() {
        let filter = external_processor("picker");
        let config = &filter["typed_config"];
        assert_eq!(config["grpc_service"]["envoy_grpc"]["cluster_name"], "picker");
        let mode = &config["processing_mode"];
        for body in ["request_body_mode", "response_body_mode"] {
            assert_eq!(mode[body], "FULL_DUPLEX_STREAMED", "{body}");
        }
        // Envoy requires trailers where a body is streamed in both directions.
        for part in ["header", "trailer"] {
            for side in ["request", "response"] {
                assert_eq!(mode[format!("{side}_{part}_mode")], "SEND", "{side} {part}");
            }
        }
        assert!(config["failure_mode_allow"].is_null());
    }

    #[test]
    fn a_request_without_the_pickers_header_has_no_server() {
        let cluster = picked_servers("server");
        assert_eq!(cluster["type"], "ORIGINAL_DST");
        assert_eq!(
            cluster["original_dst_lb_config"],
            json!({"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"})
        );
        assert!(cluster["load_assignment"].is_null());
    }
}
