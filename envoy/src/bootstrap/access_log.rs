//! Envoy's access log: one line of JSON for each request of the gateway listener.

use std::path::Path;

use penstock_wire::names::{OUTCOME_HEADER, QUEUE_MS_HEADER, SERVED_HEADER};
use serde_json::{Value, json};

/// Envoy has no status for a request if its client left before the response. It is 499 here, as in nginx.
const STATUS: &str = "%TYPED_CEL(has(response.code) && response.code > 0 ? response.code : 499)%";

/// The HTTP connection manager's `access_log`. A header without a value, and the outcome of a request if its client left, are null. The
/// path has no query, which may hold secrets.
pub(super) fn config(file: &Path) -> Value {
    let response = |header: &str| format!("%RESP({header})%");
    json!([{
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": file,
            "log_format": { "json_format": {
                "time": "%START_TIME%",
                "request_id": "%REQ(x-request-id)%",
                "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
                "method": "%REQ(:method)%",
                "path": "%PATH(NQ)%",
                "status": STATUS,
                "outcome": response(OUTCOME_HEADER),
                "queue_ms": response(QUEUE_MS_HEADER),
                "endpoint": response(SERVED_HEADER),
                "duration_ms": "%DURATION%",
                "request_bytes": "%BYTES_RECEIVED%",
                "response_bytes": "%BYTES_SENT%",
                "flags": "%RESPONSE_FLAGS%",
                "details": "%RESPONSE_CODE_DETAILS%",
            } },
        },
    }])
}
