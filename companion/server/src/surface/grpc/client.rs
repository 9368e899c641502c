//! The other end of a session's stream: carries the frames of this companion's endpoint picker to another companion.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::uri::PathAndQuery;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use super::WINDOW_BYTES;
use super::codec::SessionCodec;
use crate::election::companions::{PeerError, Peers};

/// As in `wire/proto/penstock.v1.proto`.
const SESSION: &str = "/penstock.v1.Arbiter/Session";
/// As Envoy's: a companion whose machine is gone is noticed after both.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// How long a companion may take to end a session that the worker has ended.
const END_MAX: Duration = Duration::from_millis(500);

/// A connection to another companion.
pub(crate) struct Client(tonic::client::Grpc<Channel>);

/// A session with another companion.
pub(crate) struct Session {
    frames: Streaming<Bytes>,
}

impl Client {
    /// Connects to the companion at `address`.
    ///
    /// # Errors
    /// When it can't be reached.
    pub(crate) async fn connect(peers: &Peers, address: SocketAddr) -> Result<Self, PeerError> {
        let settings = |endpoint: Endpoint| {
            endpoint
                .tcp_nodelay(true)
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
        };
        Ok(Self(tonic::client::Grpc::new(peers.connect(address, settings).await?)))
    }

    /// Opens a session with these frames.
    ///
    /// # Errors
    /// When the connection has failed.
    pub(crate) async fn open(mut self, from_worker: mpsc::Receiver<Bytes>) -> Result<Session, Status> {
        self.0.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let outgoing = Request::new(ReceiverStream::new(from_worker));
        let path = PathAndQuery::from_static(SESSION);
        let frames = self.0.streaming(outgoing, path, SessionCodec).await?.into_inner();
        Ok(Session { frames })
    }
}

impl Session {
    /// Passes the companion's frames to the worker until one side ends the session.
    ///
    /// # Errors
    /// When the stream fails.
    pub(crate) async fn carry(mut self, to_worker: mpsc::Sender<Bytes>) -> Result<(), Status> {
        loop {
            let frame = tokio::select! {
                frame = self.frames.message() => frame?,
                () = to_worker.closed() => break,
            };
            let Some(frame) = frame else { return Ok(()) };
            if to_worker.send(frame).await.is_err() {
                break;
            }
        }
        // The worker has ended the session. Its last frames reach the companion, which ends its side then: a stream that is dropped before
        // loses what waits to be sent.
        let rest = async { while let Ok(Some(_)) = self.frames.message().await {} };
        // A companion that is away has no use for them.
        let _ = tokio::time::timeout(END_MAX, rest).await;
        Ok(())
    }
}
