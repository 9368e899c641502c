//! The engine's decisions, as data.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::input::{Band, EndpointId, QuotaRunning, QuotaUsage, RequestId};
use crate::policy::Over;
use crate::units::Tokens;

/// How a request left the queue, or why it never entered it. Every request has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Dispatched at its arrival.
    Bypassed,
    /// Admitted by the filter itself.
    Leased,
    /// Dispatched from the queue.
    Dispatched,
    /// Rejected: the queue is full, and nothing of its flow waits.
    RejectedTooManyFlows,
    /// Rejected: the queue is full, and its flow waits already.
    RejectedQueueFull,
    /// Rejected: its flow's part of the queue is full.
    RejectedFlowCapacity,
    /// Rejected: its class reached a limit.
    RejectedClassCapacity,
    /// Rejected: the policy lets no request of its kind wait.
    RejectedPolicy,
    /// Rejected: predicted to miss its deadline.
    RejectedUnmeetable,
    /// Rejected: its flow has used up its quota.
    RejectedBudget,
    /// Rejected: malformed, or for no pool.
    RejectedInvalid,
    /// A more critical request took its place in the queue.
    Displaced,
    /// It waited longer than the ttl.
    ExpiredTtl,
    /// The client's own deadline passed.
    DeadlineExceeded,
    /// The client disconnected while the request waited.
    Cancelled,
    /// No endpoint was ready for too long, or none is eligible.
    NoEndpoints,
    /// The companion shuts down.
    ShuttingDown,
    /// The companion was unavailable.
    GatewayUnavailable,
    /// A decision failed.
    Internal,
}

impl Outcome {
    /// All outcomes, in the order of the metric's documentation.
    pub const ALL: [Self; 19] = [
        Self::Bypassed,
        Self::Leased,
        Self::Dispatched,
        Self::RejectedTooManyFlows,
        Self::RejectedQueueFull,
        Self::RejectedFlowCapacity,
        Self::RejectedClassCapacity,
        Self::RejectedPolicy,
        Self::RejectedUnmeetable,
        Self::RejectedBudget,
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

    /// The policy refuses the request, or the request can't be served at all: more servers would change nothing. The opposite is a request
    /// that room at an endpoint would have let go.
    #[must_use]
    pub const fn is_refusal_by_policy(self) -> bool {
        matches!(
            self,
            Self::RejectedPolicy | Self::RejectedBudget | Self::RejectedInvalid
        )
    }

    /// The name in headers, metrics and logs.
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
            Self::RejectedBudget => "rejected_budget",
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
    /// The request is dispatched.
    Grant {
        /// The request.
        id: RequestId,
        /// The first choice, then fallbacks; never empty.
        endpoints: Vec<EndpointId>,
        /// [`Outcome::Bypassed`] or [`Outcome::Dispatched`].
        outcome: Outcome,
        /// Time in the queue since its first arrival; zero if it bypassed.
        waited: Duration,
        /// The charge.
        cost: Tokens,
        /// Prompt tokens, counted or estimated.
        prompt: Tokens,
        /// The part of the prompt that a server has cached.
        cached: Tokens,
        /// Expected output tokens.
        output: Tokens,
    },
    /// The request is rejected.
    Reject {
        /// The request.
        id: RequestId,
        /// The reason.
        outcome: Outcome,
        /// Time since its first arrival.
        waited: Duration,
        /// When to try again; `None` where a retry is pointless.
        retry_after: Option<Duration>,
    },
    /// The client disconnected while the request waited. The outcome is counted; there is no response to send.
    Cancelled {
        /// The request.
        id: RequestId,
        /// Time since its first arrival.
        waited: Duration,
    },
    /// Details of the preceding grant, while [`crate::Engine::trace`] is on.
    Traced {
        /// The request.
        id: RequestId,
        /// The name of its class; empty where no classes are configured.
        class: Box<str>,
        /// Its flow.
        flow: Box<str>,
        /// The charge to its class.
        class_cost: Tokens,
        /// The charge to its flow.
        flow_cost: Tokens,
        /// Each class of its band and model, in the order of the ring, with its deficit after the grant.
        deficits: Vec<(Box<str>, u64)>,
    },
    /// A settled cost above 0 that counts in a usage window, while [`crate::Engine::report_usage`] is on. Another engine
    /// takes it as [`crate::Input::PastUsage`].
    UsageSettled {
        /// The flow's band.
        band: Band,
        /// The name of the class; empty where no classes are configured.
        class: Box<str>,
        /// The flow.
        flow: Box<str>,
        /// The model that the client requested.
        model: Box<str>,
        /// The cost.
        cost: Tokens,
    },
    /// What a flow runs of a model has changed, under [`crate::policy::Discipline::Usage`] and while
    /// [`crate::Engine::report_running_usage`] is on. Another engine takes it as [`crate::input::RunningUsage`].
    UsageRunning {
        /// The flow's band.
        band: Band,
        /// The name of the class; empty where no classes are configured.
        class: Box<str>,
        /// The flow.
        flow: Box<str>,
        /// The model that the client requested.
        model: Box<str>,
        /// The sum of the estimated costs of all its running requests that aren't settled.
        running: Tokens,
    },
    /// What has happened to the quota of a flow.
    Quota(QuotaReport),
    /// A granted request ended, and this is its final cost.
    Settled {
        /// The request.
        id: RequestId,
        /// Its band.
        band: Band,
        /// The final cost; zero: refunded.
        cost: Tokens,
    },
}

/// What has happened to the quota of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaReport {
    /// A flow has used this of its quota, or it was topped up by hand, while [`crate::Engine::report_quotas`] is on. Another engine takes it as
    /// [`crate::Input::QuotaUsage`].
    Used(QuotaUsage),
    /// What a flow with a quota runs here has changed, under the same condition.
    Running(QuotaRunning),
    /// The flow's quota was reset by [`crate::Input::ResetQuota`], under the same condition. What was reported of it before no longer
    /// counts anywhere. Another engine takes it as [`crate::Input::QuotaResets`].
    Reset(Box<str>),
    /// This engine has followed a reset at another one, under the same condition: what it has reported of the flow's usage, and other
    /// engines don't know yet, no longer counts.
    Forgotten(Box<str>),
    /// A request met no room in the quota of its flow, which is a shadow and has decided nothing. At most once for each request.
    Shadowed {
        /// The flow.
        flow: Box<str>,
        /// What would have happened to the request.
        over: Over,
    },
}
