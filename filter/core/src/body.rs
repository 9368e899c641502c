//! What the gateway must know of a request's body, read while it passes by.
//!
//! Finds the model, the identities the policy asks for, `stream`, the limit on the output, and how much text the prompt
//! has. Refuses what no server could mean: not JSON, not an object, no model, two models. Everything else is the server's
//! to decide. Of the body at most a slice is held at a time; a few hundred bytes are kept.

use core::{fmt, ops::Range};
use std::sync::Arc;

use penstock_wire::limits::NAME_BYTES_MAX;

use crate::{
    json::{Cause, Container, JsonString, Literal, ReadError, Reader, SyntaxError, Visitor},
    limits::{ATTACHMENT_BYTES_MAX, KEY_BYTES_MAX, SLICE_BYTES, TOKEN_ID_BYTES},
    prefix_hashes::PrefixHasher,
};

/// What a body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The model, not empty.
    pub model: String,
    /// The bytes of the body that say it: a JSON string with its quotes.
    pub model_at: Range<u64>,
    /// The answer shall come as a stream of events.
    pub stream: bool,
    /// The least of `max_tokens`, `max_completion_tokens`, `max_output_tokens`; absent: none was a whole number.
    pub max_tokens: Option<u64>,
    /// Decoded bytes of the prompt's strings; attachments count up to `ATTACHMENT_BYTES_MAX` each, token ids as
    /// `TOKEN_ID_BYTES`.
    pub prompt_bytes: u64,
    /// Hashes of the prompt's beginnings, if they were asked for.
    pub prefix_hashes: Vec<u64>,
    /// The strings under the policy's keys, in its order; at most `NAME_BYTES_MAX` bytes of each.
    pub found: Vec<Option<String>>,
}

/// Cause a body is refused. `Display` is the message to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// There is nothing.
    Empty,
    /// Not JSON, at this offset.
    Syntax(SyntaxError, u64),
    /// JSON, but not an object.
    NotAnObject,
    /// No `model` at the top level.
    NoModel,
    /// A second `model`, at this offset.
    TwoModels(u64),
    /// `model` is something else, or an empty string, or too long.
    BadModel(u64),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("The body is empty: send a JSON object that names a \"model\"."),
            Self::Syntax(syntax, at) => write!(f, "The body is not JSON: {syntax}, at byte {at}."),
            Self::NotAnObject => f.write_str("The body must be a JSON object that names a \"model\"."),
            Self::NoModel => f.write_str("The body has no \"model\": add it at the top level, as a string."),
            Self::TwoModels(at) => {
                write!(
                    f,
                    "The body has \"model\" twice, the second time at byte {at}: send it once."
                )
            }
            Self::BadModel(at) => write!(
                f,
                "\"model\" must be a string of 1 to {NAME_BYTES_MAX} bytes; it isn't, at byte {at}."
            ),
        }
    }
}

/// Reads one body, slice by slice.
#[derive(Debug)]
pub struct BodyScanner {
    reader: Reader,
    fields: Fields,
}

impl BodyScanner {
    /// A scanner that also keeps the top-level strings under `wanted`.
    #[must_use]
    pub fn new(wanted: Arc<[String]>) -> Self {
        let body = Body {
            found: vec![None; wanted.len()],
            ..Body::default()
        };
        Self {
            reader: Reader::new(),
            fields: Fields {
                wanted,
                body,
                ..Fields::default()
            },
        }
    }

    /// The same, which also hashes the prompt's beginnings.
    #[must_use]
    pub fn hashing(mut self) -> Self {
        self.fields.prefixes = Some(PrefixHasher::new());
        self
    }

    /// Reads on to the body's byte `size`, by `read(start, length)`: in slices, and before its `end` only in full ones, because
    /// each costs the host as much, however little is in it.
    ///
    /// # Errors
    /// As [`feed`](Self::feed).
    pub fn read_on(
        &mut self,
        size: usize,
        end: bool,
        mut read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) -> Result<(), BodyError> {
        loop {
            let at = usize::try_from(self.reader.offset()).unwrap_or(usize::MAX);
            let wanted = size.saturating_sub(at).min(SLICE_BYTES);
            if wanted == 0 || (wanted < SLICE_BYTES && !end) {
                return Ok(());
            }
            let Some(slice) = read(at, wanted).filter(|slice| !slice.is_empty()) else {
                return Ok(());
            };
            self.feed(&slice)?;
        }
    }

