//! The inputs and outputs of a control.

use core::time::Duration;
use std::sync::Arc;

use penstock_autopilot::{Kept, PendingServers, Scraped};
use penstock_election::{Report, RoleChange};
use penstock_engine::effect::QuotaReport;
use penstock_engine::input::{PastUsage, QuotaReset, QuotaRunning, QuotaUsage, RunningUsage};
use penstock_engine::Outcome;
use penstock_wire as wire;

use crate::budgets::BudgetChange;
use crate::ids::ConnId;
use crate::labels::Labels;
use crate::settings::{EndpointSettings, Settings};

/// Everything that can happen to a control.
#[derive(Clone, Debug)]
pub enum Event {
    /// A stream has opened.
    Opened(ConnId),
    /// A frame has arrived.
    Frame(ConnId, Box<wire::FilterFrame>),
    /// A stream has ended, for any reason.
    Closed(ConnId),
    /// The health of an endpoint has changed.
    EndpointReady {
        /// The pool's name. An unknown one is ignored.
        pool: Arc<str>,
        /// `ip:port`. An unknown one is ignored.
        address: String,
        /// The endpoint passes its health check.
        ready: bool,
    },
    /// The metrics of a model server were read.
    Scraped {
        /// The pool's name. An unknown one is ignored.
        pool: Arc<str>,
        /// `ip:port`. An unknown one is ignored.
        address: String,
        /// The metrics; `None` if reading them has failed for too long.
        scraped: Option<Scraped>,
        /// Adapters in the server's memory, by the names of their models; `None` if the server doesn't report them.
        adapters: Option<Box<[Box<str>]>>,
    },
    /// Another configuration, whole, including discovered endpoints. A pool is identified
    /// by its name. A waiting request keeps its place, flow, band and target model. It is rejected with `rejected_invalid`
    /// if its pool is gone or no longer serves its model. Running requests go on. Term and seed stay as they were.
    Settings(Box<Settings>),
    /// Another list of a pool's endpoints. An address that stays keeps its health and its running requests. A new address
    /// has the health that its settings give. Requests on an endpoint that is gone go on. A waiting request without
    /// an eligible endpoint is rejected with `no_endpoints`.
    Endpoints {
        /// The pool's name. An unknown one is ignored.
        pool: Arc<str>,
        /// All of them, in order.
        endpoints: Vec<EndpointSettings>,
        /// Servers that exist and are no endpoints yet, all of them.
        pending: Vec<PendingServers>,
    },
    /// Usage of a pool's flows from before this companion's start, or of another companion's grants. It counts in the windows
    /// of the pool's discipline, if that has windows.
    Used {
        /// The pool's name. An unknown one is ignored.
        pool: Arc<str>,
        /// Flows, costs and ages.
        past: Vec<PastUsage>,
        /// What flows run at other companions, where that has changed.
        running: Vec<RunningUsage>,
    },
    /// An operator changes a flow's budget. Ignored for a flow without a budget.
    ChangeBudget {
        /// The pool's name. An unknown one is ignored.
        pool: Arc<str>,
        /// The flow.
        flow: Box<str>,
        /// The change.
        change: BudgetChange,
    },
    /// Resets of budgets at other companions, or from before this companion's start. They come before what was used after them.
    QuotaResets {
        /// The pool's name. Resets of an unknown pool are ignored.
        pool: Arc<str>,
        /// Flows, and how long ago.
        resets: Vec<QuotaReset>,
    },
    /// What flows of the pool had used of their budgets before this companion's start.
    QuotaHistory {
        /// The pool's name. Usage of an unknown pool is ignored.
        pool: Arc<str>,
        /// All of some flows.
        past: Vec<QuotaUsage>,
    },
    /// What flows of the pool have used of their budgets at other companions, and what they run there now.
    QuotaUsage {
        /// The pool's name. Usage of an unknown pool is ignored.
        pool: Arc<str>,
        /// Settled usage, and top-ups.
        settled: Vec<QuotaUsage>,
        /// What flows run at other companions, where that has changed.
        running: Vec<QuotaRunning>,
    },
    /// UTC now, as the time since 1970 began: at the start, and when the clock has jumped. Days and months of budgets begin by it.
    Utc(Duration),
    /// Reject new and waiting requests (`true`), or take requests again (`false`).
    Drain(bool),
    /// The election of the leader has decided. Only with several companions.
    Leadership(RoleChange),
    /// Another companion takes over: every session gets a Bye and is closed, and nothing is granted any more.
    HandOver,
}

/// An output of a control.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this frame.
    Send(ConnId, Box<wire::CompanionFrame>),
    /// Close the stream, for this reason. Frames that were output before are still sent.
    Close(ConnId, &'static str),
    /// For metrics and logs.
    Observe(Observation),
    /// For the election of the leader. Only with several companions.
    Election(Report),
}

