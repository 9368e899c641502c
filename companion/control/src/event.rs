//! What a control is told, and what it says.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::Outcome;
use penstock_engine::input::{Band, PastUsage};
use penstock_wire as wire;

use crate::autopilot::{Kept, Scraped};
use crate::settings::{EndpointSettings, Settings};

/// One gRPC stream, as the shell names it. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Everything that can happen to a control.
#[derive(Clone, Debug)]
pub enum Event {
    /// A stream was opened.
    Opened(ConnId),
    /// A frame came in on it.
    Frame(ConnId, Box<wire::FilterFrame>),
    /// It ended, however.
    Closed(ConnId),
    /// An endpoint became ready, or is no longer.
    EndpointReady {
        /// The pool's name; unknown ones are ignored.
        pool: Arc<str>,
        /// `ip:port`; unknown ones are ignored.
        address: String,
        /// It passes its health check.
        ready: bool,
    },
    /// What a server says of itself; `None`: it hasn't for too long.
    Scraped {
        /// The pool's name; unknown ones are ignored.
        pool: Arc<str>,
        /// `ip:port`; unknown ones are ignored.
        address: String,
        /// What it says.
        scraped: Option<Scraped>,
        /// Adapters that it has in memory, by the names of their models; `None`: it doesn't say.
        adapters: Option<Box<[Box<str>]>>,
    },
    /// Another configuration, whole: of a pool whose endpoints are discovered, those too. What waits keeps its place, its
    /// flow, its band and its target, what runs runs on; pools are told apart by their names. What waits in a pool that is
    /// gone, or that doesn't serve its model any more, is refused with `rejected_invalid`; what runs there ends as ever.
    /// Term and seed stay as they were.
    Settings(Box<Settings>),
    /// A pool's endpoints are these from now on. An address that stays keeps what runs there and its health; of a new one
    /// that is what its settings say. What runs on one that is gone ends as ever. What waits and is left with nowhere to
    /// go by its own constraints is refused with `no_endpoints`.
    Endpoints {
        /// The pool's name; unknown ones are ignored.
        pool: Arc<str>,
        /// All of them, in order.
        endpoints: Vec<EndpointSettings>,
    },
    /// What flows of a pool used in an earlier life of this companion, or of what others grant: it counts in their windows,
    /// where the pool's discipline has such.
    Used {
        /// The pool's name; unknown ones are ignored.
        pool: Arc<str>,
        /// Whose, how much, and how long ago.
        past: Vec<PastUsage>,
    },
    /// Refuse everything new and all that waits (`true`), or take requests again (`false`).
    Drain(bool),
    /// Another companion takes over: every session is told Bye and closed, nothing is granted from here on.
    HandOver,
}

/// What a control says.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this frame.
    Send(ConnId, Box<wire::CompanionFrame>),
    /// Close the stream; what was sent before must still go out.
    Close(ConnId, &'static str),
    /// For metrics and logs.
    Observe(Observation),
}

/// Whose request it is: the labels of its metrics and log lines. Shared by all that is said of one request.
#[derive(Debug, PartialEq, Eq)]
pub struct Labels {
    /// The pool's name; `none` for a request that has none.
    pub pool: Arc<str>,
    /// The model asked for.
    pub model: Box<str>,
    /// The model that the server is asked for.
    pub target_model: Box<str>,
    /// The flow; empty: anonymous.
    pub flow: Box<str>,
    /// The flow mustn't be shown: it comes from a body, or is a user.
    pub private: bool,
    /// The band.
    pub band: Band,
    /// The policy class it came in by; empty: its pool has none.
    pub class: Box<str>,
    /// The client's `x-request-id`.
    pub request_id: Box<str>,
    /// The client's `traceparent`; empty: it sent none, or nobody traces.
    pub traceparent: Box<str>,
}

