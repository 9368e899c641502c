//! What is measured: an Envoy with one worker, alone, with a filter that does nothing, or with Penstock.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use penstock_envoy::find::Search;
use penstock_tests::process::cpu_ticks;
use penstock_tests::{Process, binary};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

/// The core of the Envoy that is measured.
pub(crate) const MEASURED: Cores = Cores { from: 0, to: 1 };
/// The cores of everything else.
pub(crate) const REST: Cores = Cores { from: 1, to: 64 };

/// Microseconds of a clock tick of /proc.
const TICK_US: f64 = 10_000.0;

/// A range of the machine's cores.
#[derive(Clone, Copy)]
pub(crate) struct Cores {
    from: usize,
    to: usize,
}

impl Cores {
    /// Has a command run on these cores, if the machine has them.
    pub(crate) fn hold(self, command: &mut Command) {
        let there = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = self.from..self.to.min(there);
        if cores.is_empty() {
            return;
        }
        // SAFETY: the closure fills a set on its own stack and makes one system call.
        unsafe {
            command.pre_exec(move || {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                for core in cores.clone() {
                    libc::CPU_SET(core, &mut set);
                }
                match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
    }
}

/// CPU time used by a subject's processes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) envoy_us: f64,
    pub(crate) companion_us: f64,
}

impl Cpu {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            envoy_us: self.envoy_us - before.envoy_us,
            companion_us: self.companion_us - before.companion_us,
        }
    }
}

/// One gateway under measurement.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    address: SocketAddr,
    envoy: Process,
    companion: Option<Process>,
    _folder: TempDir,
}

/// The model server: an Envoy that answers at once.
pub(crate) async fn server() -> Subject {
    let body = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
        "usage": {"prompt_tokens": 240, "completion_tokens": 1, "total_tokens": 241},
    });
    let route = json!({
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": body.to_string()}},
        "response_headers_to_add": [{
            "header": {"key": "content-type", "value": "application/json"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }],
    });
    let address = free_port();
    let (admin, bootstrap) = document(address, &[], route, &[]);
    Subject::envoy("server", address, admin, &bootstrap, REST).await
}

impl Subject {
    /// Envoy as it is, with one cluster.
    pub(crate) async fn plain(server: &Self) -> Self {
        let address = free_port();
        let (admin, bootstrap) = document(address, &[], to_server(), &[cluster(server.address)]);
        Self::envoy("plain", address, admin, &bootstrap, MEASURED).await
    }

