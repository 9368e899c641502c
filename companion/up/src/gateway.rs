//! A running gateway: the supervised companion and Envoy.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::select_all;
use penstock_config::Address;
use tokio::sync::{broadcast, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time;

use super::backend::warn_of_unreachable;
use super::inspect::Inspection;
use super::plan::Plan;
use super::readiness::ready;
use super::supervise::{Commands, End, Event, Part, Supervisor};
use super::{Error, Options};

/// Time from the start until the gateway is ready. Envoy compiles the filter for each worker, which takes long on a
/// busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Events that a slow receiver may be behind.
const EVENTS_MAX: usize = 64;

/// A gateway's addresses. The Display form is the output of `penstock up`: one address per line.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// For clients.
    pub gateway: SocketAddr,
    /// Clients connect with TLS.
    pub has_tls: bool,
    /// Envoy's admin interface.
    pub envoy_admin: SocketAddr,
    /// The first companion's HTTP API.
    pub companion: Address,
    /// The HTTP APIs of the further companions.
    pub further: Vec<Address>,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.has_tls { "https" } else { "http" };
        writeln!(f, "gateway {scheme}://{}", self.gateway)?;
        match &self.companion {
            Address::Tcp(address) => {
                writeln!(f, "dashboard http://{address}/\nmetrics http://{address}/metrics")?;
            }
            Address::Unix(path) => {
                let path = path.display();
                writeln!(f, "dashboard unix:{path} /\nmetrics unix:{path} /metrics")?;
            }
        }
        for (index, companion) in self.further.iter().enumerate() {
            let number = index + 2;
            match companion {
                Address::Tcp(address) => writeln!(f, "companion {number} http://{address}/")?,
                Address::Unix(path) => writeln!(f, "companion {number} unix:{} /", path.display())?,
            }
        }
        Ok(())
    }
}

/// A gateway. Dropping it kills its processes; [`Gateway::shutdown`] drains it first.
#[derive(Debug)]
pub struct Gateway {
    plan: Arc<Plan>,
    /// The gateway has been ready once, so a process that dies is restarted.
    restarts: Arc<AtomicBool>,
    /// At least one.
    companions: Vec<Supervised>,
    envoy: Supervised,
    /// The etcd that keeps the lease of the leader.
    etcd: Option<Supervised>,
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

    fn request_end(&self) {
        self.commands.send_modify(|commands| commands.end = commands.end.max(End::Gently));
    }

    async fn end(&mut self) {
        self.request_end();
        while self.task.join_next().await.is_some() {}
    }
}

impl Gateway {
    /// Chooses addresses, finds Envoy (downloading it if necessary), and starts all processes.
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
        let etcd = plan.etcd.is_some().then(|| supervise(Part::Etcd));
        let numbers = match plan.companions.len() {
            0 | 1 => 0..=0,
            several => 1..=several,
        };
        let companions = numbers.map(|number| supervise(Part::Companion(number))).collect();
        let envoy = supervise(Part::Envoy);
        tokio::spawn(warn_of_unreachable(plan.servers.clone()));
        let inspection = (!plan.backends.is_empty()).then(|| {
            let inspection = Inspection { backends: plan.backends.clone(), pool: plan.pool.clone() };
            tokio::spawn(inspection.run())
        });
        Ok(Self { inspection, plan, restarts, companions, envoy, etcd, events })
    }

    /// The addresses, known from the start.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        Addresses {
            gateway: self.plan.listen.gateway,
            has_tls: self.plan.listen.tls.is_some(),
            envoy_admin: self.plan.listen.envoy_admin,
            companion: self.plan.listen.http.clone(),
            further: self.plan.companions.iter().skip(1).map(|further| further.http.clone()).collect(),
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

    /// Waits until the gateway serves requests, which is when /readyz of the companion returns 200; of several companions,
    /// that of the leader.
    ///
    /// # Errors
    /// A process dies before, or the gateway isn't ready within a minute.
    pub async fn wait_ready(&mut self) -> Result<(), Error> {
        let mut last_answer = "the companion doesn't answer".to_owned();
        let ready = ready(&self.plan.companions, &mut last_answer);
        let processes = self.companions.iter_mut().chain([&mut self.envoy]).chain(&mut self.etcd);
        let died = select_all(processes.map(|process| Box::pin(process.died())));
        let result = tokio::select! {
            (error, ..) = died => return Err(error),
            result = time::timeout(READY_WITHIN, ready) => result,
        };
        if result.is_err() {
            return Err(Error::NotReady(READY_WITHIN, last_answer));
        }
        self.restarts.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes all companions reload their configuration.
    pub fn reload(&self) {
        for companion in &self.companions {
            companion.commands.send_modify(|commands| commands.reloads += 1);
        }
    }

    /// Kills a companion with SIGKILL, to show or test a takeover. It is restarted like one that died by itself. A number
    /// that no companion has does nothing. [`Event::Died`] reports the death.
    ///
    /// `number` counts from 1, in the order of [`Addresses`].
    pub fn kill_companion(&self, number: usize) {
        let companion = number.checked_sub(1).and_then(|index| self.companions.get(index));
        if let Some(companion) = companion {
            companion.commands.send_modify(|commands| commands.kills += 1);
        }
    }

    /// Where the leader's lease is kept, for a person to read; `None`: there is only one companion, or the configuration
    /// file names the store.
    #[must_use]
    pub fn lease(&self) -> Option<String> {
        self.plan.lease.as_ref().map(ToString::to_string)
    }

    /// Drains the gateway: waiting requests are rejected, running ones may end, then the processes end. Cancel-safe.
    pub async fn shutdown(&mut self) {
        // All at once, so that no standby takes over from the leader.
        self.companions.iter().for_each(Supervised::request_end);
        for companion in &mut self.companions {
            companion.end().await;
        }
        // Envoy ends after the companions, because it still delivers the drain's responses.
        self.envoy.end().await;
        if let Some(etcd) = &mut self.etcd {
            etcd.end().await;
        }
    }

    /// A handle that ends a running [`Self::shutdown`] early.
    #[must_use]
    pub fn drain_shortcut(&self) -> DrainShortcut {
        DrainShortcut {
            companions: self.companions.iter().map(|companion| companion.commands.clone()).collect(),
        }
    }
}

/// Ends a gateway's drain early.
#[derive(Clone, Debug)]
pub struct DrainShortcut {
    companions: Vec<watch::Sender<Commands>>,
}

impl DrainShortcut {
    /// The companions no longer wait for running requests.
    pub fn end_now(&self) {
        for companion in &self.companions {
            companion.send_modify(|commands| commands.end = End::Now);
        }
    }
}
