//! What an engine decides.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::input::{Band, EndpointId, RequestId};
use crate::units::Tokens;

/// How a request left the queue, or that it never entered it. One per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Went at once.
    Bypassed,
    /// Went on a lease.
    Leased,
    /// Went after it had waited.
    Dispatched,
    /// Total capacity reached; its flow had nothing waiting.
    RejectedTooManyFlows,
    /// Total capacity reached; its flow was waiting already.
    RejectedQueueFull,
    /// Its flow has as many waiting as one may.
    RejectedFlowCapacity,
    /// A limit of its class was reached.
    RejectedClassCapacity,
    /// The policy lets nothing of its kind wait.
    RejectedPolicy,
    /// Predicted to miss its deadline.
    RejectedUnmeetable,
    /// Malformed, or for no pool.
    RejectedInvalid,
    /// A more critical one took its place.
    Displaced,
    /// Waited longer than ttl.
    ExpiredTtl,
    /// The client's own deadline passed.
    DeadlineExceeded,
    /// The client left while it waited.
    Cancelled,
    /// No endpoint was ready for too long, or none fits it.
    NoEndpoints,
    /// The companion shuts down.
    ShuttingDown,
    /// The companion was away.
    GatewayUnavailable,
    /// A decision failed.
    Internal,
}

impl Outcome {
    /// All of them, in the order of the metric's documentation.
    pub const ALL: [Self; 18] = [
        Self::Bypassed,
        Self::Leased,
        Self::Dispatched,
        Self::RejectedTooManyFlows,
        Self::RejectedQueueFull,
        Self::RejectedFlowCapacity,
        Self::RejectedClassCapacity,
        Self::RejectedPolicy,
        Self::RejectedUnmeetable,
        Self::RejectedInvalid,
        Self::Displaced,
        Self::ExpiredTtl,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::NoEndpoints,
        Self::ShuttingDown,
        Self::GatewayUnavailable,
        Self::Internal,
    ];

    /// Its name in headers, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bypassed => "bypassed",
            Self::Leased => "leased",
            Self::Dispatched => "dispatched",
            Self::RejectedTooManyFlows => "rejected_too_many_flows",
            Self::RejectedQueueFull => "rejected_queue_full",
            Self::RejectedFlowCapacity => "rejected_flow_capacity",
            Self::RejectedClassCapacity => "rejected_class_capacity",
            Self::RejectedPolicy => "rejected_policy",
            Self::RejectedUnmeetable => "rejected_unmeetable",
            Self::RejectedInvalid => "rejected_invalid",
            Self::Displaced => "displaced",
            Self::ExpiredTtl => "expired_ttl",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::NoEndpoints => "no_endpoints",
            Self::ShuttingDown => "shutting_down",
            Self::GatewayUnavailable => "gateway_unavailable",
            Self::Internal => "internal",
        }
    }
}

/// One decision. The owner carries it out; the engine has already accounted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The request goes.
    Grant {
        /// Which.
        id: RequestId,
        /// First choice, then fallbacks; never empty.
        endpoints: Vec<EndpointId>,
        /// [`Outcome::Bypassed`] or [`Outcome::Dispatched`].
        outcome: Outcome,
        /// In the queue, since its first arrival; zero for one that bypassed.
        waited: Duration,
        /// What it was charged.
        cost: Tokens,
        /// Its prompt, as far as it is known or estimated,
        prompt: Tokens,
        /// of this, what a server holds already,
        cached: Tokens,
        /// and its output as it is expected.
        output: Tokens,
    },
    /// The request doesn't go.
    Reject {
        /// Which.
        id: RequestId,
        /// Why.
        outcome: Outcome,
        /// Since its first arrival.
        waited: Duration,
        /// When trying again makes sense; `None` where it never does.
        retry_after: Option<Duration>,
    },
    /// A client left while its request waited: its outcome is counted, there is nobody to answer.
    Cancelled {
        /// Which.
        id: RequestId,
        /// Since its first arrival.
        waited: Duration,
    },
    /// Follows a grant while [`crate::Engine::trace`] is on: how it came about.
    Traced {
        /// Which.
        id: RequestId,
        /// Its class by name; empty where no classes are configured.
        class: Box<str>,
        /// Its flow.
        flow: Box<str>,
        /// What its class was charged.
        class_cost: Tokens,
        /// What its flow was charged.
        flow_cost: Tokens,
        /// Of every class in its band and tree, in the order of the ring: its deficit after this.
        deficits: Vec<(Box<str>, u64)>,
    },
    /// Said of every settled cost above 0 that counts in a window, while [`crate::Engine::report_usage`] is on: what
    /// [`crate::Input::PastUsage`] takes.
    UsageSettled {
        /// The flow's band.
        band: Band,
        /// The class by name; empty where none are configured.
        class: Box<str>,
        /// The flow.
        flow: Box<str>,
        /// The model that was asked for.
        model: Box<str>,
        /// The cost.
        cost: Tokens,
    },
    /// A granted request ended: what it was charged in the end.
    Settled {
        /// Which.
        id: RequestId,
        /// Its band.
        band: Band,
        /// The final cost; zero: refunded.
        cost: Tokens,
    },
}
