//! Extracts from a request's JSON body what the gateway needs, while the body arrives.
//!
//! The scanner finds the model, the identity strings that the policy asks for, `stream`, the output limit, and the amount
//! of prompt text. It refuses bodies that no model server can accept: not JSON, not an object, two models. Where a path's bodies may be
//! anything, a body may also be a form, or not be read at all. Everything else is left to the server. The scanner keeps a few
//! hundred bytes.

mod fields;
mod form;
mod sequences;

use core::fmt;
use core::ops::{ControlFlow, Range};
use std::sync::Arc;

use penstock_wire::Api;
use penstock_wire::limits::NAME_BYTES_MAX;

use self::fields::{Fields, Stop};
use self::form::Form;
use crate::json::{Cause, ReadError, Reader, SyntaxError};
use crate::limits::{FORM_HEADER_BYTES_MAX, FORM_PARTS_MAX};
use crate::rewrite::BufferedBody;

/// The fields of a request body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The requested model; empty: the body names none.
    pub model: String,
    /// The bytes of the body that hold the model: a JSON string with its quotes. Empty if there is none.
    pub model_range: Range<u64>,
    /// The client asks for a stream of events.
    pub stream: bool,
    /// The body has `stream_options`.
    pub has_stream_options: bool,
    /// The server is to acknowledge the request, and to compute its answer afterwards.
    pub is_background: bool,
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
    /// No `model` at the top level, or null, or an empty string.
    NoModel,
    /// A second `model`, at this offset; in a form, at the end of that part.
    TwoModels(u64),
    /// A form that servers may read in more than one way, or with more parts than are read.
    BadForm,
    /// `model` isn't a string, or is too long, at this offset.
    BadModel(u64),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("The body is empty: send a JSON object that names a \"model\"."),
            Self::Syntax(error, offset) => write!(f, "The body is not JSON: {error}, at byte {offset}."),
            Self::NotAnObject => f.write_str("The body must be a JSON object that names a \"model\"."),
            Self::NoModel => f.write_str(
                "The body has no \"model\": add it at the top level, as a string, or set `default: true` at the pool for such requests.",
            ),
            Self::TwoModels(offset) => {
                write!(f, "The body has \"model\" twice, the second time at byte {offset}: send it once.")
            }
            Self::BadForm => write!(
                f,
                "The form can't be read: it has more than {FORM_PARTS_MAX} parts, a part has more than {FORM_HEADER_BYTES_MAX} bytes of \
                 headers, or something follows its boundary in a line."
            ),
            Self::BadModel(offset) => write!(
                f,
                "\"model\" must be a string of 1 to {NAME_BYTES_MAX} bytes; it isn't, at byte {offset}."
            ),
        }
    }
}

/// The API is one that one engine has, so that little is known of its bodies.
pub(crate) const fn is_of_one_engine(api: Api) -> bool {
    matches!(api, Api::Other | Api::OtherWithoutOutput)
}

/// Scans one body, slice by slice.
#[derive(Debug)]
pub struct BodyScanner {
    content: Content,
    body_keys: Arc<[String]>,
    api: Api,
    hashes: bool,
    takes: Takes,
    /// The body begins with a brace, so that a server may read it as JSON whatever its type.
    begins_object: bool,
}

/// The bodies that go to the server although they are no JSON objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// None.
    Objects,
    /// A body that isn't JSON, as its type doesn't say that it is.
    OtherTypes,
    /// Any body.
    Anything,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every body is JSON, and the scanner lies in a box")]
enum Content {
    Json(Reader, Fields),
    Form(Box<Form>),
    /// Nothing of it is read. So many bytes have passed.
    Opaque(u64),
}

impl BodyScanner {
    /// A scanner that keeps the top-level strings under `body_keys`.
    #[must_use]
    pub fn new(body_keys: Arc<[String]>) -> Self {
        let fields = Fields::new(Arc::clone(&body_keys));
        Self {
            content: Content::Json(Reader::new(), fields),
            body_keys,
            api: Api::Unspecified,
            hashes: false,
            takes: Takes::Objects,
            begins_object: false,
        }
    }

    /// This scanner for a body of `api`, which determines what several prompts and choices are. Without it, a list under
    /// any of the known keys is several prompts.
    #[must_use]
    pub fn of_api(mut self, api: Api) -> Self {
        self.api = api;
        if let Content::Json(_, fields) = &mut self.content {
            fields.set_api(api);
        }
        self
    }

    /// This scanner for a body with this `content-type`, on a path whose bodies may be anything.
    #[must_use]
    pub fn of_any_type(mut self, content_type: Option<&[u8]>) -> Self {
        let content_type = content_type.unwrap_or_default();
        // A body whose type is JSON must be JSON.
        if memchr::memmem::find(&content_type.to_ascii_lowercase(), b"json").is_none() {
            self.takes = Takes::OtherTypes;
        }
        if let Some(form) = Form::new(content_type, Arc::clone(&self.body_keys)) {
            self.content = Content::Form(Box::new(form));
        }
        self
    }

