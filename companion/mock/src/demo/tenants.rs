//! The demo's tenants and their requests.

use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// A tenant and its sending pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tenant {
    /// The fairness id.
    pub(super) name: &'static str,
    /// The weight in fair queueing.
    pub(super) weight: f64,
    /// The requests have the priority `critical`.
    pub(super) critical: bool,
    pub(super) pattern: Pattern,
}

/// When a tenant sends requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pattern {
    /// Always this number of outstanding requests: each response is followed by the next request.
    Outstanding(usize),
    /// A Poisson process with this mean interval, independent of the outstanding requests.
    Every(Duration),
}

/// The demo's tenants. `light` has three times the weight of `greedy`, but fewer outstanding requests. Both keep a
/// backlog, so weights determine their shares. `vip` sends few requests with a high priority.
pub(super) const TENANTS: [Tenant; 3] = [
    Tenant { name: "greedy", weight: 1.0, critical: false, pattern: Pattern::Outstanding(32) },
    Tenant { name: "light", weight: 3.0, critical: false, pattern: Pattern::Outstanding(12) },
    Tenant { name: "vip", weight: 1.0, critical: true, pattern: Pattern::Every(Duration::from_millis(500)) },
];

/// Limit of waiting requests per tenant: less than `greedy`'s outstanding requests, so that it reaches the limit.
pub(super) const FLOW_CAPACITY: usize = 24;

/// The name of the demo's model.
pub(super) const MODEL: &str = "demo";

/// Mean length in tokens of a response without a limit.
pub(super) const OUTPUT_TOKENS: u64 = 48;

/// The body of a chat completion: 16 to 512 prompt tokens, and in half of the bodies a limit of 16 to 96 tokens.
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

/// The time until the next request of [`Pattern::Every`]: exponential, so that arrivals are a Poisson process.
pub(super) fn gap(mean: Duration, rng: &mut ChaCha8Rng) -> Duration {
    let u: f64 = rng.random();
    mean.mul_f64(-(1.0 - u).ln())
}
