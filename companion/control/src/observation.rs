//! What a control reports for metrics and logs.

use core::time::Duration;
use std::sync::Arc;

use penstock_autopilot::Kept;
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::{PastUsage, RunningUsage};
use penstock_engine::{HealthReason, HealthState, Outcome};

use crate::counting::EstimateReason;
use crate::ids::{ConnId, Door};
use crate::labels::Labels;

/// An event for metrics and logs.
#[derive(Clone, Debug)]
pub enum Observation {
    /// Of the session on this stream.
    Session(ConnId, SessionNews),
    /// Of the pool with this name.
    Pool(Arc<str>, PoolNews),
    /// Of the request with these labels.
    Request(Arc<Labels>, RequestNews),
    /// Bytes of answers have come from the endpoints at these addresses since about a second.
    Alive(Box<[Box<str>]>),
}

/// What has happened to a session.
#[derive(Clone, Debug)]
pub enum SessionNews {
    /// The session has opened: its Hello is complete.
    Opened {
        /// Envoy's node name.
        node: Box<str>,
        /// Waiting requests in its Hello.
        waiting: usize,
        /// Running requests in its Hello.
        running: usize,
    },
    /// The session has closed, for this reason.
    Closed(&'static str),
    /// The session has closed without Bye, and its root context has no other stream. Its requests keep their place for
    /// [`penstock_wire::limits::SESSION_GRACE`].
    Orphaned {
        /// The root context's waiting requests.
        waiting: usize,
        /// The root context's running requests.
        running: usize,
    },
}

/// What has happened in a pool.
#[derive(Clone, Debug)]
pub enum PoolNews {
    /// The state of an endpoint has changed by requests and their answers. Health checks are reported by the task that makes them.
    Health {
        /// The endpoint's address.
        endpoint: Arc<str>,
        /// The state before.
        before: HealthState,
        /// The state now.
        state: HealthState,
        /// Why.
        reason: HealthReason,
    },
    /// A server refused a request by itself, before a response, and its bound was lowered.
    PushedBack {
        /// The endpoint's address.
        endpoint: Arc<str>,
        /// The HTTP status of the server's response: 429 or 503.
        status: u16,
    },
    /// A client has left, and its request keeps its place until the metrics of the server show its end.
    Abandoned {
        /// The endpoint's address.
        endpoint: Arc<str>,
    },
    /// An answer was not charged by the counts of its server, for this reason.
    Estimated(EstimateReason),
    /// An Envoy had no file descriptor for a connection to a server of the pool.
    OutOfFiles,
    /// The parameters of a variant have changed enough to be stored.
    Learned {
        /// The variant's name.
        variant: String,
        /// The parameters.
        kept: Kept,
    },
    /// A cost was settled that counts in a window. Only of pools that are [`reported`](crate::PoolSettings::reported). The flow may be
    /// private.
    Used(PastUsage),
    /// What a flow runs of a model has changed, in a pool with windows. Only of pools that are
    /// [`shared`](crate::PoolSettings::shared). The flow may be private.
    Running(RunningUsage),
    /// What has happened to the budget of a flow. All of it but what a shadow would have done, only of pools that are
    /// [`reported`](crate::PoolSettings::reported). The flow may be private.
    Budget(BudgetReport),
}

/// What has happened to a request.
#[derive(Clone, Debug)]
pub enum RequestNews {
    /// The request has arrived, in this way.
    Arrived(Door),
    /// Its client says that it has sent the request so often before; at least 1.
    ClientRetry(u32),
    /// A deadline header that the pool uses is not a valid number, and is ignored.
    BadDeadline,
    /// The request claimed a higher priority than its tenant or a client without trust may have, and got a lower band.
    PriorityLowered,
    /// The granted request waits again, because no endpoint took it or its endpoints are gone. Another grant isn't observed. If it
    /// leaves the queue in another way, that is observed as [`Self::Dropped`] or [`Self::Refused`].
    Requeued,
    /// The first outcome of the request: it left the queue, or never entered it.
    Decided(Decided),
    /// The filter answered the request by itself.
    Refused(Refused),
    /// Envoy sent the request to the endpoint at this address, which wasn't granted.
    Misrouted(Box<str>),
    /// The granted request has ended.
    Completed(Completed),
    /// The request has ended after its first grant, and no endpoint is known to have ended it: its client left before it was
    /// sent, its session is gone, it was evicted, or it waited again and left the queue without another grant.
    Dropped(Dropped),
}

/// The first outcome of a request.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The outcome.
    pub outcome: Outcome,
    /// The code of the answer; `None` for a granted request.
    pub code: Option<penstock_wire::Code>,
    /// Since the request's arrival.
    pub waited: Duration,
    /// The first choice of the grant; empty for a request that isn't granted.
    pub endpoint: Arc<str>,
    /// The request was in the queue. Otherwise it was granted or rejected at its arrival.
    pub was_queued: bool,
    /// It was granted above the bound of its endpoint, in a place for flows with nothing running.
    pub extra: bool,
    /// The address of the endpoint that computes its prompt for the first choice; `None`: that one does.
    pub prefill: Option<Arc<str>>,
}

