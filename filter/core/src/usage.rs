//! Collects from the JSON documents of a model server what an answer has: token counts, text, data, its end, an error.
//!
//! It knows OpenAI's formats (chat completions, completions, embeddings, responses) and Anthropic's messages. A document in
//! another format yields nothing.

use core::convert::Infallible;
use core::ops::Range;

use crate::json::{Container, JsonString, Literal, Visitor};
use crate::reported_error::{MESSAGE_BYTES_MAX, NAME_BYTES_MAX, ReportedError};

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

/// Tracked nesting levels. No known format has what counts deeper.
const LEVELS: usize = 12;
/// Digits of a count that is written as a string.
const COUNT_BYTES_MAX: usize = 24;

/// The meaning of an open container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Level {
    #[default]
    Other,
    Root,
    /// `message` of Anthropic's first event. The counts of the output in it aren't final.
    Start,
    /// `response` of a Responses event, or another object that contains the usage.
    Envelope,
    Usage,
    /// Usage in `Start`.
    StartUsage,
    Details,
    Choices,
    /// A piece of the answer.
    Delta,
    /// A part of the whole answer, which earlier pieces may have brought.
    Whole,
    /// Arguments of a tool, as an object in the whole answer.
    Arguments,
    /// Embeddings, scores.
    Data,
    Error,
    /// An object that tells the reason for the end.
    Finish,
}

/// The meaning of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Key {
    #[default]
    Other,
    Envelope,
    Message,
    Usage,
    Choices,
    Delta,
    Output,
    Content,
    Text,
    /// Text of a delta under another key.
    DeltaText,
    Input,
    Data,
    Error,
    Finish,
    /// The reason for the end in Anthropic's format. In a choice it is the stop string, which the client chooses.
    StopReason,
    Type,
    Object,
    Status,
    Code,
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
            "response" | "x_groq" => Self::Envelope,
            "message" => Self::Message,
            "usage" => Self::Usage,
            "choices" => Self::Choices,
            "delta" | "content_block" => Self::Delta,
            "output" => Self::Output,
            "content" => Self::Content,
            "text" => Self::Text,
            "reasoning_content" | "reasoning" | "thinking" | "partial_json" | "arguments" | "refusal" => {
                Self::DeltaText
            }
            "input" => Self::Input,
            "data" | "results" => Self::Data,
            "error" => Self::Error,
            "finish_reason" => Self::Finish,
            "stop_reason" => Self::StopReason,
            "type" | "error_type" => Self::Type,
            "object" => Self::Object,
            "status" => Self::Status,
            "code" | "status_code" => Self::Code,
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

    /// The key of a token count.
    const fn is_count(self) -> bool {
        matches!(
            self,
            Self::PromptTokens
                | Self::InputTokens
                | Self::OutputTokens
                | Self::CachedTokens
                | Self::CacheRead
                | Self::CacheCreation
        )
    }
}

/// What a document has, beside token counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Document {
    /// A piece of the answer's text.
    pub(crate) has_text: bool,
    /// Text of the whole answer, or data.
    pub(crate) has_content: bool,
    /// The server reports an error.
    pub(crate) is_error: bool,
}

/// Collects over all documents of a response. Of several counts, the largest one wins: servers report zeros before the first token,
/// after the last one, and in place of what they don't count.
#[derive(Debug, Default)]
pub(crate) struct UsageCollector {
    levels: [Level; LEVELS],
    depth: usize,
    key: Key,
    document: Document,
    /// Strings of the document that may carry text.
    text_strings: u32,
    /// The bytes of the last one in the document, with its quotes.
    text_range: Range<u64>,
    /// The document has token counts.
    has_counts: bool,
    /// Where the last `usage` of the outermost object is in the document.
    usage_begin: Option<u64>,
    /// Bytes of text in the document's part of the whole answer.
    whole: u64,
    /// Bytes of text in pieces.
    text_bytes: u64,
    /// The most bytes of text in the whole answer of a document.
    whole_bytes: u64,
    /// The server has said why the answer ended.
    is_finished: bool,
    /// The server has said that the answer failed.
    is_failed: bool,
    error: ReportedError,
    prompt: Option<u64>,
    input: Option<u64>,
    cached: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    output: Option<u64>,
}

impl UsageCollector {
    /// Ends a document, and prepares for the next one. Returns what the document had.
    pub(crate) fn end_document(&mut self) -> Document {
        self.depth = 0;
        self.text_strings = 0;
        self.has_counts = false;
        self.whole_bytes = self.whole_bytes.max(core::mem::take(&mut self.whole));
        if !self.document.is_error && !self.is_failed {
            self.error.clear();
        }
        core::mem::take(&mut self.document)
    }

    /// What the document has so far.
    pub(crate) const fn document(&self) -> &Document {
        &self.document
    }

