//! Middleware that applies the rules for access to every request.

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::remote::Remote;
use crate::active::reload;
use crate::base::role::RoleReceiver;

/// Rejects requests with foreign Host headers, so that a web page can't read responses through its visitor's browser.
pub(super) async fn host_is_allowed(
    State(config): State<reload::Handle>,
    request: Request,
    next: Next,
) -> Response {
    let admin = config.active().admin;
    let host = request.headers().get(header::HOST);
    let host = host.map_or(Ok("localhost"), |value| value.to_str());
    let target = request.uri().authority().map_or("localhost", |authority| authority.as_str());
    if host.is_ok_and(|host| admin.allows_host(host)) && admin.allows_host(target) {
        next.run(request).await
    } else {
        (
            StatusCode::FORBIDDEN,
            "403: this Host header isn't allowed; use localhost or an address, or add the name to admin.hosts\n",
        )
            .into_response()
    }
}

/// Rejects changes at a standby of all pools: the leader's configuration counts, and only the leader has requests to drain.
pub(super) async fn leads(State(roles): State<RoleReceiver>, request: Request, next: Next) -> Response {
    match roles.as_ref().map(|roles| roles.borrow().summary()) {
        Some(role) if !role.is_leader() => {
            not_the_leader("this companion is a standby", role.leader.as_deref())
        }
        Some(_) | None => next.run(request).await,
    }
}

/// The answer to a change that only another companion can make. `why`: why this one can't.
pub(super) fn not_the_leader(why: &str, leader: Option<&str>) -> Response {
    let message = match leader {
        Some(leader) => {
            format!("{why}; send the request to the leader, which listens for filters at {leader}")
        }
        None => format!("{why}, and no companion leads; try again"),
    };
    let body = json!({
        "leader": leader,
        "error": {"message": message, "type": "invalid_request_error", "param": null, "code": "not_the_leader"},
    });
    (StatusCode::MISDIRECTED_REQUEST, axum::Json(body)).into_response()
}

/// Rejects changes without permission, and bodies other than JSON.
pub(super) async fn change_is_allowed(
    State(config): State<reload::Handle>,
    ConnectInfo(remote): ConnectInfo<Remote>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(unauthorized) = config.active().admin.check_change(request.headers(), remote.peer()) {
        return unauthorized.into_response();
    }
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default().trim();
    if content_type.eq_ignore_ascii_case("application/json") {
        next.run(request).await
    } else {
        // An HTML form can't send this content type.
        let why = "415: the request needs Content-Type: application/json\n";
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response()
    }
}
