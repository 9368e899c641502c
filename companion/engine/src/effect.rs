//! The engine's decisions, as data.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::input::{Band, EndpointId, QuotaRunning, QuotaUsage, RequestId};
use crate::outcome::Outcome;
use crate::policy::Over;
use crate::units::Tokens;

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
