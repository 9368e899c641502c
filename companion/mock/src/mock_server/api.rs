//! The HTTP side: from a request to a job, and from the job's tokens to an answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use penstock_model_server::Refused;
use serde_json::json;

use super::ask::{Api, Ask, Length};
use super::clock::Clock;
use super::dialect::{self, Answer, Sse};
use super::driver::{Arrival, Handle, Piece, Ticket};
use super::log::Seen;
use super::metrics::Metrics;

/// The largest body that is read; above what the gateway lets through.
const BODY_BYTES_MAX: usize = 64 << 20;

/// What every handler has.
#[derive(Clone)]
pub(super) struct App {
    pub(super) driver: Handle,
    pub(super) metrics: Metrics,
    pub(super) address: SocketAddr,
    /// Names it answers to; empty: all.
    pub(super) models: std::sync::Arc<[String]>,
}

pub(super) fn router(app: App) -> Router {
    Router::new()
        .route(
            "/v1/chat/completions",
            post(|s, h, b| serve(Api::Chat, "/v1/chat/completions", s, h, b)),
        )
        .route(
            "/v1/completions",
            post(|s, h, b| serve(Api::Completions, "/v1/completions", s, h, b)),
        )
        .route(
            "/v1/embeddings",
            post(|s, h, b| serve(Api::Embeddings, "/v1/embeddings", s, h, b)),
        )
        .route(
            "/v1/responses",
            post(|s, h, b| serve(Api::Responses, "/v1/responses", s, h, b)),
        )
        .route(
            "/v1/messages",
            post(|s, h, b| serve(Api::Messages, "/v1/messages", s, h, b)),
        )
        .route("/v1/models", get(models))
        .route("/health", get(async || StatusCode::OK))
        .route("/metrics", get(metrics))
        .route("/mock/log", get(log))
        .route("/mock/stats", get(stats))
        .fallback(async || Failure::not_found("there is no such path on this server".to_owned()).openai())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

/// An answer that is no answer.
struct Failure {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    message: String,
}

impl Failure {
    fn invalid(message: String) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: None,
            message,
        }
    }

    fn not_found(message: String) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "invalid_request_error",
            code: None,
            message,
        }
    }

    fn unavailable(message: String) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "service_unavailable",
            code: None,
            message,
        }
    }

    fn into_response(self, api: Api) -> Response {
        let body = dialect::of(api).error(self.kind, self.code, &self.message);
        (self.status, Json(body)).into_response()
    }

    fn openai(self) -> Response {
        self.into_response(Api::Chat)
    }
}

async fn serve(
    api: Api,
    path: &'static str,
    State(app): State<App>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let mut response = match prepare(api, path, &app, &headers, body).await {
        Ok((ask, ticket)) => {
            let in_flight = ticket.in_flight;
            let mut response = if ask.stream {
                streamed(api, ask, ticket)
            } else {
                whole(api, ask, ticket).await
            };
            set(&mut response, "x-mock-inflight", &in_flight.to_string());
            response
        }
        Err(failure) => failure.into_response(api),
    };
    set(&mut response, "x-mock-server", &app.address.to_string());
    if let Some(id) = headers.get("x-request-id") {
        response.headers_mut().insert("x-mock-request-id", id.clone());
    }
    response
}

