//! `/requests/{x-request-id}`: where one request stands and why, while it lives and for a minute after.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use penstock_control::{Labels, RequestState, RequestStatus};
use penstock_data_plane::policy::band_name;
use serde_json::{Value, json};

use super::App;
use crate::driver::Found;
use crate::history::Ended;
use crate::status::Shown;

/// What a flow is called that isn't shown, and one that has no name.
const OTHER: &str = "other";
const ANONYMOUS: &str = "anonymous";

/// Answers for one request.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(request_id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let shown = app.shown(&headers);
    let found = match app.driver.request(&request_id).await {
        Ok(found) => found,
        Err(gone) => return (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    };
    match document(&found, shown) {
        Some(document) => axum::Json(document).into_response(),
        None => {
            let why =
                "no request with this x-request-id waits or runs here, and none has ended in the last 60 s";
            let body = json!({"error": {"code": "request_not_found", "message": why}});
            (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
        }
    }
}

fn document(found: &Found, shown: Shown) -> Option<Value> {
    match found {
        Found::Lives(request) => Some(lives(request, shown)),
        Found::Ended(request) => Some(ended(request, shown)),
        Found::Unknown => None,
    }
}

/// `position` counts from 1: that one goes next.
fn lives(of: &RequestStatus, shown: Shown) -> Value {
    let (state, endpoint) = match &of.state {
        RequestState::Waiting { .. } => ("waiting", None),
        RequestState::Running { endpoint } => ("running", Some(endpoint)),
    };
    let (position, estimate, tag) = match of.state {
        RequestState::Waiting { ahead, estimate, tag } => {
            (Some(ahead.saturating_add(1)), Some(estimate), tag)
        }
        RequestState::Running { .. } => (None, None, None),
    };
    json!({
        "state": state,
        "outcome": of.outcome.map(penstock_engine::Outcome::as_str),
        "pool": &*of.labels.pool,
        "band": band_name(of.labels.band),
        "class": name(&of.class),
        "flow": flow(&of.labels, shown),
        "position": position,
        "waited_ms": millis(of.waited),
        "estimate_ms": estimate.map(millis),
        "tag": tag,
        "why": &*of.why,
        "endpoint": endpoint,
    })
}

fn ended(of: &Ended, shown: Shown) -> Value {
    json!({
        "state": "ended",
        "outcome": of.outcome.as_str(),
        "pool": &*of.labels.pool,
        "band": band_name(of.labels.band),
        "class": name(&of.labels.class),
        "flow": flow(&of.labels, shown),
        "position": null,
        "waited_ms": millis(of.waited),
        "estimate_ms": null,
        "tag": null,
        "why": of.why(),
        "endpoint": name(&of.endpoint),
    })
}

/// Private ones are for who has the admin token.
fn flow(of: &Labels, shown: Shown) -> &str {
    match shown {
        _ if of.flow.is_empty() => ANONYMOUS,
        Shown::Public if of.private => OTHER,
        Shown::Public | Shown::Everything => &of.flow,
    }
}

fn name(of: &str) -> Option<&str> {
    (!of.is_empty()).then_some(of)
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use penstock_engine::Outcome;
    use penstock_engine::input::Band;

    use super::*;

    fn request(private: bool, state: RequestState) -> Found {
        Found::Lives(Box::new(RequestStatus {
            labels: Arc::new(Labels {
                pool: "chat".into(),
                model: "m".into(),
                target_model: "m".into(),
                flow: "acme".into(),
                private,
                band: Band::Critical,
                class: Box::default(),
                request_id: "r".into(),
                traceparent: Box::default(),
            }),
            outcome: matches!(state, RequestState::Running { .. }).then_some(Outcome::Bypassed),
            state,
            class: Box::default(),
            waited: Duration::from_millis(1_250),
            why: "the gate is full".into(),
        }))
    }

    #[test]
    fn the_next_to_go_has_position_one() {
        let waiting = RequestState::Waiting {
            ahead: 0,
            estimate: Duration::from_secs(1),
            tag: Some(12.5),
        };
        let document = document(&request(false, waiting), Shown::Public);
        let expected = json!({
            "state": "waiting", "outcome": null, "pool": "chat", "band": "critical", "class": null, "flow": "acme",
            "position": 1, "waited_ms": 1_250, "estimate_ms": 1_000, "tag": 12.5, "why": "the gate is full",
            "endpoint": null,
        });
        assert_eq!(document, Some(expected));
    }

    #[test]
    fn who_runs_has_an_endpoint_and_no_position() {
        let running = RequestState::Running {
            endpoint: "127.0.0.1:1".into(),
        };
        let document = document(&request(false, running), Shown::Public).expect("known");
        let of = ["state", "outcome", "position", "endpoint"].map(|key| document[key].clone());
        assert_eq!(json!(of), json!(["running", "bypassed", null, "127.0.0.1:1"]));
    }

    #[test]
    fn a_private_flow_is_for_who_has_the_token() {
        let running = || RequestState::Running {
            endpoint: Box::default(),
        };
        let flow = |private, shown| {
            let document = document(&request(private, running()), shown).expect("known");
            document["flow"].as_str().map(str::to_owned)
        };
        assert_eq!(flow(true, Shown::Public).as_deref(), Some("other"));
        assert_eq!(flow(true, Shown::Everything).as_deref(), Some("acme"));
        assert_eq!(flow(false, Shown::Public).as_deref(), Some("acme"));
    }
}