    /// The same with a wasm filter that lets everything pass.
    pub(crate) async fn no_op(server: &Self) -> Self {
        let filter = json!({
            "name": "no-op",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
                "config": {
                    "name": "no-op",
                    "root_id": "no-op",
                    "allow_on_headers_stop_iteration": true,
                    "vm_config": {
                        "vm_id": "no-op",
                        "runtime": "envoy.wasm.runtime.v8",
                        "code": {"local": {"filename": no_op_module()}},
                    },
                },
            },
        });
        let address = free_port();
        let (admin, bootstrap) = document(address, &[filter], to_server(), &[cluster(server.address)]);
        Self::envoy("no-op", address, admin, &bootstrap, MEASURED).await
    }

    /// Penstock: its own bootstrap, its filter, its companion.
    pub(crate) async fn penstock(server: &Self) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (address, admin, grpc, http) = (free_port(), free_port(), free_port(), free_port());
        let file = folder.path().join("penstock.yaml");
        let config = format!(
            "listen: {{gateway: '{address}', envoy_admin: '{admin}', grpc: '{grpc}', http: '{http}'}}\npools:\n- name: p\n\
             \x20 endpoints: {{static: ['{}']}}\n  health: {{path: null}}\n  stock: {{watermark_per_backend: 1000}}\n",
            server.address
        );
        std::fs::write(&file, config).expect("write the configuration");
        let printed = std::process::Command::new(binary::penstock())
            .args(["envoy-config", "--config"])
            .arg(&file)
            .output()
            .expect("penstock runs");
        assert!(
            printed.status.success(),
            "{}",
            String::from_utf8_lossy(&printed.stderr)
        );
        let mut serve = Command::new(binary::penstock());
        serve.args(["serve", "--log", "warn", "--config"]).arg(&file);
        REST.hold(&mut serve);
        let companion = Process::start("serve", serve).await;
        let bootstrap = folder.path().join("envoy.yaml");
        std::fs::write(&bootstrap, &printed.stdout).expect("write the bootstrap");
        let envoy = start("penstock", &bootstrap, admin, MEASURED).await;
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        penstock_tests::until("the companion is ready", || async {
            let response = client
                .get(format!("http://{http}/readyz"))
                .send()
                .await
                .map_err(|e| e.to_string())?;
            let status = response.status();
            if status == 200 {
                Ok(())
            } else {
                Err(response.text().await.unwrap_or_default())
            }
        })
        .await;
        Self {
            name: "penstock",
            address,
            envoy,
            companion: Some(companion),
            _folder: folder,
        }
    }

    async fn envoy(
        name: &'static str,
        address: SocketAddr,
        admin: SocketAddr,
        bootstrap: &Value,
        cores: Cores,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, bootstrap.to_string()).expect("write the bootstrap");
        let envoy = start(name, &file, admin, cores).await;
        Self {
            name,
            address,
            envoy,
            companion: None,
            _folder: folder,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1/chat/completions", self.address)
    }

    /// CPU time used so far.
    pub(crate) fn cpu(&self) -> Cpu {
        let us = |process: &Process| cpu_ticks(process.pid()).map_or(0.0, |ticks| ticks as f64 * TICK_US);
        Cpu {
            envoy_us: us(&self.envoy),
            companion_us: self.companion.as_ref().map_or(0.0, us),
        }
    }
}

/// Starts an Envoy with one worker and waits until it listens.
async fn start(name: &str, bootstrap: &Path, admin: SocketAddr, cores: Cores) -> Process {
    let mut command = Command::new(Search::here().find().expect("an Envoy").path);
    command.arg("--config-path").arg(bootstrap);
    command.args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]);
    cores.hold(&mut command);
    let process = Process::start(name, command).await;
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    penstock_tests::until(&format!("{name} is ready"), || async {
        let response = client.get(format!("http://{admin}/ready")).send().await;
        match response {
            Ok(response) if response.status() == 200 => Ok(()),
            other => Err(format!("{other:?}\n{}", process.tail())),
        }
    })
    .await;
    process
}

fn document(address: SocketAddr, filters: &[Value], route: Value, clusters: &[Value]) -> (SocketAddr, Value) {
    let admin = free_port();
    let mut filters = filters.to_vec();
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }));
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "AUTO",
        "use_remote_address": true,
        "http_filters": filters,
        "route_config": {"name": "bench", "virtual_hosts": [{"name": "bench", "domains": ["*"], "routes": [route]}]},
    });
    let bootstrap = json!({
        "admin": {"address": socket(admin)},
        "static_resources": {
            "listeners": [{
                "name": "bench",
                "address": socket(address),
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": manager,
                }]}],
            }],
            "clusters": clusters,
        },
    });
    (admin, bootstrap)
}

fn to_server() -> Value {
    json!({"match": {"prefix": "/"}, "route": {"cluster": "server", "timeout": "0s"}})
}

fn cluster(server: SocketAddr) -> Value {
    json!({
        "name": "server",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "server", "endpoints": [{"lb_endpoints": [
            {"endpoint": {"address": socket(server)}},
        ]}]},
    })
}

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address")
}

/// Builds the filter that does nothing, beside Penstock's own.
fn no_op_module() -> PathBuf {
    let target = binary::target_folder().join("filter-wasm");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = std::process::Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "penstock-filter",
            "--example",
            "noop",
        ])
        .args([
            "--profile",
            "wasm",
            "--target",
            "wasm32-unknown-unknown",
            "--target-dir",
        ])
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .current_dir(binary::workspace())
        .output()
        .expect("cargo runs");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    target.join("wasm32-unknown-unknown/wasm/examples/noop.wasm")
}
