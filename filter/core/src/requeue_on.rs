//! The failures after which Envoy sends a request to the next address of its list: another endpoint, or the requeue listener.
//!
//! Envoy takes them, and the number of its attempts, from request headers, which its router removes. The routes of granted
//! requests name none by themselves, so these headers are all that counts.

use penstock_wire as wire;

use crate::header_sanitizer::{HeaderEdit, MAX_RETRIES_HEADER, RETRY_ON_HEADER, STATUS_CODES_HEADER};
use crate::limits::RETRIES;

/// What a server may do before a byte of its response for the request to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequeueOn {
    connect: bool,
    reset: bool,
    too_many_requests: bool,
    unavailable: bool,
}

impl Default for RequeueOn {
    /// The failures that count while the policy names none.
    fn default() -> Self {
        Self { connect: true, reset: true, too_many_requests: false, unavailable: false }
    }
}

impl RequeueOn {
    /// Envoy doesn't send the request again.
    const NONE: Self = Self { connect: false, reset: false, too_many_requests: false, unavailable: false };

    /// Statuses other than 429 and 503 are those of a later protocol version, and are ignored.
    pub(crate) fn new(message: &wire::RequeueOn) -> Self {
        Self {
            connect: message.connect,
            reset: message.reset,
            too_many_requests: message.statuses.contains(&429),
            unavailable: message.statuses.contains(&503),
        }
    }

    /// Without statuses, unless Envoy `logs_attempts`.
    pub(crate) const fn known_to(self, logs_attempts: bool) -> Self {
        Self {
            too_many_requests: self.too_many_requests && logs_attempts,
            unavailable: self.unavailable && logs_attempts,
            ..self
        }
    }

    /// Envoy sends the request again for all of these: the default of a pool, and the condition of the routes that requeue by
    /// themselves.
    pub(crate) const fn is_every(self) -> bool {
        self.connect && self.reset && self.too_many_requests && self.unavailable
    }

    /// A response with this status makes Envoy send the request again.
    pub(crate) const fn contains(self, status: u32) -> bool {
        match status {
            429 => self.too_many_requests,
            503 => self.unavailable,
            _ => false,
        }
    }

    /// The headers that make Envoy try each of the `entries` of a list once. They replace those of a client. Without a list,
    /// which is for requests that Envoy spreads round robin, there are [`RETRIES`] retries.
    pub(crate) fn edits(self, entries: usize) -> impl Iterator<Item = HeaderEdit> {
        let nowhere_else = entries == 1;
        let Self { connect, reset, too_many_requests, unavailable } =
            if nowhere_else { Self::NONE } else { self };
        let retry_on = match (connect, reset, too_many_requests || unavailable) {
            (false, false, false) => None,
            (true, false, false) => Some("connect-failure,refused-stream"),
            (_, true, false) => Some("connect-failure,refused-stream,reset"),
            (false, false, true) => Some("retriable-status-codes"),
            (true, false, true) => Some("connect-failure,refused-stream,retriable-status-codes"),
            (_, true, true) => Some("connect-failure,refused-stream,reset,retriable-status-codes"),
        };
        let statuses = match (too_many_requests, unavailable) {
            (false, false) => None,
            (true, false) => Some("429"),
            (false, true) => Some("503"),
            (true, true) => Some("429,503"),
        };
        let edit = |name, value: Option<&'static str>| match value {
            Some(value) => HeaderEdit::SetStatic(name, value),
            None => HeaderEdit::Remove(name.into()),
        };
        [edit(RETRY_ON_HEADER, retry_on), edit(STATUS_CODES_HEADER, statuses)]
            .into_iter()
            .chain(retries(entries))
    }
}

/// The header where Envoy's one retry isn't enough.
fn retries(entries: usize) -> Option<HeaderEdit> {
    let retries = entries.checked_sub(1).unwrap_or(RETRIES);
    (retries > 1).then(|| HeaderEdit::Set(MAX_RETRIES_HEADER, retries.to_string()))
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn on(connect: bool, reset: bool, statuses: &[u32]) -> RequeueOn {
        RequeueOn::new(&wire::RequeueOn { connect, reset, statuses: statuses.to_vec() })
    }

    /// The values of the two headers; empty: removed.
    fn headers(requeue_on: RequeueOn) -> [&'static str; 2] {
        let edits: Vec<HeaderEdit> = requeue_on.edits(2).collect();
        let value = |name, edit: &HeaderEdit| match edit {
            HeaderEdit::SetStatic(set, value) if *set == name => *value,
            HeaderEdit::Remove(removed) if *removed == name => "",
            other => panic!("{other:?}"),
        };
        [value("x-envoy-retry-on", &edits[0]), value("x-envoy-retriable-status-codes", &edits[1])]
    }

    #[test]
    fn headers_name_the_failures_of_the_pool() {
        assert_eq!(headers(on(false, false, &[])), ["", ""]);
        assert_eq!(headers(on(true, false, &[])), ["connect-failure,refused-stream", ""]);
        assert_eq!(
            headers(on(false, true, &[503])),
            ["connect-failure,refused-stream,reset,retriable-status-codes", "503"]
        );
        assert_eq!(headers(on(false, false, &[429])), ["retriable-status-codes", "429"]);
        assert_eq!(
            headers(on(true, true, &[429, 503, 418])),
            ["connect-failure,refused-stream,reset,retriable-status-codes", "429,503"]
        );
        assert_eq!(headers(RequeueOn::default()), ["connect-failure,refused-stream,reset", ""]);
    }

    #[test]
    fn envoy_tries_each_entry_of_a_list_once() {
        let retries = |entries| {
            let edits: Vec<HeaderEdit> = RequeueOn::default().edits(entries).collect();
            let is_tried_again = edits
                .contains(&HeaderEdit::SetStatic(RETRY_ON_HEADER, "connect-failure,refused-stream,reset"));
            (is_tried_again, edits.get(2).cloned())
        };
        let header = |value: &str| Some(HeaderEdit::Set(MAX_RETRIES_HEADER, value.to_owned()));
        assert_eq!(
            [0, 1, 2, 3, 4].map(retries),
            [(true, header("2")), (false, None), (true, None), (true, header("2")), (true, header("3"))]
        );
    }

    #[test]
    fn only_statuses_of_the_pool_are_refusals() {
        let requeue_on = on(true, true, &[503, 500]);
        assert_eq!(
            [200, 429, 500, 503].map(|status| requeue_on.contains(status)),
            [false, false, false, true]
        );
    }
}
