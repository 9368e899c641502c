//! `/config`: shows, replaces and patches the active document. Its ETag is its digest.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::guards::not_the_leader;
use crate::active::reload::{ActiveConfig, Change, ChangeError};

/// Bytes of a document or a patch.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// The header of the answer to a change that only this companion knows.
const LOST_AT_FAILOVER: HeaderValue = HeaderValue::from_static(
    "299 penstock \"not persisted: the change is lost at a failover; change the file of each companion\"",
);

/// `?persist=true`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ChangeQuery {
    persist: bool,
}

pub(super) async fn show(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let now = app.config.active();
    let tags = EntityTags::parse(&headers, header::IF_NONE_MATCH);
    if tags.is_some_and(|tags| tags.match_digest(now.document.digest())) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag(&now))]).into_response();
    }
    document(&now)
}

pub(super) async fn replace(
    State(app): State<Arc<App>>,
    Query(query): Query<ChangeQuery>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(why) = serde_json::from_slice::<serde::de::IgnoredAny>(&body) {
        return invalid_json(&why);
    }
    match String::from_utf8(body.into()) {
        Ok(text) => change(&app, Change::Put(text), &headers, &query).await,
        Err(why) => error(StatusCode::BAD_REQUEST, "invalid_json", &why.to_string()),
    }
}

pub(super) async fn patch(
    State(app): State<Arc<App>>,
    Query(query): Query<ChangeQuery>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match serde_json::from_slice(&body) {
        Ok(patch) => change(&app, Change::Patch(patch), &headers, &query).await,
        Err(why) => invalid_json(&why),
    }
}

async fn change(app: &App, change: Change, headers: &HeaderMap, query: &ChangeQuery) -> Response {
    let only_if = match EntityTags::parse(headers, header::IF_MATCH) {
        Some(EntityTags::Listed(tags)) => Some(tags),
        // `*` matches any document, and there always is one.
        Some(EntityTags::Any) | None => None,
    };
    match app.config.change(change, only_if, query.persist).await {
        Ok(now) if app.roles.is_some() && !query.persist => {
            let mut response = document(&now);
            response.headers_mut().insert(header::WARNING, LOST_AT_FAILOVER);
            response
        }
        Ok(now) => document(&now),
        Err(why) => {
            let (status, code) = match &why {
                ChangeError::OtherLeader { pool, leader } => {
                    let why = format!("this companion is a standby for the pool `{pool}`");
                    return not_the_leader(&why, leader.as_deref());
                }
                ChangeError::Stale(_) => (StatusCode::PRECONDITION_FAILED, "config_changed"),
                ChangeError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_config"),
                ChangeError::Unwritable { .. } => (StatusCode::CONFLICT, "unwritable_config"),
                ChangeError::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
            };
            error(status, code, &why.to_string())
        }
    }
}

fn document(now: &ActiveConfig) -> Response {
    ([(header::ETAG, etag(now))], axum::Json(now.document.masked())).into_response()
}

fn etag(now: &ActiveConfig) -> String {
    format!("\"{}\"", now.document.digest())
}

/// The entity tags of a conditional request.
#[derive(Debug, PartialEq, Eq)]
enum EntityTags {
    /// `*`.
    Any,
    /// The strong tags. Weak and unquoted ones are left out, because they never match.
    Listed(Vec<String>),
}

impl EntityTags {
    /// `None`: the header is absent.
    fn parse(headers: &HeaderMap, name: HeaderName) -> Option<Self> {
        let mut tags = Vec::new();
        let mut lines = headers.get_all(name).iter().peekable();
        lines.peek()?;
        for line in lines {
            for tag in line.to_str().unwrap_or_default().split(',').map(str::trim) {
                if tag == "*" {
                    return Some(Self::Any);
                }
                let unquoted = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                tags.extend(unquoted.map(str::to_owned));
            }
        }
        Some(Self::Listed(tags))
    }

    fn match_digest(&self, digest: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(tags) => tags.iter().any(|tag| tag == digest),
        }
    }
}

fn invalid_json(why: &serde_json::Error) -> Response {
    error(StatusCode::BAD_REQUEST, "invalid_json", &format!("the body is not valid JSON: {why}"))
}

pub(super) fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let kind = if status.is_client_error() { "invalid_request_error" } else { "service_unavailable" };
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    (status, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags_of(lines: &[&str]) -> Option<EntityTags> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::IF_MATCH, line.parse().expect("a value"));
        }
        EntityTags::parse(&headers, header::IF_MATCH)
    }

    #[test]
    fn entity_tags_are_a_list_or_any() {
        assert_eq!(tags_of(&[]), None);
        assert_eq!(tags_of(&["*"]), Some(EntityTags::Any));
        assert_eq!(
            tags_of(&["\"a\", \"b\"", "\"c\""]),
            Some(EntityTags::Listed(vec!["a".into(), "b".into(), "c".into()]))
        );
        assert_eq!(tags_of(&["W/\"a\", b"]), Some(EntityTags::Listed(Vec::new())));
    }
}
