//! Responses that the filter sends itself (Envoy's local replies), in the format that the client's library expects:
//! Anthropic's error object on the messages API, OpenAI's on every other API.

use penstock_wire::{Api, Code, Reject, names};
use serde::Serialize;

use crate::headers;
use crate::limits::LIBRARY_WAIT_MAX_MS;
use crate::rate_limit::RateLimit;

/// A complete local reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalReply {
    /// The HTTP status.
    pub status: u32,
    /// All headers except `content-length`.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: Vec<u8>,
}

impl LocalReply {
    /// The reply's headers with its status, as [`crate::headers::Headers::new`] reads them.
    #[must_use]
    pub fn header_map(&self) -> Vec<u8> {
        let status = self.status.to_string();
        let pairs = self.headers.iter().map(|(name, value)| (*name, value.as_str()));
        headers::serialize(core::iter::once((":status", status.as_str())).chain(pairs))
    }
}

/// The response headers that report how a request left the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueReport {
    /// The outcome's name.
    pub outcome: String,
    /// Time in the queue.
    pub queue_us: u64,
    /// Saturation of the pool, in thousandths.
    pub saturation_milli: u32,
    /// The rest of the tenant's budget; `None`: it has none.
    pub rate_limit: Option<RateLimit>,
}

impl QueueReport {
    /// The headers of the report.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let report = [
            (names::OUTCOME_HEADER, self.outcome.clone()),
            (names::QUEUE_MS_HEADER, (self.queue_us / 1_000).to_string()),
            (names::SATURATION_HEADER, two_places(self.saturation_milli)),
        ];
        report.into_iter().chain(self.rate_limit.into_iter().flat_map(RateLimit::headers))
    }
}

/// Thousandths as a decimal fraction, rounded to two places.
fn two_places(milli: u32) -> String {
    let rounded = milli.saturating_add(5) / 10;
    format!("{}.{:02}", rounded / 100, rounded % 100)
}

/// An error for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status.
    pub status: u32,
    /// The error code.
    pub code: String,
    /// The cause, and the remedy.
    pub message: String,
    /// Time after which the client should retry; `None`: the reply has no `retry-after`.
    pub retry_after_ms: Option<u64>,
    /// Asks the client's library not to retry by itself.
    pub is_final: bool,
    /// The key of the body that is wrong.
    pub param: Option<&'static str>,
}

impl Failure {
    /// An error without retry headers.
    #[must_use]
    pub fn new(status: u32, code: Code, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.as_str().to_owned(),
            message: message.into(),
            retry_after_ms: None,
            is_final: false,
            param: None,
        }
    }

    /// This error with a `retry-after`.
    #[must_use]
    pub fn retry_after_ms(self, wait_ms: u64) -> Self {
        Self { retry_after_ms: Some(wait_ms), ..self }
    }

    /// This error, for which the client's library shouldn't retry by itself.
    #[must_use]
    pub fn without_retry(self) -> Self {
        Self { is_final: true, ..self }
    }

    /// This error, which is about a key of the body.
    #[must_use]
    pub fn about(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    /// The reply in the API's format. `report`: `None` for requests that aren't queued.
    #[must_use]
    pub fn reply(&self, api: Api, report: Option<&QueueReport>) -> LocalReply {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        let is_long = self.is_long();
        if let Some(wait_ms) = self.retry_after_ms {
            headers.push(("retry-after", wait_ms.div_ceil(1_000).max(1).to_string()));
            if !is_long {
                headers.push(("retry-after-ms", wait_ms.to_string()));
            }
        }
        if self.status == 401 {
            headers.push(("www-authenticate", "Bearer".to_owned()));
        }
        if self.is_final || is_long {
            headers.push(("x-should-retry", "false".to_owned()));
        }
        headers.extend(report.into_iter().flat_map(QueueReport::headers));
        LocalReply { status: self.status, headers, body: self.body(api) }
    }

    /// A client's library may sleep for as long as it is told, or spin if that is longer than its timers can count.
    fn is_long(&self) -> bool {
        self.retry_after_ms.is_some_and(|wait_ms| wait_ms > LIBRARY_WAIT_MAX_MS)
    }

    /// The JSON body of the reply.
    #[must_use]
    pub fn body(&self, api: Api) -> Vec<u8> {
        let kind = kind(self.status);
        let message = self.message.as_str();
        let json = match api {
            Api::Messages => serde_json::to_vec(&Anthropic {
                kind: "error",
                error: AnthropicError {
                    // OpenAI has no type for a wrong key; Anthropic has one.
                    kind: if self.status == 401 { "authentication_error" } else { kind },
                    message,
                },
            }),
            // Codex sleeps for as long as it is told, be it weeks, but for this type, whose message it shows at once.
            Api::Responses if self.code == Code::BudgetExceeded.as_str() && self.is_long() => {
                let resets_in_seconds = self.retry_after_ms.map(|wait_ms| wait_ms.div_ceil(1_000));
                let kind = "usage_limit_reached";
                serde_json::to_vec(&OpenAi {
                    error: OpenAiError {
                        message,
                        kind,
                        param: self.param,
                        code: &self.code,
                        resets_in_seconds,
                    },
                })
            }
            Api::Unspecified
            | Api::ChatCompletions
            | Api::Completions
            | Api::Embeddings
            | Api::Responses
            | Api::Other
            | Api::OtherWithoutOutput => serde_json::to_vec(&OpenAi {
                error: OpenAiError {
                    message,
                    kind,
                    param: self.param,
                    code: &self.code,
                    resets_in_seconds: None,
                },
            }),
        };
        json.unwrap_or_default()
    }
}