/// Something worth counting or logging.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A session said Hello.
    SessionOpened {
        /// Its stream.
        conn: ConnId,
        /// Which Envoy it is.
        node: Box<str>,
        /// Requests it brought along, waiting.
        waiting: usize,
        /// And running.
        running: usize,
    },
    /// A session is over.
    SessionClosed {
        /// Its stream.
        conn: ConnId,
        /// Why.
        why: &'static str,
    },
    /// It ended without Bye, and no other stream speaks for its filter: what that has keeps its place and its stock for
    /// [`wire::limits::SESSION_GRACE`].
    SessionOrphaned {
        /// Its stream.
        conn: ConnId,
        /// Requests of its filter that wait.
        waiting: usize,
        /// And that run.
        running: usize,
    },
    /// An endpoint is marked down: requests failed there.
    EndpointDown {
        /// The pool's name.
        pool: Arc<str>,
        /// Its address.
        endpoint: Box<str>,
    },
    /// An endpoint that was marked down is tried again.
    EndpointBack {
        /// The pool's name.
        pool: Arc<str>,
        /// Its address.
        endpoint: Box<str>,
    },
    /// A request came.
    Arrived(Arc<Labels>),
    /// Its client's deadline, or target for the first token where that counts, is no time and is ignored.
    BadDeadline(Arc<Labels>),
    /// It claimed a higher priority than its tenant may have, or than one gets that isn't trusted: it has a lower one.
    PriorityLowered(Arc<Labels>),
    /// No server took it, or the one it was granted to isn't there any more: it waits again. Its outcome stays that of its first admission.
    Requeued(Arc<Labels>),
    /// A request left the queue, or never entered it.
    Decided {
        /// Whose.
        labels: Arc<Labels>,
        /// How.
        outcome: Outcome,
        /// The code of the answer; empty for one that goes.
        code: &'static str,
        /// Since its arrival.
        waited: Duration,
        /// The first choice; empty for one that doesn't go.
        endpoint: Arc<str>,
    },
    /// The filter answered by itself.
    Refused {
        /// Whose.
        labels: Arc<Labels>,
        /// An outcome's name.
        outcome: Box<str>,
        /// The code of the answer.
        code: Box<str>,
    },
    /// A server answered from another endpoint than was granted.
    Misrouted {
        /// Whose.
        labels: Arc<Labels>,
        /// Where Envoy sent it.
        endpoint: Box<str>,
    },
    /// A variant's parameters are known better: worth keeping.
    Learned {
        /// The pool's name.
        pool: Arc<str>,
        /// Which variant.
        variant: String,
        /// What is known.
        kept: Kept,
    },
    /// A cost was settled that counts in a window, just now: of pools whose settings are
    /// [`reported`](crate::PoolSettings::reported).
    Used {
        /// The pool's name.
        pool: Arc<str>,
        /// Whose, and how much. The flow may be nobody's business.
        used: PastUsage,
    },
    /// A granted request has ended.
    Completed {
        /// Whose.
        labels: Arc<Labels>,
        /// How it was let go.
        outcome: Outcome,
        /// In the queue, from its arrival until it was let go.
        waited: Duration,
        /// The last address that Envoy used; empty: none.
        endpoint: Arc<str>,
        /// What the client got; 0: nothing.
        status: u16,
        /// From its arrival to the first byte of the answer, the wait included; `None`: there was none.
        ttft: Option<Duration>,
        /// Mean time between tokens; `None`: fewer than two, or not counted.
        itl: Option<Duration>,
        /// From its arrival to the end.
        duration: Duration,
        /// As the server counted.
        prompt_tokens: Option<u64>,
        /// As the server counted, else the stream's events.
        output_tokens: Option<u64>,
    },
    /// A request that had been let go has ended, and not at a server that anybody saw: its client left before it was
    /// sent, its session is gone, or no server took it and it waited for another one too long.
    Dropped {
        /// Whose.
        labels: Arc<Labels>,
        /// How it was let go.
        outcome: Outcome,
        /// The code of the answer; empty: nobody was answered.
        code: &'static str,
        /// In the queue, from its arrival until it was let go last, or until its end if it waited again.
        waited: Duration,
    },
}
