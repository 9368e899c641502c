//! Everything that can happen to a pool.

use core::time::Duration;

use penstock_engine::RequestId;

use crate::completion::Completion;
use crate::event::PoolEvent;
use crate::failed_attempt::FailedAttempt;
use crate::filter_answer::FilterAnswer;
use crate::ids::{CreditId, Door, EnvoyId, Epoch, Peer, RequestKey};
use crate::registration::{Arrival, CreditPlace, Registration, Running};
use crate::settings::PoolSettings;
use crate::trust::Claim;

/// An input. One about a request that has ended, or an endpoint that isn't known, changes nothing.
#[derive(Debug)]
pub(crate) enum PoolInput<'a> {
    /// A request comes in.
    Register(Registering<'a>),
    /// A request that no endpoint took comes in again. It goes on under the key of the registration.
    Reenter { id: RequestId, peer: Peer, registration: &'a Registration<'a>, arrival: Arrival<'a> },
    /// A request for this pool was rejected by a limit of all pools together. It counts as load.
    CountArrival,
    /// The root context of a request is of another Envoy, or of one with another configuration.
    PeerChanged { id: RequestId, peer: Peer },
    /// A Hello reports that the filter has the request waiting.
    StillWaits(RequestId),
    /// A Hello reports that the request runs.
    StillRuns { id: RequestId, registration: &'a Registration<'a>, running: Running<'a> },
    /// The client has left: the request ends, and nothing was served.
    Cancel(RequestId),
    /// The filter answered the request by itself: the request ends, and nothing was served.
    Answered { id: RequestId, answer: &'a FilterAnswer<'a> },
    /// The filter is gone: a granted request ends at its estimated cost, a waiting one is cancelled.
    Release(RequestId),
    /// The filter's stream ended: a waiting request keeps its place, and can't be granted.
    Suspend(RequestId),
    /// An endpoint begins to answer, at this address, with this status (0: unknown), after so many attempts. `has_first_token`: the first
    /// token of the answer has arrived.
    Started { id: RequestId, endpoint: Option<&'a str>, status: u16, attempts: usize, has_first_token: bool },
    /// An attempt to send a request failed. `id`: the request, if it hasn't ended and wasn't requeued since.
    AttemptFailed { id: Option<RequestId>, attempt: FailedAttempt<'a> },
    /// A granted request has ended.
    Completed { id: RequestId, completion: &'a Completion<'a> },
    /// A filter has given up a credit.
    CreditReturned(CreditId),
    /// A request that is counted already runs on without its place.
    CreditConsumed(CreditPlace<'a>),
    /// The stream of a root context has ended, and its credit with it. Its places stay.
    CreditSuspended(Epoch),
    /// The filter of a root context has listed its requests, or is gone: its places are free.
    CreditEnded(Epoch),
    /// The last root context of an Envoy is gone.
    EnvoyLeft(EnvoyId),
    /// Something has happened outside of the sessions.
    Event(PoolEvent),
    /// The pool's configuration, whole.
    Reload(&'a PoolSettings),
    /// The configuration no longer has the pool.
    Retire,
    /// The configuration was reloaded: reject the waiting requests for models that the pool no longer serves.
    EvictUnserved,
    /// Metrics and status show fewer flows than before: all give up their names.
    HideFlows,
    /// UTC now, as the time since 1970 began.
    Utc(Duration),
    /// Reject all requests (`true`), or take them again (`false`).
    Drain(bool),
    /// Dispatch begins, or begins again.
    Ready,
    /// Dispatch ends until it begins again.
    Hold,
    /// Another companion is responsible for the request.
    Forget(RequestId),
}

/// A request that comes in.
#[derive(Debug)]
pub(crate) struct Registering<'a> {
    pub(crate) id: RequestId,
    pub(crate) registration: &'a Registration<'a>,
    pub(crate) claim: Claim,
    pub(crate) peer: Peer,
    pub(crate) door: Door,
    pub(crate) arrival: Arrival<'a>,
    /// The arrival and the outcome of the request were counted before.
    pub(crate) has_outcome: bool,
    /// A previous key that becomes an alias of the request when the pool takes it.
    pub(crate) previous_key: Option<RequestKey>,
    /// How many flows the pool may show by name.
    pub(crate) visible_flows_max: usize,
}
