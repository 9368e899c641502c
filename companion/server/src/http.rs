//! The HTTP side: health, metrics, status, the dashboard, the configuration, and the order to drain. Whoever may ask for what is in `admin`.

pub mod admin;
mod config;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post, put};
use penstock_control::{Event, Status};
use serde::Deserialize;
use tokio::sync::watch;

use self::admin::Peer;

use crate::advice::{self, Facts};
use crate::clock::Clock;
use crate::driver::Handle;
use crate::listener::Listener;
use crate::metrics::{Metrics, thousandths};
use crate::reload;
use crate::serve::Life;
use crate::status::{self, Shown, Written};

/// A probe of Envoy's listener that takes longer has failed.
const PROBE: Duration = Duration::from_millis(500);

/// What the HTTP side needs to answer.
#[derive(Clone, Debug)]
pub struct App {
    /// Where the truth is.
    pub driver: Handle,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// When this started.
    pub clock: Clock,
    /// Sessions without which this isn't ready; `None`: nobody said.
    pub sessions_expected: Option<usize>,
    /// Envoy's listener, which must be open; `None`: nobody said.
    pub gateway: Option<SocketAddr>,
    /// The configuration, which says who may ask for what.
    pub config: reload::Handle,
    /// How far the companion's life has come.
    pub life: watch::Receiver<Life>,
}

/// Serves HTTP until `shutdown` ends.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    listener: Listener,
    app: App,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let reads = app.config.clone();
    let changes = Router::new()
        .route("/drain", post(drain))
        .route("/config", put(config::replace).patch(config::patch))
        .layer(DefaultBodyLimit::max(config::BYTES_MAX))
        .layer(middleware::from_fn_with_state(reads.clone(), admin::may_change));
    let router = Router::new()
        .route("/", get(dashboard))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status_document))
        .route("/config", get(config::show))
        .route("/requests/{id}", get(requests::show))
        .merge(changes)
        .layer(middleware::from_fn_with_state(reads, admin::host_is_ours))
        .with_state(Arc::new(app))
        .into_make_service_with_connect_info::<Peer>();
    match listener {
        Listener::Tcp(listener) => {
            axum::serve(listener, router)
                .with_graceful_shutdown(shutdown)
                .await
        }
        Listener::Unix(listener, _path) => {
            axum::serve(listener, router)
                .with_graceful_shutdown(shutdown)
                .await
        }
    }
}

async fn dashboard() -> Html<&'static str> {
    Html(include_str!("dashboard.html"))
}

/// `?pool=NAME&max_saturation=0.9`
#[derive(Debug, Deserialize)]
struct ReadyQuery {
    pool: Option<String>,
    max_saturation: Option<f64>,
}

async fn readyz(State(app): State<Arc<App>>, Query(query): Query<ReadyQuery>) -> Response {
    match app.ready(&query).await {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

impl App {
    async fn status(&self) -> Result<Status, String> {
        self.driver.status().await.map_err(|gone| gone.to_string())
    }

    /// What of the flows' identities whoever asks so is shown.
    fn shown(&self, headers: &HeaderMap) -> Shown {
        if self.config.in_force().admin.has_token(headers) {
            Shown::Everything
        } else {
            Shown::Public
        }
    }

    async fn ready(&self, query: &ReadyQuery) -> Result<(), String> {
        let status = self.status().await?;
        if status.draining || *self.life.borrow() != Life::Serving {
            return Err("shutting down".into());
        }
        let open = status.sessions.iter().filter(|it| it.open).count();
        // A worker whose VM was lost makes another one only for its next request, so that one must come: from here on it
        // is enough that Envoy speaks at all.
        let missed = !(status.gathered && open > 0);
        if let Some(expected) = self.sessions_expected
            && open < expected
            && missed
        {
            return Err(format!(
                "{open} of {expected} sessions of Envoy's workers are open"
            ));
        }
        if !status.started {
            return Err("waiting for the sessions of Envoy's workers".into());
        }
        if let Some(gateway) = self.gateway {
            match tokio::time::timeout(PROBE, tokio::net::TcpStream::connect(gateway)).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return Err(format!("Envoy's listener {gateway} isn't open")),
            }
        }
        saturated(&status, query)
    }
}

fn saturated(status: &Status, query: &ReadyQuery) -> Result<(), String> {
    let Some(most) = query.max_saturation else {
        return Ok(());
    };
    let mut found = false;
    for pool in status
        .pools
        .iter()
        .filter(|it| query.pool.as_deref().is_none_or(|name| name == &*it.name))
    {
        found = true;
        let saturation = thousandths(pool.snapshot.saturation_milli);
        if saturation > most {
            return Err(format!(
                "pool `{}` is at {saturation:.2}, above {most}",
                pool.name
            ));
        }
    }
    if found {
        Ok(())
    } else {
        Err("there is no such pool".into())
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let status = match app.status().await {
        Ok(status) => status,
        Err(why) => return (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    };
    match app.metrics.render(&status) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status_document(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let look = match app.driver.look().await {
        Ok(look) => look,
        Err(gone) => return (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    };
    let config = app.config.in_force();
    let (now, uptime) = (app.clock.now(), app.clock.uptime());
    let advice = advice::of(&Facts {
        status: &look.status,
        recent: &look.recent,
        config: &config.config,
        config_error: config.last_error.as_deref(),
        now,
        uptime,
    });
    let shown = app.shown(&headers);
    let written = Written::of(&config);
    axum::Json(status::document(
        &look.status,
        now,
        uptime,
        shown,
        &written,
        &advice,
    ))
    .into_response()
}

/// `{"off": true}`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DrainOrder {
    off: bool,
}

async fn drain(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let order = match &*body {
        [] => Ok(DrainOrder::default()),
        json => serde_json::from_slice::<DrainOrder>(json),
    };
    let on = match order {
        Ok(order) => !order.off,
        Err(why) => {
            let why = format!("400: this takes {{}} or {{\"off\": true}}: {why}\n");
            return (StatusCode::BAD_REQUEST, why).into_response();
        }
    };
    if *app.life.borrow() != Life::Serving {
        return (StatusCode::CONFLICT, "409: the companion is shutting down\n").into_response();
    }
    match app.driver.tell(Event::Drain(on)).await {
        Ok(()) => {
            tracing::info!(on, "told to drain");
            axum::Json(serde_json::json!({"draining": on})).into_response()
        }
        Err(gone) => (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    }
}
