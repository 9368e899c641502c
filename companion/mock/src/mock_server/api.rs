//! The HTTP API: turns request bodies into jobs, and the tokens of jobs into responses.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use penstock_model_server::SubmitError;
use serde_json::json;

use super::clock::Clock;
use super::dialect::{self, Answer, Sse};
use super::driver::{Arrival, Handle, JobUpdate, Refusal, Ticket};
use super::log::RequestInfo;
use super::metrics::Metrics;
use super::request::{self, Api, ApiRequest, Length};
use super::sidecar;

/// The largest request body; above the gateway's own limit.
const BODY_BYTES_MAX: usize = 64 << 20;

/// State of every handler.
#[derive(Clone)]
pub(super) struct App {
    pub(super) driver: Handle,
    pub(super) metrics: Metrics,
    pub(super) address: SocketAddr,
    /// Names of the served models; empty: every name.
    pub(super) models: std::sync::Arc<[String]>,
    /// For the servers that compute prompts.
    pub(super) http: reqwest::Client,
}

const INFERENCE_PATHS: [(&str, Api); 5] = [
    ("/v1/chat/completions", Api::Chat),
    ("/v1/completions", Api::Completions),
    ("/v1/embeddings", Api::Embeddings),
    ("/v1/responses", Api::Responses),
    ("/v1/messages", Api::Messages),
];

