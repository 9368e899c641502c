//! An Envoy alone, with the bootstrap of `penstock envoy-config`, for a companion that starts and stops.
//!
//! The gateway's listener is read from a file, as from a control plane, so that a test can change it at run time.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use penstock_envoy::bootstrap::COMPANION_CLUSTER;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::pages::Pages;
use crate::process::Process;
use crate::variant::is_native;
use crate::wait::{soon, until};
use crate::{Companion, binary};

/// Worker threads of each Envoy.
pub const WORKERS: usize = 2;

/// Sessions of an Envoy with the filter as WebAssembly: one per worker and one of the main thread, for the gateway's listener and for the
/// internal requeue listener.
pub const WASM_SESSIONS: usize = 2 * (WORKERS + 1);
/// Sessions of an Envoy with the filter as native code: one per worker.
pub const NATIVE_SESSIONS: usize = WORKERS;

/// Sessions of one plugin configuration.
#[must_use]
pub fn sessions() -> usize {
    if is_native() { NATIVE_SESSIONS } else { WASM_SESSIONS / 2 }
}

/// Sessions of one Envoy.
#[must_use]
pub fn sessions_in_all() -> usize {
    if is_native() { NATIVE_SESSIONS } else { WASM_SESSIONS }
}

/// The value of `--filter` for WebAssembly, whatever the other Envoys run.
pub const WASM: &str = "wasm";

/// The listener's HTTP connection manager, as a JSON pointer.
const MANAGER: &str = "/filter_chains/0/filters/0/typed_config";
/// The plugin inside the filter, as a JSON pointer: as WebAssembly, and as native code, where it has only its configuration.
const PLUGIN: &str = "/typed_config/config";
const NATIVE_PLUGIN: &str = "/typed_config/filter_config";
/// The plugin inside the router's log of attempts, as a JSON pointer.
const ATTEMPTS: &str = "/typed_config/upstream_log/0/typed_config/config";

/// A running Envoy.
pub struct Envoy {
    /// Envoy's process.
    pub process: Process,
    gateway: SocketAddr,
    listener: Value,
    changes: usize,
    folder: TempDir,
}

