//! A request of a pool, from its registration to its end.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::input::{EndpointId, Kind};
use penstock_engine::{Instant, Outcome};

use super::eligibility::Constraints;
use crate::counting::Asked;
use crate::failed_attempt::AttemptEnd;
use crate::ids::{EnvoyId, Peer, RequestKey};
use crate::labels::Labels;
use crate::rejection::Rejection;

/// A request that hasn't ended.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) key: RequestKey,
    /// The number of the Envoy process that its filter runs in; 0 if the filter doesn't know it. Eight bytes instead of the
    /// 24 of an [`EnvoyId`], because a pool may hold many requests.
    pub(super) envoy_process: u64,
    /// See [`Peer::can_requeue`].
    pub(super) can_requeue: bool,
    /// The request's filter could have admitted it by credit.
    pub(super) could_use_credit: bool,
    pub(crate) labels: Arc<Labels>,
    pub(super) arrived: Instant,
    pub(super) asked: Asked,
    /// The endpoints that its client chose; `None` if the client chose none.
    pub(super) constraints: Option<Box<Constraints>>,
    /// The engine knows a list of endpoints that the request may go to.
    pub(super) is_restricted: bool,
    /// The request's body asks for the target model already.
    pub(super) is_rewritten: bool,
    pub(super) stage: Stage,
    /// The outcome of its first grant, which later grants keep; `None` before.
    pub(super) admitted: Option<Outcome>,
    /// How often it was requeued.
    pub(super) requeues: u32,
    /// How often a server cut its connection.
    pub(super) resets: u32,
    /// How often a connection was cut that had carried another request before.
    pub(super) stale_cuts: u32,
    /// The errors with which servers answered its earlier attempts.
    pub(super) failed_at: Vec<FailedAt>,
    pub(super) kind: Kind,
    /// The engine knows that an answer has begun.
    pub(super) has_begun: bool,
    /// A companion has begun a stream to its client while it waited.
    pub(super) is_kept_alive: bool,
    pub(super) demand: Demand,
}

/// Whether the autopilot counts a request as load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// The request was counted at its arrival or at its grant.
    Counted,
    /// Limits of its own keep it waiting: it will be counted when it is granted.
    Later,
    /// The request had arrived before it was registered here, and was counted then.
    Elsewhere,
}

impl Demand {
    /// `is_first`: the request arrives now, and for the first time.
    pub(super) const fn at_arrival(is_first: bool) -> Self {
        if is_first { Self::Counted } else { Self::Elsewhere }
    }
}

/// The stage of a request.
#[derive(Debug)]
pub(super) enum Stage {
    /// In the engine's queue.
    Waiting,
    /// In stock.
    Granted(Granted),
}

/// A granted request.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) grant: Arc<Grant>,
    /// How many endpoints at the head of the grant's list are known to have failed the request.
    pub(super) failed: u32,
    /// The endpoints of the list that answered the request by an error or cut its connection, which is no failure to reach them.
    pub(super) refusals: Box<[Refusal]>,
    /// The endpoints of the list to which Envoy couldn't send the request for a reason of its own.
    pub(super) unsent: Box<[EndpointId]>,
    /// The answer with which its filter is asked to end it; `None`: it isn't asked to.
    pub(super) evicted: Option<Arc<Rejection>>,
    /// Nothing can be learned from its way any more: Envoy sent it to an endpoint that wasn't granted, or another companion
    /// granted it, and that list isn't known.
    pub(super) is_off_list: bool,
}

/// An endpoint answered an attempt by an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedAt {
    pub(super) endpoint: EndpointId,
    pub(super) status: u16,
    /// What the endpoint had served by then.
    pub(super) served: u64,
    /// Other requests that it had then, at least.
    pub(super) others: u64,
}

/// An endpoint refused a request, or failed it after it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) endpoint: EndpointId,
    pub(super) end: AttemptEnd,
    /// The pause that the server asks for; 0: none.
    pub(super) retry_after: Duration,
}

impl Granted {
    /// `endpoint`, at which the request failed, is not to blame for it.
    pub(super) fn is_blameless(&self, endpoint: EndpointId) -> bool {
        self.refusal_at(endpoint).is_some() || self.unsent.contains(&endpoint)
    }

    /// The refusal by `endpoint`; `None`: it didn't refuse the request.
    pub(super) fn refusal_at(&self, endpoint: EndpointId) -> Option<&Refusal> {
        self.refusals.iter().find(|refusal| refusal.endpoint == endpoint)
    }
}