pub(super) fn router(app: App) -> Router {
    let inference = INFERENCE_PATHS.into_iter().fold(Router::new(), |router, (path, api)| {
        router.route(path, post(move |state, headers, body| serve(api, path, state, headers, body)))
    });
    inference
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/v1/models", get(models))
        .route("/health", get(async || StatusCode::OK))
        .route("/metrics", get(metrics))
        .route("/mock/log", get(log))
        .route("/mock/stats", get(stats))
        .fallback(async || Failure::not_found("this server has no such path".to_owned()).openai())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

/// An error response.
struct Failure {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    message: String,
}

impl Failure {
    fn invalid(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "invalid_request_error", code: None, message }
    }

    fn not_found(message: String) -> Self {
        Self { status: StatusCode::NOT_FOUND, kind: "invalid_request_error", code: None, message }
    }

    fn unavailable(message: String) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, kind: "service_unavailable", code: None, message }
    }

    fn into_response(self, api: Api) -> Response {
        let body = dialect::for_api(api).error(self.kind, self.code, &self.message);
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
        Ok((request, ticket)) => {
            let in_flight = ticket.in_flight;
            let mut response = if request.stream {
                streamed(api, request, ticket)
            } else {
                whole(api, request, ticket).await
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

/// The length of a prompt, without any job.
async fn count_tokens(body: Bytes) -> Response {
    match request::count_tokens(&body) {
        Ok(tokens) => Json(json!({ "input_tokens": tokens })).into_response(),
        Err(error) => Failure::invalid(error.to_string()).into_response(Api::Messages),
    }
}

/// Reads a body and submits the job.
async fn prepare(
    api: Api,
    path: &'static str,
    app: &App,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<(ApiRequest, Ticket), Failure> {
    let body =
        body.map_err(|error| Failure { status: error.status(), ..Failure::invalid(error.body_text()) });
    let read = body.and_then(|body| Ok((read(api, app, &body)?, body)));
    let (request, body) = read.inspect_err(|_| app.driver.count_refused())?;
    let is_computed = sidecar::prefill(&app.http, api, path, headers, &body).await;
    let arrival = Arrival {
        info: request_info(path, &request, headers),
        input: request.input,
        cached: if is_computed { request.input } else { 0 },
        length: request.length,
    };
    match app.driver.submit(arrival).await {
        Ok(Ok(ticket)) => Ok((request, ticket)),
        Ok(Err(refusal @ Refusal::Busy(pushback))) => Err(Failure {
            status: StatusCode::from_u16(pushback.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            ..Failure::unavailable(refusal.to_string())
        }),
        Ok(Err(Refusal::Submit(error @ SubmitError::TooLong { .. }))) => {
            Err(Failure { code: Some("context_length_exceeded"), ..Failure::invalid(error.to_string()) })
        }
        Ok(Err(Refusal::Submit(error @ SubmitError::Full))) => Err(Failure::unavailable(error.to_string())),
        Err(stopped) => Err(Failure::unavailable(stopped.to_string())),
    }
}

fn read(api: Api, app: &App, body: &[u8]) -> Result<ApiRequest, Failure> {
    let request = ApiRequest::parse(api, body).map_err(|error| Failure::invalid(error.to_string()))?;
    if !app.models.is_empty() && !app.models.contains(&request.model) {
        let message = format!(
            "The model `{}` does not exist; this server has: {}",
            request.model,
            app.models.join(", ")
        );
        return Err(Failure { code: Some("model_not_found"), ..Failure::not_found(message) });
    }
    Ok(request)
}

fn request_info(path: &'static str, request: &ApiRequest, headers: &HeaderMap) -> RequestInfo {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let first = |names: &[&str]| names.iter().find_map(|name| headers.get(*name)).map(text);
    let mut gateway_headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let name = name.as_str();
        if ["x-gateway-", "x-penstock-", "x-prefiller-"].iter().any(|prefix| name.starts_with(prefix)) {
            // Repeated headers are joined into one line, as a proxy may do.
            let line = gateway_headers.entry(name.to_owned()).or_default();
            if !line.is_empty() {
                line.push_str(", ");
            }
            line.push_str(&text(value));
        }
    }
    RequestInfo {
        path,
        model: request.model.clone(),
        stream: request.stream,
        request_id: first(&["x-request-id"]),
        tenant: first(&[
            "x-gateway-inference-fairness-id",
            "x-llm-d-inference-fairness-id",
            "x-penstock-tenant",
        ]),
        priority: first(&["x-penstock-priority", "x-nexus-priority", "x-gateway-inference-objective"]),
        headers: gateway_headers,
    }
}

fn answer(request: ApiRequest, ticket: &Ticket) -> Answer {
    Answer {
        number: ticket.order,
        created: Clock::unix_s(),
        model: request.model,
        input: request.input,
        output: 0,
        text: String::new(),
        limited: matches!(request.length, Length::Exactly(_)),
        include_usage: request.include_usage,
        inputs: request.inputs,
        base64: request.base64,
    }
}

async fn whole(api: Api, request: ApiRequest, mut ticket: Ticket) -> Response {
    let mut answer = answer(request, &ticket);
    loop {
        match ticket.next().await {
            Some(JobUpdate::Token) => {
                answer.push();
            }
            Some(JobUpdate::Done) => return Json(dialect::for_api(api).complete(&answer)).into_response(),
            None => {
                return Failure::unavailable(
                    "this server stopped before the response was complete".to_owned(),
                )
                .into_response(api);
            }
        }
    }
}

/// Sends the headers at once and each token when it is produced. If the server stops, the stream is cut.
fn streamed(api: Api, request: ApiRequest, ticket: Ticket) -> Response {
    let answer = answer(request, &ticket);
    let chunks = stream::unfold(Some((ticket, answer)), move |state| async move {
        let (mut ticket, mut answer) = state?;
        let dialect = dialect::for_api(api);
        let mut out = Sse::default();
        match ticket.next().await {
            Some(JobUpdate::Token) => {
                if answer.output == 0 {
                    dialect.start(&answer, &mut out);
                }
                let text = answer.push();
                dialect.token(&answer, text, &mut out);
                Some((Ok(out.into_bytes()), Some((ticket, answer))))
            }
            Some(JobUpdate::Done) => {
                dialect.end(&answer, &mut out);
                Some((Ok(out.into_bytes()), None))
            }
            None => Some((Err(std::io::Error::other("the server stopped")), None)),
        }
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
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
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
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
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}
