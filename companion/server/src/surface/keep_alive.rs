//! Streams that are kept alive while they wait (`queue.keep_alive`).
//!
//! A filter in Envoy can't begin a response and go on later. So Envoy sends a stream that has waited for long to a companion, which begins the
//! response with status 200, writes comments with the position into it, and sends the request back to the same Envoy, where it waits on in its
//! place. Queue, grant, requeues and counts are those of any request: this is only a proxy that writes comments until the first byte of the
//! answer. An answer that isn't a stream becomes an event of the stream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::{Stream, StreamExt as _};
use penstock_control::RequestState;
use penstock_wire::names::{KEEP_ALIVE_HEADER, REQUEUE_HEADER};
use reqwest::{Client, redirect};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::decisions::driver::{Handle, RequestLookup};

/// The time between two questions for a position.
const POSITION_PAUSE: Duration = Duration::from_millis(10);
/// The shortest time between two comments.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// Pieces of an answer that wait for its client.
const PIECES: usize = 16;
/// Bytes of a document that become events.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// Bytes of an error that become an event.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Headers that belong to one connection.
const OWN_HEADERS: [HeaderName; 8] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

type Piece = Result<Bytes, reqwest::Error>;

/// Where streams are sent back, and where that work is done.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// This machine's Envoy: `listen.keep_alive`.
    pub(crate) back: SocketAddr,
    /// Not the runtime of the decisions, which no answer may delay.
    pub(crate) runtime: tokio::runtime::Handle,
}

#[derive(Clone)]
struct Proxy {
    client: Client,
    driver: Handle,
    way: Way,
    positions: Positions,
}

/// Adds the proxy to what filters and companions reach over gRPC, for every request that isn't gRPC.
///
/// # Errors
/// When the HTTP client can't be made.
pub(crate) fn add_to(router: Router, driver: Handle, way: Way) -> Result<Router, reqwest::Error> {
    let client = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .http1_only()
        // A request can't be sent twice, so none is sent on a connection that Envoy may be closing.
        .pool_max_idle_per_host(0)
        .build()?;
    let proxy = Proxy { client, driver, way, positions: Positions::new() };
    Ok(router.fallback_service(post(serve).with_state(proxy)))
}

async fn serve(State(proxy): State<Proxy>, request: Request) -> Response {
    let headers = request.headers();
    let every = text(headers, KEEP_ALIVE_HEADER).and_then(|millis| millis.parse().ok());
    let Some(every) = every.filter(|_| headers.contains_key(REQUEUE_HEADER)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let stream = WaitingStream {
        every: Duration::from_millis(every).max(EVERY_MIN),
        request_id: text(headers, "x-request-id").unwrap_or_default().to_owned(),
        dialect: Dialect::of(request.uri().path()),
        driver: proxy.driver,
        positions: proxy.positions,
    };
    let (pieces, body) = mpsc::channel::<Piece>(PIECES);
    proxy.way.runtime.spawn(stream.run(proxy.client, proxy.way.back, request, pieces));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(ReceiverStream::new(body))).into_response()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The form in which a client expects errors inside a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    OpenAi,
    Responses,
    Anthropic,
}

impl Dialect {
    fn of(path: &str) -> Self {
        let path = path.trim_end_matches('/');
        match path.rsplit('/').next() {
            Some("messages") => Self::Anthropic,
            Some("responses") => Self::Responses,
            Some(_) | None => Self::OpenAi,
        }
    }

    /// The event for an error response of the gateway or of a model server, from the response's body.
    fn error(self, body: &[u8]) -> String {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = &document["error"];
        let message = error["message"].as_str().map_or_else(
            || String::from_utf8_lossy(body.get(..1_024).unwrap_or(body)).into_owned(),
            str::to_owned,
        );
        let kind = error["type"].as_str().unwrap_or("server_error");
        match self {
            Self::Anthropic => {
                let error = json!({ "type": "error", "error": { "type": kind, "message": message } });
                format!("event: error\ndata: {error}\n\n")
            }
            Self::Responses => {
                let code = error["code"].as_str().unwrap_or(kind);
                let event = json!({
                    "type": "error", "code": error["code"], "message": message, "param": error["param"], "sequence_number": 0,
                });
                // OpenAI's libraries raise the first event. Codex ignores it, and shows the message of the second one.
                let failed = json!({ "type": "response.failed", "sequence_number": 1, "response": {
                    "id": "resp_failed", "object": "response", "status": "failed", "output": [],
                    "error": { "code": code, "message": message },
                } });
                format!("event: error\ndata: {event}\n\nevent: response.failed\ndata: {failed}\n\n")
            }
            Self::OpenAi => {
                let error = match document {
                    Value::Object(_) if error.is_object() => document,
                    _ => {
                        json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
                    }
                };
                format!("data: {error}\n\ndata: [DONE]\n\n")
            }
        }
    }

