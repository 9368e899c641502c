//! The events that an engine reacts to, as data.

mod budget;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

pub use self::budget::{BudgetReset, BudgetRunning, BudgetUsage, UsageKind, UsedAt};
use crate::allowance::Allowance;
pub use crate::band::Band;
use crate::policy::Policy;
use crate::time::Instant;
use crate::units::{Decimal, Tokens};

/// The owner's name for a request. Never used twice in the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The owner's name for an endpoint of the pool. One address keeps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// The length of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Bytes of text. The engine converts them to tokens by the ratio that it learned for the model.
    Bytes(u64),
    /// Counted tokens.
    Tokens(Tokens),
}

impl Prompt {
    /// `None`: the prompt came in tokens.
    pub(crate) const fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Tokens(_) => None,
        }
    }
}

/// The name of a request's model: the one that the client requested, and the one that the server is asked for. They
/// differ if the owner rewrites the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelName {
    /// The client's name for it. Usage windows count it, and under [`Policy::per_model`] the request shares its queue.
    pub requested: Arc<str>,
    /// The server's name for it. Token ratios and expected outputs are learned by it.
    pub target: Arc<str>,
}

impl ModelName {
    /// A model that the client names `requested` and the server `target`.
    #[must_use]
    pub fn new(requested: &str, target: &str) -> Self {
        let name: Arc<str> = requested.into();
        Self { target: if target == requested { name.clone() } else { target.into() }, requested: name }
    }

    /// The server is asked for another model than the client requested.
    #[must_use]
    pub fn is_rewritten(&self) -> bool {
        self.requested != self.target
    }
}

/// A model that client and server name alike.
impl From<&str> for ModelName {
    fn from(name: &str) -> Self {
        Self::new(name, name)
    }
}

/// A request for admission.
#[derive(Clone, Debug)]
pub struct Request {
    /// The owner's name for it.
    pub id: RequestId,
    /// The request's first arrival; before `now` if it is registered again. Later than `now` counts as `now`.
    pub arrived: Instant,
    /// The fairness identity; empty: `anonymous`. Requests and the engine may share one copy.
    pub flow: Arc<str>,
    /// The request's band.
    pub band: Band,
    /// The policy class that the client names.
    pub class: ClassKey,
    /// The class set of its model, as an index into [`Policy::classes`]. An index out of range counts as 0.
    pub class_set: u16,
    /// The request's model.
    pub model: ModelName,
    /// Length of the prompt.
    pub prompt: Prompt,
    /// Prompt tokens in a server's prefix cache.
    pub cached: Tokens,
    /// The client's expectation of the output of one sequence; `None`: the engine's own median.
    pub expected_output: Option<Tokens>,
    /// The client's limit on the output of one sequence.
    pub max_output: Option<Tokens>,
    /// Sequences that the server computes at the same time: prompts times choices of each; 0 counts as 1, and more than
    /// [`crate::limits::SEQUENCES_MAX`] as that.
    pub sequences: u64,
    /// Bytes that wait in Envoy.
    pub body_bytes: u64,
    /// Strict tier, higher first.
    pub strict: u8,
    /// How much earlier than its arrival the request counts in its flow's order.
    pub head_start: Duration,
    /// The client's deadline for the first token.
    pub deadline: Option<Instant>,
    /// The target for the first token, from the arrival. It orders under [`crate::policy::Order::SloDeadline`].
    pub ttft_target: Option<Duration>,
    /// The endpoints that it may go to; `None`: all of the pool.
    pub eligible: Option<Box<[EndpointId]>>,
    /// Chained hashes of the prompt's prefixes. The first covers 256 bytes, each next one the square root of two times
    /// as many. At most [`crate::limits::PREFIX_HASHES_MAX`] count. Empty: unknown.
    pub prefix: Box<[u64]>,
    /// Set by [`crate::Engine::prepare`]; `None`: the input that brings the request estimates its tokens.
    pub estimates: Option<Estimates>,
}

/// What [`crate::Engine::prepare`] has found out about a request. The input that brings the request uses it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimates {
    /// Tokens of the prompt.
    pub(crate) prompt: u64,
    /// Expected tokens of the output, of all sequences together.
    pub(crate) output: u64,
    /// The hash of the flow whose output that is. Past the limit of flows, the request shares another flow.
    pub(crate) flow_hash: u64,
}

