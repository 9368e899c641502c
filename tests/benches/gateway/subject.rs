//! The measured subjects: an Envoy with one worker, alone, with a filter, or with Penstock.

use std::net::SocketAddr;
use std::path::Path;

use penstock_envoy::find::Search;
use penstock_tests::pages::Pages;
use penstock_tests::process::cpu_time;
use penstock_tests::{Process, binary};
use tempfile::TempDir;
use tokio::process::Command;

use crate::bootstrap::{self, Bootstrap, free_port};
use crate::cores::{Cores, MEASURED, REST};
use crate::side::{Kind, Side};

/// Connections of the loads with many connections.
pub(crate) const CONNECTIONS: u32 = 50;

/// Places of the servers where every request shall wait. One place less than the number of connections is not few enough: many
/// connections have their request at the client or inside Envoy, and 98 % of the requests find a free place. With half as many places,
/// more than 99 % wait.
const PLACES: u32 = CONNECTIONS / 2;

/// The kind of gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Plain Envoy.
    Plain,
    /// With a wasm filter that does nothing.
    NoOp,
    /// With a wasm filter that reads requests as Penstock does.
    ParseOnly,
    /// Penstock, whose servers always have room: nothing waits.
    Penstock,
    /// Penstock, whose servers have [`PLACES`] places: everything waits.
    Queued,
    /// With a wasm filter that reads requests as Penstock does and makes a unary gRPC call for each.
    Unary,
    /// With Envoy's external processor.
    ExtProc,
}

impl Which {
    /// All kinds by name.
    pub(crate) const ALL: [(&str, Self); 7] = [
        ("plain", Self::Plain),
        ("no-op", Self::NoOp),
        ("parse-only", Self::ParseOnly),
        ("penstock", Self::Penstock),
        ("penstock-queued", Self::Queued),
        ("unary", Self::Unary),
        ("ext-proc", Self::ExtProc),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|which| which.1 == self)
            .map_or("", |which| which.0)
    }

    /// The filter example that it needs.
    pub(crate) fn example(self) -> Option<&'static str> {
        match self {
            Self::NoOp => Some("noop"),
            Self::ParseOnly => Some("parse"),
            Self::Unary => Some("unary"),
            Self::Plain | Self::Penstock | Self::Queued | Self::ExtProc => None,
        }
    }

    /// Starts the subject in front of a model server.
    ///
    /// # Panics
    /// With the logs, if it does not start.
    pub(crate) async fn start(self, server: SocketAddr) -> Subject {
        let wasm = |example| Some(bootstrap::wasm(&bootstrap::module(example)));
        match self {
            Self::Plain => Subject::envoy(self, bootstrap::before(server, None, None), None).await,
            Self::NoOp | Self::ParseOnly => {
                let filter = self.example().and_then(wasm);
                Subject::envoy(self, bootstrap::before(server, filter, None), None).await
            }
            Self::Unary => {
                let side = Side::start(Kind::Unary).await;
                let filter = self.example().and_then(wasm);
                let bootstrap = bootstrap::before(server, filter, Some(side.address));
                Subject::envoy(self, bootstrap, Some(side.process)).await
            }
            Self::ExtProc => {
                let side = Side::start(Kind::Processor).await;
                let filter = Some(bootstrap::external_processor());
                let bootstrap = bootstrap::before(server, filter, Some(side.address));
                Subject::envoy(self, bootstrap, Some(side.process)).await
            }
            Self::Penstock => Subject::penstock(self, server, "stock: {watermark_per_backend: 1000}").await,
            Self::Queued => Subject::penstock(self, server, &slots(PLACES)).await,
        }
    }
}

/// The key that gives a pool's servers exactly this many places.
pub(crate) fn slots(count: u32) -> String {
    format!(
        "stock: {{lower_bound_per_backend: {count}, upper_bound_per_backend: {count}, watermark_per_backend: {count}}}"
    )
}

/// CPU time used by a subject's processes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) envoy_us: f64,
    /// CPU of the companion, or of the server that is called instead.
    pub(crate) side_us: f64,
}

impl Cpu {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            envoy_us: self.envoy_us - before.envoy_us,
            side_us: self.side_us - before.side_us,
        }
    }
}

/// Requests that a companion admitted: bypassed and dispatched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) bypassed: f64,
    pub(crate) waited: f64,
}

