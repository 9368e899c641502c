//! The measured subjects: an Envoy with one worker, alone, with a filter, or with Penstock.

use std::net::SocketAddr;
use std::path::Path;

use penstock_envoy::find::Search;
use penstock_live_studies::peers::{EndpointPicker, FlowControl, Programs};
use penstock_tests::pages::Pages;
use penstock_tests::ports::free_address;
use penstock_tests::process::cpu_time;
use penstock_tests::{Etcd, Process, binary};
use tempfile::TempDir;
use tokio::process::Command;

use crate::body;
use crate::bootstrap::{self, Bootstrap};
use crate::cores::{MEASURED, REST};
use crate::instructions;
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
    /// Penstock, whose servers always have room, with admission credits.
    Credits,
    /// The same, with the filter as native code.
    NativeCredits,
    /// Penstock, whose servers always have room, without admission credits: every request asks the companion, and nothing waits.
    Penstock,
    /// The same, with the filter as native code.
    NativePenstock,
    /// Penstock, whose servers have [`PLACES`] places: everything waits.
    Queued,
    /// Penstock as [`Self::Penstock`], with a second companion that stands by and a lease in etcd.
    Replicas,
    /// With a wasm filter that reads requests as Penstock does and makes a unary gRPC call for each.
    Unary,
    /// With Envoy's external processor.
    ExtProc,
    /// Penstock as an endpoint picker, by credit: Envoy loads no filter.
    Picker,
    /// With an endpoint picker of another project, whose program the command line names.
    EndpointPicker,
}

impl Which {
    /// All kinds by name.
    pub(crate) const ALL: [(&str, Self); 13] = [
        ("plain", Self::Plain),
        ("no-op", Self::NoOp),
        ("parse-only", Self::ParseOnly),
        ("penstock-credits", Self::Credits),
        ("native-credits", Self::NativeCredits),
        ("penstock", Self::Penstock),
        ("native", Self::NativePenstock),
        ("penstock-queued", Self::Queued),
        ("penstock-replicas", Self::Replicas),
        ("unary", Self::Unary),
        ("ext-proc", Self::ExtProc),
        ("picker", Self::Picker),
        ("epp", Self::EndpointPicker),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|which| which.1 == self).map_or("", |which| which.0)
    }

    /// Whether it is a gateway of Penstock.
    pub(crate) const fn is_penstock(self) -> bool {
        match self {
            Self::Credits
            | Self::NativeCredits
            | Self::Penstock
            | Self::NativePenstock
            | Self::Queued
            | Self::Replicas
            | Self::Picker => true,
            Self::Plain
            | Self::NoOp
            | Self::ParseOnly
            | Self::Unary
            | Self::ExtProc
            | Self::EndpointPicker => false,
        }
    }

    /// The value of `--filter` for a gateway of Penstock.
    pub(crate) const fn filter(self) -> &'static str {
        match self {
            Self::NativeCredits | Self::NativePenstock => "native",
            Self::Plain
            | Self::NoOp
            | Self::ParseOnly
            | Self::Credits
            | Self::Penstock
            | Self::Queued
            | Self::Replicas
            | Self::Unary
            | Self::ExtProc
            | Self::Picker
            | Self::EndpointPicker => "wasm",
        }
    }

    /// The filter example that it needs.
    pub(crate) fn example(self) -> Option<&'static str> {
        match self {
            Self::NoOp => Some("noop"),
            Self::ParseOnly => Some("parse"),
            Self::Unary => Some("unary"),
            Self::Plain
            | Self::Credits
            | Self::NativeCredits
            | Self::Penstock
            | Self::NativePenstock
            | Self::Queued
            | Self::Replicas
            | Self::ExtProc
            | Self::Picker
            | Self::EndpointPicker => None,
        }
    }

    /// Whether another project's program takes part, which the command line must name.
    pub(crate) fn is_peer(self) -> bool {
        self == Self::EndpointPicker
    }

    /// Starts the subject in front of a model server.
    ///
    /// # Panics
    /// With the logs, if it does not start.
    pub(crate) async fn start(self, server: SocketAddr, programs: &Programs, under: Under<'_>) -> Subject {
        let wasm = |example| Some(bootstrap::wasm(&bootstrap::module(example)));
        match self {
            Self::Plain => Subject::envoy(self, bootstrap::before(server, None, None), None, under).await,
            Self::NoOp | Self::ParseOnly => {
                let filter = self.example().and_then(wasm);
                Subject::envoy(self, bootstrap::before(server, filter, None), None, under).await
            }
            Self::Unary => {
                let side = Side::start(Kind::Unary).await;
                let filter = self.example().and_then(wasm);
                let bootstrap = bootstrap::before(server, filter, Some(side.address));
                Subject::envoy(self, bootstrap, Some(side.process), under).await
            }
            Self::ExtProc => {
                let side = Side::start(Kind::Processor).await;
                let filter = Some(bootstrap::external_processor());
                let bootstrap = bootstrap::before(server, filter, Some(side.address));
                Subject::envoy(self, bootstrap, Some(side.process), under).await
            }
            Self::Credits | Self::NativeCredits => {
                Subject::penstock(self, server, [ROOM, CREDITS], under).await
            }
            Self::Penstock | Self::NativePenstock => {
                Subject::penstock(self, server, [ROOM, NO_CREDITS], under).await
            }
            Self::Queued => Subject::penstock(self, server, [&slots(PLACES), NO_CREDITS], under).await,
            Self::Replicas => Subject::replicas(server, under).await,
            Self::Picker => Subject::picker(server, under).await,
            Self::EndpointPicker => {
                let program = programs.endpoint_picker.as_deref();
                let program = program.expect("the plan has its program");
                Subject::endpoint_picker(server, program, FlowControl::Off, under).await
            }
        }
    }
}

