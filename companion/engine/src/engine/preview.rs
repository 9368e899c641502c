//! What a request would count as if it came now: the cached part of its prompt, its tokens and its class. Nothing changes.

use alloc::vec::Vec;

use super::Engine;
use crate::endpoints::HashedPrompt;
use crate::input::{EndpointId, Prompt, Request};
use crate::tree::ANONYMOUS;
use crate::units::Tokens;

/// The tokens and the class of a request at its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preview<'a> {
    /// The name of its policy class; empty where no classes are configured.
    pub class: &'a str,
    /// Tokens of the whole prompt.
    pub prompt: Tokens,
    /// The part of the prompt that is cached, by [`Request::cached`].
    pub cached: Tokens,
    /// Expected tokens of the output.
    pub output: Tokens,
}

impl Engine {
    /// The prompt tokens that one eligible endpoint of the request has in its prefix cache: the longest of the request's
    /// prefixes that was sent to one of them, as far as that endpoint's answers confirm such predictions. 0 for a prompt that came
    /// in tokens. Cost and class go by [`Request::cached`].
    #[must_use]
    pub fn cached_tokens(&self, request: &Request) -> Tokens {
        let Prompt::Bytes(bytes) = request.prompt else {
            return Tokens(0);
        };
        let mut copy: Vec<EndpointId> = Vec::new();
        let eligible = match request.eligible.as_deref() {
            Some(eligible) if !eligible.is_sorted() => {
                copy.extend_from_slice(eligible);
                copy.sort_unstable();
                Some(&*copy)
            }
            eligible => eligible,
        };
        let prompt = HashedPrompt {
            prefix: &request.prefix,
            bytes,
            tokens: self.token_history.prompt_tokens(&request.model.target, request.prompt),
        };
        Tokens(self.endpoints.cached_tokens(eligible, &prompt))
    }

    /// The tokens and the class of a request if it came now.
    #[must_use]
    pub fn preview(&self, request: &Request) -> Preview<'_> {
        let model = &*request.model.target;
        let prompt = self.token_history.prompt_tokens(model, request.prompt);
        let cached = request.cached.0.min(prompt);
        let flow = if request.flow.is_empty() { ANONYMOUS } else { &request.flow };
        let flow = self.token_history.hashed(flow);
        let output = self.expected_output(request.expected_output, request.max_output, flow, model);
        let classes = self.tree.classes();
        let class = if classes.are_configured() {
            let class = classes.classify(request.class_set, &request.class, prompt - cached);
            classes.get(class).name()
        } else {
            ""
        };
        Preview { class, prompt: Tokens(prompt), cached: Tokens(cached), output: Tokens(output) }
    }
}
