//! `/readyz`: whether this companion can do its part. A leader can grant; a standby can become the leader.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use penstock_control::Status;
use serde::Deserialize;
use serde_json::json;

use super::App;
use crate::metrics::thousandths;
use crate::phase::Phase;
use crate::role::Role;

/// How long `/readyz` waits for a connection to Envoy's listener.
const PROBE_MAX: Duration = Duration::from_millis(500);

/// `?pool=NAME&max_saturation=0.9`
#[derive(Debug, Deserialize)]
pub(super) struct ReadyQuery {
    pool: Option<String>,
    max_saturation: Option<f64>,
}

/// Handles `GET /readyz`. With `replicas` the answer is a JSON object with the role, otherwise a line of text.
pub(super) async fn show(State(app): State<Arc<App>>, Query(query): Query<ReadyQuery>) -> Response {
    let role = app.role();
    let ready = match &role {
        Some(Role { is_leader: false, .. }) => app.standby_is_ready().await,
        Some(_) | None => app.ready(&query).await,
    };
    let code = match ready {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    match (role, ready) {
        (None, Ok(())) => "ready\n".into_response(),
        (None, Err(why)) => (code, format!("not ready: {why}\n")).into_response(),
        (Some(role), ready) => {
            let mut body = json!({"ready": ready.is_ok(), "role": role.as_str(), "leader": role.leader});
            if let Err(why) = ready {
                body["why"] = why.into();
            }
            (code, axum::Json(body)).into_response()
        }
    }
}

impl App {
    /// A standby has no requests, and no sessions of its own.
    async fn standby_is_ready(&self) -> Result<(), String> {
        self.is_serving(&self.status().await?)
    }

    fn is_serving(&self, status: &Status) -> Result<(), String> {
        if status.draining || *self.phase.borrow() != Phase::Serving {
            return Err("shutting down".into());
        }
        Ok(())
    }

    async fn ready(&self, query: &ReadyQuery) -> Result<(), String> {
        let status = self.status().await?;
        self.is_serving(&status)?;
        let open = status.sessions.iter().filter(|session| session.open).count();
        // A worker that has lost its VM makes a new one only with its next request, and without /readyz no request comes:
        // once all sessions were open, one open session is enough.
        let is_short = !(status.gathered && open > 0);
        if let Some(expected) = self.sessions_expected
            && open < expected
            && is_short
        {
            return Err(format!(
                "{open} of {expected} sessions of Envoy's workers are open"
            ));
        }
        if !status.started {
            return Err("waiting for the sessions of Envoy's workers".into());
        }
        if let Some(gateway) = self.gateway {
            match tokio::time::timeout(PROBE_MAX, tokio::net::TcpStream::connect(gateway)).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return Err(format!("Envoy's listener {gateway} refuses connections")),
            }
        }
        check_saturation(&status, query)
    }
}

fn check_saturation(status: &Status, query: &ReadyQuery) -> Result<(), String> {
    let Some(limit) = query.max_saturation else {
        return Ok(());
    };
    let mut found = false;
    for pool in status
        .pools
        .iter()
        .filter(|pool| query.pool.as_deref().is_none_or(|name| name == &*pool.name))
    {
        found = true;
        let saturation = thousandths(pool.snapshot.saturation_milli);
        if saturation > limit {
            return Err(format!(
                "pool `{}` is at {saturation:.2}, above {limit}",
                pool.name
            ));
        }
    }
    if found {
        Ok(())
    } else {
        Err("no pool has this name".into())
    }
}
