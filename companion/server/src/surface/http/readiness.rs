//! `/readyz`: whether this companion can do its part. A leader can grant; a standby can become the leader.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use penstock_control::{Door, Status};
use penstock_engine::units::thousandths;
use serde::Deserialize;
use serde_json::json;

use super::App;
use crate::base::phase::Phase;
use crate::base::role::{self, Roles};

/// How long `/readyz` waits for a connection to Envoy's listener.
const PROBE_MAX: Duration = Duration::from_millis(500);

/// `?pool=NAME&max_saturation=0.9&discovery=false`
#[derive(Debug, Deserialize)]
pub(super) struct ReadyQuery {
    pool: Option<String>,
    max_saturation: Option<f64>,
    /// Whether each discovering pool must have had an answer; the default is `true`. `penstock up` starts without.
    discovery: Option<bool>,
}

/// Handles `GET /readyz`. With `replicas` the answer is a JSON object with the role, otherwise a line of text.
pub(super) async fn show(State(app): State<Arc<App>>, Query(query): Query<ReadyQuery>) -> Response {
    let roles = app.roles();
    let ready = match &roles {
        Some(roles) if !roles.leads_any() => app.standby_is_ready(&query).await,
        Some(_) | None => app.ready(&query, roles.as_ref()).await,
    };
    let role = roles.map(|roles| roles.summary());
    let code = match ready {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    match (role, ready) {
        (None, Ok(())) => "ready\n".into_response(),
        (None, Err(why)) => (code, format!("not ready: {why}\n")).into_response(),
        (Some(role), ready) => {
            let mut body =
                json!({"ready": ready.is_ok(), "role": role::as_str(&role), "leader": role.leader});
            if let Err(why) = ready {
                body["why"] = why.into();
            }
            (code, axum::Json(body)).into_response()
        }
    }
}

impl App {
    /// A standby has no requests, and no sessions of its own.
    async fn standby_is_ready(&self, query: &ReadyQuery) -> Result<(), String> {
        self.is_serving(&self.status().await?, query)
    }

    fn is_serving(&self, status: &Status, query: &ReadyQuery) -> Result<(), String> {
        if status.draining || *self.phase.borrow() != Phase::Serving {
            return Err("shutting down".into());
        }
        // Without endpoints, its requests would be answered 503.
        let unanswered = self.discoveries.unanswered();
        if let Some((pool, why)) = unanswered.filter(|_| query.discovery != Some(false)) {
            return Err(format!("the discovery of pool `{pool}` has found no list yet: {why}"));
        }
        Ok(())
    }

    async fn ready(&self, query: &ReadyQuery, roles: Option<&Roles>) -> Result<(), String> {
        let status = self.status().await?;
        self.is_serving(&status, query)?;
        let open = open_sessions(&status, roles);
        // A worker that has lost its VM makes a new one only with its next request, and without /readyz no request comes:
        // once all sessions were open, one open session is enough.
        let is_short = !(status.gathered && open > 0);
        if let Some(expected) = self.sessions_expected
            && open < expected
            && is_short
        {
            return Err(format!("{open} of {expected} sessions of Envoy's workers are open"));
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

/// The open sessions of Envoy's workers; where each pool has its own, those of the pool with the fewest, of the pools that this
/// companion leads.
fn open_sessions(status: &Status, roles: Option<&Roles>) -> usize {
    let open = |pool: Option<&str>| {
        let sessions = status.sessions.iter().filter(|session| session.door == Door::Filter);
        sessions.filter(|session| session.open && session.pool.as_deref() == pool).count()
    };
    match roles {
        Some(Roles::Pools(pools)) => {
            let led = pools.iter().filter(|(_, role)| role.is_leader());
            led.map(|(pool, _)| open(Some(&**pool))).min().unwrap_or(0)
        }
        Some(Roles::Gateway(_)) | None => open(None),
    }
}

fn check_saturation(status: &Status, query: &ReadyQuery) -> Result<(), String> {
    let Some(limit) = query.max_saturation else {
        return Ok(());
    };
    let mut found = false;
    for pool in
        status.pools.iter().filter(|pool| query.pool.as_deref().is_none_or(|name| name == &*pool.name))
    {
        found = true;
        let saturation = thousandths(pool.snapshot.saturation_milli);
        if saturation > limit {
            return Err(format!("pool `{}` is at {saturation:.2}, above {limit}", pool.name));
        }
    }
    if found { Ok(()) } else { Err("no pool has this name".into()) }
}
