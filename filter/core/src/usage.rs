//! Collects token counts from the JSON documents of a model server, and notes whether a document carries text.
//!
//! It knows OpenAI's formats (chat completions, completions, embeddings, responses) and Anthropic's messages. A document in
//! another format yields nothing.

use core::convert::Infallible;
use core::ops::Range;

use crate::json::{Container, JsonString, Literal, Visitor};

/// Token counts as the server reports them; `None`: the server reported none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the whole prompt, including cached ones.
    pub prompt: Option<u64>,
    /// Tokens of the prompt that were cached.
    pub cached: Option<u64>,
    /// Tokens of the output.
    pub output: Option<u64>,
}

/// Tracked nesting levels. No known format has its usage deeper.
const LEVELS: usize = 8;

/// The meaning of an open container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Level {
    #[default]
    Other,
    Root,
    /// `response` or `message`: an object that contains the usage.
    Envelope,
    Usage,
    Details,
    Choices,
    Delta,
}

/// The meaning of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Key {
    #[default]
    Other,
    Envelope,
    Usage,
    Choices,
    Delta,
    Text,
    /// Text of a delta under another key.
    DeltaText,
    PromptTokens,
    InputTokens,
    OutputTokens,
    Details,
    CachedTokens,
    CacheRead,
    CacheCreation,
}

impl Key {
    fn from_name(name: &str) -> Self {
        match name {
            "response" | "message" => Self::Envelope,
            "usage" => Self::Usage,
            "choices" => Self::Choices,
            "delta" => Self::Delta,
            "text" => Self::Text,
            "content" | "reasoning_content" | "reasoning" | "thinking" | "partial_json" | "arguments"
            | "refusal" => Self::DeltaText,
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

/// Collects over all documents of a response; the last value of each count wins.
#[derive(Debug, Default)]
pub(crate) struct UsageCollector {
    levels: [Level; LEVELS],
    depth: usize,
    key: Key,
    carries_text: bool,
    /// Strings of the document that may carry text.
    text_strings: u32,
    /// The bytes of the last one in the document, with its quotes.
    text_range: Range<u64>,
    /// The document has token counts.
    has_counts: bool,
    prompt: Option<u64>,
    input: Option<u64>,
    cached: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    output: Option<u64>,
}

impl UsageCollector {
    /// Ends a document, and prepares for the next one. Returns whether the document carried text of the answer.
    pub(crate) fn end_document(&mut self) -> bool {
        self.depth = 0;
        self.text_strings = 0;
        self.has_counts = false;
        core::mem::take(&mut self.carries_text)
    }

    /// Where the text of the document is, as a JSON string, if the document has nothing else that counts.
    pub(crate) fn only_text(&self) -> Option<Range<u64>> {
        (self.text_strings == 1 && !self.has_counts).then(|| self.text_range.clone())
    }

    /// The document has token counts.
    pub(crate) const fn has_counts(&self) -> bool {
        self.has_counts
    }

    pub(crate) fn usage(&self) -> Usage {
        // Anthropic's `input_tokens` exclude tokens that were read from or written to the cache; OpenAI's include them.
        let cache_tokens = self.cache_read.unwrap_or(0).saturating_add(self.cache_creation.unwrap_or(0));
        Usage {
            prompt: self.prompt.or(self.input.map(|input| input.saturating_add(cache_tokens))),
            cached: self.cached.or(self.cache_read),
            output: self.output,
        }
    }

    fn level(&self) -> Level {
        let innermost = self.depth.checked_sub(1);
        let level = innermost.and_then(|innermost| self.levels.get(innermost));
        level.copied().unwrap_or_default()
    }
}

impl Visitor for UsageCollector {
    type Stop = Infallible;

    fn key_limit(&self) -> usize {
        // Longer than all known keys. A key that this limit cuts isn't compared.
        32
    }

    fn string_limit(&self) -> usize {
        0
    }

    fn key(&mut self, key: JsonString<'_>) -> Result<(), Infallible> {
        self.key = if key.is_cut() { Key::Other } else { Key::from_name(key.kept) };
        Ok(())
    }

    fn string(&mut self, value: JsonString<'_>) -> Result<(), Infallible> {
        let is_text = match (self.level(), self.key) {
            (Level::Root, Key::Delta)
            | (Level::Delta, Key::Text | Key::DeltaText)
            | (Level::Choices, Key::Text) => true,
            (_, _) => false,
        };
        if is_text {
            self.carries_text |= value.bytes > 0;
            self.text_strings = self.text_strings.saturating_add(1);
            self.text_range = value.begin..value.end;
        }
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
            (_, _) => return Ok(()),
        }
        self.has_counts = true;
        Ok(())
    }

    fn literal(&mut self, _: Literal) -> Result<(), Infallible> {
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
        // The key doesn't apply to later items of the same array.
        self.key = Key::Other;
    }
}
