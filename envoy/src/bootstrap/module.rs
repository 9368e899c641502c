//! The filter's plugin: its module, which Envoy runs in a sandbox of WebAssembly or as native code, and its configuration.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::clusters::{assignment, host};
use super::{Code, Module, RemoteModule, Source, seconds};
use crate::limits;

/// The cluster of the server of a [`RemoteModule`].
pub(crate) const CLUSTER: &str = "penstock~module";

/// The filter's plugin in one listener.
pub(crate) struct Plugin<'a> {
    pub(super) module: &'a Module,
    /// What the module reads.
    pub(super) configuration: Value,
}

impl Plugin<'_> {
    /// What the module reads.
    pub(crate) fn keys(&self) -> &Value {
        &self.configuration
    }

    /// The HTTP filter.
    pub(crate) fn http_filter(&self) -> Value {
        let typed = match self.module.code {
            Code::Wasm => json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
                "config": self.in_vm(),
            }),
            Code::Native => json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
                "dynamic_module_config": self.code(),
                "filter_name": NAME,
                "filter_config": self.text(),
            }),
        };
        json!({ "name": NAME, "typed_config": typed })
    }

    /// An access log that the filter reads.
    pub(super) fn access_log(&self) -> Value {
        match self.module.code {
            Code::Wasm => json!({
                "name": "envoy.access_loggers.wasm",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.access_loggers.wasm.v3.WasmAccessLog",
                    "config": self.in_vm(),
                },
            }),
            Code::Native => json!({
                "name": "envoy.access_loggers.dynamic_modules",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.access_loggers.dynamic_modules.v3.DynamicModuleAccessLog",
                    "dynamic_module_config": self.code(),
                    "logger_name": NAME,
                    "logger_config": self.text(),
                },
            }),
        }
    }

    fn text(&self) -> Value {
        json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": self.configuration.to_string() })
    }

    /// The configuration of a plugin in a virtual machine.
    fn in_vm(&self) -> Value {
        json!({
            "name": NAME,
            "root_id": NAME,
            "failure_policy": "FAIL_RELOAD",
            // Required to pause a stream at its headers.
            "allow_on_headers_stop_iteration": true,
            // Both listeners share one VM on each worker, with a root context for each configuration.
            "vm_config": { "vm_id": NAME, "runtime": "envoy.wasm.runtime.v8", "code": self.code() },
            "configuration": self.text(),
        })
    }

    /// Where Envoy gets the module. It takes no traffic on a listener before it has the module.
    fn code(&self) -> Value {
        let data = match &self.module.source {
            Source::File(path) => json!({ "local": { "filename": path } }),
            Source::Server(module) => remote(module),
        };
        match self.module.code {
            Code::Wasm => data,
            // Unloading code that has run threads is never safe.
            Code::Native => json!({ "module": data, "do_not_close": true }),
        }
    }
}

/// The name of the plugin, of its filter and of its virtual machine.
pub(crate) const NAME: &str = "penstock";

fn remote(module: &RemoteModule) -> Value {
    json!({ "remote": {
            "http_uri": { "uri": url(module), "cluster": CLUSTER, "timeout": seconds(limits::MODULE_TIMEOUT) },
            "sha256": module.sha256,
            "retry_policy": {
                "num_retries": limits::MODULE_RETRIES,
                "retry_back_off": {
                    "base_interval": seconds(limits::MODULE_PAUSE),
                    "max_interval": seconds(limits::MODULE_PAUSE * 5),
                },
            },
        } })
}

/// The module's URL.
pub(crate) fn url(module: &RemoteModule) -> String {
    let RemoteModule { host, port, path, .. } = module;
    if host.contains(':') {
        format!("http://[{host}]:{port}{path}")
    } else {
        format!("http://{host}:{port}{path}")
    }
}

/// The cluster from which Envoy fetches the module; `None`: it reads a file.
pub(crate) fn cluster(module: &Module) -> Option<Value> {
    let Source::Server(module) = &module.source else { return None };
    let address = json!({ "socket_address": { "address": module.host, "port_value": module.port } });
    let is_address = module.host.parse::<IpAddr>().is_ok();
    Some(json!({
        "name": CLUSTER,
        "type": if is_address { "STATIC" } else { "STRICT_DNS" },
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_assignment": assignment(CLUSTER, vec![host(address)]),
    }))
}
