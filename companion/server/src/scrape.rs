//! Reads what the model servers say of themselves at /metrics, and tells the driver.
//!
//! One task an endpoint, which keeps nobody waiting: a server that doesn't answer, or answers without end, costs its own
//! task some bytes of memory. What was read counts until `stale_after`; then the driver is told that nothing is known,
//! once. The log has a line for every change between the two, and no other.

mod adapters;
mod line;
mod page;

use std::sync::Arc;
use std::time::Duration;

use penstock_config::{Config, Scrape};
use penstock_control::{Event, Scraped};
use penstock_errors::cause;
use reqwest::{Client, StatusCode, header, redirect};
use tokio::time::{Instant, MissedTickBehavior};

use self::page::{Page, TooLong};
use crate::driver::Handle;
use crate::tasks::{self, Tasks};

/// A server whose page is of no use isn't asked again for this long.
const USELESS: Duration = Duration::from_secs(30);

/// Those who read.
#[derive(Debug)]
pub struct Readers {
    client: Client,
    driver: Handle,
    tasks: Tasks<Scrape>,
}

impl Readers {
    /// None yet.
    ///
    /// # Errors
    /// When the HTTP client can't be made.
    pub fn new(driver: Handle) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: client()?,
            driver,
            tasks: Tasks::default(),
        })
    }

    /// Reads the metrics of every endpoint whose pool wants that from now on, and of no other. New ones are spread over
    /// their interval. Of one that isn't read any more nothing is known.
    pub async fn follow(&mut self, config: &Config) {
        let (client, driver) = (&self.client, &self.driver);
        let free = self.tasks.follow(
            config,
            |pool| pool.scrape.clone(),
            |pool, address, scrape, (at, of)| {
                let begin = Instant::now() + scrape.interval / of.max(1) * at;
                let reader = Reader {
                    client: client.clone(),
                    pool,
                    address,
                    scrape,
                };
                tokio::spawn(reader.run(begin, driver.clone()))
            },
        );
        let event = |(pool, address)| Event::Scraped {
            pool,
            address,
            scraped: None,
            adapters: None,
        };
        tasks::tell(driver, free, event).await;
    }
}

/// One that asks who is listed, and nobody else.
fn client() -> Result<Client, reqwest::Error> {
    Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .build()
}

/// Why a page says nothing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Http(String),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("it doesn't answer in time")]
    Slow,
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("its page has none of the series of vLLM, SGLang or TGI")]
    Unknown,
}

impl Failure {
    /// It will be the same next time.
    fn is_lasting(&self) -> bool {
        match self {
            Self::Status(status) => !status.is_server_error() || *status == StatusCode::NOT_IMPLEMENTED,
            Self::TooLong(_) | Self::Unknown => true,
            Self::Http(_) | Self::Slow => false,
        }
    }
}

/// What a page said.
struct Answer {
    scraped: Scraped,
    /// Adapters in memory, by the names of their models; `None`: it doesn't say.
    adapters: Option<Box<[Box<str>]>>,
}

/// Reads one endpoint's page, again and again.
struct Reader {
    client: Client,
    pool: Arc<str>,
    address: String,
    scrape: Scrape,
}

impl Reader {
    async fn run(self, begin: Instant, driver: Handle) {
        let url = format!("http://{}{}", self.address, self.scrape.path);
        let mut ticks = tokio::time::interval_at(begin, self.scrape.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut state = State::new(self.scrape.stale_after);
        loop {
            let stale = async {
                match state.stale_at() {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let answer = tokio::select! {
                _ = ticks.tick() => {
                    let until = state.stale_at().unwrap_or_else(|| Instant::now() + self.scrape.stale_after);
                    tokio::time::timeout_at(until, self.read(&url))
                        .await
                        .unwrap_or(Err(Failure::Slow))
                }
                () = stale => Err(Failure::Slow),
            };
            if answer.as_ref().is_err_and(Failure::is_lasting) {
                ticks.reset_after(USELESS.max(self.scrape.interval));
            }
            let scraped = answer.as_ref().ok().map(|it| it.scraped);
            let adapters = answer.as_ref().ok().and_then(|it| it.adapters.clone());
            let why = answer.err();
            match state.take(Instant::now(), scraped.is_some()) {
                Change::Nothing => continue,
                Change::Read => {}
                Change::Known => tracing::info!(endpoint = self.address, "its metrics are read"),
                Change::Lost | Change::Unreadable => {
                    let why = why.map_or_else(String::new, |it| it.to_string());
                    tracing::warn!(
                        endpoint = self.address,
                        why,
                        "its metrics can't be read ({url}): load that isn't ours and its cache aren't known; see scrape.path"
                    );
                }
            }
            let event = Event::Scraped {
                pool: self.pool.clone(),
                address: self.address.clone(),
                scraped,
                adapters,
            };
            if driver.tell(event).await.is_err() {
                return;
            }
        }
    }

    async fn read(&self, url: &str) -> Result<Answer, Failure> {
        let asked = self
            .client
            .get(url)
            .header(header::ACCEPT, "text/plain; version=0.0.4");
        let mut answer = asked.send().await.map_err(|it| failed(&it))?;
        if answer.status() != StatusCode::OK {
            return Err(Failure::Status(answer.status()));
        }
        let mut page = Page::default();
        while let Some(chunk) = answer.chunk().await.map_err(|it| failed(&it))? {
            page.take(&chunk)?;
        }
        let adapters = page.adapters();
        let scraped = page.end().ok_or(Failure::Unknown)?;
        Ok(Answer { scraped, adapters })
    }
}

fn failed(error: &reqwest::Error) -> Failure {
    Failure::Http(cause::root(error))
}

/// What an answer, or that there is none, changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It can't be read, as before or not for long enough to matter.
    Nothing,
    /// It is read, as before.
    Read,
    /// It is read, and wasn't.
    Known,
    /// The first time it was asked it couldn't be read.
    Unreadable,
    /// What was read is too old.
    Lost,
}

/// What is known of one endpoint's page.
#[derive(Debug)]
struct State {
    stale_after: Duration,
    /// When it was read last; `None`: not lately.
    read: Option<Instant>,
    asked: bool,
}

impl State {
    const fn new(stale_after: Duration) -> Self {
        Self {
            stale_after,
            read: None,
            asked: false,
        }
    }

    /// When what was read counts no more; `None`: nothing counts.
    fn stale_at(&self) -> Option<Instant> {
        self.read.map(|at| at + self.stale_after)
    }

    fn take(&mut self, now: Instant, is_read: bool) -> Change {
        let first = !core::mem::replace(&mut self.asked, true);
        if is_read {
            let before = self.read.replace(now);
            return if before.is_some() {
                Change::Read
            } else {
                Change::Known
            };
        }
        match self.stale_at() {
            Some(at) if now >= at => {
                self.read = None;
                Change::Lost
            }
            None if first => Change::Unreadable,
            Some(_) | None => Change::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
