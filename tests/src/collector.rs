//! A trace collector: receives spans by OTLP over gRPC, reads the parts that the tests check, and can reject them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

use crate::wait::until;

/// The parts of an export request that the tests read.
#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<WireEvent>,
}

#[derive(Clone, PartialEq, Message)]
struct WireEvent {
    #[prost(fixed64, tag = "1")]
    at: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(oneof = "Value", tags = "1, 3, 4")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Whole(i64),
    #[prost(double, tag = "4")]
    Float(f64),
}

/// A received span.
#[derive(Clone, Debug)]
pub struct Span {
    /// In hex.
    pub trace_id: String,
    /// In hex; empty for a root span.
    pub parent: String,
    /// The span's name.
    pub name: String,
    /// The span's start and its end, in nanoseconds of the epoch.
    pub times: (u64, u64),
    /// The span's attributes, including the resource's `service.name`.
    pub attributes: BTreeMap<String, String>,
    /// The span's events with their times.
    pub events: Vec<(String, u64)>,
}

/// A running collector.
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    refuses: Arc<AtomicBool>,
}

impl Collector {
    /// Starts a collector on a free port.
    ///
    /// # Panics
    /// If it cannot listen.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let spans = Arc::new(Mutex::new(Vec::new()));
        let refuses = Arc::new(AtomicBool::new(false));
        let (taken, refusing) = (spans.clone(), refuses.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, taken.clone(), refusing.clone()));
            }
        });
        Self { address, spans, refuses }
    }

    /// The collector's address in the form of OTEL_EXPORTER_OTLP_ENDPOINT.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Rejects spans from now on (`true`), or accepts them.
    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Waits until `count` spans have arrived, and returns all.
    pub async fn spans(&self, count: usize) -> Vec<Span> {
        until(&format!("{count} spans come"), || async {
            let spans = self.all();
            if spans.len() >= count { Ok(()) } else { Err(format!("{spans:?}")) }
        })
        .await;
        self.all()
    }

    /// The spans that have arrived.
    ///
    /// # Panics
    /// If another test has panicked while it held the lock.
    #[must_use]
    pub fn all(&self) -> Vec<Span> {
        self.spans.lock().expect("nobody panicked").clone()
    }
}

async fn serve(socket: TcpStream, spans: Arc<Mutex<Vec<Span>>>, refuses: Arc<AtomicBool>) {
    let Ok(mut connection) = h2::server::handshake(socket).await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let (spans, refuses) = (spans.clone(), refuses.clone());
        tokio::spawn(async move {
            let mut body = request.into_body();
            let mut message = BytesMut::new();
            while let Some(Ok(piece)) = body.data().await {
                let _ = body.flow_control().release_capacity(piece.len());
                message.extend_from_slice(&piece);
            }
            let refused = refuses.load(Ordering::SeqCst);
            if !refused && message.len() >= 5 {
                // The gRPC frame: a flag and a length.
                message.advance(5);
                let export = Export::decode(message.freeze()).expect("an export");
                spans.lock().expect("nobody panicked").extend(all(export));
            }
            let response =
                Response::builder().header("content-type", "application/grpc").body(()).expect("valid");
            let Ok(mut stream) = respond.send_response(response, false) else {
                return;
            };
            // An empty message and a status: 0 is success; 3 is an invalid argument, which exporters do not retry.
            let _ = stream.send_data(Bytes::from_static(&[0; 5]), false);
            let status = if refused { "3" } else { "0" };
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(status));
            let _ = stream.send_trailers(trailers);
        });
    }
}

fn all(export: Export) -> Vec<Span> {
    let mut spans = Vec::new();
    for group in export.resources {
        let resource = group.resource.unwrap_or_default().attributes;
        for span in group.scopes.into_iter().flat_map(|scope| scope.spans) {
            let attributes = span.attributes.iter().chain(&resource);
            spans.push(Span {
                trace_id: hex(&span.trace_id),
                parent: hex(&span.parent),
                name: span.name,
                times: (span.start, span.end),
                attributes: attributes.map(|attribute| (attribute.key.clone(), text(attribute))).collect(),
                events: span.events.into_iter().map(|event| (event.name, event.at)).collect(),
            });
        }
    }
    spans
}

fn text(attribute: &Attribute) -> String {
    match attribute.value.as_ref().and_then(|any| any.value.as_ref()) {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Whole(number)) => number.to_string(),
        Some(Value::Float(number)) => number.to_string(),
        None => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
