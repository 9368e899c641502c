//! The InferencePool as far as it matters here: whom it selects, and on which ports they serve.
//!
//! Both versions that are in use are read: `inference.networking.k8s.io/v1`, and `inference.networking.x-k8s.io/v1alpha2`
//! of before, which has one port and a selector without a word around it.

use std::collections::BTreeMap;

use kube::api::{ApiResource, GroupVersionKind};
use serde::Deserialize;
use serde_json::Value;

/// The newer first: whoever moves from one to the other may have both.
pub(super) fn versions() -> [ApiResource; 2] {
    [
        ("inference.networking.k8s.io", "v1"),
        ("inference.networking.x-k8s.io", "v1alpha2"),
    ]
    .map(|(group, version)| {
        let kind = GroupVersionKind::gvk(group, version, "InferencePool");
        ApiResource::from_gvk_with_plural(&kind, "inferencepools")
    })
}

/// Whom a pool selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Labels as the API server reads them: `a=b,c=d`.
    pub(super) labels: String,
    /// At least one.
    pub(super) ports: Vec<u16>,
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
}

#[derive(Deserialize)]
struct Port {
    number: u16,
}

/// What the object says; it was read from `data`.
pub(super) fn selection(data: &Value) -> Result<Selection, String> {
    let Object { spec } = Object::deserialize(data).map_err(|it| it.to_string())?;
    let labels = spec.selector.get("matchLabels").unwrap_or(&spec.selector);
    let labels = BTreeMap::<String, String>::deserialize(labels)
        .map_err(|_| "its selector isn't of labels and values".to_owned())?;
    if labels.is_empty() {
        return Err("its selector is empty, which would be every pod".into());
    }
    let labels = labels.iter().map(|(label, value)| format!("{label}={value}"));
    let mut ports: Vec<u16> = spec.target_ports.iter().map(|it| it.number).collect();
    ports.extend(spec.target_port_number);
    ports.sort_unstable();
    ports.dedup();
    if ports.is_empty() || ports.contains(&0) {
        return Err("it names no port: spec.targetPorts, or spec.targetPortNumber in v1alpha2".into());
    }
    Ok(Selection {
        labels: labels.collect::<Vec<_>>().join(","),
        ports,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_versions_are_read() {
        let new = json!({"spec": {
            "selector": {"matchLabels": {"app": "llama", "tier": "gold"}},
            "targetPorts": [{"number": 8001}, {"number": 8000}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        }});
        let expected = Selection {
            labels: "app=llama,tier=gold".into(),
            ports: vec![8000, 8001],
        };
        assert_eq!(selection(&new), Ok(expected));
        let old = json!({"spec": {"selector": {"app": "llama"}, "targetPortNumber": 8000}});
        let expected = Selection {
            labels: "app=llama".into(),
            ports: vec![8000],
        };
        assert_eq!(selection(&old), Ok(expected));
    }

    #[test]
    fn what_would_select_everything_or_nowhere_is_refused() {
        for (spec, word) in [
            (json!({"selector": {}, "targetPortNumber": 8000}), "every pod"),
            (
                json!({"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}),
                "every pod",
            ),
            (
                json!({"selector": {"app": 1}, "targetPortNumber": 8000}),
                "labels",
            ),
            (json!({"selector": {"app": "a"}}), "targetPorts"),
            (
                json!({"selector": {"app": "a"}, "targetPortNumber": 0}),
                "targetPorts",
            ),
            (
                json!({"selector": {"app": "a"}, "targetPortNumber": 70000}),
                "u16",
            ),
            (json!({"targetPortNumber": 8000}), "selector"),
        ] {
            let why = selection(&json!({ "spec": spec })).expect_err("refused");
            assert!(why.contains(word), "{spec}: {why}");
        }
        assert!(selection(&json!({})).is_err());
    }
}
