//! The other end of a session's stream: carries the frames of this companion's endpoint picker to another companion.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::uri::PathAndQuery;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
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

/// A session with another companion.
pub(crate) struct Session {
    frames: Streaming<Bytes>,
}

/// Opens a session with the companion at `address`.
///
/// # Errors
/// When the companion can't be reached.
pub(crate) async fn open(
    peers: &Peers,
    address: SocketAddr,
    from_worker: mpsc::Receiver<Bytes>,
) -> Result<Session, PeerError> {
    let settings = |endpoint: Endpoint| {
        endpoint
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
    };
    let channel = peers.connect(address, settings).await?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let outgoing = Request::new(ReceiverStream::new(from_worker));
    let path = PathAndQuery::from_static(SESSION);
    let frames = client.streaming(outgoing, path, SessionCodec).await?.into_inner();
    Ok(Session { frames })
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