    /// This scanner for a body that the server may take whatever it is.
    #[must_use]
    pub const fn or_anything(mut self) -> Self {
        self.takes = Takes::Anything;
        self
    }

    /// This scanner, hashing the prompt's prefixes too.
    #[must_use]
    pub fn hashing(mut self) -> Self {
        self.hashes = true;
        if let Content::Json(_, fields) = &mut self.content {
            fields.hash_prefixes();
        }
        self
    }

    /// Bytes read.
    fn offset(&self) -> u64 {
        match &self.content {
            Content::Json(reader, _) => reader.offset(),
            Content::Form(form) => form.offset(),
            Content::Opaque(bytes) => *bytes,
        }
    }

    /// Scans the `body` up to byte `size`, or, before its `end`, as far as is worth it to the host.
    ///
    /// # Errors
    /// As [`feed`](Self::feed).
    pub fn read_on(&mut self, size: usize, end: bool, body: &mut impl BufferedBody) -> Result<(), BodyError> {
        let start = usize::try_from(self.offset()).unwrap_or(usize::MAX);
        if !matches!(self.content, Content::Opaque(_)) {
            let read = body.visit(start..size, end, |slice| match self.feed(slice) {
                Ok(()) if matches!(self.content, Content::Opaque(_)) => ControlFlow::Break(Ok(())),
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(Err(error)),
            });
            if let ControlFlow::Break(Err(error)) = read {
                return Err(error);
            }
        }
        if let Content::Opaque(bytes) = &mut self.content {
            *bytes = u64::try_from(size).unwrap_or(u64::MAX);
        }
        Ok(())
    }

    /// Scans the next bytes of the body.
    ///
    /// # Errors
    /// The body must be refused. The scanner must not be used again.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        if self.offset() == 0 {
            self.begins_object = begins_object(bytes);
            // A server may read JSON although its type is that of a form.
            if self.begins_object && matches!(self.content, Content::Form(_)) {
                let mut fields = Fields::new(Arc::clone(&self.body_keys));
                fields.set_api(self.api);
                if self.hashes {
                    fields.hash_prefixes();
                }
                self.content = Content::Json(Reader::new(), fields);
            }
        }
        let read = match &mut self.content {
            Content::Json(reader, fields) => reader.feed(bytes, fields).map_err(body_error),
            Content::Form(form) => form.feed(bytes),
            Content::Opaque(read) => {
                *read = read.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                Ok(())
            }
        };
        read.or_else(|error| self.leave_to_server(error))
    }

    /// A body of which JSON can't be read is opaque, where that may be.
    fn leave_to_server(&mut self, error: BodyError) -> Result<(), BodyError> {
        let is_other = match error {
            _ if self.takes == Takes::Anything => true,
            BodyError::Syntax(..) => self.takes == Takes::OtherTypes && !self.begins_object,
            BodyError::NotAnObject => self.reads_any_api(),
            BodyError::Empty
            | BodyError::NoModel
            | BodyError::TwoModels(_)
            | BodyError::BadForm
            | BodyError::BadModel(_) => false,
        };
        if !is_other {
            return Err(error);
        }
        // The reader may have stopped at the first byte, and a body without any is refused.
        self.content = Content::Opaque(self.offset().max(1));
        Ok(())
    }

    fn reads_any_api(&self) -> bool {
        matches!(&self.content, Content::Json(_, fields) if fields.reads_any_api())
    }

    /// Ends the body and returns its fields.
    ///
    /// # Errors
    /// The body is empty or incomplete.
    pub fn finish(mut self) -> Result<Body, BodyError> {
        if self.offset() == 0 {
            return Err(BodyError::Empty);
        }
        if let Content::Json(reader, fields) = &mut self.content {
            let finished = reader.finish(fields).map_err(body_error);
            finished.or_else(|error| self.leave_to_server(error))?;
        }
        Ok(match self.content {
            Content::Json(_, fields) => fields.into_body(),
            Content::Form(form) => form.into_body()?,
            Content::Opaque(_) => {
                let identities = vec![None; self.body_keys.len()];
                Body { sequences: 1, identities, ..Body::default() }
            }
        })
    }
}

/// Whether a server may read a body that begins so as a JSON object: it may have a byte order mark, or be UTF-16, which Python's reader takes.
fn begins_object(bytes: &[u8]) -> bool {
    let is_mark = |byte: &u8| matches!(byte, 0 | 0xef | 0xbb | 0xbf | 0xfe | 0xff);
    let first = bytes.iter().find(|byte| !is_mark(byte) && !byte.is_ascii_whitespace());
    first.is_none_or(|byte| *byte == b'{')
}

fn body_error(error: ReadError<Stop>) -> BodyError {
    match error.cause {
        Cause::Syntax(syntax) => BodyError::Syntax(syntax, error.offset),
        Cause::Stopped(Stop::NotAnObject) => BodyError::NotAnObject,
        Cause::Stopped(Stop::TwoModels) => BodyError::TwoModels(error.offset),
        Cause::Stopped(Stop::BadModel) => BodyError::BadModel(error.offset),
    }
}
