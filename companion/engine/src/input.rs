//! What an engine is told.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::budget::Budget;
use crate::policy::Policy;
use crate::time::Instant;
use crate::units::{Decimal, Tokens};

/// A request, as the engine's owner names it. Never used twice in the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// An endpoint of the pool, as the engine's owner names it; one address keeps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// How much a request matters, most critical first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Band {
    /// Goes before everything else.
    Critical,
    /// Everything that claims nothing.
    #[default]
    Default,
    /// The first to wait and the first to go.
    Sheddable,
}

/// How long a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Bytes of text; the engine turns them into tokens by the ratio it learned for the model.
    Bytes(u64),
    /// Counted already.
    Tokens(Tokens),
}

/// One request that asks to go.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// Its first arrival; may lie before `now` for one that is registered again. Later than `now` counts as `now`.
    pub arrived: Instant,
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// Its band.
    pub band: Band,
    /// Which policy class it asks for.
    pub class: ClassKey,
    /// The class set of its model, in [`Policy::classes`]; one that isn't there counts as 0.
    pub class_set: u16,
    /// The model that its server runs: ratios and expected outputs are learned per model.
    pub model: Box<str>,
    /// The model that was asked for, if that is another: usage is tallied by it, and under [`Policy::per_model`] it goes
    /// with the requests of that one. Empty: [`Self::model`].
    pub requested_model: Box<str>,
    /// Length of the prompt.
    pub prompt: Prompt,
    /// Tokens of it that a server holds in its prefix cache.
    pub cached: Tokens,
    /// The caller's expectation of the output; `None`: the engine's own median.
    pub expected_output: Option<Tokens>,
    /// The client's limit on the output.
    pub max_output: Option<Tokens>,
    /// What waits in Envoy.
    pub body_bytes: u64,
    /// Strict tier, higher first.
    pub strict: u8,
    /// Its head start.
    pub head_start: Duration,
    /// The client's deadline for the first token.
    pub deadline: Option<Instant>,
    /// The target for the first token, from its arrival: orders under [`crate::policy::Order::SloDeadline`].
    pub ttft_target: Option<Duration>,
    /// Endpoints it may go to; `None`: all of the pool.
    pub eligible: Option<Box<[EndpointId]>>,
    /// Chained hashes of the prompt's beginnings, of 256 bytes, then of the square root of two times as many, and so on;
    /// what is past [`crate::limits::PREFIX_HASHES_MAX`] doesn't count. Empty: not known.
    pub prefix: Box<[u64]>,
}

impl Request {
    /// One that arrives now and says nothing of itself.
    #[must_use]
    pub fn new(id: RequestId) -> Self {
        Self {
            id,
            arrived: Instant::MAX,
            flow: Box::default(),
            band: Band::Default,
            class: ClassKey::default(),
            class_set: 0,
            model: Box::default(),
            requested_model: Box::default(),
            prompt: Prompt::Bytes(0),
            cached: Tokens(0),
            expected_output: None,
            max_output: None,
            body_bytes: 0,
            strict: 0,
            head_start: Duration::ZERO,
            deadline: None,
            ttft_target: None,
            eligible: None,
            prefix: Box::default(),
        }
    }
}

/// Which policy class a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassKey {
    /// The class of this family, by the request's uncached prompt tokens; unknown or empty: of the default family.
    Family(Box<str>),
    /// The class of this name; unknown: as if nothing was said.
    Named(Box<str>),
}

impl Default for ClassKey {
    fn default() -> Self {
        Self::Family(Box::default())
    }
}

/// What a server really did for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included; `None`: the server didn't say.
    pub prompt: Option<Tokens>,
    /// Of these, from the prefix cache; `None`: the server didn't say.
    pub cached: Option<Tokens>,
    /// Output tokens; `None`: nobody counted.
    pub output: Option<Tokens>,
}

/// How a granted request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The server worked on it: the cost is settled with what is known, what isn't stays at its estimate.
    Served(Usage),
    /// Nothing was served: the cost is refunded.
    Nothing,
}

/// Where a request may go from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amended {
    /// Which.
    pub id: RequestId,
    /// Its class set; it counts with the next policy that changes the classes.
    pub class_set: u16,
    /// Endpoints it may go to; `None`: all of the pool.
    pub eligible: Option<Box<[EndpointId]>>,
}

/// What another list of endpoints changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relisted {
    /// They aren't listed any more.
    pub removed: Vec<EndpointId>,
    /// They appear or change.
    pub listed: Vec<(EndpointId, EndpointState)>,
    /// Requests that may go elsewhere by that.
    pub amended: Vec<Amended>,
}

/// An endpoint as discovery and health checks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// It may be given requests.
    pub ready: bool,
    /// Scales its bounds; 1 is [`Decimal::whole`]`(1)`.
    pub weight: Decimal,
    /// Prompt tokens that it takes into one iteration; `None`: not known.
    pub batched_tokens_max: Option<u64>,
}

impl Default for EndpointState {
    /// Ready, of weight 1.
    fn default() -> Self {
        Self {
            ready: true,
            weight: Decimal::whole(1),
            batched_tokens_max: None,
        }
    }
}

/// What a server says of itself that tells it from others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStats {
    /// Requests that wait in its own queue; `None`: it doesn't say, or it is too long ago.
    pub waiting: Option<u64>,
    /// Part of its KV cache that is used, 0 to 1; `None`: the same.
    pub kv_used: Option<f64>,
    /// Adapters that it has in memory, by the names of their models; `None`: the same.
    pub adapters: Option<Box<[Box<str>]>>,
}