impl Request {
    /// A request that arrives now, with every other attribute at its default.
    #[must_use]
    pub fn new(id: RequestId) -> Self {
        Self {
            id,
            arrived: Instant::MAX,
            flow: Arc::default(),
            band: Band::Default,
            class: ClassKey::default(),
            class_set: 0,
            model: ModelName::default(),
            prompt: Prompt::Bytes(0),
            cached: Tokens(0),
            expected_output: None,
            max_output: None,
            sequences: 1,
            body_bytes: 0,
            strict: 0,
            head_start: Duration::ZERO,
            deadline: None,
            ttft_target: None,
            eligible: None,
            prefix: Box::default(),
            estimates: None,
        }
    }
}

/// The policy class that a client names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassKey {
    /// The class of this family and of the bucket of the request's uncached prompt tokens. An unknown or empty family
    /// counts as the default family.
    Family(Box<str>),
    /// The class of this name. An unknown name counts as the default family.
    Named(Box<str>),
}

impl Default for ClassKey {
    fn default() -> Self {
        Self::Family(Box::default())
    }
}

/// Tokens that a server counted for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included; `None`: the server didn't report them.
    pub prompt: Option<Tokens>,
    /// The part of the prompt from the prefix cache; `None`: the server didn't report it.
    pub cached: Option<Tokens>,
    /// Output tokens; `None`: not counted.
    pub output: Option<Tokens>,
}

/// How a granted request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The server processed it. The cost is settled with the counted tokens; missing counts stay at their estimates.
    Served(Usage),
    /// The server processed a part of it. The cost is settled as under `Served`, and the counts show nothing of whole requests.
    Cut(Usage),
    /// Nothing was served: the cost is refunded.
    Nothing,
}

/// The kind of a request: its server treats requests of one kind alike, unless the server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// A hash of the model and the API's path.
    pub model_and_path: u64,
    /// A hash of the flow.
    pub flow: u64,
}

/// How an answer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// With this HTTP status.
    Status(u16),
    /// The server cut the connection after the request was sent.
    Cut,
    /// The answer was successful by its status, and no answer.
    NoAnswer,
    /// The server reported an error inside its answer.
    InsideAnswer,
    /// No byte came in time.
    Timeout,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(formatter, "with status {status}"),
            Self::Cut => formatter.write_str("by a cut connection"),
            Self::NoAnswer => formatter.write_str("without an answer"),
            Self::InsideAnswer => formatter.write_str("by an error inside its answer"),
            Self::Timeout => formatter.write_str("by silence"),
        }
    }
}

/// What the server of an endpoint did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerResult {
    /// An answer has begun well.
    Begun,
    /// It served the request.
    Served,
    /// It failed, and doesn't blame the request.
    Failed(Fault),
    /// It blames the request, with this HTTP status: 400 and above.
    Rejected(u16),
    /// It is overloaded by its own account, with this HTTP status.
    Refused(u16),
    /// The client left while it answered.
    Left,
}

/// An answer of the server of an endpoint. The request may have ended, or have gone elsewhere since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAnswer {
    /// The request.
    pub request: RequestId,
    /// The endpoint.
    pub endpoint: EndpointId,
    /// The request's kind.
    pub kind: Kind,
    /// Since the request was sent there.
    pub sent_ago: Duration,
    /// What happened.
    pub result: AnswerResult,
    /// [`AnswerResult::Begun`] came before.
    pub has_begun: bool,
    /// A failure doesn't reach the client, because the request goes elsewhere.
    pub is_hidden: bool,
}

/// Another set of eligible endpoints for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amended {
    /// The request.
    pub id: RequestId,
    /// The request's class set. It takes effect with the next policy that changes the classes.
    pub class_set: u16,
    /// The endpoints that it may go to; `None`: all of the pool.
    pub eligible: Option<Box<[EndpointId]>>,
}

/// The changes that another list of endpoints brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relisted {
    /// Endpoints that are no longer listed.
    pub removed: Vec<EndpointId>,
    /// Endpoints that appear or change.
    pub listed: Vec<(EndpointId, EndpointState)>,
    /// Requests whose eligible endpoints change by that.
    pub amended: Vec<Amended>,
}

