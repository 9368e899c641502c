//! The gRPC side: streams to events and back. It doesn't look into a frame.

mod codec;
#[expect(
    unreachable_pub,
    clippy::allow_attributes,
    clippy::default_constructed_unit_structs,
    reason = "generated code"
)]
#[rustfmt::skip]
mod generated;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use generated::arbiter_server::{Arbiter, ArbiterServer};
use penstock_control::{ConnId, Event};
use penstock_wire::{CompanionFrame, FilterFrame, limits};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::driver::{FRAMES, Handle};
use crate::listener::Listener;
use crate::tls::{self, ServerTlsConfig};

/// A flood of small frames must fit in the window, or h2 takes it for an attack and closes the connection.
const WINDOW_BYTES: u32 = 64 << 20;

struct Service {
    driver: Handle,
    conns: Arc<AtomicU64>,
}

/// Serves gRPC until `shutdown` ends, and then until all streams have: what was said before their end is out by then.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    listener: Listener,
    tls: Option<ServerTlsConfig>,
    driver: Handle,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let service = ArbiterServer::new(Service {
        driver,
        conns: Arc::default(),
    })
    .max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ArbiterServer<Service>>().await;
    let mut server = tonic::transport::Server::builder();
    if let Some(tls) = tls {
        server = tls::apply(server, tls)?;
    }
    let router = server
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .tcp_nodelay(true)
        .add_service(health_service)
        .add_service(service);
    match listener {
        Listener::Tcp(listener) => {
            let incoming = TcpListenerStream::new(listener).map(|accepted| {
                accepted.inspect(|stream| {
                    // Latency only; a socket that can't is still a socket.
                    let _ = stream.set_nodelay(true);
                })
            });
            router.serve_with_incoming_shutdown(incoming, shutdown).await
        }
        Listener::Unix(listener, _path) => {
            router
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), shutdown)
                .await
        }
    }
}

#[tonic::async_trait]
impl Arbiter for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<CompanionFrame, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<Box<FilterFrame>>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let conn = ConnId(self.conns.fetch_add(1, Ordering::Relaxed));
        let (frames, outgoing) = mpsc::channel(FRAMES);
        let gone = |_| Status::unavailable("the companion is shutting down");
        self.driver.open(conn, frames).await.map_err(gone)?;
        // Dropped with the stream of answers: when that is over, so is the session.
        let (answers, over) = oneshot::channel::<()>();
        tokio::spawn(read(conn, request.into_inner(), self.driver.clone(), over));
        let outgoing = ReceiverStream::new(outgoing).map(move |frame| {
            let _held = &answers;
            Ok(frame)
        });
        Ok(Response::new(Box::pin(outgoing)))
    }
}

/// Hands in what comes on a stream, until it ends or its answers do.
async fn read(
    conn: ConnId,
    mut incoming: Streaming<Box<FilterFrame>>,
    driver: Handle,
    mut over: oneshot::Receiver<()>,
) {
    loop {
        let message = tokio::select! {
            biased;
            message = incoming.message() => message,
            _ = &mut over => break,
        };
        match message {
            Ok(Some(frame)) => {
                if driver.frame(conn, frame).await.is_err() {
                    return;
                }
                // One that floods takes its turn with the others.
                tokio::task::consume_budget().await;
            }
            Ok(None) => break,
            Err(status) => {
                tracing::debug!(conn = conn.0, %status, "session's stream broke");
                break;
            }
        }
    }
    // The driver has ended when this fails, and with it the session.
    let _ = driver.tell(Event::Closed(conn)).await;
}
