//! The source of the filter's module.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::clusters::{assignment, host};
use super::{Module, RemoteModule, seconds};
use crate::limits;

/// The cluster of the server of a [`RemoteModule`].
pub(crate) const CLUSTER: &str = "penstock~module";

/// The module in the plugin's configuration. Envoy takes no traffic on a listener before it has the module.
pub(super) fn code(module: &Module) -> Value {
    match module {
        Module::File(path) => json!({ "local": { "filename": path } }),
        Module::Remote(module) => json!({ "remote": {
            "http_uri": { "uri": url(module), "cluster": CLUSTER, "timeout": seconds(limits::MODULE_TIMEOUT) },
            "sha256": module.sha256,
            "retry_policy": {
                "num_retries": limits::MODULE_RETRIES,
                "retry_back_off": {
                    "base_interval": seconds(limits::MODULE_PAUSE),
                    "max_interval": seconds(limits::MODULE_PAUSE * 5),
                },
            },
        } }),
    }
}

fn url(module: &RemoteModule) -> String {
    let RemoteModule { host, port, path, .. } = module;
    if host.contains(':') {
        format!("http://[{host}]:{port}{path}")
    } else {
        format!("http://{host}:{port}{path}")
    }
}

/// The cluster from which Envoy fetches the module; `None`: it reads a file.
pub(crate) fn cluster(module: &Module) -> Option<Value> {
    let Module::Remote(module) = module else {
        return None;
    };
    let address = json!({ "socket_address": { "address": module.host, "port_value": module.port } });
    let is_address = module.host.parse::<IpAddr>().is_ok();
    Some(json!({
        "name": CLUSTER,
        "type": if is_address { "STATIC" } else { "STRICT_DNS" },
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_assignment": assignment(CLUSTER, vec![host(address)]),
    }))
}
