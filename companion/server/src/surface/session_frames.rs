//! Carries the frames of one session between a filter and the driver, however the filter is connected: by gRPC, or in this process.

use std::panic::AssertUnwindSafe;
use std::pin::pin;

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use penstock_control::{ConnId, Door, Event};
use tokio::sync::mpsc;
use tonic::Status;

use crate::decisions::driver::{Gone, Handle};

/// Opens a session. Its filter sends the frames `incoming`, encoded, and `to_filter` takes those to the filter; the driver closes the session
/// by dropping it. The session ends with the filter's frames, or when `closed` returns.
///
/// # Errors
/// When the driver has ended.
pub(crate) async fn open(
    driver: &Handle,
    door: Door,
    incoming: impl Stream<Item = Result<Bytes, Status>> + Send + 'static,
    to_filter: mpsc::Sender<Bytes>,
    closed: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Gone> {
    let conn = driver.open(to_filter, door).await?;
    tokio::spawn(read_to_end(conn, incoming, driver.clone(), closed));
    Ok(())
}

/// Passes incoming frames to the driver, and then closes the session. A panic ends this session alone: a session that is
/// open and not read would keep its requests for ever.
async fn read_to_end(
    conn: ConnId,
    incoming: impl Stream<Item = Result<Bytes, Status>>,
    driver: Handle,
    closed: impl Future<Output = ()>,
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

/// Passes incoming frames to the driver until they end, or `closed` returns.
async fn read(
    conn: ConnId,
    incoming: impl Stream<Item = Result<Bytes, Status>>,
    driver: Handle,
    closed: impl Future<Output = ()>,
) {
    let (mut incoming, mut closed) = (pin!(incoming), pin!(closed));
    loop {
        let message = tokio::select! {
            biased;
            message = incoming.next() => message,
            () = &mut closed => break,
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
