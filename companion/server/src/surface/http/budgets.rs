//! `/budgets`: lists what flows have used of their budgets, and changes what is left of one.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use penstock_control::{BudgetChange, NoBudget};
use serde::Deserialize;

use super::App;
use super::config::error;
use super::guards::not_the_leader;
use super::remote::Remote;
use crate::surface::budgets::{self, Present};

/// Rows without `limit`.
const ROWS: usize = 1_000;
/// The largest `limit`.
const ROWS_MAX: usize = 100_000;

/// `?pool=chat&limit=10`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    pool: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Query(query): Query<ListQuery>,
    headers: HeaderMap,
) -> Response {
    let all = match app.driver.budgets().await {
        Ok(all) => all,
        Err(gone) => return (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    };
    let is_asked = |name: &str| query.pool.as_deref().is_none_or(|asked| asked == name);
    let most = query.limit.unwrap_or(ROWS).min(ROWS_MAX);
    let asked = all.iter().filter(|budgets| is_asked(&budgets.pool));
    let rows = budgets::rows(asked, app.flow_visibility(&headers), most, app.present());
    axum::Json(rows).into_response()
}

pub(super) async fn change(
    State(app): State<Arc<App>>,
    Path((pool, flow)): Path<(String, String)>,
    ConnectInfo(remote): ConnectInfo<Remote>,
    body: Bytes,
) -> Response {
    let Some(change) = parse(&body) else {
        let why =
            "the body must be {\"add_tokens\": N} with a whole number N of at least 1, or {\"reset\": true}";
        return error(StatusCode::UNPROCESSABLE_ENTITY, "invalid_budget_change", why);
    };
    let role = app.roles().map(|roles| roles.of(&pool));
    if let Some(role) = role.filter(|role| !role.is_leader()) {
        let why = format!("this companion is a standby for the pool `{pool}`");
        return not_the_leader(&why, role.leader.as_deref());
    }
    let changed = app.driver.change_budget(pool.as_str().into(), &flow, change);
    match changed.await {
        Ok(Ok(budget)) => {
            match change {
                BudgetChange::AddTokens(tokens) => {
                    tracing::info!(by = %remote, pool, flow, tokens, "budget topped up by PATCH /budgets");
                }
                BudgetChange::Reset => {
                    tracing::info!(by = %remote, pool, flow, "budget reset by PATCH /budgets");
                }
            }
            axum::Json(budgets::row(&pool, &budget, app.present())).into_response()
        }
        Ok(Err(why)) => refused(&pool, &flow, why),
        Err(gone) => (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    }
}

impl App {
    pub(super) fn present(&self) -> Present {
        Present { now: self.clock.now(), wall: SystemTime::now() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    add_tokens: Option<u64>,
    reset: Option<bool>,
}

/// `None`: neither a top-up nor a reset, or both.
fn parse(body: &[u8]) -> Option<BudgetChange> {
    match serde_json::from_slice(body).ok()? {
        ChangeBody { add_tokens: Some(tokens @ 1..), reset: None } => Some(BudgetChange::AddTokens(tokens)),
        ChangeBody { add_tokens: None, reset: Some(true) } => Some(BudgetChange::Reset),
        ChangeBody { .. } => None,
    }
}

fn refused(pool: &str, flow: &str, why: NoBudget) -> Response {
    let (status, code, message) = match why {
        NoBudget::UnknownPool => (
            StatusCode::NOT_FOUND,
            "unknown_pool",
            format!("there is no pool `{pool}`; GET /status lists the pools"),
        ),
        NoBudget::NoneMatches => (
            StatusCode::NOT_FOUND,
            "no_budget",
            format!("no entry of arbitration.flows.budgets of the pool `{pool}` matches the flow `{flow}`"),
        ),
        NoBudget::CountsNoTokens => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_budget_change",
            format!(
                "the budget of the flow `{flow}` counts requests only, so tokens can't be added; {{\"reset\": true}} is allowed"
            ),
        ),
    };
    error(status, code, &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_top_up_or_a_reset() {
        assert_eq!(parse(br#"{"add_tokens": 5}"#), Some(BudgetChange::AddTokens(5)));
        assert_eq!(parse(br#"{"reset": true}"#), Some(BudgetChange::Reset));
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"add_tokens": 0}"#,
            r#"{"add_tokens": -1}"#,
            r#"{"add_tokens": 1.5}"#,
            r#"{"add_tokens": "5"}"#,
            r#"{"reset": false}"#,
            r#"{"add_tokens": 5, "reset": true}"#,
            r#"{"add_requests": 5}"#,
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