impl From<&Reject> for QueueReport {
    fn from(reject: &Reject) -> Self {
        Self {
            outcome: reject.outcome.clone(),
            queue_us: reject.queue_us,
            saturation_milli: reject.saturation_milli,
            rate_limit: reject.rate_limit.map(RateLimit::from),
        }
    }
}

impl From<&Reject> for Failure {
    fn from(reject: &Reject) -> Self {
        Self {
            status: if (400..600).contains(&reject.status) { reject.status } else { 500 },
            code: reject.code.clone(),
            message: reject.message.clone(),
            retry_after_ms: reject.retry_after_ms,
            is_final: reject.r#final,
            param: None,
        }
    }
}

/// The error type for a status.
fn kind(status: u32) -> &'static str {
    match status {
        429 => "rate_limit_error",
        503 | 504 => "service_unavailable",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

#[derive(Serialize)]
struct OpenAi<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_in_seconds: Option<u64>,
}

#[derive(Serialize)]
struct Anthropic<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn a_library_is_not_asked_to_sleep_for_more_than_a_minute() {
        let headers = |wait_ms| {
            let failure = Failure::new(429, Code::BudgetExceeded, "later").retry_after_ms(wait_ms);
            let reply = failure.reply(Api::ChatCompletions, None);
            let value = |name| {
                reply.headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.clone())
            };
            ["retry-after", "retry-after-ms", "x-should-retry"].map(value)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(headers(60_000), [text("60"), text("60000"), None]);
        assert_eq!(headers(60_001), [text("61"), None, text("false")]);
        assert_eq!(headers(30 * 86_400_000), [text("2592000"), None, text("false")]);
    }

    #[test]
    fn codex_is_told_that_a_budget_has_no_room_for_long() {
        let body = |wait_ms, api| {
            let failure = Failure::new(429, Code::BudgetExceeded, "later").retry_after_ms(wait_ms);
            String::from_utf8(failure.body(api)).unwrap()
        };
        let usual = r#"{"error":{"message":"later","type":"rate_limit_error","param":null,"code":"budget_exceeded"}}"#;
        assert_eq!(body(60_000, Api::Responses), usual);
        assert_eq!(body(60_001, Api::ChatCompletions), usual);
        assert_eq!(
            body(60_001, Api::Responses),
            r#"{"error":{"message":"later","type":"usage_limit_reached","param":null,"code":"budget_exceeded","resets_in_seconds":61}}"#
        );
    }

    #[test]
    fn openai_format_with_all_headers() {
        let report = QueueReport {
            outcome: "expired_ttl".into(),
            queue_us: 30_000_999,
            saturation_milli: 1_005,
            rate_limit: None,
        };
        let failure = Failure::new(503, Code::QueueTimeout, "Request timed out after 30s in queue")
            .retry_after_ms(1_001);
        let reply = failure.without_retry().reply(Api::ChatCompletions, Some(&report));
        assert_eq!(reply.status, 503);
        assert_eq!(
            String::from_utf8(reply.body).unwrap(),
            r#"{"error":{"message":"Request timed out after 30s in queue","type":"service_unavailable","param":null,"code":"queue_timeout"}}"#
        );
        let headers: Vec<_> = reply.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(
            headers,
            [
                "content-type: application/json",
                "retry-after: 2",
                "retry-after-ms: 1001",
                "x-should-retry: false",
                "x-penstock-outcome: expired_ttl",
                "x-penstock-queue-ms: 30000",
                "x-penstock-saturation: 1.01",
            ]
        );
    }

    #[test]
    fn anthropic_format() {
        let body = Failure::new(413, Code::RequestTooLarge, "say \"less\"").body(Api::Messages);
        assert_eq!(
            String::from_utf8(body).unwrap(),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"say \"less\""}}"#
        );
    }

    #[test]
    fn wrong_key_is_an_authentication_error_in_both_formats() {
        let failure = Failure::new(401, Code::InvalidApiKey, "no");
        let body = |api| String::from_utf8(failure.body(api)).unwrap();
        assert_eq!(
            body(Api::ChatCompletions),
            r#"{"error":{"message":"no","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#
        );
        assert_eq!(
            body(Api::Messages),
            r#"{"type":"error","error":{"type":"authentication_error","message":"no"}}"#
        );
        let challenge = ("www-authenticate", "Bearer".to_owned());
        assert!(failure.reply(Api::Messages, None).headers.contains(&challenge));
    }

    #[test]
    fn error_type_follows_the_status() {
        let kinds = [400, 404, 413, 429, 503, 504, 500, 502].map(kind);
        let [a, b, c, rate, d, e, f, g] = kinds;
        assert_eq!([a, b, c], ["invalid_request_error"; 3]);
        assert_eq!(rate, "rate_limit_error");
        assert_eq!([d, e], ["service_unavailable"; 2]);
        assert_eq!([f, g], ["server_error"; 2]);
    }

    #[test]
    fn saturation_is_rounded_to_two_places() {
        assert_eq!(
            [0, 4, 5, 420, 995, 1_000, 12_345].map(two_places),
            ["0.00", "0.00", "0.01", "0.42", "1.00", "1.00", "12.35"]
        );
    }
}
