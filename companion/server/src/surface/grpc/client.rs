//! The other end of a session's stream: carries the frames of this companion's endpoint picker to another companion.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::uri::PathAndQuery;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

use super::WINDOW_BYTES;
use super::codec::SessionCodec;
use crate::election::companions::{PeerError, Peers};

/// As in `wire/proto/penstock.v1.proto`.
const SESSION: &str = "/penstock.v1.Arbiter/Session";
/// As Envoy's: a companion whose machine is gone is noticed after both.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Carries a session with the companion at `address` until one side ends it. Dropping `to_worker` tells the worker.
///
/// # Errors
/// When the companion can't be reached, or the stream fails.
pub(crate) async fn carry(
    peers: &Peers,
    address: SocketAddr,
    from_worker: mpsc::Receiver<Bytes>,
    to_worker: mpsc::Sender<Bytes>,
) -> Result<(), PeerError> {
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
    let mut incoming = client.streaming(outgoing, path, SessionCodec).await?.into_inner();
    loop {
        let frame = tokio::select! {
            frame = incoming.message() => frame?,
            () = to_worker.closed() => return Ok(()),
        };
        let Some(frame) = frame else { return Ok(()) };
        // Fails when the worker has closed the session.
        if to_worker.send(frame).await.is_err() {
            return Ok(());
        }
    }
}
