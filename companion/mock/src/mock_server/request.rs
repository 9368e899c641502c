//! Request bodies of the five APIs, parsed into one validated type.
//!
//! Unknown fields are ignored, as by real servers, because real client libraries send them. Text is measured and
//! not kept: four bytes count as one token.

use serde::Deserialize;
use serde_json::Value;

/// The API of a request, which follows from its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
    Embeddings,
    Responses,
    Messages,
}

/// A valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiRequest {
    pub(super) model: String,
    /// Prompt tokens, at least 1.
    pub(super) input: u64,
    pub(super) length: Length,
    pub(super) stream: bool,
    /// The stream ends with a chunk that contains `usage`.
    pub(super) include_usage: bool,
    /// Embeddings: the number of inputs.
    pub(super) inputs: usize,
    /// Embeddings: vectors are base64 of little-endian floats, the default of OpenAI's Python client.
    pub(super) base64: bool,
}

/// The length of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// No tokens: an embedding.
    Nothing,
    /// Exactly the client's limit, so that a test can choose the length.
    Exactly(u64),
    /// A random length chosen by the server.
    Natural,
}

/// Why a body is rejected; the text is the error's message.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the body is not a valid request: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`{0}` is missing or empty")]
    Missing(&'static str),
    #[error("`{0}` must be at least 1")]
    Zero(&'static str),
    #[error(
        "this server takes one prompt and returns one choice per request; send separate requests (`{0}`)"
    )]
    Several(&'static str),
}

