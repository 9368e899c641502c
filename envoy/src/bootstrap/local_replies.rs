//! Envoy's local replies, in the format that clients of a model server parse.
//!
//! They cover only the cases in which the filter can't reply: no route matches, no server accepts the request, the server
//! resets the connection before a response, or Envoy refuses the request by itself. The filter's replies, and those of other filters, have
//! none of these response flags and details, and pass unchanged.

use penstock_wire::names;
use serde_json::{Value, json};

const UNAVAILABLE: &str = "service_unavailable";
/// The only queued path with Anthropic's error format.
const MESSAGES_PATH: &str = "/v1/messages";

struct Reply {
    status: u32,
    kind: &'static str,
    code: &'static str,
    message: &'static str,
    /// Envoy's configuration may be older than the companion's: the message ends with the way to replace it.
    outdated: bool,
}

const NO_POOL: Reply = Reply {
    status: 503,
    kind: UNAVAILABLE,
    code: "gateway_unavailable",
    message: "No pool of this Envoy took the request: its configuration is older than the companion's, or the \
              filter isn't running.",
    outdated: true,
};
const REFUSED: Reply = Reply {
    status: 503,
    kind: UNAVAILABLE,
    code: "upstream_unavailable",
    message: "Every model server that was tried refused the connection: check that the pool's endpoints are up.",
    outdated: false,
};
const NO_HOST: Reply = Reply {
    status: 503,
    kind: UNAVAILABLE,
    code: "no_endpoints",
    message: "This Envoy has no model server for the request: its pool has no endpoints, or the configuration is \
              older than the companion's.",
    outdated: true,
};
const RESET: Reply = Reply {
    status: 502,
    kind: "server_error",
    code: "upstream_reset",
    message: "The model server closed the connection before it answered, every time it was tried: look at its log.",
    outdated: false,
};
const SLOW: Reply = Reply {
    status: 408,
    kind: "invalid_request_error",
    code: "invalid_request",
    message: "The request didn't arrive in time: send the whole body within 60s.",
    outdated: false,
};

const TOO_LARGE: Reply = Reply {
    status: 413,
    kind: "invalid_request_error",
    code: "request_too_large",
    message: "The body is larger than Envoy buffers: send less, or raise `limits.body_bytes` and print a new configuration.",
    outdated: false,
};
const HEADERS: Reply = Reply {
    status: 431,
    kind: "invalid_request_error",
    code: "invalid_request",
    message: "The request has too many headers, or too long ones: send fewer.",
    outdated: false,
};
const MALFORMED: Reply = Reply {
    status: 400,
    kind: "invalid_request_error",
    code: "invalid_request",
    message: "This isn't a request by HTTP/1 or HTTP/2 that Envoy accepts.",
    outdated: false,
};
const TIMED_OUT: Reply = Reply {
    status: 504,
    kind: UNAVAILABLE,
    code: "upstream_timeout",
    message: "A time limit of this Envoy ended the request before the model server answered.",
    outdated: false,
};

/// The body of the response to requests on which the filter hasn't decided. `replacement`: how to replace an outdated configuration.
pub(crate) fn no_pool_body(replacement: &str) -> String {
    NO_POOL.openai(replacement).to_string()
}

/// The HTTP connection manager's `local_reply_config`. `replacement`: how to replace an outdated configuration.
pub(crate) fn config(replacement: &str) -> Value {
    // UC, UR: reset after the request was sent; UF: not connected; UO: circuit breaker; UH: no host; NC: no cluster of the
    // pool's name.
    let mut mappers = Vec::new();
    for (reply, filter) in [
        (&RESET, flags(&["UC", "UR"])),
        (&REFUSED, flags(&["UF", "UO"])),
        (&NO_HOST, flags(&["UH"])),
        (&NO_POOL, flags(&["NC"])),
        // A retry of a request that passes through, whose body was too large to keep.
        (&REFUSED, status(507)),
        (&SLOW, status(SLOW.status)),
        (&TOO_LARGE, details(TOO_LARGE.status, "response.code_details == 'request_payload_too_large'")),
        (
            &HEADERS,
            details(
                HEADERS.status,
                "response.code_details == 'request_headers_too_large' || response.code_details.startsWith('http1.')",
            ),
        ),
        (
            &MALFORMED,
            details(
                MALFORMED.status,
                "response.code_details.startsWith('http1.') || response.code_details.startsWith('http2.')",
            ),
        ),
        (
            &TIMED_OUT,
            details(
                TIMED_OUT.status,
                "response.code_details in ['response_timeout', 'upstream_response_timeout', 'upstream_per_try_timeout', \
                 'upstream_per_try_idle_timeout', 'duration_timeout', 'stream_idle_timeout']",
            ),
        ),
    ] {
        mappers.push(reply.mapper(
            json!({ "and_filter": { "filters": [filter.clone(), messages_path()] } }),
            &reply.anthropic(replacement),
        ));
        mappers.push(reply.mapper(filter, &reply.openai(replacement)));
    }
    json!({ "mappers": mappers })
}

impl Reply {
    fn message(&self, replacement: &str) -> String {
        if self.outdated { format!("{} {replacement}", self.message) } else { self.message.to_owned() }
    }

    fn openai(&self, replacement: &str) -> Value {
        json!({ "error": { "message": self.message(replacement), "type": self.kind, "param": null, "code": self.code } })
    }

    fn anthropic(&self, replacement: &str) -> Value {
        json!({ "type": "error", "error": { "type": self.kind, "message": self.message(replacement) } })
    }

    fn mapper(&self, filter: Value, body: &Value) -> Value {
        let mut mapper = json!({
            "filter": filter,
            "status_code": self.status,
            "body_format_override": { "json_format": body },
        });
        if self.status == 503 {
            mapper["headers_to_add"] = headers(&[("retry-after", "1"), ("retry-after-ms", "1000")]);
        } else if (400..500).contains(&self.status) {
            mapper["headers_to_add"] = headers(&[(names::OUTCOME_HEADER, names::outcome::REJECTED_INVALID)]);
        }
        mapper
    }
}

fn flags(flags: &[&str]) -> Value {
    json!({ "response_flag_filter": { "flags": flags } })
}

fn status(code: u32) -> Value {
    json!({ "status_code_filter": { "comparison": {
        "op": "EQ",
        "value": { "default_value": code, "runtime_key": format!("penstock.reply.{code}") },
    } } })
}

/// A reply of this status for one of Envoy's own reasons. Other filters give theirs.
fn details(code: u32, reasons: &str) -> Value {
    json!({ "extension_filter": {
        "name": "envoy.access_loggers.extension_filters.cel",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            "expression": format!("response.code == {code} && ({reasons})"),
        },
    } })
}

fn messages_path() -> Value {
    json!({ "header_filter": { "header": { "name": ":path", "string_match": { "prefix": MESSAGES_PATH } } } })
}

fn headers(pairs: &[(&str, &str)]) -> Value {
    pairs
        .iter()
        .map(|(key, value)| {
            json!({ "header": { "key": key, "value": value }, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD" })
        })
        .collect()
}
