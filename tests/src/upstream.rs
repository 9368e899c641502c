//! A scripted model server: it hands every request to the test, which answers it, or it answers by itself.
//!
//! A test holds a place exactly as long as it wants. The server counts requests in flight, from a request's arrival to the end of its
//! answer, and their peak. A server that answers by itself records the texts of its requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Locked};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::wait::{on_runtime_thread, soon, until};

type Body = BoxBody<Bytes, std::io::Error>;

/// Events of a streamed answer.
const PIECES: u32 = 10;

/// How a server treats a request.
#[derive(Clone)]
enum Behaviour {
    /// Hands it to the test.
    ClientRequest,
    /// Answers after this time, but not before so many requests were in flight at the same time.
    Serve(Duration, usize),
    /// Answers after this time, but not while the gate is closed.
    Gated(Duration, watch::Receiver<bool>),
    /// Streams an answer that takes this time from its first event to its last, give or take 10 %. A request that finds no free place
    /// waits for one.
    Stream(Duration, Arc<Semaphore>),
}

/// The metrics page of a server.
#[derive(Clone)]
enum Reported {
    /// The page counts the requests in flight, whether or not their clients are still there.
    InFlight,
    /// `None`: the page can't be read.
    Page(Option<String>),
}

impl Reported {
    /// A page on which so many sequences run.
    fn running(sequences: u64) -> Self {
        Self::Page(Some(running_page(sequences)))
    }
}

fn running_page(sequences: u64) -> String {
    format!("vllm:num_requests_running {sequences}\n")
}

struct Shared {
    behaviour: Behaviour,
    calls: mpsc::UnboundedSender<Call>,
    healthy: AtomicBool,
    reported: Locked<Reported>,
    /// The document of `/v1/models`; `None`: the server has no such path for the companion.
    models: Locked<Option<String>>,
    own: Arc<Gauge>,
    together: Arc<Gauge>,
}

/// Counts requests in flight, at one server or at several.
#[derive(Default)]
struct Gauge {
    in_flight: AtomicUsize,
    peak: AtomicUsize,
    total: AtomicUsize,
    arrived: Notify,
    texts: Locked<Vec<String>>,
}

impl Gauge {
    /// Records a request's text; returns how many were recorded before.
    fn keep(&self, call: &Call) -> usize {
        let mut texts = self.texts.lock().expect("no holder of the lock panics");
        texts.push(call.text());
        texts.len()
    }

    /// Waits until `count` requests have been in flight at the same time.
    async fn gathered(&self, count: usize) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if self.peak.load(Ordering::SeqCst) >= count {
                return;
            }
            arrived.await;
        }
    }
}

/// Counts one request as in flight until it is dropped.
struct InFlight([Arc<Gauge>; 2]);

impl InFlight {
    fn new(shared: &Shared) -> Self {
        let gauges = [shared.own.clone(), shared.together.clone()];
        for gauge in &gauges {
            gauge.total.fetch_add(1, Ordering::SeqCst);
            let now = gauge.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            gauge.peak.fetch_max(now, Ordering::SeqCst);
            gauge.arrived.notify_waiters();
        }
        Self(gauges)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for gauge in &self.0 {
            gauge.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Holds back the answers of the servers of [`Upstream::gated`].
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// Lets the servers answer.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Holds back every answer from now on.
    pub fn close(&self) {
        self.0.send_replace(false);
    }
}

/// A running server.
pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    calls: Mutex<mpsc::UnboundedReceiver<Call>>,
    listening: tokio::task::AbortHandle,
}

impl Upstream {
    /// A server that hands every request to the test.
    pub async fn scripted() -> Self {
        Self::start(Behaviour::ClientRequest, Arc::default()).await
    }

    /// A server on this address that hands every request to the test.
    ///
    /// # Panics
    /// If the address isn't free.
    pub async fn scripted_at(address: SocketAddr) -> Self {
        Self::scripted_on(TcpListener::bind(address).await.expect("a free address")).await
    }

    /// A server that answers by itself, after `service` each.
    pub async fn serving(service: Duration) -> Self {
        Self::start(Behaviour::Serve(service, 0), Arc::default()).await
    }

