//! Clients that arrive at random times (a Poisson process), independent of earlier requests: an open-loop load.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{ClientRequest, Gateway};

/// What the clients send.
#[derive(Clone, Debug)]
pub struct RequestShape {
    /// The model.
    pub model: String,
    /// Prompt tokens; each value of the range is equally likely.
    pub input: RangeInclusive<u64>,
    /// Output tokens, in the same way.
    pub output: RangeInclusive<u64>,
}

/// The number of requests per outcome, or `cut`.
pub type Ends = BTreeMap<String, u64>;

/// Clients of a gateway. Dropping it disconnects all of them.
pub struct PoissonClients {
    shape: RequestShape,
    random: ChaCha8Rng,
    ends: Arc<Mutex<Ends>>,
    out: JoinSet<()>,
    /// When the next client arrives.
    next: Instant,
    sent: u64,
}

impl PoissonClients {
    /// No clients yet.
    #[must_use]
    pub fn new(shape: RequestShape, seed: u64) -> Self {
        Self {
            shape,
            random: ChaCha8Rng::seed_from_u64(seed),
            ends: Arc::default(),
            out: JoinSet::new(),
            next: Instant::now(),
            sent: 0,
        }
    }

    /// Clients arrive for `time`, `per_second` on average. A late client arrives at once.
    pub async fn arrive(&mut self, gateway: &Gateway, per_second: f64, time: Duration) {
        let end = Instant::now() + time;
        self.next = self.next.max(Instant::now());
        while self.next < end {
            tokio::time::sleep_until(self.next).await;
            self.send(gateway);
            while self.out.try_join_next().is_some() {}
            let uniform: f64 = self.random.random();
            self.next += Duration::from_secs_f64(-(1.0 - uniform).ln() / per_second);
        }
        tokio::time::sleep_until(end).await;
    }

    /// Sends one request.
    ///
    /// # Panics
    /// If a prompt is too long for this machine.
    pub fn send(&mut self, gateway: &Gateway) {
        let input = self.random.random_range(self.shape.input.clone());
        let output = self.random.random_range(self.shape.output.clone());
        let bytes = usize::try_from(4 * input).expect("a prompt fits");
        let tenant = format!("tenant-{}", self.sent % 8);
        let ask = ClientRequest::chat(&self.shape.model, &"x".repeat(bytes))
            .tenant(&tenant)
            .with("max_tokens", output)
            .with("stream_options", json!({"include_usage": true}))
            .streamed();
        self.sent += 1;
        let answer = gateway.spawn(ask);
        let ends = self.ends.clone();
        self.out.spawn(async move {
            let end = match answer.await {
                Ok(answer) => answer.outcome().to_owned(),
                Err(_) => "cut".to_owned(),
            };
            let mut ends = ends.lock().expect("no holder of the lock panics");
            *ends.entry(end).or_default() += 1;
        });
    }

    /// The number of requests sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The outcomes so far.
    ///
    /// # Panics
    /// If another thread has panicked.
    #[must_use]
    pub fn ends(&self) -> Ends {
        self.ends.lock().expect("no holder of the lock panics").clone()
    }

    /// Waits until every request has ended.
    pub async fn finish(mut self) -> Ends {
        while self.out.join_next().await.is_some() {}
        self.ends()
    }
}
