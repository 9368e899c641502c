//! Extracts from a request's JSON body what the gateway needs, while the body arrives.
//!
//! The scanner finds the model, the identity strings that the policy asks for, `stream`, the output limit, and the amount
//! of prompt text. It refuses bodies that no model server can accept: not JSON, not an object, no model, two models.
//! Everything else is left to the server. The scanner holds at most one slice of the body at a time, and keeps a few
//! hundred bytes.

mod fields;
mod sequences;

use core::fmt;
use core::ops::Range;
use std::sync::Arc;

use penstock_wire::Api;
use penstock_wire::limits::NAME_BYTES_MAX;

use self::fields::{Fields, Stop};
use crate::json::{Cause, ReadError, Reader, SyntaxError};
use crate::limits::SLICE_BYTES;

/// The fields of a request body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The requested model, not empty.
    pub model: String,
    /// The bytes of the body that hold the model: a JSON string with its quotes.
    pub model_range: Range<u64>,
    /// The client asks for a stream of events.
    pub stream: bool,
    /// The body has `stream_options`.
    pub has_stream_options: bool,
    /// The least of `max_tokens`, `max_completion_tokens` and `max_output_tokens`; `None`: none is a whole number.
    pub max_tokens: Option<u64>,
    /// Sequences that the server computes at the same time: the prompts times the choices of each. At least 1, at most
    /// `SEQUENCES_MAX`, which is more than a server takes.
    pub sequences: u64,
    /// Decoded bytes of the prompt's strings. An attachment counts at most `ATTACHMENT_BYTES_MAX`, a token id counts
    /// `TOKEN_ID_BYTES`.
    pub prompt_bytes: u64,
    /// Hashes of the prompt's prefixes; empty if the scanner doesn't hash.
    pub prefix_hashes: Vec<u64>,
    /// The strings under the policy's body keys, in the policy's order; at most `NAME_BYTES_MAX` bytes of each.
    pub identities: Vec<Option<String>>,
}

/// The reason for refusing a body. `Display` is the message to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The body is empty.
    Empty,
    /// Not JSON, at this offset.
    Syntax(SyntaxError, u64),
    /// JSON, but not an object.
    NotAnObject,
    /// No `model` at the top level.
    NoModel,
    /// A second `model`, at this offset.
    TwoModels(u64),
    /// `model` isn't a string, or is empty or too long, at this offset.
    BadModel(u64),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("The body is empty: send a JSON object that names a \"model\"."),
            Self::Syntax(error, offset) => write!(f, "The body is not JSON: {error}, at byte {offset}."),
            Self::NotAnObject => f.write_str("The body must be a JSON object that names a \"model\"."),
            Self::NoModel => f.write_str("The body has no \"model\": add it at the top level, as a string."),
            Self::TwoModels(offset) => {
                write!(f, "The body has \"model\" twice, the second time at byte {offset}: send it once.")
            }
            Self::BadModel(offset) => write!(
                f,
                "\"model\" must be a string of 1 to {NAME_BYTES_MAX} bytes; it isn't, at byte {offset}."
            ),
        }
    }
}

/// Scans one body, slice by slice.
#[derive(Debug)]
pub struct BodyScanner {
    reader: Reader,
    fields: Fields,
}

impl BodyScanner {
    /// A scanner that keeps the top-level strings under `body_keys`.
    #[must_use]
    pub fn new(body_keys: Arc<[String]>) -> Self {
        Self { reader: Reader::new(), fields: Fields::new(body_keys) }
    }

    /// This scanner for a body of `api`, which determines what several prompts and choices are. Without it, a list under
    /// any of the known keys is several prompts.
    #[must_use]
    pub fn of_api(mut self, api: Api) -> Self {
        self.fields.set_api(api);
        self
    }

    /// This scanner, hashing the prompt's prefixes too.
    #[must_use]
    pub fn hashing(mut self) -> Self {
        self.fields.hash_prefixes();
        self
    }

    /// Scans the body up to byte `size`, which it fetches with `read(start, length)`. Before the `end` of the body the
    /// scanner waits for full slices, because a fetch costs the host the same for a few bytes as for many.
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
            let start = usize::try_from(self.reader.offset()).unwrap_or(usize::MAX);
            let length = size.saturating_sub(start).min(SLICE_BYTES);
            if length == 0 || (length < SLICE_BYTES && !end) {
                return Ok(());
            }
            let Some(slice) = read(start, length).filter(|slice| !slice.is_empty()) else {
                return Ok(());
            };
            self.feed(&slice)?;
        }
    }

    /// Scans the next bytes of the body.
    ///
    /// # Errors
    /// The body must be refused. The scanner must not be used again.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        self.reader.feed(bytes, &mut self.fields).map_err(body_error)
    }

    /// Ends the body and returns its fields.
    ///
    /// # Errors
    /// The body is incomplete or names no model.
    pub fn finish(mut self) -> Result<Body, BodyError> {
        if self.reader.offset() == 0 {
            return Err(BodyError::Empty);
        }
        self.reader.finish(&mut self.fields).map_err(body_error)?;
        let body = self.fields.into_body();
        if body.model.is_empty() {
            return Err(BodyError::NoModel);
        }
        Ok(body)
    }
}

fn body_error(error: ReadError<Stop>) -> BodyError {
    match error.cause {
        Cause::Syntax(syntax) => BodyError::Syntax(syntax, error.offset),
        Cause::Stopped(Stop::NotAnObject) => BodyError::NotAnObject,
        Cause::Stopped(Stop::TwoModels) => BodyError::TwoModels(error.offset),
        Cause::Stopped(Stop::BadModel) => BodyError::BadModel(error.offset),
    }
}