/// One gateway under measurement.
pub(crate) struct Subject {
    pub(crate) which: Which,
    pub(crate) envoy: Process,
    /// The companion, or the server that is called instead.
    pub(crate) side: Option<Process>,
    /// The companion's pages, if there is a companion.
    pub(crate) pages: Option<Pages>,
    /// Envoy's admin pages.
    pub(crate) admin: Pages,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Subject {
    async fn envoy(which: Which, bootstrap: Bootstrap, side: Option<Process>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, bootstrap.document.to_string()).expect("write the bootstrap");
        let admin = Pages::at(format!("http://{}", bootstrap.admin));
        Self {
            which,
            envoy: launch(which.name(), &file, &admin, MEASURED).await,
            side,
            pages: None,
            admin,
            address: bootstrap.address,
            _folder: folder,
        }
    }

    /// Penstock: its own bootstrap, its filter, its companion. `stock` is a line of the one pool's configuration.
    pub(crate) async fn penstock(which: Which, server: SocketAddr, stock: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [address, admin] = [free_port(), free_port()];
        let companion = Companion::start(folder.path(), [address, admin], server, stock).await;
        let printed = std::process::Command::new(binary::penstock())
            .args(["envoy-config", "--config"])
            .arg(folder.path().join(CONFIG))
            .output()
            .expect("penstock runs");
        let said = String::from_utf8_lossy(&printed.stderr);
        assert!(printed.status.success(), "{said}");
        let bootstrap = folder.path().join("envoy.yaml");
        std::fs::write(&bootstrap, &printed.stdout).expect("write the bootstrap");
        let admin = Pages::at(format!("http://{admin}"));
        let envoy = launch(which.name(), &bootstrap, &admin, MEASURED).await;
        let Companion { process, pages, .. } = companion;
        answers("the companion is ready", &pages, "/readyz", &process).await;
        Self {
            which,
            envoy,
            side: Some(process),
            pages: Some(pages),
            admin,
            address,
            _folder: folder,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1/chat/completions", self.address)
    }

    /// Requests that the companion has admitted so far; `None` without a companion.
    pub(crate) async fn admitted(&self) -> Option<Admitted> {
        let page = self.pages.as_ref()?.metrics().await;
        let count = |outcome| page.sum("penstock_requests_total", &[("outcome", outcome)]);
        Some(Admitted {
            bypassed: count("bypassed"),
            waited: count("dispatched"),
        })
    }

    /// CPU time used so far.
    pub(crate) fn cpu(&self) -> Cpu {
        Cpu {
            envoy_us: cpu_us(&self.envoy),
            side_us: self.side.as_ref().map_or(0.0, cpu_us),
        }
    }
}

pub(crate) fn cpu_us(process: &Process) -> f64 {
    cpu_time(process.pid()).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

/// A companion's configuration, in its folder.
const CONFIG: &str = "penstock.yaml";

/// A running companion with one pool of one server.
pub(crate) struct Companion {
    pub(crate) process: Process,
    pub(crate) pages: Pages,
    pub(crate) grpc: SocketAddr,
}

impl Companion {
    /// Starts a companion for an Envoy with these addresses of the gateway and the admin interface.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub(crate) async fn start(
        folder: &Path,
        envoy: [SocketAddr; 2],
        server: SocketAddr,
        stock: &str,
    ) -> Self {
        let ([gateway, admin], grpc, http) = (envoy, free_port(), free_port());
        let config = format!(
            "listen: {{gateway: '{gateway}', envoy_admin: '{admin}', grpc: '{grpc}', http: '{http}'}}\npools:\n- name: p\n\
             \x20 endpoints: {{static: ['{server}']}}\n  health: {{path: null}}\n  scrape: {{path: null}}\n  {stock}\n\
             \x20 queue: {{total_capacity: 200000, flow_capacity: 200000, total_bytes: 8GiB, ttl: 15m}}\n"
        );
        let file = folder.join(CONFIG);
        std::fs::write(&file, config).expect("write the configuration");
        let mut serve = Command::new(binary::penstock());
        serve.args(["serve", "--log", "warn", "--config"]).arg(&file);
        REST.hold(&mut serve);
        let process = Process::start("companion", serve).await;
        let pages = Pages::at(format!("http://{http}"));
        answers("the companion lives", &pages, "/livez", &process).await;
        Self { process, pages, grpc }
    }
}

/// Waits until a page answers 200.
async fn answers(what: &str, pages: &Pages, path: &str, process: &Process) {
    penstock_tests::until(what, || async {
        let answer = pages.get(path).await;
        match answer {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("{}\n{}", answer.text(), process.tail())),
            Err(error) => Err(format!("{error}\n{}", process.tail())),
        }
    })
    .await;
}

/// Starts an Envoy with one worker and waits until it listens.
async fn launch(name: &str, bootstrap: &Path, admin: &Pages, cores: Cores) -> Process {
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
    answers(&format!("{name} is ready"), admin, "/ready", &process).await;
    process
}
