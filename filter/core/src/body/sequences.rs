//! Counts the sequences that a server computes for a request: its prompts times the choices of each.
//!
//! Servers run every sequence by itself, so a request with 64 of them loads a server like 64 requests. The count is what the
//! client claims. A server refuses a count that isn't a number, and one that is far too large, so neither is believed.

use penstock_wire::Api;
use penstock_wire::limits::SEQUENCES_MAX;

use crate::json::{Container, JsonString};

/// The bytes of a number in quotes that are kept. Servers in Python take such numbers.
pub(super) const COUNT_BYTES_MAX: usize = 32;

/// The key under which a number of choices stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choices {
    /// `n`: the choices that the client gets.
    Returned,
    /// `best_of`: the choices of which the client gets the best.
    Computed,
}

/// The key under which a list of prompts stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prompts {
    /// `prompt`.
    Prompt,
    /// `input`.
    Input,
    /// `prompt_embeds`: embeddings beside or in place of `prompt`.
    Embeds,
}

#[derive(Debug, Default)]
pub(super) struct Sequences {
    api: Api,
    returned: Option<u64>,
    computed: Option<u64>,
    /// The items of the lists of prompts, by key; 0: one prompt, or none.
    prompt: u64,
    input: u64,
    embeds: u64,
    /// The list that is open.
    list: Option<Prompts>,
}

impl Sequences {
    pub(super) const fn set_api(&mut self, api: Api) {
        self.api = api;
    }

    /// The number under a key; `None`: it isn't a whole number.
    pub(super) const fn set_choices(&mut self, choices: Choices, count: Option<u64>) {
        match choices {
            Choices::Returned => self.returned = count,
            Choices::Computed => self.computed = count,
        }
    }

    pub(super) fn set_choices_text(&mut self, choices: Choices, text: JsonString<'_>) {
        let count = if text.is_cut() { None } else { text.kept.trim().parse().ok() };
        self.set_choices(choices, count);
    }

    /// Sets the number of choices if it is larger than before.
    pub(super) fn raise_choices(&mut self, count: Option<u64>) {
        self.returned = self.returned.max(count);
    }

    /// A key of prompts stands before the next value. The last of several equal keys counts.
    pub(super) const fn key(&mut self, prompts: Prompts) {
        *self.items(prompts) = 0;
    }

    /// The value of a top-level key begins, and is a container.
    pub(super) fn begin(&mut self, prompts: Option<Prompts>, container: Container) {
        self.list = prompts.filter(|_| container == Container::Array);
    }

    /// A string or a container stands in the open list. Numbers there are the token ids of one prompt.
    pub(super) const fn count_item(&mut self) {
        if let Some(prompts) = self.list {
            let items = self.items(prompts);
            *items = items.saturating_add(1);
        }
    }

    const fn items(&mut self, prompts: Prompts) -> &mut u64 {
        match prompts {
            Prompts::Prompt => &mut self.prompt,
            Prompts::Input => &mut self.input,
            Prompts::Embeds => &mut self.embeds,
        }
    }

    /// The value of a top-level key ends.
    pub(super) const fn end(&mut self) {
        self.list = None;
    }

    /// The sequences, from 1 to [`SEQUENCES_MAX`].
    pub(super) fn count(&self) -> u64 {
        let items = match self.api {
            Api::Completions => self.prompt.saturating_add(self.embeds),
            Api::Embeddings => self.input,
            Api::Unspecified | Api::Other | Api::OtherWithoutOutput => {
                self.prompt.max(self.input).saturating_add(self.embeds)
            }
            Api::ChatCompletions | Api::Responses | Api::Messages => 0,
        };
        let choices = match self.api {
            Api::ChatCompletions | Api::Completions | Api::Unspecified | Api::Other => {
                self.returned.max(self.computed)
            }
            Api::Embeddings | Api::Responses | Api::Messages | Api::OtherWithoutOutput => None,
        };
        let choices = choices.unwrap_or(1).max(1);
        items.max(1).saturating_mul(choices).min(SEQUENCES_MAX)
    }
}