/// The key that gives a pool's servers always room.
const ROOM: &str = "scrape: {path: null}\n  stock: {watermark_per_backend: 1000}";

/// The key of `queue` that lets filters admit requests by themselves.
const CREDITS: &str = "credits: auto";
/// The one that makes every request ask the companion.
pub(crate) const NO_CREDITS: &str = "credits: off";

/// The key that gives a pool's servers exactly this many places.
pub(crate) fn slots(count: u32) -> String {
    format!(
        "scrape: {{path: null}}\n  stock: {{lower_bound_per_backend: {count}, upper_bound_per_backend: {count}, watermark_per_backend: {count}}}"
    )
}

/// CPU time used by a subject's processes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) envoy_us: f64,
    /// CPU of the companion, or of the server that is called instead.
    pub(crate) side_us: f64,
    /// CPU of the companion that stands by, if there is one.
    pub(crate) standby_us: f64,
}

impl Cpu {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            envoy_us: self.envoy_us - before.envoy_us,
            side_us: self.side_us - before.side_us,
            standby_us: self.standby_us - before.standby_us,
        }
    }
}

/// Requests that were admitted: by credit, bypassed and dispatched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) leased: f64,
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
    /// The companion that stands by, and the store of the lease.
    pub(crate) standby: Option<(Companion, Etcd)>,
    /// The other project's process that is called.
    pub(crate) picker: Option<EndpointPicker>,
    _folder: TempDir,
}

impl Subject {
    async fn envoy(which: Which, bootstrap: Bootstrap, side: Option<Process>, under: Under<'_>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, bootstrap.document.to_string()).expect("write the bootstrap");
        let admin = Pages::at(format!("http://{}", bootstrap.admin));
        Self {
            which,
            envoy: launch(which.name(), &file, &admin, under).await,
            side,
            pages: None,
            admin,
            address: bootstrap.address,
            standby: None,
            picker: None,
            _folder: folder,
        }
    }

    /// Penstock as an endpoint picker, with room for everything.
    async fn picker(server: SocketAddr, under: Under<'_>) -> Self {
        Self::picker_with(server, [ROOM, CREDITS], "", under).await
    }

