//! A running gateway: the supervised companion and Envoy.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use penstock_config::Address;
use tokio::{
    sync::{broadcast, watch},
    task::{JoinHandle, JoinSet},
    time,
};

use super::{
    Error, Options,
    backend::warn_of_unreachable,
    inspect::Inspection,
    plan::Plan,
    supervise::{Commands, End, Event, Part, Supervisor},
};

/// Time from the start until the gateway is ready. Envoy compiles the filter for each worker, which takes long on a
/// busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time between two checks of the readiness.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Events that a slow receiver may be behind.
const EVENTS_MAX: usize = 64;

/// A gateway's addresses. The Display form is the output of `penstock up`: one address per line.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// For clients.
    pub gateway: SocketAddr,
    /// Envoy's admin interface.
    pub envoy_admin: SocketAddr,
    /// The companion's HTTP API.
    pub companion: Address,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "gateway http://{}", self.gateway)?;
        match &self.companion {
            Address::Tcp(address) => {
                writeln!(f, "dashboard http://{address}/\nmetrics http://{address}/metrics")
            }
            Address::Unix(path) => {
                let path = path.display();
                writeln!(f, "dashboard unix:{path} /\nmetrics unix:{path} /metrics")
            }
        }
    }
}

/// A gateway. Dropping it kills its processes; [`Gateway::shutdown`] drains it first.
#[derive(Debug)]
pub struct Gateway {
    plan: Arc<Plan>,
    /// The gateway has been ready once, so a process that dies is restarted.
    restarts: Arc<AtomicBool>,
    companion: Supervised,
    envoy: Supervised,
    events: broadcast::Sender<Event>,
    inspection: Option<JoinHandle<String>>,
}

/// A process' supervisor, as a set of one task that is aborted on drop.
#[derive(Debug)]
struct Supervised {
    commands: watch::Sender<Commands>,
    task: JoinSet<Result<(), Error>>,
}

impl Supervised {
    /// Waits until the supervisor ends without a request, and returns the reason.
    async fn died(&mut self) -> Error {
        match self.task.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(())) | Err(_)) | None => Error::Interrupted,
        }
    }

    async fn end(&mut self) {
        self.commands
            .send_modify(|commands| commands.end = commands.end.max(End::Gently));
        while self.task.join_next().await.is_some() {}
    }
}

impl Gateway {
    /// Chooses addresses, finds Envoy (downloading it if necessary), and starts both processes.
    ///
    /// # Errors
    /// Something is missing or invalid. In that case no process runs.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let plan = Arc::new(Plan::new(&options).await?);
        let restarts = Arc::<AtomicBool>::default();
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let supervise = |part: Part| {
            let (commands, receiver) = watch::channel(Commands::default());
            let supervisor = Supervisor {
                part,
                plan: Arc::clone(&plan),
                flags: options.flags.clone(),
                restarts: Arc::clone(&restarts),
                commands: receiver,
                events: events.clone(),
            };
            let mut task = JoinSet::new();
            task.spawn(supervisor.run());
            Supervised { commands, task }
        };
        let companion = supervise(Part::Companion);
        let envoy = supervise(Part::Envoy);
        tokio::spawn(warn_of_unreachable(plan.servers.clone()));
        let inspection = (!plan.backends.is_empty()).then(|| {
            let inspection = Inspection {
                backends: plan.backends.clone(),
                pool: plan.pool.clone(),
            };
            tokio::spawn(inspection.run())
        });
        Ok(Self {
            inspection,
            plan,
            restarts,
            companion,
            envoy,
            events,
        })
    }

    /// The addresses, known from the start.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        Addresses {
            gateway: self.plan.listen.gateway,
            envoy_admin: self.plan.listen.envoy_admin,
            companion: self.plan.listen.http.clone(),
        }
    }

    /// The report about the servers of --backend and the defaults in use; `None` with --config, or if already taken.
    pub fn inspection(&mut self) -> Option<JoinHandle<String>> {
        self.inspection.take()
    }

    /// Subscribes to the processes' starts and deaths.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Waits until the gateway serves requests, which is when the companion's /readyz returns 200.
    ///
    /// # Errors
    /// A process dies before, or the gateway isn't ready within a minute.
    pub async fn wait_ready(&mut self) -> Result<(), Error> {
        let mut last_answer = "the companion doesn't answer".to_owned();
        let ready = ready(&self.plan.listen.http, &mut last_answer);
        let result = tokio::select! {
            error = self.companion.died() => return Err(error),
            error = self.envoy.died() => return Err(error),
            result = time::timeout(READY_WITHIN, ready) => result,
        };
        if result.is_err() {
            return Err(Error::NotReady(READY_WITHIN, last_answer));
        }
        self.restarts.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the companion reload its configuration.
    pub fn reload(&self) {
        self.companion
            .commands
            .send_modify(|commands| commands.reloads += 1);
    }

    /// Drains the gateway: waiting requests are rejected, running ones may end, then the processes end. Cancel-safe.
    pub async fn shutdown(&mut self) {
        self.companion.end().await;
        // Envoy ends last, because it still delivers the drain's responses.
        self.envoy.end().await;
    }

    /// A handle that ends a running [`Self::shutdown`] early.
    #[must_use]
    pub fn drain_shortcut(&self) -> DrainShortcut {
        DrainShortcut {
            companion: self.companion.commands.clone(),
        }
    }
}

/// Ends a gateway's drain early.
#[derive(Clone, Debug)]
pub struct DrainShortcut {
    companion: watch::Sender<Commands>,
}

impl DrainShortcut {
    /// The companion no longer waits for running requests.
    pub fn end_now(&self) {
        self.companion.send_modify(|commands| commands.end = End::Now);
    }
}

/// Returns when the companion's /readyz returns 200. `last_answer` is the last other response.
async fn ready(address: &Address, last_answer: &mut String) {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(1));
    let (builder, url) = match address {
        Address::Tcp(address) => (builder, format!("http://{address}/readyz")),
        Address::Unix(path) => (
            builder.unix_socket(path.as_path()),
            "http://localhost/readyz".to_owned(),
        ),
    };
    let Ok(client) = builder.build() else {
        "the HTTP client can't be created".clone_into(last_answer);
        return std::future::pending().await;
    };
    loop {
        match client.get(&url).send().await {
            Ok(response) if response.status() == 200 => return,
            Ok(response) => *last_answer = response.text().await.unwrap_or_default(),
            // The companion doesn't listen yet.
            Err(_) => {}
        }
        time::sleep(POLL_INTERVAL).await;
    }
}
