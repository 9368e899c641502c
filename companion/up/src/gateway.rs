//! A running gateway: the companion and Envoy, supervised.

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
    backend::warn_of_absent,
    inspect::Inspection,
    plan::Plan,
    supervise::{End, Event, Orders, Part, Supervisor},
};

/// From the first start to readiness: Envoy compiles the filter for each worker, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks at readiness.
const LOOK: Duration = Duration::from_millis(25);
/// Events that a slow reader may be behind.
const EVENTS: usize = 64;

/// Where a gateway is reached. Displayed as `penstock up` prints it, one address a line.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// For clients.
    pub gateway: SocketAddr,
    /// Envoy's admin interface.
    pub envoy_admin: SocketAddr,
    /// The companion's pages.
    pub companion: Address,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "gateway http://{}", self.gateway)?;
        match &self.companion {
            Address::Tcp(at) => writeln!(f, "dashboard http://{at}/\nmetrics http://{at}/metrics"),
            Address::Unix(path) => {
                let path = path.display();
                writeln!(f, "dashboard unix:{path} /\nmetrics unix:{path} /metrics")
            }
        }
    }
}

/// A gateway. Dropped, its processes are killed; [`Gateway::shutdown`] is the gentle way.
#[derive(Debug)]
pub struct Gateway {
    plan: Arc<Plan>,
    /// Has been ready once: what dies from then on is started again.
    established: Arc<AtomicBool>,
    companion: Supervised,
    envoy: Supervised,
    events: broadcast::Sender<Event>,
    inspection: Option<JoinHandle<String>>,
}

/// One process' supervisor: a set of one task, which ends with it.
#[derive(Debug)]
struct Supervised {
    orders: watch::Sender<Orders>,
    task: JoinSet<Result<(), Error>>,
}

impl Supervised {
    /// Why it ended although nobody told it to.
    async fn died(&mut self) -> Error {
        match self.task.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(())) | Err(_)) | None => Error::Interrupted,
        }
    }

    async fn end(&mut self) {
        self.orders
            .send_modify(|orders| orders.end = orders.end.max(End::Gently));
        while self.task.join_next().await.is_some() {}
    }
}

impl Gateway {
    /// Settles addresses, finds Envoy (downloading it if need be), and starts both processes.
    ///
    /// # Errors
    /// When something is missing or wrong; the message says what to do. Nothing runs then.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let plan = Arc::new(Plan::new(&options).await?);
        let established = Arc::<AtomicBool>::default();
        let (events, _) = broadcast::channel(EVENTS);
        let supervise = |part: Part| {
            let (orders, ordered) = watch::channel(Orders::default());
            let supervisor = Supervisor {
                part,
                plan: Arc::clone(&plan),
                flags: options.flags.clone(),
                established: Arc::clone(&established),
                orders: ordered,
                events: events.clone(),
            };
            let mut task = JoinSet::new();
            task.spawn(supervisor.run());
            Supervised { orders, task }
        };
        let companion = supervise(Part::Companion);
        let envoy = supervise(Part::Envoy);
        tokio::spawn(warn_of_absent(plan.servers.clone()));
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
            established,
            companion,
            envoy,
            events,
        })
    }

    /// Where it is reached; known from the start.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        Addresses {
            gateway: self.plan.listen.gateway,
            envoy_admin: self.plan.listen.envoy_admin,
            companion: self.plan.listen.http.clone(),
        }
    }

    /// What was found at model servers that no file describes, and what was decided on, for people; once.
    pub fn inspection(&mut self) -> Option<JoinHandle<String>> {
        self.inspection.take()
    }

    /// Starts and deaths of the processes, from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Waits until the first request will be served: the companion's /readyz says so.
    ///
    /// # Errors
    /// When a process dies before, or it takes more than a minute.
    pub async fn wait_ready(&mut self) -> Result<(), Error> {
        let mut answer = "it doesn't answer".to_owned();
        let look = ready(&self.plan.listen.http, &mut answer);
        let looked = tokio::select! {
            error = self.companion.died() => return Err(error),
            error = self.envoy.died() => return Err(error),
            looked = time::timeout(READY_WITHIN, look) => looked,
        };
        if looked.is_err() {
            return Err(Error::NotReady(READY_WITHIN, answer));
        }
        self.established.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Has the companion read its configuration again.
    pub fn reload(&self) {
        self.companion.orders.send_modify(|orders| orders.reloads += 1);
    }

    /// Drains: what is queued is refused, what runs may finish, then the processes end. Cancel-safe.
    pub async fn shutdown(&mut self) {
        self.companion.end().await;
        // Last, with the answers of the drain behind it.
        self.envoy.end().await;
    }

    /// What cuts a [`Self::shutdown`] short.
    #[must_use]
    pub fn hurry(&self) -> Hurry {
        Hurry {
            companion: self.companion.orders.clone(),
        }
    }
}

/// Ends a gateway's drain before its time.
#[derive(Clone, Debug)]
pub struct Hurry {
    companion: watch::Sender<Orders>,
}

impl Hurry {
    /// The companion no longer waits for what runs.
    pub fn now(&self) {
        self.companion.send_modify(|orders| orders.end = End::Now);
    }
}

/// Returns when the companion says 200; `answer` is what it said last.
async fn ready(at: &Address, answer: &mut String) {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(1));
    let (builder, url) = match at {
        Address::Tcp(at) => (builder, format!("http://{at}/readyz")),
        Address::Unix(path) => (
            builder.unix_socket(path.as_path()),
            "http://localhost/readyz".to_owned(),
        ),
    };
    let Ok(client) = builder.build() else {
        "no HTTP client".clone_into(answer);
        return std::future::pending().await;
    };
    loop {
        match client.get(&url).send().await {
            Ok(response) if response.status() == 200 => return,
            Ok(response) => *answer = response.text().await.unwrap_or_default(),
            // Not listening yet.
            Err(_) => {}
        }
        time::sleep(LOOK).await;
    }
}
