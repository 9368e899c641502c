//! `penstock demo`: a whole gateway in front of simulated servers, with the traffic of three tenants.
//!
//! The demo uses only what a user has: the gateway as `up` starts it, its HTTP pages, and HTTP clients. At the end it
//! compares the counts of clients, companion and servers, and fails unless every request is accounted for.

mod accounting;
mod client;
mod companion;
mod companions;
mod gateway;
mod screen;
mod share;
mod snapshot;
mod summary;
mod takeover;
mod takeover_report;
mod tally;
mod tenants;
#[cfg(test)]
mod tests;
mod text;
mod traffic;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::pin::pin;
use std::time::Duration;

use penstock_errors::Failure;
use penstock_model_server::Hardware;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::accounting::Accounting;
use self::companion::Counts;
use self::companions::{Companions, Sample};
use self::gateway::Gateway;
use self::screen::Screen;
use self::snapshot::Snapshot;
use self::takeover::{Kill, LOG_LINES, Takeover};
use self::tenants::TENANTS;
use crate::mock_server::{self, Running};

/// Number of simulated servers.
const SERVERS: u64 = 3;
/// Time between two requests to the companion.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time for outstanding requests to end after the traffic stops: the queue's TTL, and some time to be served.
const DRAIN: Duration = Duration::from_secs(60);
/// Time for the companion to process the last ends, of which the clients know first.
const SETTLE: Duration = Duration::from_secs(5);
/// When --kill-leader kills the leader, if --for doesn't limit the demo.
const KILL_AFTER: Duration = Duration::from_secs(10);
/// Grace period of the servers' shutdown, when no requests are left.
const GRACE: Duration = Duration::from_secs(1);

/// Run a gateway with simulated servers and the traffic of three tenants
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// End after this time, for example `20s`
    #[arg(long = "for", value_name = "T", value_parser = positive)]
    pub time: Option<Duration>,
    /// Run two companions and kill the one that leads: after a third of the time of --for, or after 10 s without --for
    #[arg(long)]
    pub kill_leader: bool,
    /// Seed of the traffic and the servers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Port of the gateway; 0 takes a free port
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub port: u16,
    /// Port of Envoy's admin interface; 0 takes a free port
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub admin_port: u16,
}

fn positive(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| format!("{error}; write `20s` or `5m`"))?;
    if time.is_zero() { Err("the time must be above 0".to_owned()) } else { Ok(time) }
}

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A simulated server didn't start.
    #[error("can't start a simulated server: {0}")]
    Server(#[from] mock_server::Error),
    /// The gateway didn't start.
    #[error(transparent)]
    Gateway(#[from] gateway::Error),
    /// The HTTP client can't be created.
    #[error("can't create the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// Signal handlers can't be installed.
    #[error("can't install signal handlers: {0}")]
    Signals(#[source] io::Error),
    /// Some counts don't agree.
    #[error("not every request is accounted for:\n  {}", .0.join("\n  "))]
    Unaccounted(Vec<String>),
    /// No companion took over from the leader, or requests were lost meanwhile.
    #[error("the takeover failed:\n  {}", .0.join("\n  "))]
    Takeover(Vec<String>),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        match self {
            Self::Server(error) => error.is_usage(),
            Self::Gateway(gateway::Error::Up(error)) => error.is_usage(),
            _ => false,
        }
    }
}

/// Runs until Ctrl-C, SIGTERM or the end of `--for`, then prints the summary.
///
/// # Errors
/// The demo can't start, or a request isn't accounted for.
pub async fn run(args: Args, environment: penstock_up::Environment) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let servers = servers(args.seed).await?;
    let mut gateway = tokio::select! {
        gateway = gateway::start(&servers, &args, environment) => gateway?,
        // A signal during the start ends the demo.
        () = signals.next() => return Ok(()),
    };
    let addresses = gateway.addresses();
    let site = Site {
        gateway: addresses.gateway.to_string(),
        companions: std::iter::once(&addresses.companion)
            .chain(&addresses.further)
            .map(ToString::to_string)
            .collect(),
    };
    print(&format!("{addresses}try {}\n\n", curl(&site)));

    let log = if args.kill_leader { LOG_LINES } else { 0 };
    let screen = Screen::open(TENANTS.len(), servers.len(), log);
    let killed = args.kill_leader.then_some(&gateway);
    let result = match run_traffic(&site, &args, screen, &mut signals, killed).await {
        Ok(snapshot) => finish(&site, snapshot, &servers, gateway.companion_restarted()).await,
        Err(error) => Err(error),
    };
    gateway.shutdown().await;
    for server in servers {
        server.shutdown(GRACE).await;
    }
    result
}

/// Addresses of the demo's gateway, each as `host:port`.
#[derive(Clone, Debug)]
struct Site {
    gateway: String,
    companions: Vec<String>,
}

/// Starts servers that the default watermark of 2 just keeps busy: six requests at a time, each of at most a second.
async fn servers(seed: u64) -> Result<Vec<Running>, mock_server::Error> {
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        let settings = mock_server::Settings {
            hardware: Hardware {
                alpha_ms: 6.0,
                beta_ms: 0.03,
                gamma_ms: 0.0003,
                noise: 0.03,
                ..Hardware::default()
            },
            output_tokens: tenants::OUTPUT_TOKENS,
            seed: seed.wrapping_mul(SERVERS).wrapping_add(number),
            ..mock_server::Settings::default()
        };
        servers.push(mock_server::start(settings).await?);
    }
    Ok(servers)
}