    /// The events for an answer that isn't a stream.
    fn whole(self, body: &[u8]) -> String {
        let lines: String =
            String::from_utf8_lossy(body).lines().map(|line| format!("data: {line}\n")).collect();
        let end = if self == Self::OpenAi { "data: [DONE]\n\n" } else { "" };
        format!("{lines}\n{end}")
    }
}

struct WaitingStream {
    every: Duration,
    request_id: String,
    dialect: Dialect,
    driver: Handle,
    positions: Positions,
}

/// Limits how often streams ask the decisions for their position, because each question costs the decisions time. The streams ask in turn: without
/// turns, of two streams whose comments are due at the same moments, one would never learn its position.
#[derive(Clone)]
struct Positions(Arc<Semaphore>);

impl Positions {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Waits until a stream may ask for its position. False: not within `most`.
    async fn turn(&self, most: Duration) -> bool {
        let Ok(Ok(turn)) = timeout(most, Arc::clone(&self.0).acquire_owned()).await else { return false };
        tokio::spawn(async move {
            sleep(POSITION_PAUSE).await;
            drop(turn);
        });
        true
    }
}

impl WaitingStream {
    /// Sends the request back and writes the answer. Ends with the client: what is dropped here closes the connection to Envoy, and so takes the
    /// request out of the queue.
    async fn run(self, client: Client, back: SocketAddr, request: Request, pieces: mpsc::Sender<Piece>) {
        let gone = pieces.clone();
        tokio::select! {
            () = gone.closed() => {}
            () = self.answer(client, back, request, pieces) => {}
        }
    }

    async fn answer(&self, client: Client, back: SocketAddr, request: Request, pieces: mpsc::Sender<Piece>) {
        // The stream has been silent for a whole interval when it comes here, so the first comment is due at once.
        let mut due = Instant::now();
        let answer = self.alive_until(send_back(&client, back, request), &mut due, &pieces).await;
        let Some(answer) = answer else { return };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%back, error = %without_url(error), "a stream that is kept alive can't be sent back to Envoy");
                let body = json!({ "error": {
                    "message": "The gateway lost the request while it waited: send it again.",
                    "type": "service_unavailable", "param": null, "code": "gateway_unavailable",
                } });
                let event = self.dialect.error(body.to_string().as_bytes());
                return drop(pieces.send(Ok(event.into())).await);
            }
        };
        let kind = text(answer.headers(), header::CONTENT_TYPE.as_str()).unwrap_or_default();
        let is_document = kind.to_ascii_lowercase().contains("json");
        if answer.status().is_success() && !is_document {
            self.pass(answer.bytes_stream(), due, &pieces).await;
        } else if answer.status().is_success() {
            let whole = limited(answer.bytes_stream(), DOCUMENT_BYTES_MAX);
            let Some((body, is_whole)) = self.alive_until(whole, &mut due, &pieces).await else { return };
            let events = if is_whole {
                self.dialect.whole(&body)
            } else {
                self.dialect.error(
                    b"The model server's answer was cut, or is longer than a stream's document may be.",
                )
            };
            drop(pieces.send(Ok(events.into())).await);
        } else {
            let (body, _) = limited(answer.bytes_stream(), ERROR_BYTES_MAX).await;
            drop(pieces.send(Ok(self.dialect.error(&body).into())).await);
        }
    }

    /// Passes the stream on, after comments until its first byte. A comment inside it could tear an event.
    async fn pass(&self, stream: impl Stream<Item = Piece>, mut due: Instant, pieces: &mpsc::Sender<Piece>) {
        let mut stream = std::pin::pin!(stream);
        let Some(mut piece) = self.alive_until(stream.next(), &mut due, pieces).await else { return };
        while let Some(next) = piece {
            // An error cuts the client's stream, as the server has cut its own.
            let is_cut = next.is_err();
            if pieces.send(next).await.is_err() || is_cut {
                return;
            }
            piece = stream.next().await;
        }
    }

    /// Writes a comment whenever one is due, at first at `due`, until `done`. `None`: the client has left.
    async fn alive_until<T>(
        &self,
        done: impl Future<Output = T>,
        due: &mut Instant,
        pieces: &mpsc::Sender<Piece>,
    ) -> Option<T> {
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                biased;
                result = &mut done => return Some(result),
                comment = self.comment(*due) => {
                    *due = Instant::now() + self.every;
                    // A client that doesn't read needs no further comment.
                    if let Err(mpsc::error::TrySendError::Closed(_)) = pieces.try_send(Ok(comment.into())) {
                        return None;
                    }
                }
            }
        }
    }

    /// The comment that is due at `due`. It comes up to half an interval later if more streams ask than may.
    async fn comment(&self, due: Instant) -> String {
        sleep_until(due).await;
        if !self.positions.turn(self.every / 2).await {
            return ": waiting\n\n".into();
        }
        match self.driver.request(&self.request_id).await {
            Ok(RequestLookup::Active(request)) => match request.state {
                RequestState::Waiting { ahead, .. } => {
                    let (position, waited) = (ahead.saturating_add(1), request.waited.as_secs());
                    format!(": waiting, position {position}, for {waited} s\n\n")
                }
                RequestState::Running { .. } => ": at a model server\n\n".into(),
            },
            // Another companion leads, or the request is on its way to its new key.
            Ok(RequestLookup::Ended(_) | RequestLookup::Unknown) | Err(_) => ": waiting\n\n".into(),
        }
    }
}