/// An event for metrics and logs.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A session has opened: its Hello is complete.
    SessionOpened {
        /// Its stream.
        conn: ConnId,
        /// Envoy's node name.
        node: Box<str>,
        /// Waiting requests in its Hello.
        waiting: usize,
        /// Running requests in its Hello.
        running: usize,
    },
    /// A session has closed.
    SessionClosed {
        /// Its stream.
        conn: ConnId,
        /// The reason.
        why: &'static str,
    },
    /// A session has closed without Bye, and its root context has no other stream. Its requests keep their place for
    /// [`wire::limits::SESSION_GRACE`].
    SessionOrphaned {
        /// Its stream.
        conn: ConnId,
        /// Its waiting requests.
        waiting: usize,
        /// Its running requests.
        running: usize,
    },
    /// An endpoint was marked down because requests failed there.
    EndpointDown {
        /// The pool's name.
        pool: Arc<str>,
        /// The endpoint's address.
        endpoint: Box<str>,
    },
    /// An endpoint that was marked down is probed.
    EndpointBack {
        /// The pool's name.
        pool: Arc<str>,
        /// The endpoint's address.
        endpoint: Box<str>,
    },
    /// A server refused a request by itself, before a response, and its bound was lowered.
    PushedBack {
        /// The pool's name.
        pool: Arc<str>,
        /// The endpoint's address.
        endpoint: Arc<str>,
        /// The HTTP status of the server's response: 429 or 503.
        status: u16,
    },
    /// An Envoy had no file descriptor for a connection to a server of this pool.
    OutOfFiles(Arc<str>),
    /// A request has arrived.
    Arrived(Arc<Labels>),
    /// A deadline header that the pool uses is not a valid number, and is ignored.
    BadDeadline(Arc<Labels>),
    /// A request claimed a higher priority than its tenant or a client without trust may have, and got a lower band.
    PriorityLowered(Arc<Labels>),
    /// A granted request waits again, because no endpoint took it or its endpoints are gone. Another grant isn't observed. If it
    /// leaves the queue in another way, that is observed as [`Self::Dropped`] or [`Self::Refused`].
    Requeued(Arc<Labels>),
    /// The first outcome of a request: it left the queue, or never entered it.
    Decided {
        /// Of the request.
        labels: Arc<Labels>,
        /// The outcome.
        outcome: Outcome,
        /// The code of the answer; empty for a granted request.
        code: &'static str,
        /// Since the request's arrival.
        waited: Duration,
        /// The first choice of the grant; empty for a request that isn't granted.
        endpoint: Arc<str>,
        /// It was in the queue. Otherwise it was granted or rejected at its arrival.
        was_queued: bool,
    },
    /// The filter answered a request by itself.
    Refused {
        /// The filter's Envoy: its node name.
        node: Box<str>,
        /// Of the request.
        labels: Arc<Labels>,
        /// An outcome's name.
        outcome: Box<str>,
        /// The code of the answer.
        code: Box<str>,
        /// Since the request's arrival; `None`: it isn't known here.
        waited: Option<Duration>,
        /// The request was granted before, so that its outcome is its second one here.
        was_granted: bool,
        /// How often the request was requeued.
        requeues: u32,
    },
    /// Envoy sent a request to an endpoint that wasn't granted.
    Misrouted {
        /// Of the request.
        labels: Arc<Labels>,
        /// The endpoint's address.
        endpoint: Box<str>,
    },
    /// The parameters of a variant have changed enough to be stored.
    Learned {
        /// The pool's name.
        pool: Arc<str>,
        /// The variant's name.
        variant: String,
        /// The parameters.
        kept: Kept,
    },
    /// A cost was settled that counts in a window. Only of pools that are
    /// [`reported`](crate::PoolSettings::reported).
    Used {
        /// The pool's name.
        pool: Arc<str>,
        /// Flow and cost. The flow may be private.
        used: PastUsage,
    },
    /// What a flow runs of a model has changed, in a pool with windows. Only of pools that are
    /// [`shared`](crate::PoolSettings::shared).
    Running {
        /// The pool's name.
        pool: Arc<str>,
        /// Flow and sum of estimates. The flow may be private.
        running: RunningUsage,
    },
    /// What has happened to the budget of a flow. All of it but what a shadow would have done, only of pools that are
    /// [`reported`](crate::PoolSettings::reported).
    Quota {
        /// The pool's name.
        pool: Arc<str>,
        /// Flow and amounts. The flow may be private.
        report: QuotaReport,
    },
    /// A granted request has ended.
    Completed {
        /// Of the request.
        labels: Arc<Labels>,
        /// The outcome of its first grant.
        outcome: Outcome,
        /// In the queue, from the arrival to the last grant.
        waited: Duration,
        /// The last address that Envoy used; empty if it used none.
        endpoint: Arc<str>,
        /// The HTTP status that the client got; 0 if it got none.
        status: u16,
        /// From the arrival to the first byte of the response, including the wait; `None` without a response.
        ttft: Option<Duration>,
        /// Mean time between tokens; `None` with fewer than two, or if they weren't counted.
        itl: Option<Duration>,
        /// From the arrival to the end.
        duration: Duration,
        /// As the model server counted.
        prompt_tokens: Option<u64>,
        /// As the model server counted, otherwise the events of the stream.
        output_tokens: Option<u64>,
        /// How often it was requeued.
        requeues: u32,
    },
    /// A request has ended after its first grant, and no endpoint is known to have ended it: its client left before it was
    /// sent, its session is gone, or it waited again and left the queue without another grant.
    Dropped {
        /// Of the request.
        labels: Arc<Labels>,
        /// How it left the queue the last time: the outcome of its first grant, or, if it waited again, that of its rejection or
        /// [`Outcome::Cancelled`], which is its second outcome.
        outcome: Outcome,
        /// How often it was requeued.
        requeues: u32,
        /// The status of the answer; `None` if there was none.
        status: Option<u16>,
        /// The code of the answer; empty if there was none.
        code: &'static str,
        /// In the queue, from the arrival to the last grant, or to the end if the request waited again.
        waited: Duration,
    },
}