    /// Penstock as an endpoint picker that learns how much its server takes, and believes tenants.
    pub(crate) async fn learning_picker(server: SocketAddr) -> Self {
        Self::picker_with(
            server,
            ["stock: {watermark_per_backend: auto}", CREDITS],
            "identity: {trust: all}\n",
            Under::Nothing,
        )
        .await
    }

    async fn picker_with(server: SocketAddr, pool: [&str; 2], keys: &str, under: Under<'_>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let asked = free_address();
        let keys = format!("picker: {{listen: '{asked}'}}\nstartup_wait: 1ms\n{keys}");
        let addresses = [free_address(), free_address(), free_address()];
        let companion = Companion::start_at(folder.path(), addresses, server, pool, &keys).await;
        let Companion { process, pages, .. } = companion;
        let bootstrap = bootstrap::before_picker(asked);
        let mut subject = Self::envoy(Which::Picker, bootstrap, Some(process), under).await;
        subject.pages = Some(pages);
        subject.picks().await;
        subject
    }

    /// An endpoint picker of another project. Waits until it forwards a request.
    pub(crate) async fn endpoint_picker(
        server: SocketAddr,
        program: &Path,
        flow_control: FlowControl,
        under: Under<'_>,
    ) -> Self {
        let grpc = free_address();
        let picker =
            EndpointPicker::start(program, grpc, server, flow_control, |command| REST.hold(command)).await;
        let mut subject =
            Self::envoy(Which::EndpointPicker, bootstrap::before_picker(grpc), None, under).await;
        subject.picker = Some(picker);
        subject.picks().await;
        subject
    }