#[derive(Deserialize)]
struct Raw {
    model: Option<String>,
    messages: Option<Value>,
    prompt: Option<Value>,
    input: Option<Value>,
    system: Option<Value>,
    instructions: Option<Value>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    n: Option<u64>,
    encoding_format: Option<String>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl ApiRequest {
    /// Parses the body of a request to `api`.
    pub(super) fn parse(api: Api, body: &[u8]) -> Result<Self, RequestError> {
        let raw: Raw = serde_json::from_slice(body)?;
        let (name, prompt, context, limit) = match api {
            Api::Chat => {
                let limit = match raw.max_completion_tokens {
                    Some(limit) => ("max_completion_tokens", Some(limit)),
                    None => ("max_tokens", raw.max_tokens),
                };
                ("messages", raw.messages, None, limit)
            }
            Api::Completions => ("prompt", raw.prompt, None, ("max_tokens", raw.max_tokens)),
            Api::Embeddings => ("input", raw.input, None, ("max_tokens", None)),
            Api::Responses => {
                ("input", raw.input, raw.instructions, ("max_output_tokens", raw.max_output_tokens))
            }
            Api::Messages => ("messages", raw.messages, raw.system, ("max_tokens", raw.max_tokens)),
        };
        let prompt = prompt.filter(|p| !is_empty(p)).ok_or(RequestError::Missing(name))?;
        if raw.n.is_some_and(|n| n > 1) {
            return Err(RequestError::Several("n"));
        }
        let inputs = prompts(&prompt);
        if api == Api::Completions && inputs > 1 {
            return Err(RequestError::Several(name));
        }
        let length = match (api, limit) {
            (Api::Embeddings, _) => Length::Nothing,
            (_, (name, Some(0))) => return Err(RequestError::Zero(name)),
            (_, (_, Some(limit))) => Length::Exactly(limit),
            (Api::Messages, (name, None)) => return Err(RequestError::Missing(name)),
            (_, (_, None)) => Length::Natural,
        };
        let bytes = text_bytes(&prompt) + context.as_ref().map_or(0, text_bytes);
        Ok(Self {
            model: raw.model.filter(|m| !m.is_empty()).ok_or(RequestError::Missing("model"))?,
            input: bytes.div_ceil(BYTES_PER_TOKEN).max(1),
            length,
            stream: raw.stream.unwrap_or(false) && api != Api::Embeddings,
            include_usage: raw.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            inputs,
            base64: raw.encoding_format.as_deref() == Some("base64"),
        })
    }
}

/// The tokens of the prompt of a request to the Messages API, which needs no limit for this.
pub(super) fn count_tokens(body: &[u8]) -> Result<u64, RequestError> {
    let raw: Raw = serde_json::from_slice(body)?;
    let prompt = raw.messages.filter(|messages| !is_empty(messages));
    let prompt = prompt.ok_or(RequestError::Missing("messages"))?;
    let bytes = text_bytes(&prompt) + raw.system.as_ref().map_or(0, text_bytes);
    Ok(bytes.div_ceil(BYTES_PER_TOKEN).max(1))
}

const BYTES_PER_TOKEN: u64 = 4;

fn is_empty(prompt: &Value) -> bool {
    match prompt {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => true,
    }
}

/// The number of prompts in a list; a list of token ids is one prompt.
fn prompts(prompt: &Value) -> usize {
    match prompt {
        Value::Array(items) if !items.iter().all(Value::is_number) => items.len(),
        Value::Array(_) | Value::String(_) => 1,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => 0,
    }
}

/// Bytes of the text in a prompt: strings, and nested `content` and `text` fields. A number is a token id.
fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Number(_) => BYTES_PER_TOKEN,
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => {
            ["content", "text"].into_iter().filter_map(|name| fields.get(name)).map(text_bytes).sum()
        }
        Value::Null | Value::Bool(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(api: Api, body: &str) -> Result<ApiRequest, String> {
        ApiRequest::parse(api, body.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn text_is_measured_in_every_dialect() {
        let cases = [
            (Api::Chat, r#"{"model":"m","messages":[{"role":"user","content":"12345678"}]}"#, 2),
            (
                Api::Chat,
                r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"12345"}]}]}"#,
                2,
            ),
            (Api::Completions, r#"{"model":"m","prompt":"1234"}"#, 1),
            (Api::Completions, r#"{"model":"m","prompt":[7,8,9]}"#, 3),
            (Api::Embeddings, r#"{"model":"m","input":["1234","5678"]}"#, 2),
            (Api::Responses, r#"{"model":"m","input":"1234","instructions":"5678"}"#, 2),
            (
                Api::Messages,
                r#"{"model":"m","max_tokens":5,"system":"1234","messages":[{"role":"user","content":"1"}]}"#,
                2,
            ),
        ];
        for (api, body, tokens) in cases {
            assert_eq!(parse(api, body).unwrap().input, tokens, "{body}");
        }
    }

    #[test]
    fn output_limit_has_the_name_of_its_dialect() {
        let chat = |limit: &str| {
            let body = format!(r#"{{"model":"m","messages":[{{"content":"hi"}}]{limit}}}"#);
            parse(Api::Chat, &body).map(|request| request.length)
        };
        assert_eq!(chat(""), Ok(Length::Natural));
        assert_eq!(chat(r#","max_tokens":7"#), Ok(Length::Exactly(7)));
        assert_eq!(chat(r#","max_tokens":7,"max_completion_tokens":9"#), Ok(Length::Exactly(9)));
        assert_eq!(chat(r#","max_tokens":0"#), Err("`max_tokens` must be at least 1".to_owned()));
        let responses = parse(Api::Responses, r#"{"model":"m","input":"hi","max_output_tokens":3}"#).unwrap();
        assert_eq!(responses.length, Length::Exactly(3));
        let missing = parse(Api::Messages, r#"{"model":"m","messages":[{"content":"hi"}]}"#);
        assert_eq!(missing, Err("`max_tokens` is missing or empty".to_owned()));
    }

    #[test]
    fn rejected_bodies_name_the_reason() {
        for (body, reason) in [
            ("nonsense", "the body is not a valid request"),
            (r#"{"messages":[{"content":"hi"}]}"#, "`model` is missing"),
            (r#"{"model":"m"}"#, "`messages` is missing"),
            (r#"{"model":"m","messages":[]}"#, "`messages` is missing"),
            (r#"{"model":"m","messages":[{"content":"hi"}],"n":2}"#, "one choice"),
        ] {
            let message = parse(Api::Chat, body).unwrap_err();
            assert!(message.contains(reason), "{body}: {message}");
        }
    }
}