/// Sends the request to this Envoy as it came.
async fn send_back(
    client: &Client,
    back: SocketAddr,
    request: Request,
) -> reqwest::Result<reqwest::Response> {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut headers = parts.headers;
    for name in OWN_HEADERS {
        headers.remove(name);
    }
    if let Some(host) = parts.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        headers.insert(header::HOST, host);
    }
    let method = Method::from_bytes(parts.method.as_str().as_bytes()).unwrap_or(Method::POST);
    client
        .request(method, format!("http://{back}{target}"))
        .headers(headers)
        .body(reqwest::Body::wrap_stream(body.into_data_stream()))
        .send()
        .await
}

/// The beginning of a body that may be of any length or be cut, and whether it is the whole body.
async fn limited(stream: impl Stream<Item = Piece>, most: usize) -> (Vec<u8>, bool) {
    let mut stream = std::pin::pin!(stream);
    let mut body = Vec::new();
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(piece) if body.len() + piece.len() <= most => body.extend_from_slice(&piece),
            Ok(_) | Err(_) => return (body, false),
        }
    }
    (body, true)
}

/// A path may have a secret in its query.
fn without_url(error: reqwest::Error) -> reqwest::Error {
    error.without_url()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENAI: &[u8] =
        br#"{"error":{"message":"full","type":"service_unavailable","param":null,"code":"queue_full"}}"#;

    #[test]
    fn an_error_becomes_an_event_of_the_api() {
        assert_eq!(
            Dialect::of("/v1/chat/completions").error(OPENAI),
            format!("data: {}\n\ndata: [DONE]\n\n", String::from_utf8_lossy(OPENAI))
        );
        let anthropic = br#"{"type":"error","error":{"type":"rate_limit_error","message":"later"}}"#;
        assert_eq!(
            Dialect::of("/v1/messages").error(anthropic),
            format!("event: error\ndata: {}\n\n", String::from_utf8_lossy(anthropic))
        );
        let responses = Dialect::of("/v1/responses").error(OPENAI);
        let (event, failed) = responses.split_once("\n\nevent: response.failed\ndata: ").expect("two events");
        let failed: Value = serde_json::from_str(failed.trim_end()).expect("JSON");
        assert_eq!(
            failed["response"]["error"],
            json!({ "code": "queue_full", "message": "full" }),
            "{failed}"
        );
        let data = event.strip_prefix("event: error\ndata: ").expect("an event");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(
            (&data["type"], &data["code"], &data["message"]),
            (&json!("error"), &json!("queue_full"), &json!("full"))
        );
    }

    #[tokio::test]
    async fn streams_whose_comments_are_due_together_ask_for_positions_in_turn() {
        let positions = Positions::new();
        let patient = (0..5).map(|_| positions.turn(Duration::from_secs(30)));
        // It comes after the others.
        let impatient = positions.turn(Duration::ZERO);
        let (patient, impatient) = tokio::join!(futures_util::future::join_all(patient), impatient);
        assert_eq!((patient, impatient), (vec![true; 5], false));
    }

    #[tokio::test]
    async fn a_body_over_its_limit_is_not_whole() {
        let pieces = || futures_util::stream::iter(["abc", "d"].map(|piece| Ok(Bytes::from(piece))));
        assert_eq!(limited(pieces(), 4).await, (b"abcd".to_vec(), true));
        assert_eq!(limited(pieces(), 3).await, (b"abc".to_vec(), false));
    }

    #[test]
    fn an_answer_of_no_known_form_becomes_an_event_too() {
        let page = Dialect::OpenAi.error(b"<html>\n\xff");
        assert!(page.contains("<html>\\n") && page.ends_with("data: [DONE]\n\n"), "{page}");
        assert_eq!(Dialect::OpenAi.whole(b"{\n\"a\": 1}"), "data: {\ndata: \"a\": 1}\n\ndata: [DONE]\n\n");
        assert_eq!(Dialect::Responses.whole(b"{}"), "data: {}\n\n");
    }
}