/// A grant, as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Addresses, the best first; one if the filter can requeue a request.
    pub(crate) endpoints: Vec<Arc<str>>,
    pub(crate) outcome: Outcome,
    pub(super) granted_at: Instant,
    /// In the queue.
    pub(crate) waited: Duration,
    /// Of the pool, in thousandths.
    pub(crate) saturation_milli: u32,
    /// The filter changes the body to ask for the target model.
    pub(crate) rewrites_body: bool,
    /// The filter requeues the request if no endpoint takes it.
    pub(crate) may_requeue: bool,
    /// Whatever the status of the answer is, the client gets it.
    pub(crate) is_final: bool,
    /// After a 404 the filter requeues the request.
    pub(crate) retries_not_found: bool,
    /// Other requests that the first endpoint had then; 0: unknown.
    pub(super) others: u64,
    /// Above the bound of the endpoint, in a place for flows with nothing running.
    pub(super) extra: bool,
    /// The address of the endpoint that computes the prompt; `None`: the first one does.
    pub(crate) prefill: Option<Arc<str>>,
}

impl Grant {
    /// The first choice; `None` only if the engine granted no endpoint.
    pub(super) fn first(&self) -> Option<&Arc<str>> {
        self.endpoints.first()
    }

    /// The address is on the list.
    pub(super) fn contains(&self, address: &str) -> bool {
        self.endpoints.iter().any(|granted| **granted == *address)
    }
}

impl Stage {
    /// In stock, by the filter's own admission at this endpoint.
    pub(super) fn by_credit(endpoint: Arc<str>, granted_at: Instant, may_requeue: bool) -> Self {
        let grant = Grant {
            endpoints: vec![endpoint],
            outcome: Outcome::Leased,
            granted_at,
            waited: Duration::ZERO,
            saturation_milli: 0,
            rewrites_body: false,
            may_requeue,
            is_final: false,
            retries_not_found: false,
            others: 0,
            extra: false,
            prefill: None,
        };
        Self::Granted(Granted {
            failed: 0,
            refusals: Box::default(),
            unsent: Box::default(),
            evicted: None,
            grant: Arc::new(grant),
            is_off_list: false,
        })
    }

    /// In stock, by the grant of another companion. Only the endpoint is known of that grant.
    pub(super) fn adopted(endpoint: Arc<str>, granted_at: Instant) -> Self {
        let grant = Grant {
            endpoints: vec![endpoint],
            outcome: Outcome::Dispatched,
            granted_at,
            waited: Duration::ZERO,
            saturation_milli: 0,
            rewrites_body: false,
            may_requeue: false,
            is_final: false,
            retries_not_found: false,
            others: 0,
            extra: false,
            prefill: None,
        };
        Self::Granted(Granted {
            // Whether and when the endpoint failed the request isn't known.
            failed: 1,
            refusals: Box::default(),
            unsent: Box::default(),
            evicted: None,
            grant: Arc::new(grant),
            is_off_list: true,
        })
    }

    /// This stage of a request that is asked to end by this answer; `None`: it isn't.
    pub(super) fn evicted_by(mut self, evicted: Option<Arc<Rejection>>) -> Self {
        if let Self::Granted(granted) = &mut self {
            granted.evicted = evicted;
        }
        self
    }
}

impl OpenRequest {
    /// It runs above the bound of its endpoint.
    pub(super) fn is_extra(&self) -> bool {
        self.granted().is_some_and(|granted| granted.grant.extra)
    }

    pub(super) const fn envoy(&self) -> EnvoyId {
        EnvoyId::new(self.envoy_process, self.key.epoch)
    }

    /// The request's root context is of another Envoy, or of one with another configuration, or another root context carries it now.
    pub(super) const fn set_peer(&mut self, peer: Peer) {
        self.envoy_process = peer.envoy.process();
        self.can_requeue = peer.can_requeue;
    }

    pub(super) const fn peer(&self) -> Peer {
        Peer { envoy: self.envoy(), can_requeue: self.can_requeue }
    }

    /// The request is in the engine's queue.
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    pub(super) const fn granted(&self) -> Option<&Granted> {
        match &self.stage {
            Stage::Waiting => None,
            Stage::Granted(granted) => Some(granted),
        }
    }

    pub(super) const fn granted_mut(&mut self) -> Option<&mut Granted> {
        match &mut self.stage {
            Stage::Waiting => None,
            Stage::Granted(granted) => Some(granted),
        }
    }

    /// From the arrival to the last grant; `None` for a request that waits.
    pub(super) fn waited(&self) -> Option<Duration> {
        let granted = self.granted()?;
        Some(granted.grant.granted_at.since(self.arrived))
    }
}
