//! `penstock demo`: a whole gateway in front of simulated servers, under the traffic of three tenants.
//!
//! It uses what a user has: the gateway as `up` starts it, its HTTP pages, and HTTP clients. It ends by comparing
//! what clients, companion and servers counted, and fails if a single request isn't accounted for.

mod books;
mod client;
mod gateway;
mod look;
mod scene;
mod screen;
mod share;
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
use books::Books;
use look::{Companion, Counts, Pool};
use scene::Scene;
use screen::Screen;
use tenants::TENANTS;
use traffic::Event;

/// Servers behind the gateway.
const SERVERS: u64 = 3;
/// Between two looks at the companion.
const LOOK: Duration = Duration::from_millis(200);
/// What is out when traffic stops has so long to end: the queue's ttl and a while to be served.
const DRAIN: Duration = Duration::from_secs(60);
/// The companion learns of the last ends a moment after the clients.
const SETTLE: Duration = Duration::from_secs(5);
/// Servers have nothing left to do when they are stopped.
const GRACE: Duration = Duration::from_secs(1);

/// A whole gateway with simulated servers and the traffic of three tenants.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Ends by itself after this time, `20s` for example
    #[arg(long = "for", value_name = "T", value_parser = positive)]
    pub time: Option<Duration>,
    /// Seed of the traffic and of the servers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Port of the gateway; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub port: u16,
    /// Port of Envoy's admin interface; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub admin_port: u16,
}

fn positive(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| format!("{e}; write `20s` or `5m`"))?;
    if time.is_zero() {
        Err("it must be above 0".to_owned())
    } else {
        Ok(time)
    }
}

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A simulated server didn't start.
    #[error("a simulated server: {0}")]
    Server(#[from] mock_server::Error),
    /// The gateway didn't start.
    #[error(transparent)]
    Gateway(#[from] gateway::Error),
    /// The HTTP client can't be made.
    #[error("the demo's HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// Signals can't be waited for.
    #[error("can't wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// Some counts don't fit.
    #[error("not every request is accounted for:\n  {}", .0.join("\n  "))]
    Unaccounted(Vec<String>),
}

impl Error {
    /// 2: bad usage or configuration, 1: failed at run time.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Server(error) => error.exit_code(),
            Self::Gateway(gateway::Error::Up(error)) => error.exit_code(),
            Self::Gateway(gateway::Error::Folder(_))
            | Self::Client(_)
            | Self::Signals(_)
            | Self::Unaccounted(_) => 1,
        }
    }
}

/// Runs until Ctrl-C, SIGTERM or the end of `--for`; then the summary is printed.
///
/// # Errors
/// It can't start, or a request isn't accounted for.
pub async fn run(args: Args) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let servers = servers(args.seed).await?;
    let mut gateway = tokio::select! {
        gateway = gateway::start(&servers, &args) => gateway?,
        // The user changed their mind before it began.
        () = signals.next() => return Ok(()),
    };
    let addresses = gateway.addresses();
    let site = Site {
        gateway: addresses.gateway.to_string(),
        companion: addresses.companion.to_string(),
    };
    say(&format!("{addresses}try {}\n\n", curl(&site)));

    let screen = Screen::open(TENANTS.len(), servers.len());
    let played = play(&site, &args, screen, &mut signals).await;
    let finished = match played {
        Ok(scene) => finish(&site, scene, &servers, gateway.companion_restarted()).await,
        Err(error) => Err(error),
    };
    gateway.shutdown().await;
    for server in servers {
        server.shutdown(GRACE).await;
    }
    finished
}

/// Where the demo's gateway is, each as `host:port`.
#[derive(Clone, Debug)]
struct Site {
    gateway: String,
    companion: String,
}

/// Servers that the default watermark of 2 keeps busy and not more: six requests of a second each or less.
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

