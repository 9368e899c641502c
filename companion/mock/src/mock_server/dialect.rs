//! The response formats of each API: complete responses, and streams of server-sent events.
//!
//! The formats are the ones that OpenAI's and Anthropic's client libraries parse. The text is filler.

mod chat;
mod completions;
mod embeddings;
mod messages;
mod responses;

use serde_json::{Value, json};

use super::request::Api;

/// A response that is being produced.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// Unique number of the response at this server.
    pub(super) number: u64,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) input: u64,
    /// Tokens produced so far.
    pub(super) output: u64,
    pub(super) text: String,
    /// The response ends because of the client's limit.
    pub(super) limited: bool,
    pub(super) include_usage: bool,
    pub(super) inputs: usize,
    pub(super) base64: bool,
}

impl Answer {
    /// Adds a token and returns its text.
    pub(super) fn push(&mut self) -> &'static str {
        const WORDS: [&str; 12] = [
            " water", " waits", " behind", " the", " gate", " until", " a", " turbine", " has", " room",
            " for", " it",
        ];
        let word = WORDS[(self.output % WORDS.len() as u64) as usize];
        self.output += 1;
        self.text.push_str(word);
        word
    }
}

/// Server-sent events in their wire format.
#[derive(Debug, Default)]
pub(super) struct Sse(String);

impl Sse {
    fn data(&mut self, data: &Value) {
        self.raw(&data.to_string());
    }

    fn event(&mut self, name: &str, data: &Value) {
        self.0.push_str("event: ");
        self.0.push_str(name);
        self.0.push('\n');
        self.data(data);
    }

    fn raw(&mut self, data: &str) {
        self.0.push_str("data: ");
        self.0.push_str(data);
        self.0.push_str("\n\n");
    }

    pub(super) fn into_bytes(self) -> bytes::Bytes {
        self.0.into()
    }
}

/// The response formats of one API.
pub(super) trait Dialect: Sync {
    /// A complete response.
    fn complete(&self, answer: &Answer) -> Value;
    /// The events before the first token.
    fn start(&self, answer: &Answer, out: &mut Sse);
    /// The events of one token, which `answer` already counts.
    fn token(&self, answer: &Answer, text: &str, out: &mut Sse);
    /// The events after the last token.
    fn end(&self, answer: &Answer, out: &mut Sse);
    /// An error response.
    fn error(&self, kind: &str, code: Option<&str>, message: &str) -> Value {
        json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
    }
}

pub(super) fn for_api(api: Api) -> &'static dyn Dialect {
    match api {
        Api::Chat => &chat::Chat,
        Api::Completions => &completions::Completions,
        Api::Embeddings => &embeddings::Embeddings,
        Api::Responses => &responses::Responses,
        Api::Messages => &messages::Messages,
    }
}

fn usage(answer: &Answer) -> Value {
    json!({
        "prompt_tokens": answer.input,
        "completion_tokens": answer.output,
        "total_tokens": answer.input + answer.output,
    })
}

fn finish_reason(answer: &Answer) -> &'static str {
    if answer.limited { "length" } else { "stop" }
}
