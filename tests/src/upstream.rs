//! A scripted model server: it hands every request to the test and answers when told to, or by itself at once.
//!
//! A slot is held exactly as long as a test wants. It counts what is in flight from a request's arrival to the end
//! of its answer, and the peak of that; one that answers by itself keeps what arrived.

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

use crate::wait::{on_lasting_thread, soon, until};

type Body = BoxBody<Bytes, std::io::Error>;

/// Events of an answer that is streamed by itself.
const PIECES: u32 = 10;

/// What a server does with a request.
#[derive(Clone)]
enum Manner {
    /// Hands it to the test.
    Ask,
    /// Answers after this long, but none before so many were in flight at the same time.
    Serve(Duration, usize),
    /// Answers after this long, but nothing while the gate is closed.
    Gated(Duration, watch::Receiver<bool>),
    /// Streams an answer that takes this long, a few percent more or less, from its first event to its last; there
    /// are so many places, and who finds none waits for one.
    Stream(Duration, Arc<Semaphore>),
}

struct Shared {
    manner: Manner,
    calls: mpsc::UnboundedSender<Call>,
    healthy: AtomicBool,
    own: Arc<Gauge>,
    together: Arc<Gauge>,
}

/// What is in flight, at one server or at several.
#[derive(Default)]
struct Gauge {
    in_flight: AtomicUsize,
    peak: AtomicUsize,
    total: AtomicUsize,
    arrived: Notify,
    texts: Locked<Vec<String>>,
}

impl Gauge {
    /// Keeps what a request says; how many were kept before.
    fn keep(&self, call: &Call) -> usize {
        let mut texts = self.texts.lock().expect("no one panics with it");
        texts.push(call.text());
        texts.len()
    }

    /// Waits until so many have been in flight at the same time.
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

/// One request in flight, as long as it is held.
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

/// What keeps the servers of [`Upstream::gated`] from answering.
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// Lets them answer.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Holds everything that isn't answered yet, and what comes.
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
        Self::start(Manner::Ask, Arc::default()).await
    }

    /// A server that answers by itself, after `service` each.
    pub async fn serving(service: Duration) -> Self {
        Self::start(Manner::Serve(service, 0), Arc::default()).await
    }

    /// So many that answer by themselves as long as their gate is open, which is closed at first; they count together.
    pub async fn gated(count: usize, service: Duration) -> (Vec<Self>, Gate) {
        let (gate, through) = watch::channel(false);
        let together = Arc::<Gauge>::default();
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            let manner = Manner::Gated(service, through.clone());
            servers.push(Self::start(manner, together.clone()).await);
        }
        (servers, Gate(gate))
    }

    /// So many of them, which also count what is in flight at all together, and answer nothing before `gather`
    /// requests have been.
    pub async fn several(count: usize, service: Duration, gather: usize) -> Vec<Self> {
        let together = Arc::<Gauge>::default();
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            servers.push(Self::start(Manner::Serve(service, gather), together.clone()).await);
        }
        servers
    }

    /// So many that stream their answers, each with places of its own; they count together as well.
    pub async fn streaming(count: usize, service: Duration, places: usize) -> Vec<Self> {
        let together = Arc::<Gauge>::default();
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            let manner = Manner::Stream(service, Arc::new(Semaphore::new(places)));
            servers.push(Self::start(manner, together.clone()).await);
        }
        servers
    }

    /// A server that hands every request to the test, on a listener that is there.
    pub(crate) async fn scripted_on(listener: TcpListener) -> Self {
        Self::on(listener, Manner::Ask, Arc::default()).await
    }

    async fn start(manner: Manner, together: Arc<Gauge>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, manner, together).await
    }

    async fn on(listener: TcpListener, manner: Manner, together: Arc<Gauge>) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        let (calls, received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            manner,
            calls,
            healthy: AtomicBool::new(true),
            own: Arc::default(),
            together,
        });
        let accepting = shared.clone();
        let listening =
            on_lasting_thread(async move { tokio::spawn(accept(listener, accepting)).abort_handle() }).await;
        Self {
            address,
            shared,
            calls: Mutex::new(received),
            listening,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.own.in_flight.load(Ordering::SeqCst)
    }

    /// The most there ever were.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.shared.own.peak.load(Ordering::SeqCst)
    }

    /// The most there ever were at all servers of [`Upstream::several`] at the same time.
    #[must_use]
    pub fn peak_together(&self) -> usize {
        self.shared.together.peak.load(Ordering::SeqCst)
    }

    /// All that arrived.
    #[must_use]
    pub fn total(&self) -> usize {
        self.shared.own.total.load(Ordering::SeqCst)
    }

    /// Waits until so many have arrived at all servers that count together.
    ///
    /// # Panics
    /// When they don't.
    pub async fn arrived_together(&self, count: usize) {
        until(&format!("{count} at the servers"), || async {
            let total = self.shared.together.total.load(Ordering::SeqCst);
            if total >= count {
                Ok(())
            } else {
                Err(total.to_string())
            }
        })
        .await;
    }

    /// What those said that have arrived so far at all servers that count together, in their order; takes it out.
    ///
    /// # Panics
    /// When the server did.
    pub fn texts_together(&self) -> Vec<String> {
        let mut texts = self.shared.together.texts.lock().expect("no one panics with it");
        std::mem::take(&mut texts)
    }

    /// What its health check says from now on.
    pub fn set_healthy(&self, healthy: bool) {
        self.shared.healthy.store(healthy, Ordering::SeqCst);
    }

    /// The next request that arrives.
    ///
    /// # Panics
    /// When none does.
    pub async fn next(&self) -> Call {
        let mut calls = self.calls.lock().await;
        soon("a request at the server", calls.recv())
            .await
            .expect("the server runs")
    }

    /// A request that has arrived, if there is one.
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
            // An error is a connection that a test cut.
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
        (&Method::GET, "/metrics") => return Ok(plain(StatusCode::OK, "vllm:num_requests_running 0\n")),
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
    match &shared.manner {
        Manner::Ask => drop(shared.calls.send(call)),
        Manner::Serve(service, gather) => {
            shared.together.keep(&call);
            shared.together.gathered(*gather).await;
            tokio::time::sleep(*service).await;
            call.answer();
        }
        Manner::Gated(service, gate) => {
            shared.together.keep(&call);
            let mut gate = gate.clone();
            // An error means that the gate has gone with its test.
            let _gone = gate.wait_for(|open| *open).await.map(|_| ());
            tokio::time::sleep(*service).await;
            call.answer();
        }
        Manner::Stream(service, places) => {
            let number = shared.together.keep(&call);
            tokio::spawn(stream(call, stretched(*service, number), places.clone()));
        }
    }
    told.await
        .map_err(|_| std::io::Error::other("the test dropped the request"))?
}

