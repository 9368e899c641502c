//! The failure of an attempt to send a request, as its filter reports it: an `AttemptFailed` message, parsed.

use core::time::Duration;

/// An attempt of a granted request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedAttempt<'a> {
    /// The server's address.
    pub(crate) endpoint: &'a str,
    pub(crate) end: AttemptEnd,
    /// The pause that the server asks for.
    pub(crate) retry_after: Option<Duration>,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// The server answered with this HTTP status, 400 or above.
    Status(u16),
    /// The server cut the connection after the request was sent. `is_reused`: the connection had carried another request before.
    Cut { is_reused: bool },
    /// No byte of an answer came in time.
    TimedOut,
    /// Envoy had no file descriptor for a connection to the server.
    Unsent,
}