    /// `count` servers that answer by themselves while their gate is open; it is closed at first. They share one count.
    pub async fn gated(count: usize, service: Duration) -> (Vec<Self>, Gate) {
        let (gate, through) = watch::channel(false);
        let together = Arc::<Gauge>::default();
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            let behaviour = Behaviour::Gated(service, through.clone());
            servers.push(Self::start(behaviour, together.clone()).await);
        }
        (servers, Gate(gate))
    }

    /// `count` servers that share one count and do not answer before `gather` requests have been in flight together.
    pub async fn several(count: usize, service: Duration, gather: usize) -> Vec<Self> {
        let together = Arc::<Gauge>::default();
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            servers.push(Self::start(Behaviour::Serve(service, gather), together.clone()).await);
        }
        servers
    }

    /// `count` servers that stream their answers, each with `places` places; they share one count.
    pub async fn streaming(count: usize, service: Duration, places: usize) -> Vec<Self> {
        let together = Arc::<Gauge>::default();
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            let behaviour = Behaviour::Stream(service, Arc::new(Semaphore::new(places)));
            servers.push(Self::start(behaviour, together.clone()).await);
        }
        servers
    }

    /// A server that hands every request to the test, on an existing listener.
    pub(crate) async fn scripted_on(listener: TcpListener) -> Self {
        Self::on(listener, Behaviour::ClientRequest, Arc::default()).await
    }

    async fn start(behaviour: Behaviour, together: Arc<Gauge>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, behaviour, together).await
    }

    async fn on(listener: TcpListener, behaviour: Behaviour, together: Arc<Gauge>) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        let (calls, received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            behaviour,
            calls,
            healthy: AtomicBool::new(true),
            reported: Locked::new(Reported::running(0)),
            models: Locked::default(),
            own: Arc::default(),
            together,
        });
        let accepting = shared.clone();
        let listening =
            on_runtime_thread(async move { tokio::spawn(accept(listener, accepting)).abort_handle() }).await;
        Self { address, shared, calls: Mutex::new(received), listening }
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.own.in_flight.load(Ordering::SeqCst)
    }

    /// The peak of requests in flight.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.shared.own.peak.load(Ordering::SeqCst)
    }

    /// The peak of requests in flight over all servers of [`Upstream::several`].
    #[must_use]
    pub fn peak_together(&self) -> usize {
        self.shared.together.peak.load(Ordering::SeqCst)
    }

    /// The number of requests that arrived.
    #[must_use]
    pub fn total(&self) -> usize {
        self.shared.own.total.load(Ordering::SeqCst)
    }

    /// Waits until `count` requests have arrived at the servers that share a count.
    ///
    /// # Panics
    /// If they do not.
    pub async fn arrived_together(&self, count: usize) {
        until(&format!("{count} at the servers"), || async {
            let total = self.shared.together.total.load(Ordering::SeqCst);
            if total >= count { Ok(()) } else { Err(total.to_string()) }
        })
        .await;
    }

    /// Takes the texts of the requests that have arrived at the servers that share a count, in order of arrival.
    ///
    /// # Panics
    /// If the server panicked.
    pub fn texts_together(&self) -> Vec<String> {
        let mut texts = self.shared.together.texts.lock().expect("no holder of the lock panics");
        std::mem::take(&mut texts)
    }

    /// Sets the result of its health check.
    pub fn set_healthy(&self, healthy: bool) {
        self.shared.healthy.store(healthy, Ordering::SeqCst);
    }

    /// Sets its page of metrics; `None`: the page can't be read.
    ///
    /// # Panics
    /// If the server panicked.
    pub fn set_metrics(&self, page: Option<&str>) {
        self.set_reported(Reported::Page(page.map(str::to_owned)));
    }

    /// The companion finds these models on its `/v1/models`.
    ///
    /// # Panics
    /// If the server panicked.
    pub fn list_models(&self, ids: &[&str]) {
        let data: Vec<_> = ids
            .iter()
            .map(|id| json!({"id": id, "object": "model", "created": 7, "owned_by": "vllm"}))
            .collect();
        let list = json!({"object": "list", "data": data}).to_string();
        *self.shared.models.lock().expect("no holder of the lock panics") = Some(list);
    }

    /// From now on its metrics page counts the requests in flight. One whose client has left is in flight as long as the test
    /// holds it.
    ///
    /// # Panics
    /// If the server panicked.
    pub fn report_in_flight(&self) {
        self.set_reported(Reported::InFlight);
    }

    /// From now on its metrics page reports that so many sequences run.
    ///
    /// # Panics
    /// If the server panicked.
    pub fn report(&self, sequences: u64) {
        self.set_reported(Reported::running(sequences));
    }

    fn set_reported(&self, reported: Reported) {
        *self.shared.reported.lock().expect("no holder of the lock panics") = reported;
    }
    /// The next request that arrives.
    ///
    /// # Panics
    /// If none arrives.
    pub async fn next(&self) -> Call {
        let mut calls = self.calls.lock().await;
        soon("a request at the server", calls.recv()).await.expect("the server runs")
    }

    /// A request that has already arrived, if any.
    pub async fn arrived(&self) -> Option<Call> {
        self.calls.lock().await.try_recv().ok()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| serve(request, shared.clone()));
            // An error means that a test cut the connection.
            let _cut = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

