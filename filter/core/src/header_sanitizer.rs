//! Which headers don't pass: what only the gateway may say to a server, and what only it may say to a client.

use std::{borrow::Cow, sync::Arc};

use penstock_wire::names;

use crate::headers::Headers;

/// A change to a header map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderEdit {
    /// All headers of this name go.
    Remove(Cow<'static, str>),
    /// One header of this name stays, with this value.
    Set(&'static str, String),
}

/// How long a body is.
pub(crate) const CONTENT_LENGTH: &str = "content-length";

/// What a client may have said of the very bytes of its body.
const DIGESTS: [&str; 4] = ["content-md5", "content-digest", "digest", "repr-digest"];

/// A client's claims: read by the filter, never passed to a server, on any path.
const CLAIMS: [&str; 7] = [
    names::ENDPOINT_HEADER,
    names::POOL_HEADER,
    names::REQUEUE_HEADER,
    names::ROUTE_HEADER,
    names::SUBSET_HEADER,
    names::PIN_HEADER,
    names::TOLERATE_HEADER,
];

/// What a server may not say in the gateway's name.
const REPORTS: [&str; 5] = [
    names::OUTCOME_HEADER,
    names::QUEUE_MS_HEADER,
    names::SATURATION_HEADER,
    names::SERVED_HEADER,
    names::SERVED_AGAIN_HEADER,
];

/// The removals from a request. A queued one also loses `accept-encoding`: a compressed answer hides its tokens.
#[must_use]
pub fn request(headers: Headers<'_>, queued: bool) -> Vec<HeaderEdit> {
    let coding = queued.then_some("accept-encoding");
    present(headers, CLAIMS.into_iter().chain(coding))
}

/// The changes where a body becomes another one of `length` bytes. `sized`: the request says its length.
pub(crate) fn rewritten(length: usize, sized: bool) -> impl Iterator<Item = HeaderEdit> {
    let length = sized.then(|| HeaderEdit::Set(CONTENT_LENGTH, length.to_string()));
    let digests = DIGESTS
        .into_iter()
        .map(|name| HeaderEdit::Remove(Cow::Borrowed(name)));
    length.into_iter().chain(digests)
}

/// The removals of what only a client that is trusted may say: the headers of these names.
pub(crate) fn privileges<'a>(
    headers: Headers<'a>,
    names: &'a [Arc<str>],
) -> impl Iterator<Item = HeaderEdit> + 'a {
    let present = names.iter().filter(move |name| headers.get(name).is_some());
    present.map(|name| HeaderEdit::Remove(Cow::Owned(name.as_ref().to_owned())))
}

/// The removals from a server's answer, where nothing is set in their place.
#[must_use]
pub fn response(headers: Headers<'_>) -> Vec<HeaderEdit> {
    present(headers, REPORTS)
}

fn present(headers: Headers<'_>, names: impl IntoIterator<Item = &'static str>) -> Vec<HeaderEdit> {
    names
        .into_iter()
        .filter(|name| headers.get(name).is_some())
        .map(|name| HeaderEdit::Remove(Cow::Borrowed(name)))
        .collect()
}
