//! The engine's decisions, as data.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::input::{Band, BudgetRunning, BudgetUsage, EndpointId, PastUsage, RequestId, RunningUsage};
use crate::outcome::Outcome;
use crate::policy::Over;
use crate::units::Tokens;

/// One decision. The owner carries it out; the engine has already accounted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The request is dispatched.
    Grant(Grant),
    /// The request is rejected.
    Reject(Reject),
    /// The client disconnected while the request waited. The outcome is counted; there is no response to send.
    Cancelled {
        /// The request.
        id: RequestId,
        /// Time since its first arrival.
        waited: Duration,
    },
    /// A granted request is asked to end.
    Evict(Evict),
    /// Details of the preceding grant, while [`crate::Engine::trace`] is on.
    Traced(Trace),
    /// A settled cost above 0 that counts in a usage window, while [`crate::Engine::report_usage`] is on. Another engine
    /// takes it as [`crate::Input::PastUsage`].
    UsageSettled(PastUsage),
    /// What a flow runs of a model has changed, under [`crate::policy::Discipline::Usage`] and while
    /// [`crate::Engine::report_running_usage`] is on. Another engine takes it as it is.
    UsageRunning(RunningUsage),
    /// What has happened to the budget of a flow.
    Budget(BudgetReport),
    /// A granted request ended, and this is its final cost.
    Settled {
        /// The request.
        id: RequestId,
        /// The request's band.
        band: Band,
        /// The final cost; zero: refunded.
        cost: Tokens,
    },
}

/// A request is dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The request.
    pub id: RequestId,
    /// The first choice, then fallbacks; never empty.
    pub endpoints: Vec<EndpointId>,
    /// [`Outcome::Bypassed`] or [`Outcome::Dispatched`].
    pub outcome: Outcome,
    /// Time in the queue since its first arrival; zero if it bypassed.
    pub waited: Duration,
    /// The charge.
    pub cost: Tokens,
    /// Prompt tokens, counted or estimated.
    pub prompt: Tokens,
    /// The part of the prompt that a server has cached.
    pub cached: Tokens,
    /// Expected output tokens.
    pub output: Tokens,
    /// It runs above the bound of its endpoint: see [`crate::policy::ExtraPlaces`].
    pub extra: bool,
    /// The endpoint that computes the prompt for the first of `endpoints`; `None`: that one does.
    pub prefill: Option<EndpointId>,
}

/// A request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The request.
    pub id: RequestId,
    /// The reason.
    pub outcome: Outcome,
    /// Time since its first arrival.
    pub waited: Duration,
    /// When to try again; `None` where a retry is pointless.
    pub retry_after: Option<Duration>,
}

/// A granted request whose answer hasn't begun is asked to end, because a critical request has waited for too long for its place
/// ([`crate::Policy::eviction`]). It runs on until its end is an input, which says what was served. If its answer has begun in the meantime, the
/// owner lets it run, and says so by [`crate::Input::Begun`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evict {
    /// The request.
    pub id: RequestId,
    /// For how long the critical request has waited.
    pub waited: Duration,
    /// When to try again.
    pub retry_after: Duration,
}

/// Details of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The request.
    pub id: RequestId,
    /// The name of its class; empty where no classes are configured.
    pub class: Box<str>,
    /// The request's flow.
    pub flow: Box<str>,
    /// The charge to its class.
    pub class_cost: Tokens,
    /// The charge to its flow.
    pub flow_cost: Tokens,
    /// Each class of its band and model, in the order of the ring, with its deficit after the grant.
    pub deficits: Vec<(Box<str>, u64)>,
}

/// What has happened to the budget of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetReport {
    /// A flow has used this of its budget, or it was topped up by hand, while [`crate::Engine::report_budgets`] is on. Another engine takes it as
    /// [`crate::Input::BudgetUsage`].
    Used(BudgetUsage),
    /// What a flow with a budget runs here has changed, under the same condition.
    Running(BudgetRunning),
    /// The flow's budget was reset by [`crate::Input::ResetBudget`], under the same condition. What was reported of it before no longer
    /// counts anywhere. All engines take it as [`crate::Input::BudgetResets`].
    Reset {
        /// The flow.
        flow: Box<str>,
        /// Later resets of this engine have higher numbers.
        number: u64,
    },
    /// This engine has heard of a reset at another one, under the same condition: what it has reported of the flow's usage, and other
    /// engines don't know yet, no longer counts. What it reports from here on was used after the reset.
    Forgotten {
        /// The flow.
        flow: Box<str>,
        /// The reset's number.
        number: u64,
    },
    /// A request met no room in the budget of its flow, which is a shadow and has decided nothing. At most once for each request.
    Shadowed {
        /// The flow.
        flow: Box<str>,
        /// What would have happened to the request.
        over: Over,
    },
}