/// Sends traffic and shows it, until it is over and everything that was out has ended.
async fn play(site: &Site, args: &Args, mut screen: Screen, signals: &mut Signals) -> Result<Scene, Error> {
    let (stop, stopping) = watch::channel(false);
    let url = format!("http://{}", site.gateway);
    let (mut events, mut tasks) = traffic::start(&url, &TENANTS, args.seed, &stopping)?;
    let mut looks = look_again(Companion::new(format!("http://{}", site.companion))?);
    let mut scene = Scene::new(&TENANTS);
    let began = Instant::now();
    // Far away stands for never.
    let mut ends = began + args.time.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    let mut redraw = tokio::time::interval_at(began + screen.period(), screen.period());
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Sent(place)) => scene.tallies[place].sent(),
                Some(Event::Ended(place, ending)) => {
                    let counting = scene.counting();
                    scene.tallies[place].ended(ending, counting);
                }
                None => break,
            },
            Some(pool) = looks.recv() => {
                scene.elapsed = began.elapsed();
                scene.saw(pool);
            }
            _ = redraw.tick() => screen.show(&scene),
            () = ended(ends, signals) => {
                if scene.stopping {
                    // The second time: what is out is given up, and will be missing in the books.
                    tasks.abort_all();
                } else {
                    scene.stopping = true;
                    // The tasks hold receivers until they have ended.
                    let _ = stop.send(true);
                }
                ends = Instant::now() + DRAIN;
            }
        }
    }
    screen.close();
    Ok(scene)
}

async fn ended(at: Instant, signals: &mut Signals) {
    tokio::select! {
        () = tokio::time::sleep_until(at) => {}
        () = signals.next() => {}
    }
}

/// Looks at the companion again and again, as long as somebody listens.
fn look_again(companion: Companion) -> mpsc::Receiver<Option<Pool>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut every = tokio::time::interval(LOOK);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            if sender.send(companion.pool().await.ok()).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Compares the books and prints the summary.
async fn finish(
    site: &Site,
    scene: Scene,
    servers: &[Running],
    companion_restarted: bool,
) -> Result<(), Error> {
    let companion = Companion::new(format!("http://{}", site.companion))?;
    let books = Books {
        clients: scene
            .tenants
            .iter()
            .map(|t| t.name)
            .zip(scene.tallies.iter().cloned())
            .collect(),
        companion: settled(&companion).await,
        companion_restarted,
        ..served(servers).await
    };
    let misfits = books.misfits();
    say(&format!("\n{}", summary::write(&scene, &books, &misfits)));
    if misfits.is_empty() {
        Ok(())
    } else {
        Err(Error::Unaccounted(misfits))
    }
}

/// The servers' part of the books.
async fn served(servers: &[Running]) -> Books {
    let mut books = Books::default();
    for server in servers {
        books.servers.extend(server.stats().await);
        let served: BTreeMap<String, u64> = server.served_by_tenant().await.unwrap_or_default();
        for (tenant, count) in served {
            *books.served.entry(tenant).or_default() += count;
        }
    }
    books
}

/// The companion's counts, once nothing waits or runs any more, or as they are after [`SETTLE`].
async fn settled(companion: &Companion) -> Option<Counts> {
    let until = Instant::now() + SETTLE;
    loop {
        let counts = companion.counts().await.ok();
        let settled = counts.as_ref().is_some_and(|c| c.stock == 0 && c.waiting == 0);
        if settled || Instant::now() >= until {
            return counts;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn curl(site: &Site) -> String {
    // Another model than the demo's, so that it can be told apart in the books.
    let model = "any";
    format!(
        "curl -iN http://{}/v1/chat/completions -H 'content-type: application/json' -H 'x-penstock-tenant: you' \
         -d '{{\"model\":\"{model}\",\"stream\":true,\"max_tokens\":16,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'",
        site.gateway
    )
}

fn say(text: &str) {
    let mut out = io::stdout().lock();
    // Who closed our standard output doesn't want to know.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The two signals that end the demo.
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
