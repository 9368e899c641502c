//! Reads the metrics pages of the model servers, and sends their contents to the driver.
//!
//! One task for each endpoint. A server that doesn't answer, or sends an endless page, costs only its task a limited
//! amount of memory and delays nothing else. Values count until `stale_after`; then the driver gets one event without
//! values. The log has a line whenever a page becomes readable or unreadable.

mod adapters;
mod line;
mod page;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use penstock_config::{Config, Scrape, Upstream, read_secret};
use penstock_control::{Event, PoolEvent, Scraped};
use penstock_errors::root_cause;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::page::{Page, TooLong};
use crate::base::check_failures::{Check, CheckFailures};
use crate::base::essential;
use crate::checks::endpoint_tasks::{self, EndpointTasks, Place};
use crate::checks::server_client::{Route, ServerClient};
use crate::decisions::driver::Handle;
use crate::metrics::Metrics;

/// How long a server with an unusable page isn't read again.
const UNUSABLE_RETRY: Duration = Duration::from_secs(30);
/// After a client has left, its server's page is read so much later: a server needs a moment to notice it, and several clients may leave
/// together.
const AFTER_CLIENT_LEFT: Duration = Duration::from_millis(100);

/// The tasks that read metrics.
#[derive(Debug)]
pub(crate) struct Readers {
    driver: Handle,
    metrics: Arc<Metrics>,
    failures: CheckFailures,
    tasks: EndpointTasks<(Scrape, Route)>,
}

impl Readers {
    /// No readers yet.
    pub(crate) fn new(driver: Handle, metrics: Arc<Metrics>, failures: CheckFailures) -> Self {
        Self { driver, metrics, failures, tasks: EndpointTasks::default() }
    }

    /// Reads the metrics of exactly the endpoints whose pools have scraping. New readers are spread over their interval.
    /// An endpoint that is no longer read has no known values.
    pub(crate) async fn follow(&mut self, config: &Config) {
        let (driver, metrics, failures) = (&self.driver, &self.metrics, &self.failures);
        let stopped = self.tasks.follow(
            config,
            |pool| pool.scrape.clone().map(|scrape| (scrape.clone(), route(&scrape, &pool.upstream))),
            |pool, address, (scrape, route), Place { index, count }| {
                let begin = Instant::now() + scrape.interval / count.max(1) * index;
                let early = metrics.early_reads.listen(&pool, &address);
                let reader = Reader { route, pool, address, scrape, early, failures: failures.clone() };
                essential::spawn("metrics of model servers", reader.run(begin, driver.clone()))
            },
        );
        // Without metrics, an engine counts as awake. The second event withdraws the values of the first one.
        for scraped in [Some(Scraped::default()), None] {
            let event =
                |(pool, address)| Event::Pool(pool, PoolEvent::Scraped { address, scraped, adapters: None });
            endpoint_tasks::notify_stopped(driver, stopped.clone(), event).await;
        }
    }
}

/// The way to the page. On another port than the requests', it has nothing of theirs: the process there may be another one, and the credential isn't for it.
fn route(scrape: &Scrape, upstream: &Upstream) -> Route {
    let mut route = match scrape.port {
        None => Route::of_requests(upstream),
        Some(_) => Route { tls: None, http2: false, headers: Vec::new() },
    };
    if let Some(tls) = &scrape.tls {
        route.tls = Some(tls.clone());
    }
    route
}

/// Why a page can't be used.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Http(String),
    #[error("the server answers {0}")]
    Status(StatusCode),
    #[error("no answer in time")]
    Slow,
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("the page has none of the series of vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI or Ray Serve")]
    Unknown,
}

impl Failure {
    /// The next attempt will fail in the same way.
    fn is_lasting(&self) -> bool {
        match self {
            Self::Status(status) => !status.is_server_error() || *status == StatusCode::NOT_IMPLEMENTED,
            Self::TooLong(_) | Self::Unknown => true,
            Self::Http(_) | Self::Slow => false,
        }
    }
}

/// The contents of a page.
struct Answer {
    scraped: Scraped,
    /// Adapters in memory, by their model names; `None`: the page doesn't list them.
    adapters: Option<Box<[Box<str>]>>,
}

/// Reads one endpoint's page periodically.
struct Reader {
    route: Route,
    pool: Arc<str>,
    address: String,
    scrape: Scrape,
    /// The page shall be read before its time.
    early: Arc<Notify>,
    failures: CheckFailures,
}

