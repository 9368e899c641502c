//! The servers beside an Envoy that is measured, each a process of its own, so that its CPU is its own: a model server,
//! and who is asked by unary calls or by Envoy's external processor. All answer at once, or as told, with as little work
//! as can be: what is measured is the way.
//!
//! The messages of `envoy.service.ext_proc.v3` are declared as far as they are needed to answer; what Envoy says beyond
//! that is skipped unread, which is kinder to the external processor than a real one could be.

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

/// As in the companion: a body must fit.
const WINDOW_BYTES: u32 = 64 << 20;
/// What a server prints when it listens, before its address.
const LISTENS: &str = "side listens on ";

/// What such a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A model server.
    Model,
    /// Who is asked by unary gRPC calls.
    Unary,
    /// An external processor of Envoy's.
    Processor,
}

impl Kind {
    const ALL: [(&str, Self); 3] = [
        ("model", Self::Model),
        ("unary", Self::Unary),
        ("ext-proc", Self::Processor),
    ];

    fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, kind)| *kind == self)
            .map_or("", |it| it.0)
    }

    /// By its name.
    pub(crate) fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|it| it.0 == name).map(|it| it.1)
    }
}

/// A running one.
pub(crate) struct Side {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Side {
    /// Starts one, as another process of this program.
    ///
    /// # Panics
    /// With its log, when it doesn't start.
    pub(crate) async fn start(kind: Kind) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a process knows its executable"));
        command.args(["--side", kind.name()]);
        REST.hold(&mut command);
        let mut process = Process::start(kind.name(), command).await;
        let address = process.line(LISTENS).await;
        Self {
            process,
            address: address.parse().expect("it prints its address"),
        }
    }
}

/// Is such a server until the process is killed.
pub(crate) fn be(kind: Kind) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
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
            // Latency only; a socket that can't is still a socket.
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

/// Nothing that would be read.
#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

/// Says yes to every unary call.
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

/// What Envoy asks, as far as it is read: which part of the request it has sent.
#[derive(Clone, PartialEq, prost::Message)]
struct ProcessingRequest {
    #[prost(message, optional, tag = "2")]
    request_headers: Option<Nothing>,
    #[prost(message, optional, tag = "4")]
    request_body: Option<Nothing>,
}

/// The answer to the same part. An empty message in it is `CommonResponse`'s CONTINUE without a change.
#[derive(Clone, PartialEq, prost::Message)]
struct ProcessingResponse {
    #[prost(message, optional, tag = "1")]
    request_headers: Option<Part>,
    #[prost(message, optional, tag = "3")]
    request_body: Option<Part>,
}

/// `HeadersResponse` or `BodyResponse`, which are alike.
#[derive(Clone, PartialEq, prost::Message)]
struct Part {
    #[prost(message, optional, tag = "1")]
    response: Option<Nothing>,
}

/// Lets everything go on as it is.
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
        Box::pin(async move {
            Ok(Grpc::new(ProstCodec::default())
                .streaming(Continue, request)
                .await)
        })
    }
}

struct Continue;

impl StreamingService<ProcessingRequest> for Continue {
    type Response = ProcessingResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let go_on = |asked: ProcessingRequest| {
            let part = |_| Part {
                response: Some(Nothing {}),
            };
            ProcessingResponse {
                request_headers: asked.request_headers.map(part),
                request_body: asked.request_body.map(part),
            }
        };
        let answers = request.into_inner().map(move |asked| asked.map(go_on));
        ready(Ok(Response::new(Box::pin(answers))))
    }
}
