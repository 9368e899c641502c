//! The failure of an attempt to send a request, as its filter reports it: a `PushedBack` message, parsed.

use core::time::Duration;

/// A server refused a granted request by itself, or the request never left Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pushback<'a> {
    /// The server's address.
    pub(crate) endpoint: &'a str,
    /// The HTTP status of its response: 429 or 503. `None`: Envoy had no file descriptor for a connection to it.
    pub(crate) status: Option<u16>,
    /// The pause that the server asks for.
    pub(crate) retry_after: Option<Duration>,
}
