//! Clients that come at random, whatever becomes of those before them: what a gateway meets that can't slow its
//! clients down.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{Ask, Gateway};

/// What they ask.
#[derive(Clone, Debug)]
pub struct Habit {
    /// The model.
    pub model: String,
    /// Tokens of a prompt, any of these alike.
    pub input: RangeInclusive<u64>,
    /// Tokens of an answer.
    pub output: RangeInclusive<u64>,
}

/// How their requests ended: how many of each outcome, or of `cut`.
pub type Ends = BTreeMap<String, u64>;

/// Clients of a gateway. Dropped, they all leave.
pub struct Visitors {
    habit: Habit,
    random: ChaCha8Rng,
    ends: Arc<Mutex<Ends>>,
    out: JoinSet<()>,
    /// When the next one comes.
    next: Instant,
    sent: u64,
}

impl Visitors {
    /// None yet.
    #[must_use]
    pub fn new(habit: Habit, seed: u64) -> Self {
        Self {
            habit,
            random: ChaCha8Rng::seed_from_u64(seed),
            ends: Arc::default(),
            out: JoinSet::new(),
            next: Instant::now(),
            sent: 0,
        }
    }

    /// They come, so many a second on average (a Poisson process), for this time. Those that are late come at once.
    pub async fn come(&mut self, gateway: &Gateway, per_second: f64, time: Duration) {
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

    /// Sends one.
    ///
    /// # Panics
    /// When a prompt is too long for this machine.
    pub fn send(&mut self, gateway: &Gateway) {
        let input = self.random.random_range(self.habit.input.clone());
        let output = self.random.random_range(self.habit.output.clone());
        let bytes = usize::try_from(4 * input).expect("a prompt fits");
        let tenant = format!("tenant-{}", self.sent % 8);
        let ask = Ask::chat(&self.habit.model, &"x".repeat(bytes))
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
            let mut ends = ends.lock().expect("no one panics with the ends");
            *ends.entry(end).or_default() += 1;
        });
    }

    /// So many have come.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// How requests have ended so far.
    ///
    /// # Panics
    /// When another thread has.
    #[must_use]
    pub fn ends(&self) -> Ends {
        self.ends.lock().expect("no one panics with the ends").clone()
    }

    /// Waits for all that are out.
    pub async fn leave(mut self) -> Ends {
        while self.out.join_next().await.is_some() {}
        self.ends()
    }
}
