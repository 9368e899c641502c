//! `penstock demo`: a whole gateway in front of simulated servers, with the traffic of three tenants.
//!
//! The demo uses only what a user has: the gateway as `up` starts it, its HTTP pages, and HTTP clients. At the end it
//! compares the counts of clients, companion and servers, and fails unless every request is accounted for.

mod accounting;
mod client;
mod companion;
mod gateway;
mod screen;
mod share;
mod snapshot;
mod summary;
mod tally;
mod tenants;
#[cfg(test)]
mod tests;
mod text;
mod traffic;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use penstock_model_server::Hardware;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::mock_server::{self, Running};
use accounting::Accounting;
use companion::{Companion, Counts, Pool};
use screen::Screen;
use snapshot::Snapshot;
use tenants::TENANTS;
use traffic::Event;

/// Number of simulated servers.
const SERVERS: u64 = 3;
/// Time between two requests to the companion.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time for outstanding requests to end after the traffic stops: the queue's TTL, and some time to be served.
const DRAIN: Duration = Duration::from_secs(60);
/// Time for the companion to process the last ends, of which the clients know first.
const SETTLE: Duration = Duration::from_secs(5);
/// Grace period of the servers' shutdown, when no requests are left.
const GRACE: Duration = Duration::from_secs(1);

/// Run a gateway with simulated servers and the traffic of three tenants
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// End after this time, for example `20s`
    #[arg(long = "for", value_name = "T", value_parser = positive)]
    pub time: Option<Duration>,
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
    if time.is_zero() {
        Err("the time must be above 0".to_owned())
    } else {
        Ok(time)
    }
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
}

impl Error {
    /// The process' exit code: 2 for bad usage or configuration, 1 for a failure at run time.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Server(error) => error.exit_code(),
            Self::Gateway(gateway::Error::Up(error)) => error.exit_code(),
            Self::Gateway(gateway::Error::Directory(_))
            | Self::Client(_)
            | Self::Signals(_)
            | Self::Unaccounted(_) => 1,
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
        companion: addresses.companion.to_string(),
    };
    print(&format!("{addresses}try {}\n\n", curl(&site)));

    let screen = Screen::open(TENANTS.len(), servers.len());
    let result = match run_traffic(&site, &args, screen, &mut signals).await {
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
    companion: String,
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

/// Sends and shows the traffic until it has stopped and every outstanding request has ended.
async fn run_traffic(
    site: &Site,
    args: &Args,
    mut screen: Screen,
    signals: &mut Signals,
) -> Result<Snapshot, Error> {
    let (stop, stopping) = watch::channel(false);
    let url = format!("http://{}", site.gateway);
    let (mut events, mut tasks) = traffic::start(&url, &TENANTS, args.seed, &stopping)?;
    let mut pools = poll_companion(Companion::new(format!("http://{}", site.companion))?);
    let mut snapshot = Snapshot::new(&TENANTS);
    let start = Instant::now();
    let mut deadline = args.time.map(|time| start + time);
    let mut redraw = tokio::time::interval_at(start + screen.period(), screen.period());
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Sent(tenant)) => snapshot.tallies[tenant].sent(),
                Some(Event::Ended(tenant, ending)) => {
                    let counting = snapshot.is_counting();
                    snapshot.tallies[tenant].ended(ending, counting);
                }
                None => break,
            },
            Some(pool) = pools.recv() => {
                snapshot.elapsed = start.elapsed();
                snapshot.update(pool);
            }
            _ = redraw.tick() => screen.show(&snapshot),
            () = deadline_or_signal(deadline, signals) => {
                if snapshot.stopping {
                    // The second signal, or the drain time is over: outstanding requests are aborted, and the
                    // accounting will miss them.
                    tasks.abort_all();
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

/// Requests the pool's state regularly until the receiver is dropped. `None`: the companion didn't answer.
fn poll_companion(companion: Companion) -> mpsc::Receiver<Option<Pool>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if sender.send(companion.pool().await.ok()).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Compares the counts and prints the summary.
async fn finish(
    site: &Site,
    snapshot: Snapshot,
    servers: &[Running],
    companion_restarted: bool,
) -> Result<(), Error> {
    let companion = Companion::new(format!("http://{}", site.companion))?;
    let accounting = Accounting {
        clients: snapshot
            .tenants
            .iter()
            .map(|tenant| tenant.name)
            .zip(snapshot.tallies.iter().cloned())
            .collect(),
        companion: final_counts(&companion).await,
        companion_restarted,
        ..server_counts(servers).await
    };
    let mismatches = accounting.mismatches();
    print(&format!(
        "\n{}",
        summary::render(&snapshot, &accounting, &mismatches)
    ));
    if mismatches.is_empty() {
        Ok(())
    } else {
        Err(Error::Unaccounted(mismatches))
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

/// The companion's counts as soon as no request waits or runs, but at the latest after [`SETTLE`].
async fn final_counts(companion: &Companion) -> Option<Counts> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let counts = companion.counts().await.ok();
        let idle = counts
            .as_ref()
            .is_some_and(|counts| counts.stock == 0 && counts.waiting == 0);
        if idle || Instant::now() >= deadline {
            return counts;
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
