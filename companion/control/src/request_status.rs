//! The status of one request, for `/requests/{id}`.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::Outcome;

use crate::labels::Labels;

/// A request at one moment.
#[derive(Clone, Debug)]
pub struct RequestStatus {
    /// The request's labels.
    pub labels: Arc<Labels>,
    /// The request's stage.
    pub state: RequestState,
    /// The request's policy class; empty if the pool has no classes.
    pub class: Box<str>,
    /// The outcome of its first grant; `None` while it waits, for the first time or again.
    pub outcome: Option<Outcome>,
    /// How often it was requeued.
    pub requeues: u32,
    /// It runs above the bound of its endpoint, in a place for flows with nothing running.
    pub extra: bool,
    /// From its arrival to its grant, or to now.
    pub waited: Duration,
    /// Why it waits, or why it went where it is: a sentence for people.
    pub why: Box<str>,
}

/// The stage of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestState {
    /// In the queue.
    Waiting {
        /// Requests that are granted before it.
        ahead: u64,
        /// Until its grant, by the measured drain rate.
        estimate: Duration,
        /// The request's tag in virtual time; `None` if the pool's discipline has none.
        tag: Option<f64>,
    },
    /// At an endpoint.
    Running {
        /// The endpoint's address; empty if it isn't known.
        endpoint: Box<str>,
    },
}
