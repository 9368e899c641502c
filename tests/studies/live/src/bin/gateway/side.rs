//! The servers beside a measured Envoy, each in a process of its own so that its CPU can be measured: a model server, a server for unary
//! calls, and an external processor. All do as little work as possible, so the figures show the gateway.
//!
//! The messages of `envoy.service.ext_proc.v3` are declared as far as an answer needs them; other fields are skipped unread, which costs
//! less than a real external processor needs.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt};
use penstock_tests::Process;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::cores::REST;
use crate::model_server;

/// The HTTP/2 window, as in the companion; a body must fit.
const WINDOW_BYTES: u32 = 64 << 20;
/// The text that a server prints before its address when it listens.
const LISTENS: &str = "side listens on ";

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A model server.
    Model,
    /// A server for unary gRPC calls.
    Unary,
    /// An external processor for Envoy.
    Processor,
}

impl Kind {
    const ALL: [(&str, Self); 3] =
        [("model", Self::Model), ("unary", Self::Unary), ("ext-proc", Self::Processor)];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |kind| kind.0)
    }

    /// Finds a kind by its name.
    pub(crate) fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|kind| kind.0 == name).map(|kind| kind.1)
    }
}

/// A running server.
pub(crate) struct Side {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Side {
    /// Starts a server as another process of this program.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub(crate) async fn start(kind: Kind) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a process knows its executable"));
        command.args(["--side", kind.name()]);
        REST.hold(&mut command);
        let mut process = Process::start(kind.name(), command).await;
        let address = process.line(LISTENS).await;
        Self { process, address: address.parse().expect("it prints its address") }
    }
}

/// Serves until the process is killed.
pub(crate) fn be(kind: Kind) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        println!("{LISTENS}{address}");
        match kind {
            Kind::Model => model_server::serve(listener).await,
            Kind::Unary => serve(listener, Gate).await,
            Kind::Processor => serve(listener, Processor).await,
        }
    });
}

async fn serve<S>(listener: TcpListener, service: S)
where
    S: Service<http::Request<tonic::body::Body>, Response = Answer, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let incoming = TcpListenerStream::new(listener).map(|accepted| {
        accepted.inspect(|stream| {
            // An optimisation; the socket works without it.
            let _ = stream.set_nodelay(true);
        })
    });
    tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(service)
        .serve_with_incoming(incoming)
        .await
        .expect("it serves until it is killed");
}

type Answer = http::Response<tonic::body::Body>;

/// A message without fields that are read.
#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

/// Answers every unary call with an empty message.
#[derive(Clone)]
struct Gate;

impl NamedService for Gate {
    const NAME: &'static str = "penstock.bench.Gate";
}

impl Service<http::Request<tonic::body::Body>> for Gate {
    type Response = Answer;
    type Error = Infallible;
    type Future = BoxFuture<Answer, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(Yes, request).await) })
    }
}

struct Yes;

impl Service<Request<Nothing>> for Yes {
    type Response = Response<Nothing>;
    type Error = Status;
    type Future = Ready<Result<Response<Nothing>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Nothing>) -> Self::Future {
        ready(Ok(Response::new(Nothing {})))
    }
}

/// Envoy's message, as far as it is read: the part of the request that it holds.
#[derive(Clone, PartialEq, prost::Message)]
struct ProcessingRequest {
    #[prost(message, optional, tag = "2")]
    request_headers: Option<Nothing>,
    #[prost(message, optional, tag = "4")]
    request_body: Option<Nothing>,
}

/// The answer for the same part. An empty message inside means `CommonResponse` with CONTINUE and no change.
#[derive(Clone, PartialEq, prost::Message)]
struct ProcessingResponse {
    #[prost(message, optional, tag = "1")]
    request_headers: Option<Part>,
    #[prost(message, optional, tag = "3")]
    request_body: Option<Part>,
}

/// `HeadersResponse` or `BodyResponse`, which have the same form.
#[derive(Clone, PartialEq, prost::Message)]
struct Part {
    #[prost(message, optional, tag = "1")]
    response: Option<Nothing>,
}

/// Lets every request continue unchanged.
#[derive(Clone)]
struct Processor;

impl NamedService for Processor {
    const NAME: &'static str = "envoy.service.ext_proc.v3.ExternalProcessor";
}

impl Service<http::Request<tonic::body::Body>> for Processor {
    type Response = Answer;
    type Error = Infallible;
    type Future = BoxFuture<Answer, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).streaming(Continue, request).await) })
    }
}

struct Continue;

impl StreamingService<ProcessingRequest> for Continue {
    type Response = ProcessingResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let go_on = |asked: ProcessingRequest| {
            let part = |_| Part { response: Some(Nothing {}) };
            ProcessingResponse {
                request_headers: asked.request_headers.map(part),
                request_body: asked.request_body.map(part),
            }
        };
        let answers = request.into_inner().map(move |asked| asked.map(go_on));
        ready(Ok(Response::new(Box::pin(answers))))
    }
}
