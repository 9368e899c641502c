//! The rest of a tenant's budget, as the response headers by which the libraries of OpenAI and LiteLLM slow down.

use penstock_wire::rate_limit::Unit;
use penstock_wire::{self as wire, names};

/// The rest of a tenant's budget in the window that has the least left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    unit: Unit,
    limit: u64,
    remaining: u64,
    /// Time until the whole limit is left again.
    reset_ms: u64,
}

impl From<wire::RateLimit> for RateLimit {
    fn from(message: wire::RateLimit) -> Self {
        Self {
            unit: message.unit(),
            limit: message.limit,
            remaining: message.remaining,
            reset_ms: message.reset_ms,
        }
    }
}

impl RateLimit {
    /// The headers for the response.
    pub(crate) fn headers(self) -> [(&'static str, String); 3] {
        let [limit, remaining, reset] = match self.unit {
            Unit::Tokens => {
                [names::LIMIT_TOKENS_HEADER, names::REMAINING_TOKENS_HEADER, names::RESET_TOKENS_HEADER]
            }
            Unit::Requests => {
                [names::LIMIT_REQUESTS_HEADER, names::REMAINING_REQUESTS_HEADER, names::RESET_REQUESTS_HEADER]
            }
        };
        [
            (limit, self.limit.to_string()),
            (remaining, self.remaining.to_string()),
            (reset, duration(self.reset_ms)),
        ]
    }
}

/// A duration as OpenAI's API writes it: `120ms`, `1s`, `6m0s`, `25h0m1s`. Above a second, whole seconds, rounded up.
fn duration(ms: u64) -> String {
    if ms < 1_000 {
        return format!("{ms}ms");
    }
    let seconds = ms.div_ceil(1_000);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn headers_name_the_unit() {
        let headers = |unit: Unit| {
            let message =
                wire::RateLimit { unit: unit.into(), limit: 100_000, remaining: 60, reset_ms: 360_000 };
            let headers = RateLimit::from(message).headers();
            headers.map(|(name, value)| format!("{name}: {value}"))
        };
        assert_eq!(
            headers(Unit::Tokens),
            [
                "x-ratelimit-limit-tokens: 100000",
                "x-ratelimit-remaining-tokens: 60",
                "x-ratelimit-reset-tokens: 6m0s",
            ]
        );
        assert_eq!(headers(Unit::Requests)[1], "x-ratelimit-remaining-requests: 60");
    }

    #[test]
    fn durations_have_the_form_of_openais_api() {
        let written = [0, 120, 999, 1_000, 1_001, 59_001, 90_061_000].map(duration);
        assert_eq!(written, ["0ms", "120ms", "999ms", "1s", "2s", "1m0s", "25h1m1s"]);
    }
}
