//! What one JSON document of a model server says about tokens, and whether it carries text of the answer.
//!
//! Knows the shapes of OpenAI's chat, completions, embeddings and responses, and of Anthropic's messages. It judges
//! nothing: a document of another shape simply says nothing.

use core::convert::Infallible;

use crate::json::{Container, JsonString, Literal, Visitor};

/// Tokens as a server counted them; what it didn't say is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the whole prompt, cached ones included.
    pub prompt: Option<u64>,
    /// Of the prompt, those that were in a cache.
    pub cached: Option<u64>,
    /// Of the answer.
    pub output: Option<u64>,
}

/// The levels that are told apart; no shape has its usage deeper.
const LEVELS: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Level {
    #[default]
    Other,
    Root,
    /// `response` or `message`: an object that wraps the usage.
    Envelope,
    Usage,
    Details,
    Choices,
    Delta,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Key {
    #[default]
    Other,
    Envelope,
    Usage,
    Choices,
    Delta,
    Text,
    Said,
    PromptTokens,
    InputTokens,
    OutputTokens,
    Details,
    CachedTokens,
    CacheRead,
    CacheCreation,
}

impl Key {
    fn of(key: &str) -> Self {
        match key {
            "response" | "message" => Self::Envelope,
            "usage" => Self::Usage,
            "choices" => Self::Choices,
            "delta" => Self::Delta,
            "text" => Self::Text,
            "content" | "reasoning_content" | "reasoning" | "thinking" | "partial_json" | "arguments"
            | "refusal" => Self::Said,
            "prompt_tokens" => Self::PromptTokens,
            "input_tokens" => Self::InputTokens,
            "completion_tokens" | "output_tokens" => Self::OutputTokens,
            "prompt_tokens_details" | "input_tokens_details" => Self::Details,
            "cached_tokens" => Self::CachedTokens,
            "cache_read_input_tokens" => Self::CacheRead,
            "cache_creation_input_tokens" => Self::CacheCreation,
            _ => Self::Other,
        }
    }
}

/// Collects over one document after the other; the last word on each number counts.
#[derive(Debug, Default)]
pub(crate) struct UsageProbe {
    levels: [Level; LEVELS],
    depth: usize,
    key: Key,
    carries_text: bool,
    prompt: Option<u64>,
    input: Option<u64>,
    cached: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    output: Option<u64>,
}

impl UsageProbe {
    /// The document is over: did it carry text of the answer? Readies for the next one.
    pub(crate) fn end_document(&mut self) -> bool {
        self.depth = 0;
        core::mem::take(&mut self.carries_text)
    }

    pub(crate) fn usage(&self) -> Usage {
        // Anthropic counts what came from or went to the cache beside `input_tokens`, OpenAI inside.
        let beside = self
            .cache_read
            .unwrap_or(0)
            .saturating_add(self.cache_creation.unwrap_or(0));
        Usage {
            prompt: self
                .prompt
                .or(self.input.map(|input| input.saturating_add(beside))),
            cached: self.cached.or(self.cache_read),
            output: self.output,
        }
    }

    fn level(&self) -> Level {
        let top = self.depth.checked_sub(1).and_then(|top| self.levels.get(top));
        top.copied().unwrap_or_default()
    }
}

impl Visitor for UsageProbe {
    type Stop = Infallible;

    fn keep_key(&self) -> usize {
        // The longest name above; a longer one that begins like it is told by its length.
        32
    }

    fn keep_string(&self) -> usize {
        0
    }

    fn key(&mut self, key: JsonString<'_>) -> Result<(), Infallible> {
        self.key = if key.is_cut() {
            Key::Other
        } else {
            Key::of(key.kept)
        };
        Ok(())
    }

    fn string(&mut self, value: JsonString<'_>) -> Result<(), Infallible> {
        let says = match (self.level(), self.key) {
            (Level::Root, Key::Delta)
            | (Level::Delta, Key::Text | Key::Said)
            | (Level::Choices, Key::Text) => true,
            (_, _) => false,
        };
        self.carries_text |= says && value.bytes > 0;
        Ok(())
    }

    fn number(&mut self, whole: Option<u64>, in_array: bool) -> Result<(), Infallible> {
        if in_array || whole.is_none() {
            return Ok(());
        }
        match (self.level(), self.key) {
            (Level::Usage, Key::PromptTokens) => self.prompt = whole,
            (Level::Usage, Key::InputTokens) => self.input = whole,
            (Level::Usage, Key::OutputTokens) => self.output = whole,
            (Level::Usage, Key::CacheRead) => self.cache_read = whole,
            (Level::Usage, Key::CacheCreation) => self.cache_creation = whole,
            (Level::Details, Key::CachedTokens) => self.cached = whole,
            (_, _) => {}
        }
        Ok(())
    }

    fn word(&mut self, _: Literal) -> Result<(), Infallible> {
        Ok(())
    }

    fn open(&mut self, container: Container) -> Result<(), Infallible> {
        let inner = match (self.level(), self.key) {
            _ if self.depth == 0 && container == Container::Object => Level::Root,
            (Level::Root, Key::Envelope) => Level::Envelope,
            (Level::Root | Level::Envelope, Key::Usage) => Level::Usage,
            (Level::Usage, Key::Details) => Level::Details,
            (Level::Root, Key::Choices) => Level::Choices,
            (Level::Root | Level::Choices, Key::Delta) | (Level::Delta, _) => Level::Delta,
            (Level::Choices, _) => Level::Choices,
            (_, _) => Level::Other,
        };
        if let Some(level) = self.levels.get_mut(self.depth) {
            *level = inner;
        }
        self.depth = self.depth.saturating_add(1);
        Ok(())
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        // The key of what was closed says nothing about what follows in an array.
        self.key = Key::Other;
    }
}