/// Between 90 and 110 percent: servers that all take the same time fall into step.
fn stretched(service: Duration, number: usize) -> Duration {
    let percent = u32::try_from(number * 7 % 21).unwrap_or_default() + 90;
    service * percent / 100
}

/// Answers when there is a place, and holds it until the answer has ended.
async fn stream(call: Call, service: Duration, places: Arc<Semaphore>) {
    let place = places.acquire_owned().await;
    let (events, begin) = (call.stream(), Instant::now());
    for piece in 1..=PIECES {
        events.text("word ");
        tokio::time::sleep_until(begin + service * piece / PIECES).await;
    }
    // The place is free before the client can know.
    drop(place);
    events.finish(8, 4);
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed()
}

/// A request that has arrived. Dropped without an answer, its connection is cut.
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Its trailers.
    pub trailers: Option<HeaderMap>,
    in_flight: InFlight,
    reply: oneshot::Sender<Result<Response<Body>, std::io::Error>>,
}

impl Call {
    /// A header's value; empty when it isn't there.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
    }

    /// The body as JSON; null when it isn't.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// What the first message says: the name a test gave the request.
    #[must_use]
    pub fn text(&self) -> String {
        self.json()["messages"][0]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Answers as a model server would, streamed if that was asked for, with a usage of 8 and 4 tokens.
    pub fn answer(self) {
        self.answer_with(8, 4);
    }

    /// The same with the given usage.
    pub fn answer_with(self, prompt: u64, output: u64) {
        if self.json()["stream"] == true {
            let stream = self.stream();
            stream.text("hello");
            stream.finish(prompt, output);
            return;
        }
        let body = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": self.json()["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
        });
        self.respond(200, &[("content-type", "application/json")], body.to_string());
    }

    /// Answers exactly this.
    ///
    /// # Panics
    /// When it isn't a response.
    pub fn respond(self, status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        // What is in flight ends before the client can know: a peak is never counted too high.
        drop(self.in_flight);
        let response = response
            .body(full(body.into()))
            .expect("a test builds valid responses");
        drop(self.reply.send(Ok(response)));
    }

    /// Begins an answer of server-sent events.
    #[must_use]
    pub fn stream(self) -> Events {
        let (sender, receiver) = mpsc::unbounded_channel();
        let body = StreamBody::new(Chunks {
            receiver,
            _in_flight: self.in_flight,
        });
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

    /// Waits until the gateway has given this request up.
    pub async fn gone(&mut self) {
        soon("the gateway gives the request up", self.reply.closed()).await;
    }
}

/// The rest of an answer of events. Dropped, it ends as if complete.
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

    /// Waits until the gateway has given this answer up.
    pub async fn gone(&self) {
        soon("the gateway gives the answer up", self.sender.closed()).await;
    }
}

struct Chunks {
    receiver: mpsc::UnboundedReceiver<Result<Bytes, std::io::Error>>,
    _in_flight: InFlight,
}

impl Stream for Chunks {
    type Item = Result<Frame<Bytes>, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver
            .poll_recv(cx)
            .map(|chunk| chunk.map(|c| c.map(Frame::data)))
    }
}
