//! One HTTP exchange of a request that is queued, from its headers to its log entry, or of one that passes, until its model has been read.
//!
//! The exchange holds the state and the facts; the worker moves it from phase to phase.

mod granted;

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use penstock_wire::{AttemptFailed, Register, Running};

pub(crate) use self::granted::{ByCredit, Granted, Held, Response, SilenceLimit, Upstream, is_background};
use crate::body::BodyScanner;
use crate::compiled_policy::{CompiledPolicy, PoolPolicy};
use crate::credits::WaitingPlace;
use crate::identity::IdentityClaims;
use crate::in_flight::Load;
use crate::limits::{FALLBACK_BYTES_PER_TOKEN, FALLBACK_OUTPUT_TOKENS, HOLD_DEFAULT};
use crate::registration::ModelName;
use crate::requeue_on::RequeueOn;
use crate::requeue_token::RequeueToken;
use crate::rewrite::{BufferedBody, Rewrite};
use crate::session::Epoch;
use crate::time::Instant;
use crate::usage_request::{self, UsageHider};

/// An HTTP exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The host's id of the HTTP stream.
    pub(crate) context: u32,
    /// When the headers arrived.
    pub(crate) arrived: Instant,
    /// The policy at the arrival.
    pub(crate) policy: Arc<CompiledPolicy>,
    /// The request's pool; `None` until the body is complete, or if the policy names no pools.
    pub(crate) pool: Option<Arc<PoolPolicy>>,
    /// The bytes of the body that hold the model, as a JSON string.
    pub(crate) model_range: Range<u64>,
    /// The gateway has asked the server for token counts. `None`: it hasn't, or the response isn't a stream of events.
    pub(crate) usage_hider: Option<UsageHider>,
    /// The body isn't the client's any more.
    pub(crate) is_body_edited: bool,
    /// The request has a `content-length`.
    pub(crate) has_length: bool,
    /// The registration. It is kept in the form of its message, because the filter sends it again after a reconnect; the
    /// age is set whenever it is sent.
    pub(crate) register: Register,
    /// The stream was restarted: the exchange that the request had before has ended.
    pub(crate) is_restarted: bool,
    /// The end of that exchange, until it is reported.
    pub(crate) departure: Option<Box<Departure>>,
    pub(crate) phase: Phase,
}

/// An exchange that has ended because its stream is restarted.
#[derive(Debug)]
pub(crate) struct Departure {
    pub(crate) arrived: Instant,
    /// The pool whose session reports it.
    pub(crate) pool: Option<String>,
    pub(crate) register: Register,
    pub(crate) granted: Granted,
    /// The gateway has asked the server for token counts, and hides them from the client.
    pub(crate) hides_usage: bool,
    pub(crate) is_body_edited: bool,
    /// `None`: no server accepted the request.
    pub(crate) failed_attempt: Option<AttemptFailed>,
    /// The server of the failed attempt; `None`: Envoy found none.
    pub(crate) endpoint: Option<String>,
    /// How often Envoy sent the request.
    pub(crate) attempts: u32,
}

impl Departure {
    /// The entry of the exchange in a Hello: until its end is reported, the request runs.
    pub(crate) fn running(&self, now: Instant) -> Running {
        let register = Register { age_us: now.micros_since(self.arrived), ..self.register.clone() };
        self.granted.running_at(now, self.granted.pool.clone(), self.granted.endpoint.clone(), register)
    }
}

/// The phase of an exchange.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The body is arriving.
    ReadingBody(Box<ReadingBody>),
    /// The request waits for a decision. `registered`: a registration was sent on some stream. `place`: it is counted in its
    /// pool; `None`: it isn't yet, or it has no pool.
    Waiting { registered: bool, place: Option<WaitingPlace> },
    /// The request waits on as that of another exchange, at the requeue listener, behind a companion that keeps its client's connection alive.
    KeptAlive,
    /// The request was granted.
    Granted(Box<Granted>),
    /// The filter has sent a local reply.
    Answered,
}

#[derive(Debug)]
pub(crate) struct ReadingBody {
    /// When Envoy was asked to pause the request.
    pub(crate) since: Instant,
    pub(crate) scanner: BodyScanner,
    /// `None`: the request isn't queued. Only its model is read, which decides to which pool it passes.
    pub(crate) claims: Option<IdentityClaims>,
    /// Bytes of the body that have arrived.
    pub(crate) size: usize,
}

