//! The used part of an InferencePool: its selector and its ports.
//!
//! Both API versions are supported: `inference.networking.k8s.io/v1`, and the older
//! `inference.networking.x-k8s.io/v1alpha2`, which has one port and a selector without `matchLabels`.

use std::collections::BTreeMap;

use kube::api::{ApiResource, GroupVersionKind};
use serde::Deserialize;
use serde_json::Value;

/// The API versions, newest first, because a cluster may have both during a migration.
pub(super) fn versions() -> [ApiResource; 2] {
    [("inference.networking.k8s.io", "v1"), ("inference.networking.x-k8s.io", "v1alpha2")].map(
        |(group, version)| {
            let kind = GroupVersionKind::gvk(group, version, "InferencePool");
            ApiResource::from_gvk_with_plural(&kind, "inferencepools")
        },
    )
}

/// The `appProtocol` of HTTP/2 in plain text, in pools and in Services.
pub(super) const H2C: &str = "kubernetes.io/h2c";

/// The pods of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// At least one label, with its value.
    pub(super) labels: BTreeMap<String, String>,
    /// At least one.
    pub(super) ports: Vec<u16>,
    /// The servers speak HTTP/2 in plain text.
    pub(super) http2: bool,
}

impl Selection {
    /// The labels as a selector of the API: `a=b,c=d`.
    pub(super) fn query(&self) -> String {
        let labels = self.labels.iter().map(|(label, value)| format!("{label}={value}"));
        labels.collect::<Vec<_>>().join(",")
    }
}

#[derive(Deserialize)]
struct Object {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    selector: Value,
    #[serde(default)]
    target_ports: Vec<Port>,
    target_port_number: Option<u16>,
    app_protocol: Option<String>,
}

#[derive(Deserialize)]
struct Port {
    number: u16,
}

/// The selection of a pool object with this content.
pub(super) fn selection(data: &Value) -> Result<Selection, String> {
    let Object { spec } = Object::deserialize(data).map_err(|error| error.to_string())?;
    let labels = spec.selector.get("matchLabels").unwrap_or(&spec.selector);
    let labels = BTreeMap::<String, String>::deserialize(labels)
        .map_err(|_| "spec.selector must be a map of labels to values".to_owned())?;
    if labels.is_empty() {
        return Err("spec.selector is empty and would select every pod".into());
    }
    let mut ports: Vec<u16> = spec.target_ports.iter().map(|port| port.number).collect();
    ports.extend(spec.target_port_number);
    ports.sort_unstable();
    ports.dedup();
    if ports.is_empty() || ports.contains(&0) {
        return Err("a port is missing: set spec.targetPorts, or spec.targetPortNumber in v1alpha2".into());
    }
    Ok(Selection { labels, ports, http2: spec.app_protocol.as_deref() == Some(H2C) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_api_versions_are_read() {
        let new = json!({"spec": {
            "selector": {"matchLabels": {"app": "llama", "tier": "gold"}},
            "targetPorts": [{"number": 8001}, {"number": 8000}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        }});
        let found = selection(&new).expect("valid");
        assert_eq!((&*found.query(), found.ports), ("app=llama,tier=gold", vec![8000, 8001]));
        let old = json!({"spec": {"selector": {"app": "llama"}, "targetPortNumber": 8000}});
        let found = selection(&old).expect("valid");
        assert_eq!((&*found.query(), found.ports), ("app=llama", vec![8000]));
    }

    #[test]
    fn the_protocol_of_the_servers_is_read() {
        for (protocol, http2) in [("http", false), ("kubernetes.io/h2c", true), ("example.com/other", false)]
        {
            let spec =
                json!({"selector": {"app": "a"}, "targetPorts": [{"number": 1}], "appProtocol": protocol});
            assert_eq!(selection(&json!({ "spec": spec })).expect("valid").http2, http2, "{protocol}");
        }
    }

    #[test]
    fn selections_of_all_pods_or_no_port_are_rejected() {
        for (spec, word) in [
            (json!({"selector": {}, "targetPortNumber": 8000}), "every pod"),
            (json!({"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}), "every pod"),
            (json!({"selector": {"app": 1}, "targetPortNumber": 8000}), "labels"),
            (json!({"selector": {"app": "a"}}), "targetPorts"),
            (json!({"selector": {"app": "a"}, "targetPortNumber": 0}), "targetPorts"),
            (json!({"selector": {"app": "a"}, "targetPortNumber": 70000}), "u16"),
            (json!({"targetPortNumber": 8000}), "selector"),
        ] {
            let why = selection(&json!({ "spec": spec })).expect_err("refused");
            assert!(why.contains(word), "{spec}: {why}");
        }
        assert!(selection(&json!({})).is_err());
    }
}
