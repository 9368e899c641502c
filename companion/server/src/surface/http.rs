//! The HTTP server: health, metrics, status, the dashboard, the configuration, and drain. The rules for access are in
//! [`crate::base::admin`].

mod budgets;
mod config;
mod dashboard;
mod guards;
mod readiness;
mod remote;
mod requests;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post, put};
use axum::{Router, middleware};
use penstock_control::{Event, Status};
use serde::Deserialize;
use tokio::sync::watch;

use self::remote::Remote;
use crate::active::reload;
use crate::base::clock::Clock;
use crate::base::listener::Listener;
use crate::base::phase::Phase;
use crate::base::role::{RoleReceiver, Roles};
use crate::decisions::driver::Handle;
use crate::discovery::States;
use crate::metrics::Metrics;
use crate::surface::advice::{self, Facts};
use crate::surface::history::{History, HistoryQuery};
use crate::surface::status;
use crate::surface::visibility::FlowVisibility;

/// The state of the HTTP server.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// The decision task.
    pub(crate) driver: Handle,
    /// The exported metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// The clock of the decisions.
    pub(crate) clock: Clock,
    /// Open Envoy sessions without which `/readyz` is 503; `None`: any number is enough.
    pub(crate) sessions_expected: Option<usize>,
    /// Envoy's listener, which must be open for `/readyz`; `None`: its address isn't known.
    pub(crate) gateway: Option<SocketAddr>,
    /// The active configuration, which contains the rules for access.
    pub(crate) config: reload::Handle,
    /// The phase of the companion's life.
    pub(crate) phase: watch::Receiver<Phase>,
    /// The roles among several companions.
    pub(crate) roles: RoleReceiver,
    /// Whether the discovery of each pool works.
    pub(crate) discoveries: States,
    /// The samples of the last minutes.
    pub(crate) history: Arc<History>,
    /// The filter's modules.
    pub(crate) filter: FilterModules,
}

/// The modules of the filter, which Envoys fetch from the companion.
#[derive(Clone, Copy, Debug)]
pub struct FilterModules {
    /// WebAssembly, at `/penstock.wasm`.
    pub wasm: fn() -> &'static [u8],
    /// Native code, at `/penstock.so`; empty: this build has none.
    pub native: fn() -> &'static [u8],
}

/// Serves HTTP until `shutdown` returns.
///
/// # Errors
/// When the transport fails.
pub(crate) async fn serve(
    listener: Listener,
    app: App,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let config = app.config.clone();
    let FilterModules { wasm, native } = app.filter;
    let changes = Router::new()
        .route("/drain", post(drain))
        .route("/config", put(config::replace).patch(config::patch))
        .route("/budgets/{pool}/{*flow}", patch(budgets::change))
        .layer(DefaultBodyLimit::max(config::BYTES_MAX))
        // For these routes only: an unknown path is 404 to everybody, not 401.
        .route_layer(middleware::from_fn_with_state(app.roles.clone(), guards::leads))
        .route_layer(middleware::from_fn_with_state(config.clone(), guards::change_is_allowed));
    let router = Router::new()
        .merge(dashboard::routes())
        .route("/history", get(history))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness::show))
        .route("/metrics", get(metrics))
        .route("/status", get(status_document))
        .route("/config", get(config::show))
        .route("/budgets", get(budgets::list))
        .route("/requests/{id}", get(requests::show))
        .merge(changes)
        .layer(middleware::from_fn_with_state(config, guards::host_is_allowed))
        // Under any name that the gateway knows: the modules are no secret, and a web page can do nothing with them.
        .route("/penstock.wasm", get(async move || ([(header::CONTENT_TYPE, "application/wasm")], wasm())))
        .route(
            "/penstock.so",
            get(async move || {
                let native = native();
                if native.is_empty() {
                    return (StatusCode::NOT_FOUND, "this build has no native filter\n").into_response();
                }
                ([(header::CONTENT_TYPE, "application/octet-stream")], native).into_response()
            }),
        )
        .with_state(Arc::new(app))
        .into_make_service_with_connect_info::<Remote>();
    match listener {
        Listener::Tcp(listener) => axum::serve(listener, router).with_graceful_shutdown(shutdown).await,
        Listener::Unix(listener, _path) => {
            axum::serve(listener, router).with_graceful_shutdown(shutdown).await
        }
    }
}

impl App {
    async fn status(&self) -> Result<Status, String> {
        self.driver.status().await.map_err(|gone| gone.to_string())
    }

    /// The present roles; `None` without `replicas`.
    fn roles(&self) -> Option<Roles> {
        self.roles.as_ref().map(|roles| roles.borrow().clone())
    }

    /// Which identities of flows the sender of these headers may see.
    fn flow_visibility(&self, headers: &HeaderMap) -> FlowVisibility {
        if self.config.active().admin.has_token(headers) {
            FlowVisibility::All
        } else {
            FlowVisibility::Public
        }
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let status = match app.status().await {
        Ok(status) => status,
        Err(why) => return (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    };
    let budgets = match app.driver.budgets().await {
        Ok(budgets) => budgets,
        Err(gone) => return (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    };
    match app.metrics.render(&status, &budgets, app.roles().as_ref()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status_document(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let overview = match app.driver.overview().await {
        Ok(overview) => overview,
        Err(gone) => return (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    };
    let budgets = match app.driver.budgets().await {
        Ok(budgets) => budgets,
        Err(gone) => return (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    };
    let (config, roles) = (app.config.active(), app.roles());
    let (now, uptime) = (app.clock.now(), app.clock.uptime());
    let config_error = config.last_error.as_deref();
    let advice = advice::of(&Facts {
        status: &overview.status,
        recent: &overview.recent,
        config: &config.config,
        config_error,
        roles: roles.as_ref(),
        discoveries: Some(&app.discoveries),
        liveness: &app.metrics.liveness,
        now,
        uptime,
    });
    let report = status::ConfigReport::new(&config)
        .with_roles(roles.as_ref(), config.config.replicas.as_ref())
        .with_check_failures(app.config.check_failures())
        .with_discoveries(&app.discoveries);
    let visibility = app.flow_visibility(&headers);
    let mut document = status::document(&overview.status, now, uptime, visibility, &report, &advice);
    crate::surface::budgets::add_to_status(&mut document, &budgets, visibility, app.present());
    axum::Json(document).into_response()
}

async fn history(
    State(app): State<Arc<App>>,
    Query(query): Query<HistoryQuery>,
    headers: HeaderMap,
) -> Response {
    match app.history.document(&query, app.flow_visibility(&headers)) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// `{"off": true}`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DrainRequest {
    off: bool,
}

async fn drain(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let request = match &*body {
        [] => Ok(DrainRequest::default()),
        json => serde_json::from_slice::<DrainRequest>(json),
    };
    let drains = match request {
        Ok(request) => !request.off,
        Err(why) => {
            let why = format!("400: the body must be {{}} or {{\"off\": true}}: {why}\n");
            return (StatusCode::BAD_REQUEST, why).into_response();
        }
    };
    if *app.phase.borrow() != Phase::Serving {
        return (StatusCode::CONFLICT, "409: the companion is shutting down\n").into_response();
    }
    match app.driver.send(Event::Drain(drains)).await {
        Ok(()) => {
            tracing::info!(on = drains, "drain changed by POST /drain");
            axum::Json(serde_json::json!({"draining": drains})).into_response()
        }
        Err(gone) => (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    }
}