impl Exchange {
    /// The name of its pool; `None`: it has none, or it isn't known yet.
    pub(crate) fn pool_name(&self) -> Option<&str> {
        self.pool.as_ref().map(|pool| pool.name.as_str())
    }

    /// The registration with its current age.
    pub(crate) fn register(&self, now: Instant) -> Register {
        Register { age_us: now.micros_since(self.arrived), ..self.register.clone() }
    }

    /// The token that authenticates the request at the requeue listener. `credit_endpoint`: it is admitted there by credit.
    pub(crate) fn requeue_token(&self, epoch: Epoch, credit_endpoint: Option<&str>) -> RequeueToken {
        let model = ModelName::of(&self.register);
        RequeueToken {
            epoch,
            sequence: self.register.sequence,
            requeues: self.register.requeues.saturating_add(1),
            arrived: self.arrived,
            client: Some(self.register.client.clone()).filter(|client| !client.is_empty()),
            tenant: Some(self.register.fairness_id.clone()).filter(|_| self.register.tenant_verified),
            credit_endpoint: credit_endpoint.map(str::to_owned),
            requested_model: model.target.map(|_| model.requested.to_owned()),
        }
    }

    /// The token of a request that waits on at the requeue listener.
    pub(crate) fn waiting_token(&self, epoch: Epoch) -> RequeueToken {
        RequeueToken { requeues: self.register.requeues, ..self.requeue_token(epoch, None) }
    }

    /// Takes over the model of a grant. Returns the rewrite of the body; `None` if the body may stay as it is.
    pub(crate) fn set_target_model(&mut self, target: &str) -> Option<Rewrite> {
        // A body that names no model stays as it is.
        let has_model = !self.model_range.is_empty();
        if target.is_empty() || !has_model || ModelName::of(&self.register).in_body() == target {
            return None;
        }
        target.clone_into(&mut self.register.target_model);
        let bytes = self.register.body_bytes;
        Some(Rewrite::json_string(&self.model_range, target, bytes))
    }

    /// Asks the server for token counts, by an option in the buffered body.
    pub(crate) fn ask_for_usage(&mut self, body: &mut impl BufferedBody) {
        let length = usize::try_from(self.register.body_bytes).unwrap_or(usize::MAX);
        let added = usage_request::add_option(body, length).and_then(|added| u64::try_from(added).ok());
        let Some(added) = added else {
            return;
        };
        self.usage_hider = Some(UsageHider::default());
        self.is_body_edited = true;
        self.register.body_bytes = self.register.body_bytes.saturating_add(added);
        let Range { start, end } = self.model_range;
        self.model_range = start.saturating_add(added)..end.saturating_add(added);
    }

    /// The failures after which the request is sent again, to another endpoint or by the queue.
    pub(crate) fn requeue_on(&self) -> RequeueOn {
        self.pool.as_ref().map_or_else(RequeueOn::default, |pool| pool.requeue_on)
    }

    /// How long a server may take to the first byte of an answer; `None`: for ever.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        self.pool.as_ref().and_then(|pool| pool.first_byte)
    }

    /// The load of this request while it is in flight, estimated as the engine does at first.
    pub(crate) fn load(&self) -> Load {
        // A requeued request is counted by its first exchange, which lasts at least as long, unless its stream was restarted. One that was
        // moved while it waited isn't.
        if self.register.requeued_from.is_some() && !self.register.moved && !self.is_restarted {
            return Load::default();
        }
        let prompt = self.register.prompt_bytes.div_ceil(FALLBACK_BYTES_PER_TOKEN);
        let sequences = self.register.sequences.max(1);
        let output = FALLBACK_OUTPUT_TOKENS.min(self.register.max_tokens.unwrap_or(u64::MAX));
        let is_counted = self.pool.as_ref().is_some_and(|pool| pool.fallback_bound_in_sequences);
        Load {
            requests: if is_counted { sequences } else { 1 },
            tokens: prompt.saturating_add(output.saturating_mul(sequences)),
        }
    }

    /// How long the request waits for a companion that is down before the fallback applies.
    pub(crate) fn hold(&self) -> Duration {
        self.pool.as_ref().map_or(HOLD_DEFAULT, |pool| pool.hold)
    }
}