impl Reader {
    async fn run(self, begin: Instant, driver: Handle) {
        let Ok(mut socket) = self.address.parse::<SocketAddr>() else { return };
        if let Some(port) = self.scrape.port {
            socket.set_port(port);
        }
        let mut client = ServerClient::new(socket, self.route.clone());
        let url = client.url(&self.scrape.path);
        let mut next = begin;
        let mut state = State::new(self.scrape.stale_after);
        let mut was_asleep = false;
        loop {
            let stale = async {
                match state.stale_at() {
                    Some(instant) => tokio::time::sleep_until(instant).await,
                    None => std::future::pending().await,
                }
            };
            let is_due = tokio::select! {
                () = self.early.notified() => {
                    next = next.min(Instant::now() + AFTER_CLIENT_LEFT);
                    continue;
                }
                () = tokio::time::sleep_until(next) => true,
                () = stale => false,
            };
            let asked = Instant::now();
            let answer = if is_due {
                next = asked + self.scrape.interval;
                let deadline = state.stale_at().unwrap_or_else(|| asked + self.scrape.stale_after);
                // However many clients leave meanwhile.
                tokio::time::timeout_at(deadline, self.read(&mut client)).await.unwrap_or(Err(Failure::Slow))
            } else {
                Err(Failure::Slow)
            };
            if answer.as_ref().is_err_and(Failure::is_lasting) {
                next = Instant::now() + UNUSABLE_RETRY.max(self.scrape.interval);
            }
            let scraped =
                answer.as_ref().ok().map(|page| Scraped { asked_ago: asked.elapsed(), ..page.scraped });
            let adapters = answer.as_ref().ok().and_then(|page| page.adapters.clone());
            let why = answer.err().map(|failure| failure.to_string());
            self.failures.set(&self.pool, &self.address, Check::Metrics, why.as_deref());
            if let Some(scraped) = &scraped {
                was_asleep = self.log_sleep(was_asleep, scraped.is_asleep == Some(true));
            }
            match state.update(Instant::now(), scraped.is_some()) {
                Change::Nothing => continue,
                Change::StillRead => {}
                Change::Readable => {
                    tracing::info!(pool = %self.pool, endpoint = self.address, "metrics of the endpoint are read");
                }
                Change::Stale | Change::NeverRead => {
                    let why = why.unwrap_or_default();
                    tracing::warn!(
                        pool = %self.pool,
                        endpoint = self.address,
                        why,
                        "metrics of the endpoint can't be read ({url}): its cache usage and the load from other clients \
                         are unknown; check scrape.path and scrape.port"
                    );
                }
            }
            let event = Event::Pool(
                self.pool.clone(),
                PoolEvent::Scraped { address: self.address.clone(), scraped, adapters },
            );
            if driver.send(event).await.is_err() {
                return;
            }
        }
    }

    /// Logs that the engine fell asleep or woke up. Returns `is_asleep`.
    fn log_sleep(&self, was_asleep: bool, is_asleep: bool) -> bool {
        let (pool, endpoint) = (&*self.pool, &*self.address);
        match (was_asleep, is_asleep) {
            (false, true) => tracing::warn!(
                pool,
                endpoint,
                "endpoint not ready: its engine sleeps; it gets no requests until POST /wake_up wakes it up"
            ),
            (true, false) => tracing::info!(pool, endpoint, "the engine of the endpoint is awake again"),
            (true, true) | (false, false) => {}
        }
        is_asleep
    }

    async fn read(&self, client: &mut ServerClient) -> Result<Answer, Failure> {
        let mut headers = vec![(header::ACCEPT, HeaderValue::from_static("text/plain; version=0.0.4"))];
        if let Some(file) = &self.scrape.token_file {
            headers.push((header::AUTHORIZATION, token(file).await?));
        }
        let answer = client.get(&self.scrape.path, &headers).await.map_err(Failure::Http)?;
        if answer.status() != StatusCode::OK {
            return Err(Failure::Status(answer.status()));
        }
        let mut body = answer.into_body();
        let mut page = Page::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::Http(root_cause(&error)))?;
            if let Some(chunk) = frame.data_ref() {
                page.add(chunk)?;
            }
        }
        let adapters = page.adapters();
        let scraped = page.finish().ok_or(Failure::Unknown)?;
        Ok(Answer { scraped, adapters })
    }
}

/// The header with the token in this file.
async fn token(file: &Path) -> Result<HeaderValue, Failure> {
    let file = file.to_owned();
    let read = tokio::task::spawn_blocking(move || read_secret(&file, "scrape.token_file")).await;
    let secret = read.map_err(|_| Failure::Slow)?.map_err(|error| Failure::Http(error.to_string()))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", secret.reveal()))
        .map_err(|_| Failure::Http("scrape.token_file: the token can't be a header".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// How a result changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The page can't be read, as before, or not for long enough to matter.
    Nothing,
    /// The page was read, as before.
    StillRead,
    /// The page was read for the first time, or again.
    Readable,
    /// The first attempt failed.
    NeverRead,
    /// The last values are too old.
    Stale,
}

/// The state of one endpoint's page.
#[derive(Debug)]
struct State {
    stale_after: Duration,
    /// When the page was read last; `None`: never, or too long ago.
    read: Option<Instant>,
    tried: bool,
}

impl State {
    const fn new(stale_after: Duration) -> Self {
        Self { stale_after, read: None, tried: false }
    }

    /// When the last values become too old; `None`: there are none.
    fn stale_at(&self) -> Option<Instant> {
        self.read.map(|instant| instant + self.stale_after)
    }

    fn update(&mut self, now: Instant, is_read: bool) -> Change {
        let first = !core::mem::replace(&mut self.tried, true);
        if is_read {
            let before = self.read.replace(now);
            return if before.is_some() { Change::StillRead } else { Change::Readable };
        }
        match self.stale_at() {
            Some(instant) if now >= instant => {
                self.read = None;
                Change::Stale
            }
            None if first => Change::NeverRead,
            Some(_) | None => Change::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
