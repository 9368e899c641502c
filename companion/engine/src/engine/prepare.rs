//! The estimates of a request before it comes: the cached part of its prompt, its tokens and its class.

use alloc::vec::Vec;

use super::Engine;
use super::admission::sequences_of;
use crate::endpoints::HashedPrompt;
use crate::input::{EndpointId, Estimates, Prompt, Request};
use crate::tree::ANONYMOUS;
use crate::units::Tokens;

/// The tokens and the class of a request at its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared<'a> {
    /// The name of its policy class; empty where no classes are configured.
    pub class: &'a str,
    /// Tokens of the whole prompt.
    pub prompt: Tokens,
    /// The part of the prompt that is cached.
    pub cached: Tokens,
    /// Expected tokens of the output.
    pub output: Tokens,
}

impl Engine {
    /// Estimates the tokens of a request that comes with the next input, and sets [`Request::cached`] of a prompt in bytes: the longest of
    /// its prefixes that was sent to one of its eligible endpoints, as far as that endpoint's answers confirm such predictions. Cost and
    /// class go by it.
    pub fn prepare(&self, request: &mut Request) -> Prepared<'_> {
        let model = &*request.model.target;
        let prompt = self.token_history.prompt_tokens(model, request.prompt);
        if let Prompt::Bytes(bytes) = request.prompt {
            request.cached = Tokens(self.cached_tokens(request, bytes, prompt));
        }
        let cached = request.cached.0.min(prompt);
        let flow = if request.flow.is_empty() { ANONYMOUS } else { &request.flow };
        let flow = self.token_history.hashed(flow);
        let limits = (request.expected_output, request.max_output);
        let output = self.expected_output(limits, sequences_of(request.sequences), flow, model);
        request.estimates = Some(Estimates { prompt, output, flow_hash: flow.hash });
        let classes = self.tree.classes();
        let class = if classes.are_configured() {
            let class = classes.classify(request.class_set, &request.class, prompt - cached);
            classes.get(class).name()
        } else {
            ""
        };
        Prepared { class, prompt: Tokens(prompt), cached: Tokens(cached), output: Tokens(output) }
    }

    /// The cached tokens of a prompt of so many bytes and tokens.
    fn cached_tokens(&self, request: &Request, bytes: u64, tokens: u64) -> u64 {
        let mut copy: Vec<EndpointId> = Vec::new();
        let eligible = match request.eligible.as_deref() {
            Some(eligible) if !eligible.is_sorted() => {
                copy.extend_from_slice(eligible);
                copy.sort_unstable();
                Some(&*copy)
            }
            eligible => eligible,
        };
        self.endpoints.cached_tokens(eligible, &HashedPrompt { prefix: &request.prefix, bytes, tokens })
    }

    /// The tokens of a request's prompt.
    pub(super) fn prompt_of(&self, request: &Request) -> u64 {
        let estimate = || self.token_history.prompt_tokens(&request.model.target, request.prompt);
        request.estimates.map_or_else(estimate, |estimates| estimates.prompt)
    }
}
