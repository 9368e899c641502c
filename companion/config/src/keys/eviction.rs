//! `eviction`: running work that ends for critical requests that wait.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::millis;
use crate::error::Violation;
use crate::value::PositiveDuration;

/// The engine's timers are finer, but nothing between the parts of a gateway is.
const AFTER_MIN: Duration = Duration::from_millis(1);

/// Ends running sheddable requests, so that critical requests that wait get their places. Off by default.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Eviction {
    /// While nothing but the bounds keeps a critical request that has waited for `after`, a running sheddable request is answered 429 `evicted`
    /// and leaves its place: of the sheddable requests whose server hasn't begun to respond, the one that was granted last, of another tenant than the last time if there is one. A pool evicts one request at a time.
    pub(crate) sheddable: bool,
    /// How long a critical request waits, from its arrival, before a sheddable one is evicted for it. At least 1 ms, and less than `queue.ttl`.
    pub(crate) after: PositiveDuration,
}

impl Default for Eviction {
    fn default() -> Self {
        Self { sheddable: false, after: millis(1_000) }
    }
}

impl Eviction {
    /// The engine's setting; `path` is the pool's, and `ttl` its `queue.ttl`.
    pub(super) fn policy(&self, ttl: Duration, path: &str) -> Result<Option<Duration>, Violation> {
        let after = self.after.0;
        let wrong = |message: String| Err(Violation::new(format!("{path}.eviction.after"), message));
        if after < AFTER_MIN {
            return wrong(format!("the shortest time is {AFTER_MIN:?}; write one like 1s"));
        }
        if self.sheddable && after >= ttl {
            return wrong(format!(
                "no request waits for so long: raise queue.ttl, which is {ttl:?}, or write a shorter time"
            ));
        }
        Ok(self.sheddable.then_some(after))
    }
}
