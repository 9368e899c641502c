//! A request as its filter registers it: a `Register` message, parsed. It borrows from the message, so parsing copies
//! nothing.

use core::hash::Hasher as _;
use core::time::Duration;
use std::borrow::Cow;
use std::hash::DefaultHasher;

use penstock_engine::input::Kind;

use crate::completion::Completion;
use crate::counting::Asked;
use crate::failed_attempt::FailedAttempt;
use crate::ids::{CreditId, RequestKey};

/// The claims of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration<'a> {
    pub(crate) key: RequestKey,
    /// The number of the API of its path.
    pub(crate) api: i32,
    /// Since the request arrived at its filter.
    pub(crate) age: Duration,
    pub(crate) request_id: &'a str,
    pub(crate) traceparent: &'a str,
    /// The model that the client asked for.
    pub(crate) model: &'a str,
    /// The pool that the gateway has chosen; `None`: the model chooses.
    pub(crate) chosen_pool: Option<&'a str>,
    /// The body asks for this target model already: an earlier grant of the request had it rewritten.
    pub(crate) rewritten_to: Option<&'a str>,
    /// Empty for a request without a fairness identity.
    pub(crate) tenant: Cow<'a, str>,
    /// The tenant must not appear in metrics or status, because it comes from a body.
    pub(crate) is_tenant_private: bool,
    /// The filter has verified the tenant by an API key.
    pub(crate) is_tenant_verified: bool,
    /// Empty for a request without a user.
    pub(crate) user: Cow<'a, str>,
    pub(crate) priority: &'a str,
    /// The family of policy classes; empty for the default family.
    pub(crate) class: &'a str,
    /// The client's address.
    pub(crate) client: &'a str,
    /// The filter found that the client isn't trusted.
    pub(crate) is_untrusted: bool,
    pub(crate) prompt_bytes: u64,
    /// Of one sequence.
    pub(crate) output_tokens_max: Option<u64>,
    /// Sequences that the server computes at the same time; at least 1.
    pub(crate) sequences: u64,
    pub(crate) body_bytes: u64,
    /// The answer is generated token by token.
    pub(crate) is_generated: bool,
    /// The client asked for a stream of events.
    pub(crate) is_streamed: bool,
    /// The strict tier; 0 if the client's claim is out of range.
    pub(crate) strict: u8,
    /// The head start; 0 if the client's claim is out of range.
    pub(crate) head_start: Duration,
    /// After the arrival.
    pub(crate) deadline: Option<Duration>,
    /// The deadline header isn't a valid number.
    pub(crate) is_deadline_invalid: bool,
    /// How often its client says that it has sent the request before.
    pub(crate) client_retries: u32,
    /// The client's target for the first token, after the arrival.
    pub(crate) ttft_target: Option<Duration>,
    /// The header of the target isn't a valid number.
    pub(crate) is_ttft_target_invalid: bool,
    /// Addresses that the request may go to; empty for any.
    pub(crate) subset: &'a [String],
    /// The gateway has restricted the request to them, and not its client.
    pub(crate) is_subset_of_gateway: bool,
    /// The only address that the request may go to.
    pub(crate) pin: Option<&'a str>,
    /// Taints that the request tolerates.
    pub(crate) tolerations: &'a [String],
    pub(crate) prefix_hashes: &'a [u64],
    /// How often the request was requeued.
    pub(crate) requeues: u32,
    /// It waited under its previous key, and waits on.
    pub(crate) is_moved: bool,
    /// The key that the request had before it was requeued the last time.
    pub(crate) previous_key: Option<RequestKey>,
    /// Before it was requeued, its filter admitted it by credit at this endpoint.
    pub(crate) credit_endpoint: Option<&'a str>,
    /// The last reported attempt under that key. The report itself may come later.
    pub(crate) failed_attempt: Option<FailedAttempt<'a>>,
    /// Every name and list is within the limits of the protocol.
    pub(crate) is_within_limits: bool,
}

impl Registration<'_> {
    /// The kind of the request to `target_model`. Requests without a tenant are told apart by their client's address.
    pub(crate) fn kind(&self, target_model: &str) -> Kind {
        let hash = |texts: [&str; 2], number: i32| {
            let mut hasher = DefaultHasher::new();
            for text in texts {
                hasher.write(text.as_bytes());
                hasher.write_u8(0xff);
            }
            hasher.write_i32(number);
            hasher.finish()
        };
        let client = if self.tenant.is_empty() { self.client } else { "" };
        Kind { model_and_path: hash([target_model, ""], self.api), flow: hash([&self.tenant, client], 0) }
    }

    /// What limits the counts of the answer.
    pub(crate) fn asked(&self) -> Asked {
        let saturated = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Asked {
            body_bytes: saturated(self.body_bytes),
            output_max: saturated(self.output_tokens_max.unwrap_or(0)),
            sequences: saturated(self.sequences),
            is_generated: self.is_generated,
            is_streamed: self.is_streamed,
        }
    }

    /// A filter with credit admits such a request by itself, unless its prompt is too long: it is new, is one sequence, names no endpoints,
    /// and has no time limit.
    pub(crate) const fn may_use_credit(&self) -> bool {
        let is_new = self.requeues == 0 && self.previous_key.is_none();
        let is_unrestricted = self.subset.is_empty() && self.pin.is_none() && self.tolerations.is_empty();
        is_new
            && self.sequences == 1
            && is_unrestricted
            && self.deadline.is_none()
            && self.ttft_target.is_none()
    }
}

/// How a request comes in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival<'a> {
    /// The request has just arrived at its filter.
    New,
    /// The request waited at its filter for another companion, or its session was interrupted.
    Waiting,
    /// Another companion granted it, and it runs.
    Running(Running<'a>),
    /// The request's filter admitted it by credit.
    ByCredit {
        /// The running request. Its endpoint is that of the place.
        running: Running<'a>,
        /// The place that it takes along, if its filter holds it; `None`: it counts beside the credit.
        place: Option<CreditPlace<'a>>,
        /// How it ended; `None`: it runs.
        end: Option<&'a Completion<'a>>,
    },
}

impl<'a> Arrival<'a> {
    pub(crate) const fn is_new(&self) -> bool {
        matches!(self, Self::New)
    }

    /// Where the request runs; `None`: it doesn't run yet.
    pub(crate) const fn running(&self) -> Option<Running<'a>> {
        match self {
            Self::New | Self::Waiting => None,
            Self::Running(running) | Self::ByCredit { running, .. } => Some(*running),
        }
    }
}

/// A place of a credit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditPlace<'a> {
    pub(crate) credit: CreditId,
    /// The endpoint's address.
    pub(crate) endpoint: &'a str,
}

/// Where a request runs, as a Hello reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running<'a> {
    /// The name of the pool that granted it, or gave the credit; empty: unknown.
    pub(crate) pool: &'a str,
    /// The endpoint's address.
    pub(crate) endpoint: &'a str,
    /// Since its grant.
    pub(crate) age: Duration,
    /// Its server has begun to respond.
    pub(crate) has_begun: bool,
    /// The first byte of its answer has arrived.
    pub(crate) has_first_token: bool,
    /// The address of the endpoint that computes its prompt; `None`: the one where it runs does, or the answer has begun.
    pub(crate) prefill_endpoint: Option<&'a str>,
}
