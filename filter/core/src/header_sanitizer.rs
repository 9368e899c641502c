//! Removes headers that only the gateway may send: to a server in a request, and to a client in a response.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_wire::names;

use crate::headers::Headers;

/// A change to a stream's header map, or a property of the stream that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderEdit {
    /// Remove all headers of this name.
    Remove(Cow<'static, str>),
    /// Add a header of this name, which the map doesn't have: hosts add for less than they replace.
    Add(&'static str, String),
    /// Replace all headers of this name by one with this value.
    Set(&'static str, String),
    /// Replace all headers of this name by one with this constant.
    SetStatic(&'static str, &'static str),
    /// Set the property of the stream with this name. Envoy's configuration can read it, a server can't.
    SetProperty(&'static str, String),
}

pub(crate) const CONTENT_LENGTH: &str = "content-length";

/// Request headers with a digest of the body, which a rewrite invalidates.
const DIGESTS: [&str; 4] = ["content-md5", "content-digest", "digest", "repr-digest"];

/// Envoy's request header for the number of retries. Without it, Envoy retries once.
pub(crate) const MAX_RETRIES_HEADER: &str = "x-envoy-max-retries";

/// Envoy's request header for the conditions of a retry.
pub(crate) const RETRY_ON_HEADER: &str = "x-envoy-retry-on";
/// Envoy's request header for the statuses that `retriable-status-codes` stands for.
pub(crate) const STATUS_CODES_HEADER: &str = "x-envoy-retriable-status-codes";

/// Envoy's request header for the longest time until a server's headers, in milliseconds.
pub(crate) const ATTEMPT_TIMEOUT_HEADER: &str = "x-envoy-upstream-rq-per-try-timeout-ms";
/// Envoy's request header by which an attempt that has run out of time goes on until the next one is answered.
pub(crate) const HEDGE_HEADER: &str = "x-envoy-hedge-on-per-try-timeout";

/// Request headers that the filter reads or sets. A client's values never reach a server, on any path.
const REQUEST_HEADERS: [&str; 18] = [
    names::ENDPOINT_HEADER,
    names::PREFILL_HEADER,
    names::ENCODER_HEADER,
    names::DATA_PARALLEL_HEADER,
    names::POOL_HEADER,
    names::REQUEUE_HEADER,
    names::REFUSED_HEADER,
    names::ROUTE_HEADER,
    names::KEEP_ALIVE_HEADER,
    names::COMPANION_HEADER,
    names::SUBSET_HEADER,
    names::PIN_HEADER,
    names::TOLERATE_HEADER,
    MAX_RETRIES_HEADER,
    RETRY_ON_HEADER,
    STATUS_CODES_HEADER,
    ATTEMPT_TIMEOUT_HEADER,
    HEDGE_HEADER,
];

/// Response headers that only the gateway may set.
const RESPONSE_HEADERS: [&str; 6] = [
    names::OUTCOME_HEADER,
    names::QUEUE_MS_HEADER,
    names::SATURATION_HEADER,
    names::SERVED_HEADER,
    names::SERVED_AGAIN_HEADER,
    names::STATUS_HEADER,
];

/// The edit that gives a header this value. `headers`: the map as it is.
pub(crate) fn put(headers: Headers<'_>, name: &'static str, value: String) -> HeaderEdit {
    if headers.get(name).is_none() { HeaderEdit::Add(name, value) } else { HeaderEdit::Set(name, value) }
}

/// The removals from a request. A queued request also loses `accept-encoding`, because the filter can't read the token
/// counts of a compressed response.
#[must_use]
pub fn request(headers: Headers<'_>, queued: bool) -> Vec<HeaderEdit> {
    let coding = queued.then_some("accept-encoding");
    removals(headers, REQUEST_HEADERS.into_iter().chain(coding))
}

/// The edits for a request body that is rewritten to `length` bytes. `has_length`: the request has a `content-length`.
pub(crate) fn rewritten(length: usize, has_length: bool) -> impl Iterator<Item = HeaderEdit> {
    let length = has_length.then(|| HeaderEdit::Set(CONTENT_LENGTH, length.to_string()));
    let digests = DIGESTS.into_iter().map(|name| HeaderEdit::Remove(Cow::Borrowed(name)));
    length.into_iter().chain(digests)
}

/// The removals of the headers `names`, which only trusted clients may send.
pub(crate) fn privileged<'a>(
    headers: Headers<'a>,
    names: &'a [Arc<str>],
) -> impl Iterator<Item = HeaderEdit> + 'a {
    let present = names.iter().filter(move |name| headers.get(name).is_some());
    present.map(|name| HeaderEdit::Remove(Cow::Owned(name.as_ref().to_owned())))
}

/// The removals from a response to a request that isn't queued.
#[must_use]
pub fn response(headers: Headers<'_>) -> Vec<HeaderEdit> {
    removals(headers, RESPONSE_HEADERS)
}

fn removals(headers: Headers<'_>, names: impl IntoIterator<Item = &'static str>) -> Vec<HeaderEdit> {
    names
        .into_iter()
        .filter(|name| headers.get(name).is_some())
        .map(|name| HeaderEdit::Remove(Cow::Borrowed(name)))
        .collect()
}
