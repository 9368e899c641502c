//! The demo's clients. Each tenant sends by its pattern until the traffic stops, then waits for outstanding requests.
//!
//! Every request gives an event when it is sent and one when it ends, so that none can be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{Ending, send};
use super::tenants::{self, Pattern, Tenant};

/// The longest pause after a refused request, whatever `retry-after` asks for, because the demo is short.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The pause after a request that failed without a response.
const FAILED_PAUSE: Duration = Duration::from_millis(500);

/// An event of a request; the number is the tenant's index.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Sent(usize),
    /// The response of a request that a companion granted has begun.
    Granted {
        sent: Instant,
        answered: Instant,
    },
    Ended(usize, Ending),
}

/// A tenant's client.
#[derive(Clone)]
struct Sender {
    client: reqwest::Client,
    url: Arc<str>,
    index: usize,
    tenant: Tenant,
    next: Arc<AtomicU64>,
    events: mpsc::UnboundedSender<Event>,
    stop: watch::Receiver<bool>,
    hurry: Arc<Notify>,
}

/// The running traffic.
pub(super) struct Traffic {
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    pub(super) tasks: JoinSet<()>,
    /// Makes a tenant that sends at intervals send its next request at once.
    pub(super) hurry: Arc<Notify>,
}

/// Starts all tenants. The channel closes after `stop` was set to true and the last request has ended.
///
/// # Errors
/// The HTTP client can't be created.
pub(super) fn start(
    gateway: &str,
    tenants: &[Tenant],
    seed: u64,
    stop: &watch::Receiver<bool>,
) -> reqwest::Result<Traffic> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let (events, received) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let hurry = Arc::<Notify>::default();
    for (index, tenant) in tenants.iter().enumerate() {
        let sender = Sender {
            client: client.clone(),
            url: format!("{gateway}/v1/chat/completions").into(),
            index,
            tenant: *tenant,
            next: Arc::default(),
            events: events.clone(),
            stop: stop.clone(),
            hurry: Arc::clone(&hurry),
        };
        // Each task has its own random stream, so that the requests don't depend on the timing of other tasks.
        let rng = |stream: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream((index as u64) << 32 | stream);
            rng
        };
        match tenant.pattern {
            Pattern::Outstanding(count) => {
                for stream in 0..count as u64 {
                    tasks.spawn(sender.clone().send_one_after_the_other(rng(stream)));
                }
            }
            Pattern::Every(mean) => {
                tasks.spawn(sender.send_at_intervals(mean, rng(0)));
            }
        }
    }
    Ok(Traffic { events: received, tasks, hurry })
}

impl Sender {
    async fn send_one_after_the_other(mut self, mut rng: ChaCha8Rng) {
        while !*self.stop.borrow() {
            match self.request(&mut rng).await {
                Ending::Served { .. } => {}
                Ending::Refused { retry_after, .. } => {
                    self.pause(retry_after.unwrap_or(FAILED_PAUSE).min(RETRY_MAX)).await;
                }
                Ending::Cut { .. } | Ending::Failed { .. } => self.pause(FAILED_PAUSE).await,
            }
        }
    }

    async fn send_at_intervals(mut self, mean: Duration, mut rng: ChaCha8Rng) {
        let mut outstanding = JoinSet::new();
        loop {
            let hurry = Arc::clone(&self.hurry);
            tokio::select! {
                () = self.pause(tenants::gap(mean, &mut rng)) => {}
                () = hurry.notified() => {}
            }
            if *self.stop.borrow() {
                break;
            }
            let request = self.next_request(&mut rng);
            let sender = self.clone();
            outstanding.spawn(async move { sender.exchange(request).await });
            while outstanding.try_join_next().is_some() {}
        }
        outstanding.join_all().await;
    }

    async fn request(&self, rng: &mut ChaCha8Rng) -> Ending {
        self.exchange(self.next_request(rng)).await
    }

    /// Sends a request and records its grant and its end.
    async fn exchange(&self, request: reqwest::RequestBuilder) -> Ending {
        let sent = Instant::now();
        let admitted = |outcome: &str| {
            // A request by credit shows nothing of the companion, because its filter admitted it.
            if matches!(outcome, "bypassed" | "dispatched") {
                let answered = Instant::now();
                // Fails only if the demo itself has ended.
                let _ = self.events.send(Event::Granted { sent, answered });
            }
        };
        let ending = send(request, admitted).await;
        let _ = self.events.send(Event::Ended(self.index, ending.clone()));
        ending
    }

    /// Builds the next request and records it as sent.
    fn next_request(&self, rng: &mut ChaCha8Rng) -> reqwest::RequestBuilder {
        let name = self.tenant.name;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut request = self.client.post(&*self.url);
        request =
            request.header("x-penstock-tenant", name).header("x-request-id", format!("demo-{name}-{number}"));
        if self.tenant.critical {
            request = request.header("x-penstock-priority", "critical");
        }
        // Fails only if the demo itself has ended.
        let _ = self.events.send(Event::Sent(self.index));
        request.json(&tenants::body(rng))
    }

    /// Waits until the time is over or the traffic stops.
    async fn pause(&mut self, time: Duration) {
        // The wait fails only if the demo has ended; `stop` then keeps its last value.
        let _ = tokio::time::timeout(time, self.stop.wait_for(|stop| *stop)).await;
    }
}