    /// Reads the next bytes of the body.
    ///
    /// # Errors
    /// What the body does wrong, as soon as it is seen; the scanner is of no further use then.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        self.reader.feed(bytes, &mut self.fields).map_err(refuse)
    }

    /// The body is over.
    ///
    /// # Errors
    /// What is wrong with the whole, in the words for its client.
    pub fn finish(mut self) -> Result<Body, BodyError> {
        if self.reader.offset() == 0 {
            return Err(BodyError::Empty);
        }
        self.reader.finish(&mut self.fields).map_err(refuse)?;
        if self.fields.body.model.is_empty() {
            return Err(BodyError::NoModel);
        }
        let prefixes = self.fields.prefixes.map(PrefixHasher::into_hashes);
        Ok(Body {
            prefix_hashes: prefixes.unwrap_or_default(),
            ..self.fields.body
        })
    }
}

fn refuse(fault: ReadError<Stop>) -> BodyError {
    match fault.why {
        Cause::Syntax(syntax) => BodyError::Syntax(syntax, fault.at),
        Cause::Stopped(Stop::NotAnObject) => BodyError::NotAnObject,
        Cause::Stopped(Stop::TwoModels) => BodyError::TwoModels(fault.at),
        Cause::Stopped(Stop::BadModel) => BodyError::BadModel(fault.at),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    NotAnObject,
    TwoModels,
    BadModel,
}

/// What the value of a top-level key is to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Other,
    Model,
    Stream,
    MaxTokens,
    Prompt,
    /// A prompt that may also be a list of token ids.
    PromptOrIds,
}

impl Role {
    fn of(key: &str) -> Self {
        match key {
            "model" => Self::Model,
            "stream" => Self::Stream,
            "max_tokens" | "max_completion_tokens" | "max_output_tokens" => Self::MaxTokens,
            "messages" | "system" | "instructions" | "suffix" | "tools" | "functions" => Self::Prompt,
            "prompt" | "input" => Self::PromptOrIds,
            _ => Self::Other,
        }
    }
}

/// How a string inside a prompt counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Share {
    #[default]
    Nothing,
    Whole,
    Capped,
}

impl Share {
    /// Of the value under `key`, in an object that counts as `self`.
    fn under(self, key: &str) -> Self {
        match (self, key) {
            (Self::Nothing, _) => Self::Nothing,
            (
                Self::Whole | Self::Capped,
                "role" | "type" | "id" | "tool_call_id" | "call_id" | "status" | "detail" | "format"
                | "media_type" | "mime_type" | "cache_control" | "file_id",
            ) => Self::Nothing,
            (
                Self::Whole,
                "url" | "image_url" | "image" | "source" | "data" | "input_audio" | "audio" | "audio_url"
                | "video_url" | "file" | "file_data" | "file_url" | "b64_json" | "encrypted_content",
            )
            | (Self::Capped, _) => Self::Capped,
            (Self::Whole, _) => Self::Whole,
        }
    }
}

#[derive(Debug, Default)]
struct Fields {
    wanted: Arc<[String]>,
    body: Body,
    has_model: bool,
    depth: u32,
    role: Role,
    want: Option<usize>,
    /// How the value that comes next counts.
    share: Share,
    /// The shares of the open containers, a bit each.
    whole: u128,
    capped: u128,
    prefixes: Option<PrefixHasher>,
    /// Bytes of the string that is read which were hashed.
    hashed: u64,
}

impl Fields {
    fn bit(&self) -> u128 {
        1_u128.wrapping_shl(self.depth.saturating_sub(1))
    }

    fn container_share(&self) -> Share {
        match (self.whole & self.bit() != 0, self.capped & self.bit() != 0) {
            (true, _) => Share::Whole,
            (false, true) => Share::Capped,
            (false, false) => Share::Nothing,
        }
    }

    /// A value that is neither string nor number where one of these may matter.
    fn other_value(&self) -> Result<(), Stop> {
        match self.depth {
            0 => Err(Stop::NotAnObject),
            1 if self.role == Role::Model => Err(Stop::BadModel),
            _ => Ok(()),
        }
    }
}

impl Visitor for Fields {
    type Stop = Stop;

    fn keep_key(&self) -> usize {
        // A key too long to be one of ours must not look like one: one byte more than the longest is kept.
        if self.depth == 1 {
            NAME_BYTES_MAX.saturating_add(1)
        } else {
            KEY_BYTES_MAX
        }
    }

    fn keep_string(&self) -> usize {
        if self.depth == 1 && (self.role == Role::Model || self.want.is_some()) {
            NAME_BYTES_MAX
        } else {
            0
        }
    }

