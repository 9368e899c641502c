//! The HTTP side: health, metrics, status and the dashboard. It looks, and changes nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use penstock_control::Status;
use serde::Deserialize;

use crate::clock::Clock;
use crate::driver::Handle;
use crate::listener::Listener;
use crate::metrics::{Metrics, thousandths};
use crate::status;

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
    let router = Router::new()
        .route("/", get(dashboard))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status_document))
        .layer(middleware::from_fn(host_is_ours))
        .with_state(Arc::new(app));
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

/// A page of somebody else must not read this through its visitor's browser.
async fn host_is_ours(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .map_or(Ok("localhost"), |it| it.to_str());
    let ours = host.is_ok_and(|host| {
        let name = host.rsplit_once(':').map_or(host, |(name, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) {
                name
            } else {
                host
            }
        });
        let name = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
    });
    if ours {
        next.run(request).await
    } else {
        (
            StatusCode::FORBIDDEN,
            "403: this Host isn't ours; ask for localhost or 127.0.0.1\n",
        )
            .into_response()
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

    async fn ready(&self, query: &ReadyQuery) -> Result<(), String> {
        let status = self.status().await?;
        if status.draining {
            return Err("shutting down".into());
        }
        let open = status.sessions.iter().filter(|it| it.open).count();
        if let Some(expected) = self.sessions_expected
            && open < expected
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

async fn status_document(State(app): State<Arc<App>>) -> Response {
    match app.status().await {
        Ok(status) => axum::Json(status::document(&status, app.clock.uptime())).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}