/// What a flow used in the past, here or elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastUsage {
    /// Its band.
    pub band: Band,
    /// The class by name; empty where none are configured.
    pub class: Box<str>,
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// The model that was asked for.
    pub model: Box<str>,
    /// What was settled, in the policy's unit; 0: nothing.
    pub cost: Tokens,
    /// How long ago.
    pub ago: Duration,
}

/// Everything that can happen to an engine. Unknown ids are no error: what was said twice, or too late, changes nothing.
#[derive(Clone, Debug)]
pub enum Input {
    /// A new request; it is admitted, queued or refused in this call.
    Register(Request),
    /// A request that already runs at `endpoint` is taken into stock and charged, above all limits. Outcome: dispatched.
    Adopt {
        /// What runs; if it waits here, it waits no more.
        request: Request,
        /// Where.
        endpoint: EndpointId,
    },
    /// A new request that waited elsewhere before: enqueued at its first arrival, above all limits.
    Resume(Request),
    /// Its client has gone. Of a request that doesn't wait: nothing.
    Cancel(RequestId),
    /// A granted request was sent to this endpoint, whatever was granted: stock follows.
    Sent {
        /// Which.
        id: RequestId,
        /// Where it runs.
        endpoint: EndpointId,
    },
    /// A granted request has ended: stock is released, cost settled or refunded.
    Completed {
        /// Which.
        id: RequestId,
        /// What came of it.
        service: Service,
    },
    /// What a granted request cost is known before it has ended: settled or refunded now, once; its stock stays
    /// until it is completed. Under [`crate::policy::Gate::Manual`] it ends it.
    Settle {
        /// Which.
        id: RequestId,
        /// What came of it.
        service: Service,
    },
    /// It isn't the pool's any more, its model was taken out of the configuration: what waits is refused with
    /// `rejected_invalid`. Of a request that doesn't wait: nothing.
    ModelRemoved(RequestId),
    /// The owner sees a request that hasn't ended in another way: another endpoint may have come that suits it, or gone,
    /// or models have other class sets. One that waits keeps its place; if it fits nowhere now, it is refused with
    /// `no_endpoints`. One that runs is looked at when it waits again. Of a request that isn't there: nothing.
    Amend(Amended),
    /// Under [`crate::policy::Gate::Manual`]: the next one goes, if there is one. Otherwise: nothing.
    Dispatch {
        /// Names of classes of which nothing may go now.
        blocked: Vec<Box<str>>,
    },
    /// A granted request whose grant was lost, or that no server took: uncharged, back to its old place.
    Requeue(RequestId),
    /// A request failed at this endpoint before a response came: two different ones that do within 10 s mark it down, for
    /// [`Policy::outlier_ejection`]; when it is back one is enough, until something is served there. The last that is ready isn't
    /// marked down. The request itself isn't touched, and needn't be known here.
    Failed {
        /// Which.
        id: RequestId,
        /// Where.
        endpoint: EndpointId,
    },
    /// The owner has lost sight of a request that waits: it keeps its place and everything that goes with it, but can't
    /// go, and holds nobody back. Of a request that doesn't wait: nothing.
    Suspend(RequestId),
    /// A suspended request may go again, from its old place. Of any other: nothing.
    Continue(RequestId),
    /// An endpoint appears or changes.
    Endpoint {
        /// Which.
        id: EndpointId,
        /// As it is now.
        state: EndpointState,
    },
    /// An endpoint is no longer listed. What runs there is draining stock.
    EndpointRemoved(EndpointId),
    /// Several endpoints go, appear or change at once, and requests may go elsewhere by that: nothing goes in between.
    Relist(Box<Relisted>),
    /// What the server of an endpoint says of itself: so many requests run there, whoever's they are. What isn't ours
    /// lowers its bound, if that is counted in requests, until this is said again.
    Load {
        /// Which; one that isn't listed: nothing.
        id: EndpointId,
        /// Requests; `None`: it doesn't say any more, or it is too long ago.
        running: Option<u64>,
    },
    /// What the server of an endpoint says that tells it from others, until this is said again.
    ServerStats {
        /// Which; one that isn't listed: nothing.
        id: EndpointId,
        /// What it says.
        stats: ServerStats,
    },
    /// What an endpoint takes under [`crate::policy::Gate::Auto`], until this is said again.
    Budget {
        /// Which; one that isn't listed: nothing.
        id: EndpointId,
        /// `None`: nothing is known of it.
        budget: Option<Budget>,
    },
    /// What flows used before this engine was there, or of what others grant beside it: it counts as if it had been
    /// settled here so long ago, in whatever order it is said. Under [`crate::policy::Discipline::Usage`] only; what is
    /// out of the window, and of classes that aren't configured, is ignored. A flow that isn't there is made, and kept
    /// until its window is empty; past the limit of flows it shares one, as a newcomer does.
    PastUsage(Vec<PastUsage>),
    /// A new policy; what waits keeps its place.
    Policy(Box<Policy>),
    /// From now on new requests are refused with `shutting_down` (`true`), or are taken again (`false`).
    /// What waits is refused at once.
    Drain(bool),
    /// Until this is said, nothing is dispatched: a starting owner hasn't heard of all that runs. Said once.
    Ready,
}