/// Sends and shows the traffic until it has stopped and every outstanding request has ended. `gateway` is the one whose
/// leader is killed; `None`: no companion is killed.
async fn run_traffic(
    site: &Site,
    args: &Args,
    mut screen: Screen,
    signals: &mut Signals,
    gateway: Option<&Gateway>,
) -> Result<Snapshot, Error> {
    let (stop, stopping) = watch::channel(false);
    let url = format!("http://{}", site.gateway);
    let mut traffic = traffic::start(&url, &TENANTS, args.seed, &stopping)?;
    let companions = Companions::new(&site.companions)?;
    let mut samples = poll_companions(companions.clone());
    let start = Instant::now();
    let kill_after = args.time.map_or(KILL_AFTER, |time| time / 3);
    let mut snapshot = Snapshot::new(&TENANTS);
    snapshot.takeover = gateway.map(|gateway| Takeover::new(start, kill_after, gateway.lease()));
    let mut killing = pin!(kill_leader(gateway, &companions, start + kill_after));
    let mut is_killed = false;
    let mut deadline = args.time.map(|time| start + time);
    let mut redraw = tokio::time::interval_at(start + screen.period(), screen.period());
    loop {
        screen.show_log(&snapshot);
        tokio::select! {
            event = traffic.events.recv() => match event {
                Some(event) => snapshot.count(event),
                None => break,
            },
            Some(sample) = samples.recv() => {
                snapshot.elapsed = start.elapsed();
                snapshot.sample(sample);
            }
            kill = &mut killing, if !is_killed && !snapshot.stopping => {
                is_killed = true;
                snapshot.leader_killed(kill);
                // A critical request now, so that the demo sees when the next leader grants.
                traffic.hurry.notify_one();
            }
            _ = redraw.tick() => screen.show(&snapshot),
            () = deadline_or_signal(deadline, signals) => {
                if snapshot.stopping {
                    // The second signal, or the drain time is over: outstanding requests are aborted, and the
                    // accounting will miss them.
                    traffic.tasks.abort_all();
                } else {
                    snapshot.stopping = true;
                    // Sending succeeds as long as a task runs.
                    let _ = stop.send(true);
                }
                deadline = Some(Instant::now() + DRAIN);
            }
        }
    }
    screen.close();
    Ok(snapshot)
}

async fn deadline_or_signal(deadline: Option<Instant>, signals: &mut Signals) {
    let time = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = time => {}
        () = signals.next() => {}
    }
}

/// Kills the companion that leads at this time, or the next one to lead.
async fn kill_leader(gateway: Option<&Gateway>, companions: &Companions, time: Instant) -> Kill {
    let Some(gateway) = gateway else {
        return std::future::pending().await;
    };
    tokio::time::sleep_until(time).await;
    loop {
        if let Some(leader) = companions.leader().await {
            return gateway.kill(leader).await;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Requests the pool's state regularly until the receiver is dropped.
fn poll_companions(companions: Companions) -> mpsc::Receiver<Sample> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if sender.send(companions.sample().await).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Compares the counts and prints the summary.
async fn finish(
    site: &Site,
    mut snapshot: Snapshot,
    servers: &[Running],
    companion_restarted: bool,
) -> Result<(), Error> {
    let companions = Companions::new(&site.companions)?;
    let counts = final_counts(&companions).await;
    let roles = match &mut snapshot.takeover {
        Some(takeover) => {
            let asked = Instant::now();
            let roles = final_roles(&companions).await;
            if let Some(leader) = companions::leader(&roles) {
                takeover.leads(leader, asked);
            }
            roles
        }
        None => Vec::new(),
    };
    let accounting = Accounting {
        clients: snapshot
            .tenants
            .iter()
            .map(|tenant| tenant.name)
            .zip(snapshot.tallies.iter().cloned())
            .collect(),
        companion: counts,
        companion_restarted,
        ..server_counts(servers).await
    };
    let mismatches = accounting.mismatches();
    print(&format!("\n{}", summary::render(&snapshot, &accounting, &mismatches, &roles)));
    if !mismatches.is_empty() {
        return Err(Error::Unaccounted(mismatches));
    }
    let lost = snapshot.lost();
    match snapshot.takeover.map(|takeover| takeover.failures(lost)) {
        Some(failures) if !failures.is_empty() => Err(Error::Takeover(failures)),
        Some(_) | None => Ok(()),
    }
}

/// The accounting with only the servers' counts.
async fn server_counts(servers: &[Running]) -> Accounting {
    let mut accounting = Accounting::default();
    for server in servers {
        accounting.servers.extend(server.stats().await);
        let served: BTreeMap<String, u64> = server.served_by_tenant().await.unwrap_or_default();
        for (tenant, count) in served {
            *accounting.served.entry(tenant).or_default() += count;
        }
    }
    accounting
}

/// The leader's counts as soon as no request waits or runs, but at the latest after [`SETTLE`].
async fn final_counts(companions: &Companions) -> Option<Counts> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let counts = companions.counts().await;
        let idle = counts.as_ref().is_some_and(|counts| counts.stock == 0 && counts.waiting == 0);
        if idle || Instant::now() >= deadline {
            return counts;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The companions' roles as soon as all of them answer, but at the latest after [`SETTLE`].
async fn final_roles(companions: &Companions) -> Vec<Option<String>> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let roles = companions.roles().await;
        if roles.iter().all(Option::is_some) || Instant::now() >= deadline {
            return roles;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn curl(site: &Site) -> String {
    // Not the demo's model, so that the accounting can distinguish these requests.
    let model = "any";
    format!(
        "curl -iN http://{}/v1/chat/completions -H 'content-type: application/json' -H 'x-penstock-tenant: you' \
         -d '{{\"model\":\"{model}\",\"stream\":true,\"max_tokens\":16,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'",
        site.gateway
    )
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A closed stdout is no reason to stop.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The signals that end the demo.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(Error::Signals)?,
            terminate: signal(SignalKind::terminate()).map_err(Error::Signals)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