/// An endpoint as discovery and health checks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// The endpoint's health check passes.
    pub ready: bool,
    /// Scales its bounds; 1 is [`Decimal::whole`]`(1)`.
    pub weight: Decimal,
    /// Prompt tokens that it takes into one iteration; `None`: unknown.
    pub batched_tokens_max: Option<u64>,
    /// What it computes of a request.
    pub role: Role,
}

impl Default for EndpointState {
    /// Ready, of weight 1, for whole requests.
    fn default() -> Self {
        Self { ready: true, weight: Decimal::whole(1), batched_tokens_max: None, role: Role::Both }
    }
}

/// What an endpoint computes of a request, in a pool that separates prefill from decoding: see
/// [`Policy::min_uncached_tokens`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Prompt and answer.
    #[default]
    Both,
    /// The answer, and the prompt where no other endpoint does.
    Decode,
    /// Prompts for the endpoints that decode. It takes whole requests where none of these has room: up to half of its bound, or up to the
    /// bound if none of them is ready.
    Prefill,
}

impl Role {
    /// As operators read and write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Decode => "decode",
            Self::Prefill => "prefill",
        }
    }
}

/// Metrics of a server that its scorers use. `None`: the server doesn't export the metric, or the value is stale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStats {
    /// Requests in the server's own queue.
    pub waiting: Option<u64>,
    /// The used part of its KV cache, 0 to 1.
    pub kv_used: Option<f64>,
    /// Output tokens that it has generated since its start.
    pub generated: Option<u64>,
    /// Adapters in memory, by the names of their models.
    pub adapters: Option<Box<[Box<str>]>>,
    /// The time from the request for these metrics to their arrival. What has happened at the server since that request may be missing.
    pub asked_ago: Duration,
}

/// Usage of a flow before this engine started, or on another engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastUsage {
    /// The flow's band.
    pub band: Band,
    /// The name of the class; empty where no classes are configured.
    pub class: Box<str>,
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// The model that the client requested.
    pub model: Box<str>,
    /// The settled cost, in the policy's unit. 0 changes nothing.
    pub cost: Tokens,
    /// How long ago it was settled.
    pub ago: Duration,
}

/// What a flow runs on an engine, or on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningUsage {
    /// The flow's band.
    pub band: Band,
    /// The name of the class; empty where no classes are configured.
    pub class: Box<str>,
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// The model that the client requested.
    pub model: Box<str>,
    /// The sum of the estimated costs of all its running requests that aren't settled, in the policy's unit. It replaces the last sum;
    /// 0: nothing runs any more.
    pub running: Tokens,
}