    /// The document is an error, or what is being read in it can show that it is one.
    pub(crate) fn may_be_error(&self) -> bool {
        let level = self.level();
        let is_reading_text = level == Level::Root && matches!(self.key, Key::Error | Key::Message);
        self.document.is_error || level == Level::Error || is_reading_text
    }

    /// Every container of the document is closed.
    pub(crate) const fn is_closed(&self) -> bool {
        self.depth == 0
    }

    /// Where the text of the document is, as a JSON string, if the document has nothing else that counts.
    pub(crate) fn only_text(&self) -> Option<Range<u64>> {
        let is_plain = self.text_strings == 1 && !self.has_counts && !self.document.has_content;
        (is_plain && !self.document.is_error).then(|| self.text_range.clone())
    }

    /// The document has token counts.
    pub(crate) const fn has_counts(&self) -> bool {
        self.has_counts
    }

    /// Where the last `usage` of the outermost object begins in the document.
    pub(crate) const fn usage_begin(&self) -> Option<u64> {
        self.usage_begin
    }

    /// Counts a piece of text that was read elsewhere.
    pub(crate) fn add_text(&mut self, bytes: u64) {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
    }

    /// Bytes of the answer's text.
    pub(crate) fn text_bytes(&self) -> u64 {
        self.text_bytes.max(self.whole_bytes).max(self.whole)
    }

    /// The server has said why the answer ended.
    pub(crate) const fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// The server has said that the answer failed.
    pub(crate) const fn is_failed(&self) -> bool {
        self.is_failed
    }

    /// The document is an error, by a name outside of it.
    pub(crate) fn mark_error(&mut self) {
        self.document.is_error = true;
        self.is_failed = true;
    }

    /// The error that the server has reported.
    pub(crate) const fn error(&self) -> &ReportedError {
        &self.error
    }

    pub(crate) fn usage(&self) -> Usage {
        // Anthropic's `input_tokens` exclude tokens that were read from or written to the cache; OpenAI's include them.
        let cache_tokens = self.cache_read.unwrap_or(0).saturating_add(self.cache_creation.unwrap_or(0));
        let input = self.input.map(|input| input.saturating_add(cache_tokens));
        Usage {
            prompt: self.prompt.max(input),
            cached: self.cached.max(self.cache_read),
            output: self.output,
        }
    }

    fn level(&self) -> Level {
        let innermost = self.depth.checked_sub(1);
        let level = innermost.and_then(|innermost| self.levels.get(innermost));
        level.copied().unwrap_or_default()
    }

    /// Takes a count of the current key.
    fn count(&mut self, level: Level, tokens: u64) {
        let count = match (level, self.key) {
            (Level::Usage | Level::StartUsage, Key::PromptTokens) => &mut self.prompt,
            (Level::Usage | Level::StartUsage, Key::InputTokens) => &mut self.input,
            (Level::Usage, Key::OutputTokens) => &mut self.output,
            (Level::Usage | Level::StartUsage, Key::CacheRead) => &mut self.cache_read,
            (Level::Usage | Level::StartUsage, Key::CacheCreation) => &mut self.cache_creation,
            (Level::Details, Key::CachedTokens) => &mut self.cached,
            (_, _) => return,
        };
        *count = (*count).max(Some(tokens));
        self.has_counts = true;
    }

    /// Takes the reason for the end of the answer, or of one of its choices.
    fn finish(&mut self, reason: &str) {
        if matches!(reason, "error" | "abort") {
            self.mark_error();
            self.error.set_kind(reason);
        } else {
            self.is_finished = true;
        }
    }

    /// Takes the name of the document's type.
    fn root_type(&mut self, name: &str) {
        match name {
            "error" | "response.failed" => self.mark_error(),
            "response.completed" | "response.incomplete" => self.is_finished = true,
            // TGI names the type of an error beside its text. Every event of a stream has another type.
            _ if self.document.is_error => self.error.set_kind(name),
            _ => {}
        }
    }

    /// Takes a string that isn't text of the answer.
    fn name(&mut self, level: Level, value: JsonString<'_>) {
        // An error object without a field is none.
        if level == Level::Error {
            self.mark_error();
        }
        let text = if value.is_cut() && self.key != Key::Message { "" } else { value.kept };
        match (level, self.key) {
            (Level::Usage | Level::StartUsage | Level::Details, key) if key.is_count() => {
                if let Some(tokens) = written_count(text) {
                    self.count(level, tokens);
                }
            }
            (Level::Root | Level::Envelope, Key::Error) if !value.kept.is_empty() => {
                self.mark_error();
                self.error.set_message(value.kept);
            }
            (Level::Root, Key::Type) => self.root_type(text),
            (Level::Root, Key::Object) if text == "error" => self.mark_error(),
            (Level::Root | Level::Envelope, Key::Status) => match text {
                "failed" => self.mark_error(),
                "completed" | "incomplete" => self.is_finished = true,
                _ => {}
            },
            (Level::Choices, Key::Finish) | (Level::Delta | Level::Root, Key::StopReason)
                if !text.is_empty() =>
            {
                self.finish(text);
            }
            (Level::Finish, Key::Type) => self.finish(text),
            // The fields of an error may come before the one that says that it is one.
            (Level::Error | Level::Root | Level::Finish, Key::Message) => self.error.set_message(value.kept),
            (Level::Error | Level::Root | Level::Finish, Key::Code) => self.error.set_code(text),
            (Level::Error, Key::Type | Key::Status) => self.error.set_kind(text),
            (_, _) => {}
        }
    }
}