async fn serve(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Body>, std::io::Error> {
    let (head, body) = request.into_parts();
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/health") if shared.healthy.load(Ordering::SeqCst) => {
            return Ok(plain(StatusCode::OK, ""));
        }
        (&Method::GET, "/health") => return Ok(plain(StatusCode::SERVICE_UNAVAILABLE, "")),
        (&Method::GET, "/metrics") => return Ok(metrics(&shared)),
        // The companion asks; a client's request is one like others.
        (&Method::GET, "/v1/models") if is_companion(&head.headers) => {
            let models = shared.models.lock().expect("no holder of the lock panics");
            return Ok(match &*models {
                Some(models) => plain(StatusCode::OK, models.clone()),
                None => plain(StatusCode::NOT_FOUND, ""),
            });
        }
        _ => {}
    }
    let in_flight = InFlight::new(&shared);
    let body = body.collect().await.map_err(std::io::Error::other)?;
    let trailers = body.trailers().cloned();
    let (reply, told) = oneshot::channel();
    let call = Call {
        method: head.method,
        path: head.uri.to_string(),
        headers: head.headers,
        body: body.to_bytes(),
        trailers,
        in_flight,
        reply,
    };
    match &shared.behaviour {
        Behaviour::ClientRequest => drop(shared.calls.send(call)),
        Behaviour::Serve(service, gather) => {
            shared.together.keep(&call);
            shared.together.gathered(*gather).await;
            tokio::time::sleep(*service).await;
            call.answer();
        }
        Behaviour::Gated(service, gate) => {
            shared.together.keep(&call);
            let mut gate = gate.clone();
            // An error means that the test dropped the gate.
            let _gone = gate.wait_for(|open| *open).await.map(|_| ());
            tokio::time::sleep(*service).await;
            call.answer();
        }
        Behaviour::Stream(service, places) => {
            let number = shared.together.keep(&call);
            tokio::spawn(stream(call, stretched(*service, number), places.clone()));
        }
    }
    told.await.map_err(|_| std::io::Error::other("the test dropped the request"))?
}

/// The request is one of the companion's own, and no client's.
fn is_companion(headers: &HeaderMap) -> bool {
    headers.get("user-agent").is_some_and(|agent| agent.as_bytes().starts_with(b"penstock/"))
}

/// Between 90 and 110 percent of `service`: servers with equal times would fall into step.
fn stretched(service: Duration, number: usize) -> Duration {
    let percent = u32::try_from(number * 7 % 21).unwrap_or_default() + 90;
    service * percent / 100
}

/// Answers when a place is free, and holds it until the answer has ended.
async fn stream(call: Call, service: Duration, places: Arc<Semaphore>) {
    let place = places.acquire_owned().await;
    let (events, begin) = (call.stream(), Instant::now());
    for piece in 1..=PIECES {
        events.text("word ");
        tokio::time::sleep_until(begin + service * piece / PIECES).await;
    }
    // Free the place before the client sees the end.
    drop(place);
    events.finish(8, 4);
}

