//! Carries the frames of one session between a filter and the driver, however the filter is connected: by gRPC, or in this process.

use std::panic::AssertUnwindSafe;
use std::pin::pin;

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use penstock_control::{ConnId, Event};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::decisions::driver::{FRAMES, Gone, Handle};

/// The frames to a filter. The session ends when they are dropped.
pub(crate) struct Outgoing {
    /// The frames, encoded. They end when the driver closes the session.
    pub(crate) frames: mpsc::Receiver<Bytes>,
    /// Dropped with the frames.
    pub(crate) open: oneshot::Sender<()>,
}

/// Opens a session whose filter sends the frames `incoming`, encoded.
///
/// # Errors
/// When the driver has ended.
pub(crate) async fn open(
    driver: &Handle,
    incoming: impl Stream<Item = Result<Bytes, Status>> + Send + 'static,
) -> Result<Outgoing, Gone> {
    let (to_filter, frames) = mpsc::channel(FRAMES);
    let conn = driver.open(to_filter).await?;
    let (open, closed) = oneshot::channel();
    tokio::spawn(read_to_end(conn, incoming, driver.clone(), closed));
    Ok(Outgoing { frames, open })
}

/// Passes incoming frames to the driver, and then closes the session. A panic ends this session alone: a session that is
/// open and not read would keep its requests for ever.
async fn read_to_end(
    conn: ConnId,
    incoming: impl Stream<Item = Result<Bytes, Status>>,
    driver: Handle,
    closed: oneshot::Receiver<()>,
) {
    let reading = read(conn, incoming, driver.clone(), closed);
    if AssertUnwindSafe(reading).catch_unwind().await.is_err() {
        tracing::error!(
            conn = conn.0,
            "a defect ended a session, so the filter opens another one; please report this with the log"
        );
    }
    // Sending fails after the driver has ended, and the session with it.
    let _ = driver.send(Event::Closed(conn)).await;
}

/// Passes incoming frames to the driver until they end, or the outgoing ones are dropped.
async fn read(
    conn: ConnId,
    incoming: impl Stream<Item = Result<Bytes, Status>>,
    driver: Handle,
    mut closed: oneshot::Receiver<()>,
) {
    let mut incoming = pin!(incoming);
    loop {
        let message = tokio::select! {
            biased;
            message = incoming.next() => message,
            _ = &mut closed => break,
        };
        match message {
            Some(Ok(frame)) => {
                if driver.frame(conn, frame).await.is_err() {
                    return;
                }
                // A flooding stream must not starve the other tasks of the thread.
                tokio::task::consume_budget().await;
            }
            None => break,
            Some(Err(status)) => {
                tracing::debug!(conn = conn.0, %status, "stream of the session failed");
                break;
            }
        }
    }
}