impl Envoy {
    /// Starts an Envoy with this node name and waits until its sessions are open.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn start(companion: &Companion, node: &str) -> Self {
        Self::with_filter(companion, node, None).await
    }

    /// [`Self::start`] with another filter module; one of native code has the extension `.so`.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn with_filter(companion: &Companion, node: &str, module: Option<&Path>) -> Self {
        let envoy = Self::alone(companion, node, module, |_| ()).await;
        let is_native = module.map_or_else(is_native, |module| module.extension() == Some("so".as_ref()));
        companion.sessions(node, if is_native { NATIVE_SESSIONS } else { WASM_SESSIONS }).await;
        envoy
    }

    /// [`Self::start`] with a changed first plugin configuration, without waiting for sessions, as there may be no companion.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn alone(
        companion: &Companion,
        node: &str,
        module: Option<&Path>,
        edit: impl FnOnce(&mut Value),
    ) -> Self {
        Self::listening(companion, node, module, |listener| change_plugin(listener, edit)).await
    }

    /// [`Self::alone`] with any change to the gateway's listener.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn listening(
        companion: &Companion,
        node: &str,
        module: Option<&Path>,
        edit: impl FnOnce(&mut Value),
    ) -> Self {
        let bootstrap = bootstrap(companion.config(), node, module).await;
        Self::with_bootstrap(bootstrap, edit).await
    }

    /// Starts an Envoy that watches this folder for pools and endpoints, and waits until its sessions are open.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn watching(companion: &Companion, node: &str, endpoints: &Path) -> Self {
        let flags = ["--envoy".as_ref(), endpoints.as_os_str()];
        let bootstrap = bootstrap_with(companion.config(), node, &flags).await;
        let envoy = Self::with_bootstrap(bootstrap, |_| ()).await;
        companion.sessions(node, sessions_in_all()).await;
        envoy
    }

    /// Starts an Envoy whose bootstrap is printed for so many open files, and waits until its sessions are open.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn with_open_files(companion: &Companion, node: &str, open_files: u32) -> Self {
        let open_files = open_files.to_string();
        let flags = ["--open-files".as_ref(), open_files.as_ref()];
        let bootstrap = bootstrap_with(companion.config(), node, &flags).await;
        let envoy = Self::with_bootstrap(bootstrap, |_| ()).await;
        companion.sessions(node, sessions_in_all()).await;
        envoy
    }

    /// Starts an Envoy that fetches the filter's module from the companion, and waits until its sessions are open.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn fetching(companion: &Companion, node: &str, sha256: &str) -> Self {
        let mut bootstrap = bootstrap(companion.config(), node, None).await;
        let file = if is_native() { "penstock.so" } else { "penstock.wasm" };
        let remote = json!({
            "http_uri": {"uri": format!("http://companion/{file}"), "cluster": "module", "timeout": "10s"},
            "sha256": sha256,
        });
        replace_code(&mut bootstrap, &json!({ "remote": remote }));
        let socket = companion.folder().join("http");
        let address = json!({"pipe": {"path": socket}});
        let clusters = bootstrap["static_resources"]["clusters"].as_array_mut();
        clusters.expect("a list").push(json!({
            "name": "module",
            "load_assignment": {"cluster_name": "module", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]},
        }));
        let envoy = Self::with_bootstrap(bootstrap, |_| ()).await;
        companion.sessions(node, sessions_in_all()).await;
        envoy
    }

    /// Starts an Envoy that connects to companions from this address, without waiting for sessions.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn connecting_from(companion: &Companion, node: &str, source: IpAddr) -> Self {
        let mut bootstrap = bootstrap(companion.config(), node, None).await;
        let clusters = bootstrap["static_resources"]["clusters"].as_array_mut();
        let cluster = clusters
            .expect("a list")
            .iter_mut()
            .find(|cluster| cluster["name"] == COMPANION_CLUSTER)
            .expect("the companions' cluster");
        cluster["upstream_bind_config"] =
            json!({"source_address": {"address": source.to_string(), "port_value": 0}});
        Self::with_bootstrap(bootstrap, |_| ()).await
    }

    async fn with_bootstrap(mut bootstrap: Value, edit: impl FnOnce(&mut Value)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let listeners = bootstrap["static_resources"]["listeners"].as_array_mut().expect("a list");
        let position = listeners.iter().position(|listener| listener["name"] == "penstock-gateway");
        let mut listener = listeners.remove(position.expect("the gateway's listener"));
        edit(&mut listener);
        bootstrap["dynamic_resources"]["lds_config"] = json!({
            "resource_api_version": "V3",
            "path_config_source": {"path": folder.path().join("lds.json")},
        });
        let mut envoy = Self {
            process: launch(folder.path(), &bootstrap).await,
            gateway: ([127, 0, 0, 1], 0).into(),
            listener,
            changes: 0,
            folder,
        };
        envoy.publish();
        envoy.gateway = envoy.listens().await;
        envoy
    }

    /// The gateway's address.
    #[must_use]
    pub fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// The URL of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway)
    }

    /// Changes the listener's plugin configuration, which makes a new root context in the same VM, or natively a new one with sessions of its own.
    pub fn reconfigure(&mut self, edit: impl FnOnce(&mut Value)) {
        change_plugin(&mut self.listener, edit);
        self.publish();
    }

    /// Has Envoy make the filter anew: as WebAssembly in a new VM with the same id and so with the same shared data.
    pub fn reload(&mut self) {
        if let Some(vm) =
            http_filter(&mut self.listener, "penstock").pointer_mut(&format!("{PLUGIN}/vm_config"))
        {
            vm["configuration"] = json!({
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": format!("change {}", self.changes),
            });
        } else {
            // Any change of the filter chain makes its native filters anew.
            let manager = self.listener.pointer_mut(MANAGER).expect("the connection manager");
            manager["drain_timeout"] = json!(format!("{}s", 5 + self.changes));
        }
        self.publish();
    }

    /// Replaces the listener's file atomically.
    fn publish(&mut self) {
        self.changes += 1;
        // The log of attempts belongs to the filter's plugin only while both have the same configuration.
        if let Some(plugin) = http_filter(&mut self.listener, "penstock").pointer(PLUGIN).cloned() {
            let log = http_filter(&mut self.listener, "envoy.filters.http.router").pointer_mut(ATTEMPTS);
            *log.expect("the log's plugin") = plugin;
        }
        let mut listener = json!({"@type": "type.googleapis.com/envoy.config.listener.v3.Listener"});
        for (key, value) in self.listener.as_object().expect("a listener") {
            listener[key] = value.clone();
        }
        let document = json!({"version_info": self.changes.to_string(), "resources": [listener]});
        let new = self.folder.path().join("lds.new");
        std::fs::write(&new, document.to_string()).expect("write a file");
        std::fs::rename(&new, self.folder.path().join("lds.json")).expect("rename a file");
    }

    /// Waits until `count` client requests are in Envoy.
    pub async fn active(&self, count: usize) {
        until(&format!("{count} requests in Envoy"), || async {
            let page = self.stats("http.penstock.downstream_rq_active").await?;
            if number(&page, "http.penstock.downstream_rq_active") == Some(count) {
                Ok(())
            } else {
                Err(page)
            }
        })
        .await;
    }

    /// Waits until Envoy has accepted `count` connections of clients.
    pub async fn connections(&self, count: usize) {
        until(&format!("{count} connections in Envoy"), || async {
            let page = self.stats("http.penstock.downstream_cx_active").await?;
            if number(&page, "http.penstock.downstream_cx_active") == Some(count) {
                Ok(())
            } else {
                Err(page)
            }
        })
        .await;
    }

    /// Waits until the last change is active on every worker; the old listener may still drain.
    pub async fn changed(&self) {
        until("the changed listener", || async {
            let page = self.stats("listener_manager").await?;
            let changes = number(&page, "listener_manager.listener_in_place_updated");
            let leaving = number(&page, "listener_manager.total_filter_chains_draining");
            if changes == Some(self.changes - 1) && leaving > Some(0) { Ok(()) } else { Err(page) }
        })
        .await;
    }

    /// The counters and gauges whose names match.
    ///
    /// # Errors
    /// Without an answer of Envoy.
    pub async fn stats(&self, filter: &str) -> Result<String, String> {
        let page = self.admin()?.get(&format!("/stats?filter={filter}")).await?;
        Ok(page.text())
    }

    fn admin(&self) -> Result<Pages, String> {
        let path = self.folder.path().join("admin");
        let address = std::fs::read_to_string(path).map_err(|e| format!("{e}\n{}", self.process.tail()))?;
        Ok(Pages::at(format!("http://{}", address.trim())))
    }

    async fn listens(&self) -> SocketAddr {
        listens(self.folder.path(), &self.process, "penstock-gateway").await
    }
}

