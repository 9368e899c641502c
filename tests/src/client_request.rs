//! One request of a client, and its answer.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

/// A request that is being built.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl ClientRequest {
    /// A chat completion whose only message is `text`, which identifies the request at the server.
    #[must_use]
    pub fn chat(model: &str, text: &str) -> Self {
        let body = json!({"model": model, "messages": [{"role": "user", "content": text}]});
        Self { path: "/v1/chat/completions".to_owned(), headers: Vec::new(), body }
    }

    /// Any body for any path.
    #[must_use]
    pub fn to(path: &str, body: Value) -> Self {
        Self { path: path.to_owned(), headers: Vec::new(), body }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the tenant.
    #[must_use]
    pub fn tenant(self, tenant: &str) -> Self {
        self.header("x-penstock-tenant", tenant)
    }

    /// Sets the claimed priority.
    #[must_use]
    pub fn priority(self, priority: &str) -> Self {
        self.header("x-penstock-priority", priority)
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The body, as it will be sent.
    #[must_use]
    pub fn body(&self) -> Value {
        self.body.clone()
    }

    /// Sets a member of the body.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.body[key] = value.into();
        self
    }

    /// Requests server-sent events.
    #[must_use]
    pub fn streamed(self) -> Self {
        self.with("stream", true)
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The answer's status.
    pub status: u16,
    /// The answer's headers.
    pub headers: HeaderMap,
    /// The answer's body.
    pub body: Bytes,
}

impl Answer {
    /// Reads a whole response.
    ///
    /// # Errors
    /// If it is cut.
    pub async fn read(response: reqwest::Response) -> reqwest::Result<Self> {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        Ok(Self { status, headers, body: response.bytes().await? })
    }

    /// A header's value; empty if absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// How the request left the queue.
    #[must_use]
    pub fn outcome(&self) -> &str {
        self.header("x-penstock-outcome")
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If the body is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e} in {} {}", self.status, self.text()))
    }

    /// The code of an error in OpenAI's format; empty if absent.
    #[must_use]
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The message of an error, in either envelope.
    #[must_use]
    pub fn message(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    /// Fails unless this is an error of Penstock's in OpenAI's format, with every required header and member.
    ///
    /// # Panics
    /// If a part is missing or different.
    pub fn expect_error(&self, status: u16, code: &str, outcome: &str) {
        let seen = format!("{} {:?} {}", self.status, self.headers, self.text());
        assert_eq!(self.status, status, "{seen}");
        assert_eq!(self.code(), code, "{seen}");
        assert_eq!(self.outcome(), outcome, "{seen}");
        assert!(self.header("content-type").starts_with("application/json"), "{seen}");
        assert!(!self.message().is_empty(), "{seen}");
        let kind = match status {
            429 => "rate_limit_error",
            503 | 504 => "service_unavailable",
            500 | 502 => "server_error",
            _ => "invalid_request_error",
        };
        let error = &self.json()["error"];
        assert_eq!(error["type"], kind, "{seen}");
        let is_of_model = matches!(code, "model_not_found" | "invalid_request") && error["param"] == "model";
        let has_none = error.as_object().is_some_and(|error| error.get("param").is_some_and(Value::is_null));
        assert!(is_of_model || has_none, "{seen}");
        if matches!(status, 429 | 503 | 504) {
            let seconds: u64 = self.header("retry-after").parse().unwrap_or(0);
            // A longer wait than a minute has none.
            let millis = self.header("retry-after-ms").parse().unwrap_or(seconds * 1_000);
            // A budget says exactly when it has room.
            let most = if code == "budget_exceeded" { u64::MAX / 1_000 } else { 120 };
            assert!((1..=most).contains(&seconds), "retry-after {seconds}: {seen}");
            assert!((1_000..=most * 1_000).contains(&millis), "retry-after-ms {millis}: {seen}");
        }
    }
}
