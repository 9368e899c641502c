//! What is measured: an Envoy with one worker, alone, with one filter or another, or with Penstock.

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

/// Of the loads with many connections.
pub(crate) const CONNECTIONS: u32 = 50;

/// Of the servers where every request shall wait for another's end. One place less than there are connections isn't
/// few enough: of the connections many have their request at the client or inside Envoy, not at the server, and 98 % of the
/// requests find a place free. With half as many, more than 99 % wait.
const PLACES: u32 = CONNECTIONS / 2;

/// Which gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Envoy as it is.
    Plain,
    /// With a wasm filter that does nothing.
    NoOp,
    /// With a wasm filter that reads requests as Penstock does.
    ParseOnly,
    /// Penstock, whose servers always have room: nothing waits.
    Penstock,
    /// Penstock, whose servers have [`PLACES`] places: everything waits.
    Queued,
    /// With a wasm filter that reads requests as Penstock does and asks by a unary gRPC call each.
    Unary,
    /// With Envoy's external processor.
    ExtProc,
}

impl Which {
    /// All, by their names.
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
        Self::ALL.iter().find(|it| it.1 == self).map_or("", |it| it.0)
    }

    /// Of the filter's examples, the one that it needs.
    pub(crate) fn example(self) -> Option<&'static str> {
        match self {
            Self::NoOp => Some("noop"),
            Self::ParseOnly => Some("parse"),
            Self::Unary => Some("unary"),
            Self::Plain | Self::Penstock | Self::Queued | Self::ExtProc => None,
        }
    }

    /// Starts it before a model server.
    ///
    /// # Panics
    /// With the logs, when it doesn't start.
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

/// The key of a pool whose servers have exactly so many places.
pub(crate) fn slots(count: u32) -> String {
    format!(
        "stock: {{lower_bound_per_backend: {count}, upper_bound_per_backend: {count}, watermark_per_backend: {count}}}"
    )
}

/// CPU time used by a subject's processes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) envoy_us: f64,
    /// Of the companion, or of who is asked in its place.
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

/// Requests that a companion has let go: at once, and after they had waited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) bypassed: f64,
    pub(crate) waited: f64,
}

/// One gateway under measurement.
pub(crate) struct Subject {
    pub(crate) which: Which,
    pub(crate) envoy: Process,
    /// The companion, or who is asked in its place.
    pub(crate) side: Option<Process>,
    /// Of the companion, if there is one.
    pub(crate) pages: Option<Pages>,
    /// Envoy's own.
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

    /// What the companion has let go so far; none: there is no companion.
    pub(crate) async fn admitted(&self) -> Option<Admitted> {
        let page = self.pages.as_ref()?.metrics().await;
        let of = |outcome| page.sum("penstock_requests_total", &[("outcome", outcome)]);
        Some(Admitted {
            bypassed: of("bypassed"),
            waited: of("dispatched"),
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

/// A running companion with one pool of one server, which takes as many requests as may wait.
pub(crate) struct Companion {
    pub(crate) process: Process,
    pub(crate) pages: Pages,
    pub(crate) grpc: SocketAddr,
}

impl Companion {
    /// Starts one for an Envoy with these listeners, of the gateway and of its admin interface.
    ///
    /// # Panics
    /// With its log, when it doesn't start.
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

/// Waits until a page says that all is well.
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
