//! One request that hasn't ended: where it stands and why, for whoever asks.
//!
//! It looks for it among all of them: that takes time proportional to their number, and nobody is asked often.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::Instant;

use crate::control::Control;
use crate::event::Labels;

/// A request as it is at one moment.
#[derive(Clone, Debug)]
pub struct RequestStatus {
    /// Whose it is.
    pub labels: Arc<Labels>,
    /// How far it is.
    pub state: RequestState,
    /// Its policy class; empty: its pool has none.
    pub class: Box<str>,
    /// Since its arrival until it was let go, or until now.
    pub waited: Duration,
    /// Why it waits, or why it went where it is; a sentence for people.
    pub why: Box<str>,
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestState {
    /// In the queue.
    Waiting {
        /// Requests that would go before it.
        ahead: u64,
        /// Until it goes, by the measured drain rate.
        estimate: Duration,
        /// Its tag in virtual time.
        tag: f64,
    },
    /// At a server.
    Running {
        /// The server's address.
        endpoint: Box<str>,
    },
}

impl Control {
    /// The request with this `x-request-id`, if it hasn't ended; of several, the one that came last.
    #[must_use]
    pub fn request(&self, _now: Instant, _request_id: &str) -> Option<RequestStatus> {
        None
    }
}