impl Decided {
    /// The request was granted, within the bound.
    pub(crate) const fn granted(
        outcome: Outcome,
        waited: Duration,
        endpoint: Arc<str>,
        was_queued: bool,
    ) -> Self {
        Self { outcome, code: None, waited, endpoint, was_queued, extra: false, prefill: None }
    }

    /// The request was answered by the gateway.
    pub(crate) fn refused(
        outcome: Outcome,
        code: penstock_wire::Code,
        waited: Duration,
        was_queued: bool,
    ) -> Self {
        Self {
            outcome,
            code: Some(code),
            waited,
            endpoint: Arc::default(),
            was_queued,
            extra: false,
            prefill: None,
        }
    }
}

/// A filter's own answer to a request.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The filter's Envoy: its node name.
    pub node: Box<str>,
    /// An outcome's name.
    pub outcome: Box<str>,
    /// The code of the answer.
    pub code: penstock_wire::Code,
    /// Since the request's arrival; `None`: it isn't known here.
    pub waited: Option<Duration>,
    /// The request was granted before, so that its outcome is its second one here.
    pub was_granted: bool,
    /// How often the request was requeued.
    pub requeues: u32,
}

/// The end of a granted request.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The outcome of its first grant.
    pub outcome: Outcome,
    /// In the queue, from the arrival to the last grant.
    pub waited: Duration,
    /// The last address that Envoy used; empty if it used none.
    pub endpoint: Arc<str>,
    /// The HTTP status that the client got; 0 if it got none.
    pub status: u16,
    /// From the arrival to the first token of the response, including the wait; `None` without one.
    pub first_token: Option<Duration>,
    /// `first_token` of a complete stream; `None` for every other response.
    pub ttft: Option<Duration>,
    /// Mean time between tokens; `None` with fewer than two, or if they weren't counted.
    pub itl: Option<Duration>,
    /// From the arrival to the end.
    pub duration: Duration,
    /// Prompt tokens, as the model server counted.
    pub prompt_tokens: Option<u64>,
    /// Output tokens, as the model server counted, otherwise by the text or by the time at the server.
    pub output_tokens: Option<u64>,
    /// How often it was requeued.
    pub requeues: u32,
    /// Its last grant was above the bound of its endpoint, in a place for flows with nothing running.
    pub extra: bool,
}

/// The end of a request after its first grant, without a report of an endpoint.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// How it left the queue the last time: the outcome of its first grant, or, if it waited again, that of its rejection or
    /// [`Outcome::Cancelled`], which is its second outcome, as is [`Outcome::Evicted`].
    pub outcome: Outcome,
    /// How often it was requeued.
    pub requeues: u32,
    /// The status of the answer; `None` if there was none.
    pub status: Option<u16>,
    /// The code of the answer; `None` if there was none.
    pub code: Option<penstock_wire::Code>,
    /// In the queue, from the arrival to the last grant, or to the end if the request waited again.
    pub waited: Duration,
}
