//! Objects of the API server, made as other controllers make them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_tests::cluster::{NAMESPACE, kubectl};
use serde_json::{Value, json};

/// A pool's name that no other test has.
pub(crate) fn unused_name() -> String {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    format!("pool-{}-{number}", std::process::id())
}

pub(crate) fn apply(object: &Value) {
    kubectl(&["apply", "-f", "-"], &object.to_string());
}

/// Removes an object; `kind` may have a version and a group.
pub(crate) fn delete(kind: &str, name: &str) {
    kubectl(&["delete", kind, name, "-n", NAMESPACE], "");
}

/// An InferencePool of the pods with the label `app`, which is its name.
pub(crate) fn create_pool(name: &str, port: u16) {
    apply(&json!({
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": "none", "port": {"number": 9002}},
        },
    }));
}

/// Creates pods of the pool that are ready; no kubelet is needed.
pub(crate) fn create_pods(pool: &str, pods: &[(usize, Ipv4Addr)]) {
    let list = |items: Vec<Value>| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let created = pods.iter().map(|(number, _)| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("{pool}-{number}"), "namespace": NAMESPACE, "labels": {"app": pool}},
            "spec": {"containers": [{"name": "server", "image": "none"}]},
        })
    });
    kubectl(&["create", "-f", "-"], &list(created.collect()));
    let ready = pods.iter().map(|(number, address)| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("{pool}-{number}"), "namespace": NAMESPACE},
            "status": {
                "phase": "Running",
                "podIP": address.to_string(),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    });
    let ready = list(ready.collect());
    kubectl(&["apply", "--server-side", "--subresource", "status", "-f", "-"], &ready);
}

pub(crate) fn delete_pod(pool: &str, number: usize) {
    let name = format!("{pool}-{number}");
    kubectl(&["delete", "pod", &name, "-n", NAMESPACE, "--force", "--grace-period", "0"], "");
}

/// Defines a kind of the group `llm-d.ai` that takes any content, unless the cluster has it.
pub(crate) fn define(kind: &str, plural: &str) {
    let name = format!("{plural}.llm-d.ai");
    if !kubectl(&["get", "crd", &name, "--ignore-not-found", "-o", "name"], "").is_empty() {
        return;
    }
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": "llm-d.ai",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{
                "name": "v1alpha2", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            }],
        },
    }));
    kubectl(&["wait", "--for", "condition=Established", "--timeout", "20s", "crd", &name], "");
}
