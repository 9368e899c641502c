//! The failures after which a request goes to the next endpoint of its list and then back to the queue: through the requeue listener, or because
//! the host restarts its stream.
//!
//! Envoy takes them, and the number of its attempts, from request headers, which its router removes. The routes of granted
//! requests name none by themselves, so these headers are all that counts.

use penstock_wire as wire;

use crate::header_sanitizer::{HeaderEdit, MAX_RETRIES_HEADER, RETRY_ON_HEADER, STATUS_CODES_HEADER};
use crate::limits::RETRIES;

/// The statuses that may make Envoy send a request again, in the order of the header. The last one counts only where a grant says so.
const STATUSES: [u32; 6] = [429, 500, 502, 503, 504, NOT_FOUND];
/// The status of a server without the model.
const NOT_FOUND: u32 = 404;
/// Of the statuses: those that a pool may list.
const LISTED: u8 = 0b01_1111;
const OF_NOT_FOUND: u8 = 0b10_0000;

/// What a server may do before a byte of its response for the request to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequeueOn {
    connect: bool,
    reset: bool,
    /// One bit for each of [`STATUSES`].
    statuses: u8,
}

impl Default for RequeueOn {
    /// The failures that count while the policy names none.
    fn default() -> Self {
        Self { connect: true, reset: true, statuses: 0 }
    }
}

/// The bit of a status; 0: it is none of [`STATUSES`].
fn bit(status: u32) -> u8 {
    let place = STATUSES.iter().position(|known| *known == status);
    place.and_then(|place| 1_u8.checked_shl(u32::try_from(place).ok()?)).unwrap_or(0)
}

impl RequeueOn {
    /// Envoy doesn't send the request again.
    const NONE: Self = Self { connect: false, reset: false, statuses: 0 };

    /// Other statuses are those of a later protocol version, and are ignored.
    pub(crate) fn new(message: &wire::RequeueOn) -> Self {
        let listed = message.statuses.iter().map(|status| bit(*status) & LISTED);
        Self {
            connect: message.connect,
            reset: message.reset,
            statuses: listed.fold(0, |statuses, status| statuses | status),
        }
    }

    /// Without statuses, unless Envoy `logs_attempts`.
    pub(crate) const fn known_to(self, logs_attempts: bool) -> Self {
        Self { statuses: if logs_attempts { self.statuses } else { 0 }, ..self }
    }

    /// For one grant: without statuses if the server's answer `is_final`; with 404 if another server may have the model, in a pool that
    /// requeues after some status.
    pub(crate) const fn for_grant(self, is_final: bool, retries_not_found: bool) -> Self {
        let statuses = match (is_final, retries_not_found && self.statuses != 0) {
            (true, _) => 0,
            (false, true) => self.statuses | OF_NOT_FOUND,
            (false, false) => self.statuses,
        };
        Self { statuses, ..self }
    }

    /// Envoy sends the request again for all that a pool may list, and for nothing else: the default of a pool, and the condition of the
    /// routes that requeue by themselves.
    pub(crate) const fn is_every(self) -> bool {
        self.connect && self.reset && self.statuses == LISTED
    }

    /// The request is queued again if no server accepts it.
    pub(crate) const fn covers_refusal(self) -> bool {
        self.connect || self.reset
    }

    /// The request is queued again if a server cuts the connection, or is silent for too long.
    pub(crate) const fn covers_reset(self) -> bool {
        self.reset
    }

    /// The request is queued again after a response with this status.
    pub(crate) fn contains(self, status: u32) -> bool {
        self.statuses & bit(status) != 0
    }

    /// The headers that make Envoy try each of the `entries` of a list once. They replace those of a client. Without a list,
    /// which is for requests that Envoy spreads round robin, there are [`RETRIES`] retries.
    pub(crate) fn edits(self, entries: usize) -> impl Iterator<Item = HeaderEdit> {
        let nowhere_else = entries == 1;
        let Self { connect, reset, statuses } = if nowhere_else { Self::NONE } else { self };
        let retry_on = match (connect, reset, statuses != 0) {
            (false, false, false) => None,
            (true, false, false) => Some("connect-failure,refused-stream"),
            (_, true, false) => Some("connect-failure,refused-stream,reset"),
            (false, false, true) => Some("retriable-status-codes"),
            (true, false, true) => Some("connect-failure,refused-stream,retriable-status-codes"),
            (_, true, true) => Some("connect-failure,refused-stream,reset,retriable-status-codes"),
        };
        let retry_on = match retry_on {
            Some(value) => HeaderEdit::SetStatic(RETRY_ON_HEADER, value),
            None => HeaderEdit::Remove(RETRY_ON_HEADER.into()),
        };
        [retry_on, status_codes(statuses)].into_iter().chain(retries(entries))
    }
}

/// The header with the statuses.
fn status_codes(statuses: u8) -> HeaderEdit {
    if statuses == 0 {
        return HeaderEdit::Remove(STATUS_CODES_HEADER.into());
    }
    let listed = STATUSES.iter().filter(|status| statuses & bit(**status) != 0);
    let listed: Vec<String> = listed.map(ToString::to_string).collect();
    HeaderEdit::Set(STATUS_CODES_HEADER, listed.join(","))
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
    fn headers(requeue_on: RequeueOn) -> [String; 2] {
        let edits: Vec<HeaderEdit> = requeue_on.edits(2).collect();
        let value = |name, edit: &HeaderEdit| match edit {
            HeaderEdit::SetStatic(set, value) if *set == name => (*value).to_owned(),
            HeaderEdit::Set(set, value) if *set == name => value.clone(),
            HeaderEdit::Remove(removed) if *removed == name => String::new(),
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
            headers(on(true, true, &[504, 429, 503, 418, 404])),
            ["connect-failure,refused-stream,reset,retriable-status-codes", "429,503,504"]
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
            [200, 404, 429, 500, 503].map(|status| requeue_on.contains(status)),
            [false, false, false, true, true]
        );
        assert!(on(true, true, &[429, 500, 502, 503, 504]).is_every() && !requeue_on.is_every());
    }

    #[test]
    fn a_grant_may_leave_out_the_statuses_or_add_404() {
        let every = on(true, true, &[429, 500, 502, 503, 504]);
        let last = every.for_grant(true, true);
        assert_eq!(headers(last), ["connect-failure,refused-stream,reset", ""]);
        let first = every.for_grant(false, true);
        assert_eq!(headers(first)[1], "429,500,502,503,504,404");
        assert!(first.contains(404) && !first.is_every() && !last.contains(500));
        let none = on(true, true, &[]).for_grant(false, true);
        assert!(!none.contains(404), "a pool that requeues after no status");
    }
}
