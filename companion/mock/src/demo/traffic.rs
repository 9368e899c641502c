//! The demo's clients: each tenant sends by its habit until it is told to stop, then waits for what is out.
//!
//! Every request is told twice, when it is sent and when it has ended; who counts both loses none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::client::{Ending, send};
use super::tenants::{self, Habit, Tenant};

/// A refused client waits as long as it is told, but at most so long: the demo is short.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A client whose request failed without an answer waits so long before the next.
const FAILED_PAUSE: Duration = Duration::from_millis(500);

/// What happens to a request; the tenant by its place in the list.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Sent(usize),
    Ended(usize, Ending),
}

/// Where requests go, and the way to tell of them.
#[derive(Clone)]
struct Line {
    client: reqwest::Client,
    url: Arc<str>,
    place: usize,
    tenant: Tenant,
    next: Arc<AtomicU64>,
    events: mpsc::UnboundedSender<Event>,
    stop: watch::Receiver<bool>,
}

/// Starts every tenant. The channel closes when `stop` was set to true and the last request has ended.
///
/// # Errors
/// The HTTP client can't be made.
pub(super) fn start(
    gateway: &str,
    tenants: &[Tenant],
    seed: u64,
    stop: &watch::Receiver<bool>,
) -> reqwest::Result<(mpsc::UnboundedReceiver<Event>, JoinSet<()>)> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let (events, received) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for (place, tenant) in tenants.iter().enumerate() {
        let line = Line {
            client: client.clone(),
            url: format!("{gateway}/v1/chat/completions").into(),
            place,
            tenant: *tenant,
            next: Arc::default(),
            events: events.clone(),
            stop: stop.clone(),
        };
        // Each client draws from a stream of its own: what it sends doesn't depend on who is faster.
        let rng = |stream: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream((place as u64) << 32 | stream);
            rng
        };
        match tenant.habit {
            Habit::Outstanding(count) => {
                for stream in 0..count as u64 {
                    tasks.spawn(line.clone().one_after_the_other(rng(stream)));
                }
            }
            Habit::Every(mean) => {
                tasks.spawn(line.one_every(mean, rng(0)));
            }
        }
    }
    Ok((received, tasks))
}

impl Line {
    async fn one_after_the_other(mut self, mut rng: ChaCha8Rng) {
        while !*self.stop.borrow() {
            match self.request(&mut rng).await {
                Ending::Served { .. } => {}
                Ending::Refused { retry_after, .. } => {
                    self.pause(retry_after.unwrap_or(FAILED_PAUSE).min(RETRY_MAX))
                        .await;
                }
                Ending::Cut { .. } | Ending::Failed { .. } => self.pause(FAILED_PAUSE).await,
            }
        }
    }

    async fn one_every(mut self, mean: Duration, mut rng: ChaCha8Rng) {
        let mut out = JoinSet::new();
        loop {
            self.pause(tenants::gap(mean, &mut rng)).await;
            if *self.stop.borrow() {
                break;
            }
            let request = self.sent(&mut rng);
            let line = self.clone();
            out.spawn(async move { line.ended(send(request).await) });
            while out.try_join_next().is_some() {}
        }
        out.join_all().await;
    }

    async fn request(&self, rng: &mut ChaCha8Rng) -> Ending {
        let ending = send(self.sent(rng)).await;
        self.ended(ending.clone());
        ending
    }

    /// Makes the next request and tells that it is sent.
    fn sent(&self, rng: &mut ChaCha8Rng) -> reqwest::RequestBuilder {
        let name = self.tenant.name;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut request = self.client.post(&*self.url);
        request = request
            .header("x-penstock-tenant", name)
            .header("x-request-id", format!("demo-{name}-{number}"));
        if self.tenant.critical {
            request = request.header("x-penstock-priority", "critical");
        }
        // Nobody listens any more when the demo itself has gone.
        let _ = self.events.send(Event::Sent(self.place));
        request.json(&tenants::body(rng))
    }

    fn ended(&self, ending: Ending) {
        let _ = self.events.send(Event::Ended(self.place, ending));
    }

    /// Until the time is over or it is told to stop.
    async fn pause(&mut self, time: Duration) {
        // An error means that the demo has gone; then `stop` keeps its last value.
        let _ = tokio::time::timeout(time, self.stop.wait_for(|stop| *stop)).await;
    }
}
