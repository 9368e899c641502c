//! Who sends what in the demo.

use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// One tenant and its habit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tenant {
    /// Its fairness id.
    pub(super) name: &'static str,
    /// Its weight in the fair queueing.
    pub(super) weight: f64,
    /// Its requests claim to be critical.
    pub(super) critical: bool,
    pub(super) habit: Habit,
}

/// When a tenant sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Habit {
    /// So many outstanding, always: an answer is followed by the next request.
    Outstanding(usize),
    /// At random, this long apart on average, whatever is outstanding.
    Every(Duration),
}

/// The demo's tenants. `greedy` asks for more than three times as much at a time as `light`, which has three times
/// its weight; both keep a backlog, so weights decide. `vip` asks for little, and first.
pub(super) const TENANTS: [Tenant; 3] = [
    Tenant {
        name: "greedy",
        weight: 1.0,
        critical: false,
        habit: Habit::Outstanding(32),
    },
    Tenant {
        name: "light",
        weight: 3.0,
        critical: false,
        habit: Habit::Outstanding(12),
    },
    Tenant {
        name: "vip",
        weight: 1.0,
        critical: true,
        habit: Habit::Every(Duration::from_millis(500)),
    },
];

/// Requests that may wait for one tenant: less than `greedy` has outstanding, so that it meets the limit.
pub(super) const FLOW_CAPACITY: usize = 24;

/// The name of the demo's model.
pub(super) const MODEL: &str = "demo";

/// Mean length of an answer without a limit, in tokens.
pub(super) const OUTPUT_TOKENS: u64 = 48;

/// The body of one chat completion: a prompt of 16 to 512 tokens, and for every other a limit of 16 to 96 tokens.
pub(super) fn body(rng: &mut ChaCha8Rng) -> Value {
    let words: u64 = rng.random_range(16..=512);
    let mut body = json!({
        "model": MODEL,
        "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "tell ".repeat(words as usize)}],
    });
    if rng.random_bool(0.5) {
        body["max_tokens"] = json!(rng.random_range(16..=96));
    }
    body
}

/// Until the next request of [`Habit::Every`]: exponential, so that arrivals are a Poisson process.
pub(super) fn gap(mean: Duration, rng: &mut ChaCha8Rng) -> Duration {
    let u: f64 = rng.random();
    mean.mul_f64(-(1.0 - u).ln())
}
