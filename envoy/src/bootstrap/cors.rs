//! Cross-origin resource sharing: Envoy's filter answers a browser's preflight before any key is asked for, and adds the headers by which
//! the browser shows an answer to a page. It comes first, so Penstock's own answers have these headers too.

use penstock_wire::names;
use serde_json::{Value, json};

use super::Cors;

const FILTER: &str = "envoy.filters.http.cors";
/// Methods that a page may use.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Headers that the libraries of OpenAI, of Anthropic and of chat pages send. The asterisk doesn't stand for `authorization`.
const LIBRARY_HEADERS: [&str; 28] = [
    "authorization",
    "content-type",
    "accept",
    "cache-control",
    "x-api-key",
    "api-key",
    "x-request-id",
    "x-requested-with",
    "traceparent",
    "tracestate",
    "idempotency-key",
    "openai-organization",
    "openai-project",
    "openai-beta",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-poll-helper",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
];
/// Headers of answers that a page may read. The asterisk stands for those of servers.
const EXPOSED_HEADERS: [&str; 14] = [
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-request-id",
    names::OUTCOME_HEADER,
    names::QUEUE_MS_HEADER,
    names::SATURATION_HEADER,
    names::LIMIT_REQUESTS_HEADER,
    names::REMAINING_REQUESTS_HEADER,
    names::RESET_REQUESTS_HEADER,
    names::LIMIT_TOKENS_HEADER,
    names::REMAINING_TOKENS_HEADER,
    names::RESET_TOKENS_HEADER,
    "*",
];
/// What a server's own answer says of pages. The operator's list says it instead.
const SERVER_HEADERS: [&str; 6] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
];

/// The HTTP filter. It does nothing where no [`policy`] applies.
pub(super) fn filter() -> Value {
    json!({
        "name": FILTER,
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors" },
    })
}

/// Headers that a page may send.
fn sent_headers(cors: &Cors) -> Vec<&str> {
    let any = cors.headers.is_empty().then_some("*");
    LIBRARY_HEADERS.into_iter().chain(cors.headers.iter().map(String::as_str)).chain(any).collect()
}

/// Adds what pages may do to a virtual host.
pub(super) fn apply(cors: &Cors, host: &mut Value) {
    let origins: Vec<Value> = cors.origins.iter().map(|origin| matcher(origin)).collect();
    host["typed_per_filter_config"] = json!({ FILTER: {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
        "allow_origin_string_match": origins,
        "allow_methods": METHODS.join(", "),
        "allow_headers": sent_headers(cors).join(", "),
        "expose_headers": EXPOSED_HEADERS.join(", "),
        "max_age": cors.max_age.as_secs().to_string(),
        // A server would answer for its own pages.
        "forward_not_matching_preflights": false,
    } });
    host["response_headers_to_remove"] = json!(SERVER_HEADERS);
}

/// Envoy takes an exact `*` for any origin.
fn matcher(origin: &str) -> Value {
    if origin == "*" || !origin.contains('*') {
        return json!({ "exact": origin });
    }
    let mut regex = String::with_capacity(origin.len() * 2);
    for character in origin.chars() {
        match character {
            // Not a slash, so that it matches in the host and the port alone.
            '*' => regex.push_str("[^/]*"),
            letter if letter.is_ascii_alphanumeric() => regex.push(letter),
            other => {
                regex.push('\\');
                regex.push(other);
            }
        }
    }
    json!({ "safe_regex": { "regex": regex } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_with_asterisks_is_an_expression_that_keeps_the_rest() {
        assert_eq!(matcher("*"), json!({ "exact": "*" }));
        assert_eq!(matcher("https://a.example"), json!({ "exact": "https://a.example" }));
        let regex = r"https\:\/\/[^/]*\.example\:[^/]*";
        assert_eq!(matcher("https://*.example:*"), json!({ "safe_regex": { "regex": regex } }));
    }

    #[test]
    fn any_header_may_be_sent_until_some_are_listed() {
        let mut cors =
            Cors { origins: vec!["*".into()], headers: vec![], max_age: std::time::Duration::from_secs(600) };
        assert_eq!(sent_headers(&cors).last(), Some(&"*"));
        cors.headers = vec!["x-tenant".into()];
        assert_eq!(sent_headers(&cors).last(), Some(&"x-tenant"));
        assert!(sent_headers(&cors).contains(&"authorization"));
    }
}
