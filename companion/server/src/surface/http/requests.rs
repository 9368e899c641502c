//! `/requests/{x-request-id}`: the state of one request and the reason for it, while it waits or runs and for a minute
//! after its end.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use penstock_control::{Labels, RequestState, RequestStatus};
use serde_json::{Value, json};

use super::App;
use crate::decisions::driver::RequestLookup;
use crate::decisions::ended_requests::EndedRequest;
use crate::surface::visibility::FlowVisibility;

/// Stands for a private flow.
const OTHER: &str = "other";
/// Stands for a flow without a name.
const ANONYMOUS: &str = "anonymous";

/// Handles `GET /requests/{x-request-id}`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(request_id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let visibility = app.flow_visibility(&headers);
    let lookup = match app.driver.request(&request_id).await {
        Ok(lookup) => lookup,
        Err(gone) => return (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    };
    match document(&lookup, visibility) {
        Some(document) => axum::Json(document).into_response(),
        None => {
            let why = "no request with this x-request-id waits or runs, and none has ended in the last 60 s";
            let body = json!({"error": {"code": "request_not_found", "message": why}});
            (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
        }
    }
}

fn document(lookup: &RequestLookup, visibility: FlowVisibility) -> Option<Value> {
    match lookup {
        RequestLookup::Active(request) => Some(active(request, visibility)),
        RequestLookup::Ended(request) => Some(ended(request, visibility)),
        RequestLookup::Unknown => None,
    }
}

/// The document of a waiting or running request. `position` counts from 1: the request with 1 is next.
fn active(request: &RequestStatus, visibility: FlowVisibility) -> Value {
    let (state, endpoint) = match &request.state {
        RequestState::Waiting { .. } => ("waiting", None),
        RequestState::Running { endpoint } => ("running", Some(endpoint)),
    };
    let (position, estimate, tag) = match request.state {
        RequestState::Waiting { ahead, estimate, tag } => {
            (Some(ahead.saturating_add(1)), Some(estimate), tag)
        }
        RequestState::Running { .. } => (None, None, None),
    };
    json!({
        "state": state,
        "outcome": request.outcome.map(penstock_engine::Outcome::as_str),
        "requeues": request.requeues,
        "extra": request.extra,
        "pool": &*request.labels.pool,
        "band": request.labels.band.as_str(),
        "class": name(&request.class),
        "tokens": tokens(&request.labels),
        "flow": flow(&request.labels, visibility),
        "position": position,
        "waited_ms": millis(request.waited),
        "estimate_ms": estimate.map(millis),
        "tag": tag,
        "why": &*request.why,
        "endpoint": endpoint,
    })
}

fn ended(request: &EndedRequest, visibility: FlowVisibility) -> Value {
    json!({
        "state": "ended",
        "outcome": request.outcome.as_str(),
        "requeues": request.requeues,
        "extra": request.extra,
        "pool": &*request.labels.pool,
        "band": request.labels.band.as_str(),
        "class": name(&request.labels.class),
        "tokens": tokens(&request.labels),
        "flow": flow(&request.labels, visibility),
        "position": null,
        "waited_ms": millis(request.waited),
        "estimate_ms": null,
        "tag": null,
        "why": request.reason(),
        "endpoint": name(&request.endpoint),
    })
}

/// The tokens as they were estimated at registration; null for a request that was never registered.
fn tokens(labels: &Labels) -> Value {
    labels.tokens.map_or(Value::Null, |tokens| {
        json!({
            "prompt": tokens.prompt,
            "cached": tokens.cached,
            "expected_output": tokens.expected_output,
        })
    })
}

/// The flow's name; private names are visible only with the admin token.
fn flow(labels: &Labels, visibility: FlowVisibility) -> &str {
    match visibility {
        _ if labels.flow.is_empty() => ANONYMOUS,
        FlowVisibility::Public if labels.private => OTHER,
        FlowVisibility::Public | FlowVisibility::All => &labels.flow,
    }
}

/// `None` for an empty text, which stands for an absent value.
fn name(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use penstock_control::EstimatedTokens;
    use penstock_engine::Outcome;
    use penstock_engine::input::Band;

    use super::*;

    fn request(private: bool, state: RequestState) -> RequestLookup {
        RequestLookup::Active(Box::new(RequestStatus {
            labels: Arc::new(Labels {
                tokens: Some(EstimatedTokens { prompt: 4_000, cached: 2_896, expected_output: 256 }),
                pool: "chat".into(),
                model: "m".into(),
                flow: "acme".into(),
                private,
                band: Band::Critical,
                class: Box::default(),
                request_id: "r".into(),
                traceparent: Box::default(),
            }),
            outcome: matches!(state, RequestState::Running { .. }).then_some(Outcome::Bypassed),
            requeues: 0,
            extra: false,
            state,
            class: Box::default(),
            waited: Duration::from_millis(1_250),
            why: "the gate is full".into(),
        }))
    }

    #[test]
    fn the_next_request_has_position_one() {
        let waiting = RequestState::Waiting { ahead: 0, estimate: Duration::from_secs(1), tag: Some(12.5) };
        let document = document(&request(false, waiting), FlowVisibility::Public);
        let expected = json!({
            "state": "waiting", "outcome": null, "requeues": 0, "extra": false, "pool": "chat", "band": "critical", "class": null, "flow": "acme",
            "tokens": {"prompt": 4_000, "cached": 2_896, "expected_output": 256},
            "position": 1, "waited_ms": 1_250, "estimate_ms": 1_000, "tag": 12.5, "why": "the gate is full",
            "endpoint": null,
        });
        assert_eq!(document, Some(expected));
    }

    #[test]
    fn a_running_request_has_an_endpoint_and_no_position() {
        let running = RequestState::Running { endpoint: "127.0.0.1:1".into() };
        let document = document(&request(false, running), FlowVisibility::Public).expect("known");
        let values = ["state", "outcome", "position", "endpoint"].map(|key| document[key].clone());
        assert_eq!(json!(values), json!(["running", "bypassed", null, "127.0.0.1:1"]));
    }

    #[test]
    fn a_private_flow_is_visible_only_with_the_token() {
        let running = || RequestState::Running { endpoint: Box::default() };
        let flow = |private, visibility| {
            let document = document(&request(private, running()), visibility).expect("known");
            document["flow"].as_str().map(str::to_owned)
        };
        assert_eq!(flow(true, FlowVisibility::Public).as_deref(), Some("other"));
        assert_eq!(flow(true, FlowVisibility::All).as_deref(), Some("acme"));
        assert_eq!(flow(false, FlowVisibility::Public).as_deref(), Some("acme"));
    }
}
