//! One HTTP stream on a queued path, from its headers to its log entry: collecting, waiting, running, or answered.
//!
//! Holds the state and the facts; the worker moves it from phase to phase.

use core::{ops::Range, time::Duration};
use std::sync::Arc;

use penstock_wire::{Completed, EndReason, Grant, Register, Running, Started};

use crate::{
    body::BodyScanner,
    compiled_policy::{CompiledPolicy, PoolPolicy},
    end_reason::{self, UpstreamFailure},
    identity::{IdentityClaims, Properties},
    in_flight::Load,
    limits::{FALLBACK_BYTES_PER_TOKEN, FALLBACK_OUTPUT_TOKENS, HOLD_DEFAULT},
    local_reply::QueueReport,
    requeue_token::RequeueToken,
    response::{ResponseScanner, ResponseStats},
    rewrite::Rewrite,
    session::Epoch,
    time::Instant,
};

/// A request on a queued path.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The host's number of the HTTP stream.
    pub(crate) context: u32,
    /// When its headers came.
    pub(crate) arrived: Instant,
    /// The policy that was in force then.
    pub(crate) policy: Arc<CompiledPolicy>,
    /// Known when the body has been read; none also if the policy names no pools.
    pub(crate) pool: Option<Arc<PoolPolicy>>,
    /// Where its body says the model, as a JSON string.
    pub(crate) model_at: Range<u64>,
    /// Its headers say how long its body is.
    pub(crate) sized: bool,
    /// What is said of it; its age is filled in when it is said.
    pub(crate) register: Register,
    pub(crate) phase: Phase,
}

/// How far it is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The body is read as it comes.
    ReadingBody(Box<ReadingBody>),
    /// It waits for the companion's word. `registered`: the companion may know of it.
    Waiting { registered: bool },
    /// It was granted.
    Granted(Box<Granted>),
    /// The filter has answered.
    Answered,
}

#[derive(Debug)]
pub(crate) struct ReadingBody {
    pub(crate) scanner: BodyScanner,
    pub(crate) claims: IdentityClaims,
    /// Bytes of the body that have come.
    pub(crate) size: usize,
}

/// A granted request on its way.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) granted: Instant,
    pub(crate) pool: String,
    /// The first endpoint of the grant.
    pub(crate) endpoint: String,
    pub(crate) standing: QueueReport,
    pub(crate) upstream: Upstream,
    /// What it counts as in its pool.
    pub(crate) load: Load,
}

/// What came back.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// Nothing yet.
    Pending,
    /// Envoy answered by itself, because no server did.
    Unanswered { why: UpstreamFailure, status: u32 },
    /// Envoy answered by itself, for another reason.
    EndedByEnvoy { status: u32 },
    /// It entered again, and who it is since answers: nothing of the answer is ours to report.
    Requeued { status: u32 },
    /// A server answers.
    Responding(Box<Response>),
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) endpoint: String,
    pub(crate) status: u32,
    pub(crate) attempts: u32,
    pub(crate) scanner: ResponseScanner,
    /// The last byte was seen.
    pub(crate) ended: bool,
}

impl Exchange {
    /// The Register as it is said now.
    pub(crate) fn register(&self, now: Instant) -> Register {
        Register {
            age_us: now.micros_since(self.arrived),
            ..self.register.clone()
        }
    }

    /// What proves it where it enters again.
    pub(crate) fn token(&self, epoch: Epoch) -> RequeueToken {
        RequeueToken {
            epoch,
            sequence: self.register.sequence,
            requeues: self.register.requeues.saturating_add(1),
            arrived: self.arrived,
            client: self.register.client.clone(),
            model: if self.register.target_model.is_empty() {
                String::new()
            } else {
                self.register.model.clone()
            },
        }
    }

    /// Lets its body ask for another model from now on: the change to the body; none: it asks for that one already, or
    /// may keep what it has.
    pub(crate) fn retarget(&mut self, target: &str) -> Option<Rewrite> {
        let said = match self.register.target_model.as_str() {
            "" => &self.register.model,
            said => said,
        };
        if target.is_empty() || said == target {
            return None;
        }
        target.clone_into(&mut self.register.target_model);
        let bytes = self.register.body_bytes;
        Some(Rewrite::string(&self.model_at, target, bytes))
    }