    /// Waits until the endpoint picker forwards a request.
    async fn picks(&self) {
        let gateway = Pages::at(format!("http://{}", self.address));
        let log = || self.side().map(Process::tail).unwrap_or_default();
        penstock_tests::until("the endpoint picker picks", || async {
            let answer = gateway.try_post("/v1/chat/completions", &body::chat(body::SHORT)).await;
            match answer {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("status {}\n{}", answer.status, log())),
                Err(error) => Err(format!("{error}\n{}", log())),
            }
        })
        .await;
    }

    /// Penstock: its own bootstrap, its filter, its companion. `stock` is a line of the one pool's configuration, `credits` a key of
    /// its `queue`.
    pub(crate) async fn penstock(
        which: Which,
        server: SocketAddr,
        [stock, credits]: [&str; 2],
        under: Under<'_>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let envoy = [free_address(), free_address()];
        let companion = Companion::start(folder.path(), envoy, server, stock, credits).await;
        Self::before_companion(which, folder, envoy, (companion, None), under).await
    }

    /// Penstock with two companions.
    async fn replicas(server: SocketAddr, under: Under<'_>) -> Self {
        let (folder, other) = (tempfile::tempdir(), tempfile::tempdir());
        let (folder, other) = (folder.expect("a temporary folder"), other.expect("a temporary folder"));
        let etcd = Etcd::start().await;
        let (envoy, grpc) = ([free_address(), free_address()], [free_address(), free_address()]);
        let replicas = |own: SocketAddr| {
            let companions = [grpc[0].to_string(), grpc[1].to_string()].join("', '");
            format!(
                "replicas: {{companions: ['{companions}'], advertise: '{own}', lease: {{etcd: {{endpoints: ['{}']}}}}}}\n",
                etcd.url()
            )
        };
        let start = async |folder: &TempDir, grpc: SocketAddr| {
            let addresses = [envoy[0], envoy[1], grpc];
            Companion::start_at(folder.path(), addresses, server, [ROOM, NO_CREDITS], &replicas(grpc)).await
        };
        let leader = start(&folder, grpc[0]).await;
        leads(&leader).await;
        let standby = start(&other, grpc[1]).await;
        Self::before_companion(Which::Replicas, folder, envoy, (leader, Some((standby, etcd))), under).await
    }

    /// Starts the Envoy of a companion whose configuration is in `folder`.
    async fn before_companion(
        which: Which,
        folder: TempDir,
        [address, admin]: [SocketAddr; 2],
        (companion, standby): (Companion, Option<(Companion, Etcd)>),
        under: Under<'_>,
    ) -> Self {
        let printed = std::process::Command::new(binary::penstock())
            .args(["envoy-config", "--filter", which.filter(), "--config"])
            .arg(folder.path().join(CONFIG))
            .output()
            .expect("penstock runs");
        let said = String::from_utf8_lossy(&printed.stderr);
        assert!(printed.status.success(), "{said}");
        let bootstrap = folder.path().join("envoy.yaml");
        std::fs::write(&bootstrap, &printed.stdout).expect("write the bootstrap");
        let admin = Pages::at(format!("http://{admin}"));
        let envoy = launch(which.name(), &bootstrap, &admin, under).await;
        let Companion { process, pages, .. } = companion;
        answers("the companion is ready", &pages, "/readyz", &process).await;
        Self {
            which,
            envoy,
            side: Some(process),
            pages: Some(pages),
            admin,
            address,
            standby,
            picker: None,
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
        Some(Admitted { leased: count("leased"), bypassed: count("bypassed"), waited: count("dispatched") })
    }

    /// The process beside Envoy, if there is one.
    fn side(&self) -> Option<&Process> {
        let picker = self.picker.as_ref().map(|picker| &picker.process);
        self.side.as_ref().or(picker)
    }

    /// CPU time used so far.
    pub(crate) fn cpu(&self) -> Cpu {
        Cpu {
            envoy_us: cpu_us(&self.envoy),
            side_us: self.side().map_or(0.0, cpu_us),
            standby_us: (self.standby.as_ref()).map_or(0.0, |(standby, _)| cpu_us(&standby.process)),
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
        credits: &str,
    ) -> Self {
        let addresses = [envoy[0], envoy[1], free_address()];
        Self::start_at(folder, addresses, server, [stock, credits], "").await
    }

    /// Starts a companion that listens for filters at the third address, with further keys of the configuration.
    async fn start_at(
        folder: &Path,
        [gateway, admin, grpc]: [SocketAddr; 3],
        server: SocketAddr,
        [stock, credits]: [&str; 2],
        keys: &str,
    ) -> Self {
        let http = free_address();
        let config = format!(
            "listen: {{gateway: '{gateway}', envoy_admin: '{admin}', grpc: '{grpc}', http: '{http}'}}\n{keys}pools:\n- name: p\n\
             \x20 endpoints: {{static: ['{server}']}}\n  health: {{path: null}}\n  {stock}\n\
             \x20 queue: {{total_capacity: 200000, flow_capacity: 200000, total_bytes: 8GiB, ttl: 15m, {credits}}}\n"
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

/// Waits until a companion leads.
async fn leads(companion: &Companion) {
    penstock_tests::until("the first companion leads", || async {
        let page = companion.pages.get("/readyz").await?.json();
        if page["role"] == "leader" { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
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

/// What the measured Envoy runs under.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Under<'a> {
    /// Nothing.
    Nothing,
    /// Callgrind, which counts its instructions into files of this folder.
    Callgrind(&'a Path),
}

/// Starts an Envoy with one worker and waits until it listens.
async fn launch(name: &str, bootstrap: &Path, admin: &Pages, under: Under<'_>) -> Process {
    let envoy = Search::here().find().expect("an Envoy").path;
    let mut command = match under {
        Under::Nothing => Command::new(envoy),
        Under::Callgrind(folder) => instructions::counting(folder, &envoy),
    };
    command.arg("--config-path").arg(bootstrap);
    command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
    MEASURED.hold(&mut command);
    let process = Process::start(name, command).await;
    answers(&format!("{name} is ready"), admin, "/ready", &process).await;
    process
}