/// Waits until the Envoy of [`launch`] listens on the listener with this name, and returns its address.
pub(crate) async fn listens(folder: &Path, process: &Process, name: &str) -> SocketAddr {
    let path = folder.join("admin");
    until(&format!("Envoy's listener {name}"), || async {
        let admin = std::fs::read_to_string(&path).map_err(|e| format!("{e}\n{}", process.tail()))?;
        let pages = Pages::at(format!("http://{}", admin.trim()));
        let ready = pages.get("/ready").await?;
        let listeners = pages.get("/listeners?format=json").await?.json();
        let all = listeners["listener_statuses"].as_array().cloned().unwrap_or_default();
        let ours = all.iter().find(|listener| listener["name"] == name);
        let port =
            ours.and_then(|listener| listener["local_address"]["socket_address"]["port_value"].as_u64());
        match port.and_then(|port| u16::try_from(port).ok()) {
            Some(port) if ready.status == 200 => Ok(([127, 0, 0, 1], port).into()),
            _ => Err(format!("{} {listeners}\n{}", ready.text(), process.tail())),
        }
    })
    .await
}

/// Replaces the place of the module in every plugin configuration.
fn replace_code(value: &mut Value, code: &Value) {
    match value {
        Value::Object(map) => {
            if map.contains_key("runtime") && map.contains_key("code") {
                map.insert("code".into(), code.clone());
            }
            if map.contains_key("do_not_close") {
                map.insert("module".into(), code.clone());
            }
            map.values_mut().for_each(|value| replace_code(value, code));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| replace_code(value, code)),
        _ => {}
    }
}

