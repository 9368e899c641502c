//! A request inside the engine, from its registration to its end.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::band::TreeBand;
use crate::cost::{Charge, TokenEstimate};
use crate::endpoints::HashedPrompt;
use crate::ids::{EndpointIndex, RunningId};
use crate::input::{Band, ClassKey, EndpointId, RequestId, Service, Usage};
use crate::load::Load;
use crate::outcome::Outcome;
use crate::retry::Retry;
use crate::scores::ScoredRequest;
use crate::time::Instant;
use crate::tree::{OrderKey, Queued, Receipts};
use crate::units::Tokens;

/// The fields that a grant reads come first, in few cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Job {
    pub(crate) queued: Queued,
    pub(crate) id: RequestId,
    pub(crate) estimate: TokenEstimate,
    /// Hashes of the prompt's prefixes.
    pub(crate) prefix: Box<[u64]>,
    /// The request's failures; `None`: no endpoint failed it.
    pub(crate) retry: Option<Box<Retry>>,
    /// `None`: it waits. [`crate::jobs::Jobs`] keeps the state apart, because most jobs wait.
    pub(crate) running: Option<RunningId>,
    /// Where it waits, or waited: the band of the client's request, or the demoted one.
    pub(crate) band: TreeBand,
    /// The band that the client requested.
    pub(crate) request_band: Band,
    /// The name of its flow; `None`: it has the flow of that name. Otherwise it shares one, because the table of identities was full.
    pub(crate) shared_name: Option<Arc<str>>,
    /// The owner has lost its session.
    pub(crate) session_lost: bool,
    /// The request has met no room in a budget that is a shadow.
    pub(crate) is_shadowed: bool,
    /// The class set of its model.
    pub(crate) class_set: u16,
    /// The inputs of its order within its flow.
    pub(crate) order_key: OrderKey,
    /// The server's name for the model.
    pub(crate) model: Arc<str>,
    /// `None`: the prompt came in tokens.
    pub(crate) prompt_bytes: Option<u64>,
    /// The class that the client named.
    pub(crate) class_key: ClassKey,
}

/// A granted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) endpoint: EndpointIndex,
    pub(crate) load: Load,
    /// Prompt tokens that its endpoint had cached by the index of prefixes.
    pub(crate) predicted_cached: u64,
    pub(crate) charge: Charge,
    pub(crate) receipts: Receipts,
    pub(crate) outcome: Outcome,
    /// The part of it that runs at an endpoint for prompts; `None`: none does, or no longer.
    pub(crate) prefill: Option<RemotePrefill>,
    /// Another endpoint computes its prompt, or did, and had so many of its tokens cached; `None`: no other endpoint does.
    pub(crate) cached_elsewhere: Option<u64>,
    /// The first byte of its answer arrived.
    pub(crate) is_answering: bool,
    /// The final cost, if it is known before the end; 0: refunded.
    pub(crate) settled: Option<u64>,
    /// The number of its start: a later one is greater.
    pub(crate) start: u64,
    /// Its server has begun to respond, as far as the owner has told.
    pub(crate) has_begun: bool,
}

/// A prompt that another endpoint computes than the one that answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemotePrefill {
    pub(crate) endpoint: EndpointIndex,
    /// The prompt's tokens.
    pub(crate) prompt: u64,
    /// Those that weren't cached there.
    pub(crate) uncached: u64,
}

impl RemotePrefill {
    pub(crate) fn load(&self) -> Load {
        Load::of_prefill(self.prompt, self.uncached)
    }
}

impl Running {
    /// `load` of the request at the endpoint that answers, without the prompt if another one computes it.
    pub(crate) const fn answering_load(&self, load: Load) -> Load {
        if self.cached_elsewhere.is_some() { load.without_prefill() } else { load }
    }

    /// What is charged for `service`. Where another endpoint has computed the prompt, the one that answers counts all of it as cached.
    pub(crate) fn charged(&self, service: Service) -> Service {
        let Some(cached) = self.cached_elsewhere.map(Tokens) else { return service };
        let corrected = |usage: Usage| Usage { cached: Some(cached), ..usage };
        match service {
            Service::Nothing => service,
            Service::Served(usage) => Service::Served(corrected(usage)),
            Service::Cut(usage) => Service::Cut(corrected(usage)),
        }
    }
}

impl Job {
    pub(crate) const fn is_waiting(&self) -> bool {
        self.running.is_none()
    }

    pub(crate) fn scored(&self) -> ScoredRequest<'_> {
        ScoredRequest { model: &self.model, prefix: &self.prefix, prompt_bytes: self.prompt_bytes }
    }

    /// The request can't be dispatched while it waits, and blocks no other request.
    pub(crate) fn is_suspended(&self) -> bool {
        self.session_lost || self.retry.as_ref().is_some_and(|retry| retry.lets_pass())
    }

    /// The endpoints that it avoids; empty: none.
    pub(crate) fn avoided(&self) -> &[EndpointId] {
        self.retry.as_ref().map_or(&[], |retry| retry.avoided())
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.order_key.deadline
    }

    /// The prompt, if its cached part is known by endpoint: it came in bytes, and with hashes.
    pub(crate) fn hashed_prompt(&self) -> Option<HashedPrompt<'_>> {
        Some(HashedPrompt {
            prefix: Some(&*self.prefix).filter(|prefix| !prefix.is_empty())?,
            bytes: self.prompt_bytes?,
            tokens: self.estimate.prompt,
        })
    }

    /// The tokens that the server counted; the estimate where it counted none.
    pub(crate) fn counted(&self, usage: Usage) -> TokenEstimate {
        TokenEstimate {
            prompt: usage.prompt.map_or(self.estimate.prompt, |tokens| tokens.0),
            cached: usage.cached.map_or(self.estimate.cached, |tokens| tokens.0),
            output: usage.output.map_or(self.estimate.output, |tokens| tokens.0),
            sequences: self.estimate.sequences,
        }
    }
}
