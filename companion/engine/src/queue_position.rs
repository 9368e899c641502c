//! The position of a waiting request, and what blocks it: for display, never for a decision.

use core::time::Duration;

/// The position of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// Requests that would be dispatched before it if no request came, none ended otherwise than estimated, and none
    /// were suspended or blocked: those before it by the discipline, and of other classes, models and bands as many as
    /// their share allows in the meantime; of more critical bands all, unless bands have weights.
    pub ahead: u64,
    /// The part of `ahead` in other bands.
    pub in_other_bands: u64,
    /// Time since its first arrival.
    pub waited: Duration,
    /// Time until its dispatch, by the measured drain rate and its budget; at least one second.
    pub estimate: Duration,
    /// The request's tag in virtual time once everything before it in its flow is dispatched; `None`: the discipline has no tags.
    pub tag: Option<f64>,
}

/// What keeps a waiting request from being dispatched now, the nearest cause first.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockReason {
    /// The owner hasn't adopted everything that runs yet: nothing is dispatched.
    Starting,
    /// The request is suspended, because its session was lost.
    Suspended,
    /// The endpoints that are ready have just failed it: it waits for the end of its pause.
    Pause {
        /// Until the end of the pause.
        left: Duration,
    },
    /// No endpoint of the pool is ready.
    NoEndpoint,
    /// No endpoint that the request may go to is ready.
    OwnEndpoints,
    /// The request's identity has used its budget, which holds it.
    Held {
        /// Until the budget has room, if nothing more is used; `None`: unknown, because other engines run what fills it.
        left: Option<Duration>,
    },
    /// The request's identity runs the most requests that it may.
    MaxInFlight {
        /// Requests of its identity that run.
        running: u64,
        /// The limit.
        most: u64,
    },
    /// The request's eligible endpoints are above the threshold of its class for uncached prompt tokens in prefill.
    ClassThreshold,
    /// The request's identity runs the most requests that it may at each endpoint that would take it.
    MaxInFlightPerEndpoint {
        /// The limit at one endpoint.
        most: u64,
    },
    /// The gate is closed.
    Gate {
        /// The stock.
        stock: u64,
        /// The bound that the stock must be below.
        lower: u64,
    },
    /// The request's eligible endpoints have no room, though the pool has.
    EndpointsFull,
    /// None of the request's eligible endpoints has room for all its sequences.
    Sequences {
        /// The sequences of the request.
        count: u64,
    },
    /// The request's band may use only a part of the bound.
    Ceiling {
        /// The stock.
        stock: u64,
        /// The whole bound.
        lower: u64,
    },
    /// The dispatch rate is at its limit.
    MaxRate,
    /// Only the requests before it.
    Turn,
}