fn number(page: &str, name: &str) -> Option<usize> {
    let mut lines = page.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

/// An HTTP filter of a listener, by its name.
fn http_filter<'a>(listener: &'a mut Value, name: &str) -> &'a mut Value {
    let manager = listener.pointer_mut(MANAGER).expect("the connection manager");
    let filters = manager["http_filters"].as_array_mut().expect("a list of filters");
    filters.iter_mut().find(|filter| filter["name"] == name).expect("the filter")
}

fn change_plugin(listener: &mut Value, edit: impl FnOnce(&mut Value)) {
    let filter = http_filter(listener, "penstock");
    let pointer = if filter.pointer(NATIVE_PLUGIN).is_some() {
        format!("{NATIVE_PLUGIN}/value")
    } else {
        format!("{PLUGIN}/configuration/value")
    };
    let place = filter.pointer_mut(&pointer).expect("the plugin configuration");
    let text = place.as_str().expect("the configuration is text");
    let mut plugin = serde_json::from_str(text).expect("it is JSON");
    edit(&mut plugin);
    *place = plugin.to_string().into();
}

/// The bootstrap of `penstock envoy-config`, with the admin interface on a free port.
async fn bootstrap(config: &Path, node: &str, module: Option<&Path>) -> Value {
    match module {
        Some(module) => bootstrap_with(config, node, &["--filter".as_ref(), module.as_os_str()]).await,
        None => bootstrap_with(config, node, &[]).await,
    }
}

async fn bootstrap_with(config: &Path, node: &str, flags: &[&OsStr]) -> Value {
    let mut command = Command::new(binary::penstock());
    command.arg("envoy-config").arg("--config").arg(config);
    if is_native() && !flags.contains(&"--filter".as_ref()) {
        command.args(["--filter", "native"]);
    }
    command.args(["--node", node]).args(flags);
    command.current_dir(binary::workspace());
    let printed = soon("a bootstrap", command.output()).await.expect("penstock runs");
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{said}");
    let text = String::from_utf8(printed.stdout).expect("text");
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Starts an Envoy with this bootstrap.
pub(crate) async fn launch(folder: &Path, bootstrap: &Value) -> Process {
    let file = folder.join("bootstrap.json");
    std::fs::write(&file, bootstrap.to_string()).expect("write a file");
    let mut command = Command::new(found().await);
    command.arg("--config-path").arg(file);
    command.arg("--admin-address-path").arg(folder.join("admin"));
    command.args(["--concurrency", &WORKERS.to_string()]);
    command.args(["--disable-hot-restart", "--log-level", "warning"]);
    // A changed listener drains quickly: each of its connections closes after its next response.
    command.args(["--drain-time-s", "5", "--drain-strategy", "immediate"]);
    Process::start("envoy", command).await
}

/// The Envoy that `penstock up` would find. A test program searches once.
pub(crate) async fn found() -> &'static Path {
    static FOUND: LazyLock<PathBuf> =
        LazyLock::new(|| penstock_envoy::find::Search::here().find().expect("an Envoy").path);
    tokio::task::spawn_blocking(|| FOUND.as_path()).await.expect("no panic")
}