fn metrics(shared: &Shared) -> Response<Body> {
    let page = match &*shared.reported.lock().expect("no holder of the lock panics") {
        Reported::InFlight => Some(running_page(shared.own.in_flight.load(Ordering::SeqCst) as u64)),
        Reported::Page(page) => page.clone(),
    };
    match page {
        Some(page) => plain(StatusCode::OK, page),
        None => plain(StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(text.into()));
    *response.status_mut() = status;
    response
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed()
}

/// A request that has arrived. If it is dropped without an answer, its connection is cut.
pub struct Call {
    /// The request's method.
    pub method: Method,
    /// The request's path and query.
    pub path: String,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The request's body.
    pub body: Bytes,
    /// The request's trailers.
    pub trailers: Option<HeaderMap>,
    in_flight: InFlight,
    reply: oneshot::Sender<Result<Response<Body>, std::io::Error>>,
}

impl Call {
    /// A header's value; empty if absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// The body as JSON; null if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The text of the first message, by which a test identifies the request.
    #[must_use]
    pub fn text(&self) -> String {
        self.json()["messages"][0]["content"].as_str().unwrap_or_default().to_owned()
    }

    /// Answers as a model server does, streamed if requested, with a usage of 8 and 4 tokens.
    pub fn answer(self) {
        self.answer_with(8, 4);
    }

    /// [`Self::answer`] with the given usage.
    pub fn answer_with(self, prompt: u64, output: u64) {
        if self.json()["stream"] == true {
            let stream = self.stream();
            stream.text("hello");
            stream.finish(prompt, output);
            return;
        }
        let usage = json!({
            "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
        });
        self.respond_with_usage(&usage);
    }

    /// An answer to a request without `stream`, whose usage reports so many cached tokens of the prompt.
    pub fn answer_with_cached(self, prompt: u64, cached: u64, output: u64) {
        let usage = json!({
            "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        });
        self.respond_with_usage(&usage);
    }

    fn respond_with_usage(self, usage: &Value) {
        let body = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": self.json()["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
            "usage": usage,
        });
        self.respond(200, &[("content-type", "application/json")], body.to_string());
    }

    /// Answers exactly this.
    ///
    /// # Panics
    /// If it is not a valid response.
    pub fn respond(self, status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        // The count falls before the client sees the end, so that a peak is never too high.
        drop(self.in_flight);
        let response = response.body(full(body.into())).expect("a test builds valid responses");
        drop(self.reply.send(Ok(response)));
    }

    /// Begins an answer of server-sent events.
    #[must_use]
    pub fn stream(self) -> Events {
        let (sender, receiver) = mpsc::unbounded_channel();
        let body = StreamBody::new(Chunks { receiver, _in_flight: self.in_flight });
        let response = Response::builder()
            .header("content-type", "text/event-stream")
            .body(BodyExt::boxed(body))
            .expect("a valid response");
        drop(self.reply.send(Ok(response)));
        Events { sender }
    }

    /// Cuts the connection without an answer.
    pub fn cut(self) {
        drop(self.reply.send(Err(std::io::Error::other("cut"))));
    }

    /// Waits until the gateway has cancelled this request.
    pub async fn gone(&mut self) {
        soon("the gateway cancels the request", self.reply.closed()).await;
    }
}

/// The rest of a streamed answer. If it is dropped, the answer ends as if complete.
pub struct Events {
    sender: mpsc::UnboundedSender<Result<Bytes, std::io::Error>>,
}

impl Events {
    /// Sends these bytes as one chunk.
    pub fn raw(&self, bytes: impl Into<Bytes>) {
        drop(self.sender.send(Ok(bytes.into())));
    }

    /// Sends one event with a piece of text.
    pub fn text(&self, text: &str) {
        let event = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": null}],
        });
        self.raw(format!("data: {event}\n\n"));
    }

    /// Sends the usage and the end.
    pub fn finish(self, prompt: u64, output: u64) {
        let event = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [],
            "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
        });
        self.raw(format!("data: {event}\n\ndata: [DONE]\n\n"));
    }

    /// Cuts the connection inside the answer.
    pub fn cut(self) {
        drop(self.sender.send(Err(std::io::Error::other("cut"))));
    }

    /// Waits until the gateway has cancelled this answer.
    pub async fn gone(&self) {
        soon("the gateway cancels the answer", self.sender.closed()).await;
    }
}

struct Chunks {
    receiver: mpsc::UnboundedReceiver<Result<Bytes, std::io::Error>>,
    _in_flight: InFlight,
}

impl Stream for Chunks {
    type Item = Result<Frame<Bytes>, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(cx).map(|chunk| chunk.map(|c| c.map(Frame::data)))
    }
}
