//! An error that a server reports inside an answer with status 200, and the HTTP status that it means.

/// Decoded bytes of an error's message that are kept for the client.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1_024;
/// Decoded bytes of an error's code or type that are kept. Longer ones aren't compared.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// An error of a server, as far as it has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedError {
    /// The server's message; empty: it has none.
    pub message: String,
    /// The first code in words; empty: there is none.
    pub code: String,
    /// The first type in words; empty: there is none.
    kind: String,
    /// The first code that is an HTTP status of an error.
    status: Option<u32>,
}

impl ReportedError {
    /// Forgets the fields of a document that was no error.
    pub(crate) fn clear(&mut self) {
        self.message.clear();
        self.code.clear();
        self.kind.clear();
        self.status = None;
    }

    /// Keeps a message. The first one that isn't empty counts.
    pub(crate) fn set_message(&mut self, message: &str) {
        if self.message.is_empty() {
            message.clone_into(&mut self.message);
        }
    }

    /// Keeps a code in words, or a number in quotes.
    pub(crate) fn set_code(&mut self, code: &str) {
        if let Ok(number) = code.trim().parse() {
            self.set_number(number);
        } else if self.code.is_empty() {
            code.clone_into(&mut self.code);
        }
    }

    /// Keeps a type. `error` is the type of the event, and says nothing.
    pub(crate) fn set_kind(&mut self, kind: &str) {
        if self.kind.is_empty() && kind != "error" && kind != "response.failed" {
            kind.clone_into(&mut self.kind);
        }
    }

    /// Keeps a code that is a number. Only the status of an error counts.
    pub(crate) fn set_number(&mut self, number: u64) {
        let status = u32::try_from(number).ok().filter(|status| (400..600).contains(status));
        self.status = self.status.or(status);
    }

    /// The HTTP status that the error means.
    #[must_use]
    pub fn status(&self) -> u32 {
        match self.status {
            // Anthropic's status of an overloaded server, which other clients don't know.
            Some(529) => 503,
            Some(status) => status,
            None => named_status(&self.code).or_else(|| named_status(&self.kind)).unwrap_or(500),
        }
    }

    /// The code for the client: the server's own one in words, or else its type.
    #[must_use]
    pub fn code(&self) -> &str {
        [self.code.as_str(), self.kind.as_str()]
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("server_error")
    }
}

/// The statuses of the codes and types of APIs and servers, by what the name contains, in lower case without separators. The first
/// that a name contains counts.
const NAMED: [(&str, u32); 27] = [
    ("ratelimit", 429),
    ("toomanyrequests", 429),
    ("quota", 429),
    ("resourceexhausted", 429),
    ("throttl", 429),
    ("overload", 503),
    ("unavailable", 503),
    ("capacity", 503),
    ("queuefull", 503),
    ("timeout", 504),
    ("deadlineexceeded", 504),
    ("authentication", 401),
    ("apikey", 401),
    ("unauthorized", 401),
    ("unauthenticated", 401),
    ("permission", 403),
    ("forbidden", 403),
    ("notfound", 404),
    ("toolarge", 413),
    ("unprocessable", 422),
    ("billing", 402),
    ("invalid", 400),
    ("badrequest", 400),
    ("contextlength", 400),
    ("validation", 400),
    ("unsupported", 400),
    ("contentfilter", 400),
];

fn named_status(name: &str) -> Option<u32> {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let named = NAMED.iter().find(|(part, _)| plain.contains(part));
    let is_internal = || plain.contains("internal") || plain.contains("server") || plain.contains("api");
    named.map(|(_, status)| *status).or_else(|| is_internal().then_some(500))
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn status(code: &str, kind: &str) -> u32 {
        let mut error = ReportedError::default();
        error.set_code(code);
        error.set_kind(kind);
        error.status()
    }

    #[test]
    fn codes_and_types_of_servers_have_a_status() {
        for (code, kind, expected) in [
            ("rate_limit_exceeded", "", 429),
            ("", "rate_limit_error", 429),
            ("", "RateLimitError", 429),
            ("insufficient_quota", "insufficient_quota", 429),
            ("", "overloaded_error", 503),
            ("", "overloaded", 503),
            ("", "ServiceUnavailableError", 503),
            ("529", "overloaded_error", 503),
            ("503", "", 503),
            (" 429 ", "server_error", 429),
            ("server_error", "", 500),
            ("", "api_error", 500),
            ("", "InternalServerError", 500),
            ("", "invalid_request_error", 400),
            ("", "BadRequestError", 400),
            ("context_length_exceeded", "invalid_request_error", 400),
            ("model_not_found", "invalid_request_error", 404),
            ("", "NotFoundError", 404),
            ("", "authentication_error", 401),
            ("invalid_api_key", "invalid_request_error", 401),
            ("", "permission_error", 403),
            ("", "request_too_large", 413),
            ("", "timeout_error", 504),
            ("200", "", 500),
            ("weird", "overloaded_error", 503),
            ("", "", 500),
        ] {
            assert_eq!(status(code, kind), expected, "{code:?} {kind:?}");
        }
    }

    #[test]
    fn first_message_code_and_type_count() {
        let mut error = ReportedError::default();
        assert_eq!(error.code(), "server_error");
        for name in ["error", "first", "second"] {
            error.set_kind(name);
        }
        assert_eq!(error.code(), "first");
        error.set_code("own");
        error.set_message("a");
        error.set_message("b");
        error.set_number(99);
        error.set_number(429);
        error.set_number(500);
        assert_eq!((error.code(), error.message.as_str(), error.status()), ("own", "a", 429));
    }
}
