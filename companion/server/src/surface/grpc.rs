//! The gRPC server: turns streams into events and back, without interpreting frames.

pub(crate) mod client;
mod codec;
#[expect(
    unreachable_pub,
    clippy::allow_attributes,
    clippy::default_constructed_unit_structs,
    reason = "generated code"
)]
#[rustfmt::skip]
mod generated;
mod yielding;

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use penstock_control::{Door, Scope};
use penstock_election::RoleStatus;
use penstock_wire::limits;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::server::HealthReporter;

use self::generated::arbiter_server::{Arbiter, ArbiterServer};
use crate::base::listener::Listener;
use crate::base::tls::{self, ServerTlsConfig};
use crate::decisions::driver::{FRAMES, Handle, ScopeRoles};
use crate::election::Elections;
use crate::surface::keep_alive;
use crate::surface::session_frames;

/// The HTTP/2 window. A burst of small frames must fit into it, or h2 takes the burst for an attack and closes the
/// connection.
const WINDOW_BYTES: u32 = 64 << 20;

/// Why gRPC isn't served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
    /// The client for streams that are kept alive can't be made.
    #[error("the client for Envoy: {0}")]
    Client(#[from] reqwest::Error),
}

/// Above what Envoy accepts of a client, and adds.
const HEADER_LIST_BYTES: u32 = 128 << 10;

struct Service {
    driver: Handle,
}

/// What filters and other companions reach over gRPC.
pub(crate) struct Sessions {
    /// The decision task.
    pub(crate) driver: Handle,
    /// What this companion does, and since which term.
    pub(crate) roles: watch::Receiver<ScopeRoles>,
    /// Streams that are kept alive while they wait; `None`: none are.
    pub(crate) kept_alive: Option<keep_alive::Way>,
    /// The elections, in which other companions may ask this one for a pool.
    pub(crate) elections: Elections,
}

impl Sessions {
    /// Serves gRPC, and streams that are kept alive, until `shutdown` returns, and then until all streams have ended with their queued frames sent.
    ///
    /// # Errors
    /// When the transport fails.
    pub(crate) async fn serve(
        self,
        listener: Listener,
        tls: Option<ServerTlsConfig>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let Self { driver, roles, kept_alive, elections } = self;
        let keeping = driver.clone();
        let service =
            ArbiterServer::new(Service { driver }).max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
        let (health, health_service) = tonic_health::server::health_reporter();
        tokio::spawn(report_health(health, roles));
        let routes = Routes::new(health_service)
            .add_service(yielding::Service::server(elections))
            .add_service(service);
        let routes = match kept_alive {
            Some(way) => Routes::from(keep_alive::add_to(routes.into_axum_router(), keeping, way)?),
            None => routes,
        };
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
            // Envoy sends the headers of clients, too.
            .http2_max_header_list_size(HEADER_LIST_BYTES)
            .add_routes(routes);
        let served = match listener {
            Listener::Tcp(listener) => {
                let incoming = TcpListenerStream::new(listener).map(|accepted| {
                    accepted.inspect(|stream| {
                        // It only affects latency, so a failure is ignored.
                        let _ = stream.set_nodelay(true);
                    })
                });
                router.serve_with_incoming_shutdown(incoming, shutdown).await
            }
            Listener::Unix(listener, _path) => {
                router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), shutdown).await
            }
        };
        Ok(served?)
    }
}

/// Reports the service as serving while this companion leads, for load balancers that check that; where each pool has a leader
/// of its own, while it leads one. Ends with the driver.
async fn report_health(health: HealthReporter, mut roles: watch::Receiver<ScopeRoles>) {
    loop {
        let leads = leads_any(&roles.borrow_and_update());
        if leads {
            health.set_serving::<ArbiterServer<Service>>().await;
        } else {
            health.set_not_serving::<ArbiterServer<Service>>().await;
        }
        if roles.changed().await.is_err() {
            return;
        }
    }
}

/// Whether this companion leads; where each pool has a leader of its own, whether it leads one.
fn leads_any(roles: &ScopeRoles) -> bool {
    let is_split = roles.keys().any(|scope| *scope != Scope::Gateway);
    let present = roles.iter().filter(|(scope, _)| !is_split || scope.pool().is_some());
    present.map(|(_, role)| role).any(RoleStatus::is_leader)
}

#[tonic::async_trait]
impl Arbiter for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<Bytes>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (to_filter, frames) = mpsc::channel(FRAMES);
        let (open, closed) = oneshot::channel::<()>();
        // An error means that the response stream was dropped, whose end ends the session.
        let closed = async { drop(closed.await) };
        let opened =
            session_frames::open(&self.driver, Door::Filter, request.into_inner(), to_filter, closed).await;
        opened.map_err(|_| Status::unavailable("the companion is ending"))?;
        let outgoing = ReceiverStream::new(frames).map(move |frame| {
            let _open = &open;
            Ok(frame)
        });
        Ok(Response::new(Box::pin(outgoing)))
    }
}