/// A count that is written as a string.
fn written_count(text: &str) -> Option<u64> {
    let text = text.trim();
    let whole = text
        .split_once('.')
        .map_or(text, |(whole, zeros)| if zeros.bytes().all(|digit| digit == b'0') { whole } else { "" });
    whole.parse().ok()
}

impl Visitor for UsageCollector {
    type Stop = Infallible;

    fn key_limit(&self) -> usize {
        // Longer than all known keys. A key that this limit cuts isn't compared.
        32
    }

    fn string_limit(&self) -> usize {
        match (self.key, self.level()) {
            (Key::Message | Key::Error, Level::Root | Level::Envelope | Level::Error | Level::Finish) => {
                MESSAGE_BYTES_MAX
            }
            (
                Key::Type | Key::Object | Key::Status | Key::Code,
                Level::Root | Level::Envelope | Level::Error | Level::Finish,
            )
            | (Key::Finish | Key::StopReason, _) => NAME_BYTES_MAX,
            (key, _) if key.is_count() => COUNT_BYTES_MAX,
            (_, _) => 0,
        }
    }

    fn key(&mut self, key: JsonString<'_>) -> Result<(), Infallible> {
        self.key = if key.is_cut() { Key::Other } else { Key::from_name(key.kept) };
        if self.key == Key::Usage && self.level() == Level::Root {
            self.usage_begin = Some(key.begin);
        }
        Ok(())
    }

    fn string(&mut self, value: JsonString<'_>) -> Result<(), Infallible> {
        let level = self.level();
        match (level, self.key) {
            (Level::Root, Key::Delta)
            | (Level::Delta, Key::Text | Key::Content | Key::DeltaText)
            | (Level::Choices, Key::Text) => {
                self.document.has_text |= value.bytes > 0;
                self.text_strings = self.text_strings.saturating_add(1);
                self.text_range = value.begin..value.end;
                self.add_text(value.bytes);
            }
            (Level::Whole, Key::Text | Key::Content | Key::DeltaText) | (Level::Arguments, _) => {
                self.document.has_content |= value.bytes > 0;
                self.whole = self.whole.saturating_add(value.bytes);
            }
            (Level::Data, _) | (Level::Delta | Level::Whole, Key::Data) => {
                self.document.has_content |= value.bytes > 0 && !matches!(self.key, Key::Object | Key::Type);
            }
            (level, _) => self.name(level, value),
        }
        Ok(())
    }

    fn number(&mut self, whole: Option<u64>, in_array: bool) -> Result<(), Infallible> {
        let level = self.level();
        self.document.has_content |= level == Level::Data;
        if in_array {
            return Ok(());
        }
        if level == Level::Error {
            self.mark_error();
        }
        match (level, self.key, whole) {
            (Level::Error | Level::Root | Level::Finish, Key::Code, Some(code))
            | (Level::Error, Key::Status, Some(code)) => self.error.set_number(code),
            (_, _, Some(tokens)) => self.count(level, tokens),
            (_, _, None) => {}
        }
        Ok(())
    }

    fn literal(&mut self, literal: Literal) -> Result<(), Infallible> {
        if literal == Literal::True && self.key == Key::Error && self.level() == Level::Root {
            self.mark_error();
        }
        Ok(())
    }

    fn open(&mut self, container: Container) -> Result<(), Infallible> {
        let level = self.level();
        let inner = match (level, self.key) {
            _ if self.depth == 0 && container == Container::Object => Level::Root,
            (Level::Root, Key::Envelope) => Level::Envelope,
            (Level::Root, Key::Message) => Level::Start,
            (Level::Root | Level::Envelope | Level::Choices, Key::Usage) => Level::Usage,
            (Level::Start, Key::Usage) => Level::StartUsage,
            (Level::Usage | Level::StartUsage, Key::Details) => Level::Details,
            (Level::Root, Key::Choices) => Level::Choices,
            (Level::Root | Level::Envelope | Level::Choices, Key::Error) => Level::Error,
            (Level::Choices, Key::Finish) => Level::Finish,
            (Level::Choices, Key::Message) | (Level::Root | Level::Envelope, Key::Output | Key::Content) => {
                Level::Whole
            }
            (Level::Whole, Key::Input) | (Level::Arguments, _) => Level::Arguments,
            (Level::Whole, _) => Level::Whole,
            (Level::Root, Key::Data) | (Level::Data, _) => Level::Data,
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
