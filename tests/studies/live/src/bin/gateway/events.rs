//! Event streams at a fixed rate, and the CPU cost of each event.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use penstock_tests::until;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::body;
use crate::model_server::{EVENT, EVENTS_PER_S, STREAM};
use crate::subject::{Cpu, Subject};

/// Concurrent streams.
const STREAMS: u64 = 50;

#[derive(Default)]
struct Seen {
    bytes: AtomicU64,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// Reads all streams through a subject for `time`; returns the received events and the CPU.
///
/// # Panics
/// If a stream ends, or fewer than half of the expected events arrive.
pub(crate) async fn run(subject: &Subject, seconds: u32) -> (f64, Cpu) {
    let seen = Arc::<Seen>::default();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        streams.spawn(take(subject.address, seen.clone()));
    }
    until("every stream has begun", || async {
        match seen.begun.load(Ordering::SeqCst) {
            begun if begun as u64 == STREAMS => Ok(()),
            begun => Err(format!("{begun}, and {:?} ended", seen.ended)),
        }
    })
    .await;
    let (before, bytes) = (subject.cpu(), seen.bytes.load(Ordering::SeqCst));
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let (cpu, bytes) = (subject.cpu().since(before), seen.bytes.load(Ordering::SeqCst) - bytes);
    let events = bytes / EVENT.len() as u64;
    let due = STREAMS * EVENTS_PER_S * u64::from(seconds);
    let name = subject.which.name();
    assert_eq!(seen.ended.load(Ordering::SeqCst), 0, "{name}: streams ended");
    assert!(events >= due / 2, "{name}: {events} events of {due}: this machine is too busy for their pace");
    streams.shutdown().await;
    if let Some(pages) = &subject.pages {
        pages.stock("p", 0).await;
    }
    (events as f64, cpu)
}

/// Reads one stream, which must not end.
async fn take(address: SocketAddr, seen: Arc<Seen>) {
    if let Err(error) = read(address, &seen).await {
        eprintln!("a stream of {address}: {error}");
    }
    seen.ended.fetch_add(1, Ordering::SeqCst);
}

async fn read(address: SocketAddr, seen: &Seen) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let socket = TcpStream::connect(address).await?;
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::post("/v1/chat/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body::chat_that_begins(STREAM, body::SHORT))))?;
    let response = client.send_request(request).await?;
    if response.status() != 200 {
        return Err(format!("status {}", response.status()).into());
    }
    let mut body = response.into_body();
    let mut first = true;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            seen.bytes.fetch_add(data.len() as u64, Ordering::SeqCst);
            if std::mem::take(&mut first) {
                seen.begun.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    Ok(())
}