/// From a body to a job that the server has taken.
async fn prepare(
    api: Api,
    path: &'static str,
    app: &App,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<(Ask, Ticket), Failure> {
    let ask = read(api, app, body).inspect_err(|_| app.driver.refused())?;
    let arrival = Arrival {
        seen: seen(path, &ask, headers),
        input: ask.input,
        length: ask.length,
    };
    match app.driver.submit(arrival).await {
        Ok(Ok(ticket)) => Ok((ask, ticket)),
        Ok(Err(refused @ Refused::TooLong { .. })) => Err(Failure {
            code: Some("context_length_exceeded"),
            ..Failure::invalid(refused.to_string())
        }),
        Ok(Err(refused @ Refused::Full)) => Err(Failure::unavailable(refused.to_string())),
        Err(stopped) => Err(Failure::unavailable(stopped.to_string())),
    }
}

fn read(api: Api, app: &App, body: Result<Bytes, BytesRejection>) -> Result<Ask, Failure> {
    let body = body.map_err(|e| Failure {
        status: e.status(),
        ..Failure::invalid(e.body_text())
    })?;
    let ask = Ask::parse(api, &body).map_err(|e| Failure::invalid(e.to_string()))?;
    if !app.models.is_empty() && !app.models.contains(&ask.model) {
        let message = format!(
            "The model `{}` does not exist; this server has: {}",
            ask.model,
            app.models.join(", ")
        );
        return Err(Failure {
            code: Some("model_not_found"),
            ..Failure::not_found(message)
        });
    }
    Ok(ask)
}

fn seen(path: &'static str, ask: &Ask, headers: &HeaderMap) -> Seen {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let first = |names: &[&str]| names.iter().find_map(|name| headers.get(*name)).map(text);
    let mut ours: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let name = name.as_str();
        if name.starts_with("x-gateway-") || name.starts_with("x-penstock-") {
            // A header that came twice is shown as one line, as a proxy may join it.
            let line = ours.entry(name.to_owned()).or_default();
            if !line.is_empty() {
                line.push_str(", ");
            }
            line.push_str(&text(value));
        }
    }
    Seen {
        path,
        model: ask.model.clone(),
        stream: ask.stream,
        request_id: first(&["x-request-id"]),
        tenant: first(&[
            "x-gateway-inference-fairness-id",
            "x-llm-d-inference-fairness-id",
            "x-penstock-tenant",
        ]),
        priority: first(&[
            "x-penstock-priority",
            "x-nexus-priority",
            "x-gateway-inference-objective",
        ]),
        headers: ours,
    }
}

fn answer(ask: Ask, ticket: &Ticket) -> Answer {
    Answer {
        number: ticket.order,
        created: Clock::unix_s(),
        model: ask.model,
        input: ask.input,
        output: 0,
        text: String::new(),
        limited: matches!(ask.length, Length::Exactly(_)),
        include_usage: ask.include_usage,
        inputs: ask.inputs,
        base64: ask.base64,
    }
}

async fn whole(api: Api, ask: Ask, mut ticket: Ticket) -> Response {
    let mut answer = answer(ask, &ticket);
    loop {
        match ticket.next().await {
            Some(Piece::Token) => {
                answer.push();
            }
            Some(Piece::Done) => return Json(dialect::of(api).whole(&answer)).into_response(),
            None => {
                return Failure::unavailable("this server stopped before the answer was done".to_owned())
                    .into_response(api);
            }
        }
    }
}

/// The headers go at once; the tokens follow as they come. A server that ends cuts the stream.
fn streamed(api: Api, ask: Ask, ticket: Ticket) -> Response {
    let answer = answer(ask, &ticket);
    let chunks = stream::unfold(Some((ticket, answer)), move |state| async move {
        let (mut ticket, mut answer) = state?;
        let dialect = dialect::of(api);
        let mut out = Sse::default();
        match ticket.next().await {
            Some(Piece::Token) => {
                if answer.output == 0 {
                    dialect.open(&answer, &mut out);
                }
                let text = answer.push();
                dialect.token(&answer, text, &mut out);
                Some((Ok(out.into_bytes()), Some((ticket, answer))))
            }
            Some(Piece::Done) => {
                dialect.close(&answer, &mut out);
                Some((Ok(out.into_bytes()), None))
            }
            None => Some((Err(std::io::Error::other("the server stopped")), None)),
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

async fn models(State(app): State<App>) -> Response {
    let names: Vec<&str> = if app.models.is_empty() {
        vec![super::DEFAULT_MODEL]
    } else {
        app.models.iter().map(String::as_str).collect()
    };
    let data: Vec<_> = names
        .into_iter()
        .map(|id| json!({"id": id, "object": "model", "created": Clock::unix_s(), "owned_by": "penstock"}))
        .collect();
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn metrics(State(app): State<App>) -> Response {
    match app.metrics.text() {
        Ok(text) => (
            [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn log(State(app): State<App>) -> Response {
    match app.driver.log().await {
        Ok(log) => Json(log).into_response(),
        Err(stopped) => Failure::unavailable(stopped.to_string()).openai(),
    }
}

async fn stats(State(app): State<App>) -> Response {
    match app.driver.stats().await {
        Ok(stats) => Json(stats).into_response(),
        Err(stopped) => Failure::unavailable(stopped.to_string()).openai(),
    }
}

fn set(response: &mut Response, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
}
