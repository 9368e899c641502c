//! /config: the document in force, shown, replaced and patched. An ETag is its digest.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::App;
use crate::reload::{Change, InForce, Refused};

/// Bytes of a document or a patch.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// `?persist=true`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct How {
    persist: bool,
}

pub(super) async fn show(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let now = app.config.in_force();
    let known = tags(&headers, header::IF_NONE_MATCH);
    if known.is_some_and(|it| it.is_none_or(|any| any.iter().any(|it| it == now.document.digest()))) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag(&now))]).into_response();
    }
    document(&now)
}

pub(super) async fn replace(
    State(app): State<Arc<App>>,
    Query(how): Query<How>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(why) = serde_json::from_slice::<serde::de::IgnoredAny>(&body) {
        return no_json(&why);
    }
    match String::from_utf8(body.into()) {
        Ok(text) => change(&app, Change::Put(text), &headers, &how).await,
        Err(why) => error(StatusCode::BAD_REQUEST, "invalid_json", &why.to_string()),
    }
}

pub(super) async fn patch(
    State(app): State<Arc<App>>,
    Query(how): Query<How>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match serde_json::from_slice(&body) {
        Ok(patch) => change(&app, Change::Patch(patch), &headers, &how).await,
        Err(why) => no_json(&why),
    }
}

async fn change(app: &App, change: Change, headers: &HeaderMap, how: &How) -> Response {
    // `*`: any document will do, and there is always one.
    let only_if = tags(headers, header::IF_MATCH).flatten();
    match app.config.change(change, only_if, how.persist).await {
        Ok(now) => document(&now),
        Err(why) => {
            let (status, code) = match why {
                Refused::Stale(_) => (StatusCode::PRECONDITION_FAILED, "config_changed"),
                Refused::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_config"),
                Refused::Unwritable { .. } => (StatusCode::CONFLICT, "unwritable_config"),
                Refused::Ending => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
            };
            error(status, code, &why.to_string())
        }
    }
}

fn document(now: &InForce) -> Response {
    ([(header::ETAG, etag(now))], axum::Json(now.document.masked())).into_response()
}

fn etag(now: &InForce) -> String {
    format!("\"{}\"", now.document.digest())
}

/// The tags of a header; `Some(None)`: any. A weak one is never the same document, nor is one that isn't quoted.
fn tags(headers: &HeaderMap, name: HeaderName) -> Option<Option<Vec<String>>> {
    let mut tags = Vec::new();
    let mut lines = headers.get_all(name).iter().peekable();
    lines.peek()?;
    for line in lines {
        for tag in line.to_str().unwrap_or_default().split(',').map(str::trim) {
            if tag == "*" {
                return Some(None);
            }
            let bare = tag.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
            tags.extend(bare.map(str::to_owned));
        }
    }
    Some(Some(tags))
}

fn no_json(why: &serde_json::Error) -> Response {
    error(
        StatusCode::BAD_REQUEST,
        "invalid_json",
        &format!("the body is no JSON: {why}"),
    )
}

fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let kind = if status.is_client_error() {
        "invalid_request_error"
    } else {
        "service_unavailable"
    };
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    (status, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags_of(lines: &[&str]) -> Option<Option<Vec<String>>> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::IF_MATCH, line.parse().expect("a value"));
        }
        tags(&headers, header::IF_MATCH)
    }

    #[test]
    fn tags_are_listed_or_any() {
        assert_eq!(tags_of(&[]), None);
        assert_eq!(tags_of(&["*"]), Some(None));
        assert_eq!(
            tags_of(&["\"a\", \"b\"", "\"c\""]),
            Some(Some(vec!["a".into(), "b".into(), "c".into()]))
        );
        assert_eq!(tags_of(&["W/\"a\", b"]), Some(Some(Vec::new())));
    }
}