    /// What it counts as while it runs: by the estimate that the engine starts with.
    pub(crate) fn load(&self) -> Load {
        // Who entered again is counted where its first stream is, as long as that lasts.
        if self.register.requeued_from.is_some() {
            return Load::default();
        }
        let prompt = self.register.prompt_bytes.div_ceil(FALLBACK_BYTES_PER_TOKEN);
        let output = FALLBACK_OUTPUT_TOKENS.min(self.register.max_tokens.unwrap_or(u64::MAX));
        Load {
            requests: 1,
            tokens: prompt.saturating_add(output),
        }
    }

    /// How long it waits for a companion that went away.
    pub(crate) fn hold(&self) -> Duration {
        self.pool.as_ref().map_or(HOLD_DEFAULT, |pool| pool.hold)
    }
}

impl Granted {
    pub(crate) fn new(now: Instant, grant: Grant, load: Load) -> Self {
        Self {
            load,
            granted: now,
            pool: grant.pool,
            endpoint: grant.endpoints.into_iter().next().unwrap_or_default(),
            standing: QueueReport {
                outcome: grant.outcome,
                queue_us: grant.queue_us,
                saturation_milli: grant.saturation_milli,
            },
            upstream: Upstream::Pending,
        }
    }

    /// Its entry in a Hello; none: another speaks for it.
    pub(crate) fn running(&self, now: Instant, register: Register) -> Option<Running> {
        let begun = match &self.upstream {
            Upstream::Responding(begun) => Some(begun),
            Upstream::Pending | Upstream::Unanswered { .. } | Upstream::EndedByEnvoy { .. } => None,
            Upstream::Requeued { .. } => return None,
        };
        Some(Running {
            register: Some(register),
            pool: self.pool.clone(),
            endpoint: begun.map_or(&self.endpoint, |begun| &begun.endpoint).clone(),
            age_us: now.micros_since(self.granted),
            started: begun.is_some(),
        })
    }

    /// A server's response headers are in.
    pub(crate) fn started(&self, now: Instant, sequence: u64, begun: &Response) -> Started {
        Started {
            sequence,
            endpoint: begun.endpoint.clone(),
            status: begun.status,
            attempts: begun.attempts,
            after_us: now.micros_since(self.granted),
        }
    }

    /// The exchange is over. Asks the host only for what wasn't seen.
    pub(crate) fn completed(self, sequence: u64, host: &impl Properties) -> Completed {
        let (status, end) = match self.upstream {
            Upstream::Responding(mut begun) => {
                let end = if begun.ended {
                    EndReason::Served
                } else {
                    end_reason::unfinished(&details(host), true)
                };
                let ResponseStats {
                    usage,
                    chunks,
                    first,
                    last,
                } = begun.scanner.told();
                let since = |at: Option<Instant>| at.map(|at| at.micros_since(self.granted));
                return Completed {
                    sequence,
                    endpoint: begun.endpoint,
                    status: begun.status,
                    attempts: begun.attempts,
                    end: end.into(),
                    first_byte_us: since(first),
                    last_byte_us: since(last),
                    prompt_tokens: usage.prompt,
                    cached_tokens: usage.cached,
                    output_tokens: usage.output,
                    output_chunks: chunks,
                };
            }
            Upstream::Unanswered { why, status } => (status, why.end()),
            // Whatever became of it then: of its own list nobody took it.
            Upstream::Requeued { status } => (status, EndReason::Unavailable),
            Upstream::EndedByEnvoy { status } => (status, end_reason::unfinished(&details(host), false)),
            Upstream::Pending => (0, end_reason::unfinished(&details(host), false)),
        };
        Completed {
            sequence,
            endpoint: address(host).unwrap_or_default(),
            status,
            attempts: attempts(host),
            end: end.into(),
            ..Completed::default()
        }
    }
}

/// Envoy's words for how a stream went.
pub(crate) fn details(host: &impl Properties) -> String {
    text(host.property(&["response", "code_details"])).unwrap_or_default()
}

/// The address that Envoy used last.
pub(crate) fn address(host: &impl Properties) -> Option<String> {
    text(host.property(&["upstream", "address"]))
}

/// How many times Envoy sent the request.
pub(crate) fn attempts(host: &impl Properties) -> u32 {
    let count = host.property(&["upstream", "request_attempt_count"]);
    let count = count.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

fn text(value: Option<Vec<u8>>) -> Option<String> {
    value
        .and_then(|value| String::from_utf8(value).ok())
        .filter(|value| !value.is_empty())
}