    fn wants_bytes(&self) -> bool {
        self.prefixes.is_some() && self.depth > 0 && self.share != Share::Nothing
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let Some(prefixes) = &mut self.prefixes else {
            return;
        };
        let most = match self.share {
            Share::Nothing => 0,
            Share::Whole => u64::MAX,
            Share::Capped => ATTACHMENT_BYTES_MAX,
        };
        let room = usize::try_from(most.saturating_sub(self.hashed)).unwrap_or(usize::MAX);
        let (counted, _) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        prefixes.text(counted);
        let counted = u64::try_from(counted.len()).unwrap_or(u64::MAX);
        self.hashed = self.hashed.saturating_add(counted);
    }

    fn key(&mut self, key: JsonString<'_>) -> Result<(), Stop> {
        if self.depth > 1 {
            self.share = self
                .container_share()
                .under(if key.is_cut() { "" } else { key.kept });
            return Ok(());
        }
        self.role = Role::of(key.kept);
        self.share = match self.role {
            Role::Prompt | Role::PromptOrIds => Share::Whole,
            Role::Other | Role::Model | Role::Stream | Role::MaxTokens => Share::Nothing,
        };
        self.want = self.wanted.iter().position(|wanted| wanted == key.kept);
        // Of a key that is there twice the last one counts, as with every JSON parser.
        if let Some(found) = self.want.and_then(|want| self.body.found.get_mut(want)) {
            *found = None;
        }
        match self.role {
            Role::Model if self.has_model => return Err(Stop::TwoModels),
            Role::Model => self.has_model = true,
            Role::Stream => self.body.stream = false,
            Role::Other | Role::MaxTokens | Role::Prompt | Role::PromptOrIds => {}
        }
        Ok(())
    }

    fn string(&mut self, value: JsonString<'_>) -> Result<(), Stop> {
        if self.depth == 0 {
            return Err(Stop::NotAnObject);
        }
        if self.share != Share::Nothing
            && let Some(prefixes) = &mut self.prefixes
        {
            prefixes.end();
            self.hashed = 0;
        }
        self.body.prompt_bytes = self.body.prompt_bytes.saturating_add(match self.share {
            Share::Nothing => 0,
            Share::Whole => value.bytes,
            Share::Capped => value.bytes.min(ATTACHMENT_BYTES_MAX),
        });
        if self.depth > 1 {
            return Ok(());
        }
        if self.role == Role::Model {
            if value.is_cut() || value.kept.is_empty() {
                return Err(Stop::BadModel);
            }
            value.kept.clone_into(&mut self.body.model);
            self.body.model_at = value.begin..value.end;
        }
        if let Some(found) = self.want.and_then(|want| self.body.found.get_mut(want))
            && !value.kept.is_empty()
        {
            *found = Some(value.kept.to_owned());
        }
        Ok(())
    }

    fn number(&mut self, whole: Option<u64>, in_array: bool) -> Result<(), Stop> {
        self.other_value()?;
        if self.depth == 1 && self.role == Role::MaxTokens {
            self.body.max_tokens = match (self.body.max_tokens, whole) {
                (Some(least), Some(whole)) => Some(least.min(whole)),
                (least, whole) => least.or(whole),
            };
        }
        if in_array && self.role == Role::PromptOrIds && self.share == Share::Whole {
            self.body.prompt_bytes = self.body.prompt_bytes.saturating_add(TOKEN_ID_BYTES);
            if let Some(prefixes) = &mut self.prefixes {
                let [a, b, c, d, ..] = whole.unwrap_or(u64::MAX).to_le_bytes();
                prefixes.text(&[a, b, c, d]);
            }
        }
        Ok(())
    }

    fn word(&mut self, word: Literal) -> Result<(), Stop> {
        self.other_value()?;
        if self.depth == 1 && self.role == Role::Stream {
            self.body.stream = word == Literal::True;
        }
        Ok(())
    }

    fn open(&mut self, container: Container) -> Result<(), Stop> {
        match (self.depth, container) {
            (0, Container::Object) => {}
            (0, Container::Array) => return Err(Stop::NotAnObject),
            (1, _) if self.role == Role::Model => return Err(Stop::BadModel),
            (_, _) => {}
        }
        self.depth = self.depth.saturating_add(1);
        let bit = self.bit();
        self.whole &= !bit;
        self.capped &= !bit;
        match self.share {
            Share::Nothing => {}
            Share::Whole => self.whole |= bit,
            Share::Capped => self.capped |= bit,
        }
        Ok(())
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        // What comes next in an array counts as the array does; in an object its key says it.
        self.share = self.container_share();
    }
}