/// An event. Unknown ids are no error: a repeated or late event changes nothing.
#[derive(Clone, Debug)]
pub enum Input {
    /// A new request. It is granted, queued or rejected in this call.
    Register(Request),
    /// A request that already runs at `endpoint` enters stock and is charged, above all limits. Outcome: dispatched.
    Adopt {
        /// The running request. If it waits here, it leaves the queue.
        request: Request,
        /// Where it runs.
        endpoint: EndpointId,
    },
    /// The prompt of a request that was adopted is computed at this endpoint, until its answer begins. Ignored for an endpoint that isn't
    /// known, and for a request whose prompt is computed elsewhere already.
    Prefills {
        /// The running request.
        id: RequestId,
        /// Where its prompt is computed.
        endpoint: EndpointId,
    },
    /// Filters may run so many requests at this endpoint without asking. They count as stock. Ignored for an endpoint that isn't known.
    GiveCredit {
        /// The endpoint.
        endpoint: EndpointId,
        /// The number of requests.
        requests: u64,
    },
    /// Filters give up so much of their credit at this endpoint.
    TakeBack {
        /// The endpoint.
        endpoint: EndpointId,
        /// The number of requests.
        requests: u64,
    },
    /// A filter has let a new request run without asking. It enters stock and is charged, above all limits. Outcome: leased.
    AdmittedByCredit {
        /// The running request.
        request: Request,
        /// Where a place of the credit ends with it; `None`: the request counts beside the credit.
        place: Option<EndpointId>,
        /// Where it runs.
        endpoint: EndpointId,
    },
    /// A new request that waited elsewhere before: queued at its first arrival, above all limits.
    Resume(Request),
    /// The client of a waiting request disconnected. Ignored for a request that doesn't wait.
    Cancel(RequestId),
    /// A granted request was sent to this endpoint, whichever was granted. Stock follows.
    Sent {
        /// The request.
        id: RequestId,
        /// Where it runs.
        endpoint: EndpointId,
    },
    /// The first byte of a granted request's answer arrived: its prompt is no longer in prefill. Only class thresholds depend
    /// on it. Without this event the prompt counts as in prefill until the request ends.
    FirstToken(RequestId),
    /// The server of a granted request has begun to respond, so the request isn't asked to end any more, or runs on if it was: see
    /// [`crate::effect::Evict`]. [`Self::FirstToken`] says as much.
    Begun(RequestId),
    /// A granted request ended: stock is released, and the cost is settled or refunded.
    Completed {
        /// The request.
        id: RequestId,
        /// The result.
        service: Service,
    },
    /// The client of a granted request left before the end of the answer: the request ends as by [`Input::Completed`], and
    /// the server may compute on. Where the server reports what it runs, the request's load stays in the stock until
    /// [`Input::Load`] shows that it has ended, and at most for [`Policy::release_after`].
    Left {
        /// The request.
        id: RequestId,
        /// The result.
        service: Service,
    },
    /// The cost of a granted request is known before its end. It is settled or refunded now, once; stock stays until the
    /// request completes. Under [`crate::policy::Gate::Manual`] this also ends the request.
    Settle {
        /// The request.
        id: RequestId,
        /// The result.
        service: Service,
    },
    /// The request's model was removed from the configuration: a waiting request is rejected with `rejected_invalid`.
    /// Ignored for a request that doesn't wait.
    ModelRemoved(RequestId),
    /// The eligible endpoints of a request, or its class set, changed. A waiting request keeps its place. If no endpoint
    /// is eligible any more, it is rejected with `no_endpoints`; a running one only once it waits again.
    Amend(Amended),
    /// Under [`crate::policy::Gate::Manual`]: dispatches the next request. Otherwise ignored.
    Dispatch {
        /// Names of classes that dispatch nothing this time.
        blocked: Vec<Box<str>>,
    },
    /// The grant of a request was lost: the request is refunded and returns to its old place.
    Requeue(RequestId),
    /// The endpoint of a request failed it before a response: the request is refunded and returns to its old place. For a
    /// pause, which doubles with each failure of the request from [`crate::limits::PAUSE_MIN_MS`] to
    /// [`crate::limits::PAUSE_MAX_MS`], it isn't granted that endpoint, and may be granted any other.
    Retry(RequestId),
    /// A request failed at this endpoint before a response. Two different requests that fail within 10 s mark the
    /// endpoint down, by [`Policy::outlier_ejection`]; a probed endpoint is marked down by one. The last ready endpoint
    /// is never marked down. The request itself is unchanged, and may be unknown here.
    Failed {
        /// The request.
        id: RequestId,
        /// Where it failed.
        endpoint: EndpointId,
    },
    /// What a server did with a request. Answers that fail while other endpoints succeed at the same kind of request keep the endpoint away,
    /// by [`Policy::failing`]. The request itself is unchanged, and may be unknown here.
    Answered(EndpointAnswer),
    /// The server of this endpoint itself refused a request before a response, because it is overloaded. The endpoint takes
    /// no more requests than it had in flight then, this one not counted, and at least one. Each request that it serves
    /// raises that bound by one, until the gate's bound holds again. It is not marked down for it. Ignored unless the
    /// endpoint is ready. The request itself is unchanged, and may be unknown here.
    PushedBack {
        /// The request.
        id: RequestId,
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// The endpoint of a request refused it before a response, as [`Self::PushedBack`] reported: the request is refunded and
    /// returns to its old place. It avoids the endpoint as after [`Self::Retry`], at most until the endpoint serves a request.
    Refused {
        /// The request.
        id: RequestId,
        /// The least pause that the server asks for; above [`crate::limits::PAUSE_MAX_MS`] it counts as that.
        retry_after: Duration,
    },
    /// The owner lost the session of a waiting request. The request keeps its place and what it is counted in, can't be
    /// dispatched, and blocks no other request. Ignored for a request that doesn't wait.
    Suspend(RequestId),
    /// Ends the suspension of a request. Ignored for any other.
    Continue(RequestId),
    /// An endpoint appears or changes.
    Endpoint {
        /// The endpoint.
        id: EndpointId,
        /// The endpoint's new state.
        state: EndpointState,
    },
    /// An endpoint is no longer listed. What runs there becomes draining stock.
    EndpointRemoved(EndpointId),
    /// Several endpoints disappear, appear or change at once, and with them the eligible endpoints of requests. Nothing
    /// is dispatched in between.
    Relist(Box<Relisted>),
    /// The server of an endpoint was restarted: its cache is empty. Ignored if it isn't listed and nothing runs there.
    Restarted(EndpointId),
    /// The number of sequences that the server of an endpoint reports as running, of all its clients. Those that aren't of
    /// this engine are foreign, and lower a bound in requests or sequences until the next report. Comes after
    /// [`Self::ServerStats`] of the same report.
    Load {
        /// The endpoint. Ignored if it isn't listed.
        id: EndpointId,
        /// Sequences; `None`: no report, or a stale one.
        running: Option<u64>,
    },
    /// Metrics of the server of an endpoint, valid until the next report.
    ServerStats {
        /// The endpoint. Ignored if it isn't listed.
        id: EndpointId,
        /// The metrics.
        stats: ServerStats,
    },
    /// The allowance of an endpoint under [`crate::policy::Gate::Auto`], valid until the next one.
    Allowance {
        /// The endpoint. Ignored if it isn't listed.
        id: EndpointId,
        /// `None`: unknown.
        allowance: Option<Allowance>,
    },
    /// Usage from before this engine started, or from other engines beside it, in any order. Each entry counts as if it
    /// had been settled here at its time, under [`crate::policy::Discipline::Usage`] only. Entries outside the window or
    /// of unknown classes are ignored. A missing flow is created and kept until its window is empty; past the limit of
    /// flows it shares one, as new flows do.
    PastUsage(Vec<PastUsage>),
    /// Usage of other engines beside this one: what was settled there, as in [`Input::PastUsage`], and at the same time what
    /// runs there now. A flow is kept while something of it runs elsewhere.
    SharedUsage {
        /// Settled costs.
        settled: Vec<PastUsage>,
        /// Sums of estimates that have changed.
        running: Vec<RunningUsage>,
    },
    /// UTC, as the time since 1970 began, at the time of this event. Days, weeks and months of budgets begin by it, and the engine's own time
    /// passes in between. Before the first one, the engine has started as 1970 began. A clock that goes back by less than an hour begins
    /// no day again. One that goes back further is followed, and what was used stays.
    Utc(Duration),
    /// Usage of budgets at other engines beside this one. Entries of flows, units or periods that the policy doesn't have are ignored,
    /// and so is what has left its window, and that of a flow that was reset here, from its last reset until
    /// [`BudgetReset::Here`], but for at most [`crate::limits::BUDGET_RESET_KEPT`].
    BudgetUsage {
        /// What was settled since the last such event.
        settled: Vec<BudgetUsage>,
        /// What flows run at all other engines together. It replaces the flow's last sum.
        running: Vec<BudgetRunning>,
    },
    /// Usage of budgets from before this engine started, in any order. A window of which nothing is used yet is in the state that it would
    /// have if the entries had been used here: what exceeds the limit of their time is owed. All entries of a flow belong into one
    /// such event.
    BudgetHistory(Vec<BudgetUsage>),
    /// Resets in the order in which all engines hear of them, before the usage that comes after them.
    BudgetResets(Vec<BudgetReset>),
    /// So many tokens more may be used of every window of the flow's budget that counts tokens. They pay a debt first. What is left of
    /// them ends with the day, week or month, or when as much time has passed as the window is long. Ignored for a flow without a budget.
    TopUp {
        /// The fairness identity; empty: `anonymous`.
        flow: Box<str>,
        /// The tokens.
        tokens: Tokens,
    },
    /// What a flow has used of its budget, owes and runs here counts no longer, and neither do its top-ups. What other engines run counts
    /// until they report otherwise. Empty: `anonymous`. Ignored for a flow without a budget.
    ResetBudget(Box<str>),
    /// A new policy. Waiting requests keep their places.
    Policy(Box<Policy>),
    /// `true`: waiting requests, and new ones from now on, are rejected with `shutting_down`. `false`: new requests are
    /// admitted again.
    Drain(bool),
    /// Nothing is dispatched before this event: the owner has now adopted everything that runs. Also after [`Input::Hold`].
    Ready,
    /// Nothing is dispatched until the next [`Input::Ready`]: another owner may dispatch to the same endpoints.
    Hold,
}
