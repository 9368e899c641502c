//! Memory of paused requests, in Envoy, which keeps their bodies, and in the companion; and memory after they have ended.

use std::net::SocketAddr;

use penstock_tests::process::{Process, resident_bytes};
use penstock_tests::until;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::body;
use crate::model_server::HOLD;
use crate::subject::{NO_CREDITS, Subject, Under, Which, slots};

/// Requests that are paused at the same time.
const PAUSED: usize = 5_000;
/// Body sizes, in bytes; each is measured with a gateway of its own.
const BODIES: [usize; 2] = [1 << 10, 100 << 10];

/// Resident memory at one moment, and the memory that Envoy's allocator has given out.
#[derive(Clone, Copy, Debug)]
struct Memory {
    envoy: f64,
    envoy_heap: f64,
    companion: f64,
}

impl Memory {
    async fn of(subject: &Subject) -> Self {
        let admin = subject.admin.get("/memory").await.expect("Envoy answers").json();
        let heap = admin["allocated"].as_str().and_then(|text| text.parse().ok());
        let companion = subject.side.as_ref().expect("Penstock has a companion");
        Self {
            envoy: resident(&subject.envoy),
            envoy_heap: heap.expect("Envoy says what it has allocated"),
            companion: resident(companion),
        }
    }
}

fn resident(process: &Process) -> f64 {
    resident_bytes(process.pid()).expect("a running process has memory") as f64
}

/// Measures every body size with both forms of the filter, in front of a model server.
pub(crate) async fn run(server: SocketAddr) -> Value {
    let mut rows = Vec::new();
    for which in [Which::Penstock, Which::NativePenstock] {
        for bytes in BODIES {
            rows.push(paused(which, server, bytes).await);
        }
    }
    Value::Array(rows)
}

async fn paused(which: Which, server: SocketAddr, bytes: usize) -> Value {
    let subject = Subject::penstock(which, server, [&slots(1), NO_CREDITS], Under::Nothing).await;
    let pages = subject.pages.as_ref().expect("Penstock has a companion");
    let mut held = TcpStream::connect(subject.address).await.expect("it listens");
    send(&mut held, &body::chat_that_begins(HOLD, body::SHORT)).await;
    pages.stock("p", 1).await;
    let before = Memory::of(&subject).await;
    let mut clients = Vec::with_capacity(PAUSED);
    for _ in 0..PAUSED {
        clients.push(TcpStream::connect(subject.address).await.expect("it listens"));
    }
    connected(&subject, PAUSED + 1).await;
    let connected = Memory::of(&subject).await;
    let chat = body::chat(bytes);
    for client in &mut clients {
        send(client, &chat).await;
    }
    pages.waiting("p", PAUSED as u64).await;
    let paused = Memory::of(&subject).await;
    drop((clients, held));
    pages.waiting("p", 0).await;
    pages.stock("p", 0).await;
    self::connected(&subject, 0).await;
    let after = Memory::of(&subject).await;
    let each = |part: fn(&Memory) -> f64, from: &Memory, to: &Memory| (part(to) - part(from)) / PAUSED as f64;
    let row = json!({
        "filter": which.filter(),
        "body_bytes": bytes,
        "paused": PAUSED,
        "envoy_bytes_each": each(|m| m.envoy, &before, &paused).round(),
        "envoy_bytes_each_of_the_connection": each(|m| m.envoy, &before, &connected).round(),
        "companion_bytes_each": each(|m| m.companion, &before, &paused).round(),
        "envoy_mib": {"before": mib(before.envoy), "paused": mib(paused.envoy), "gone": mib(after.envoy)},
        "envoy_heap_mib": {
            "before": mib(before.envoy_heap), "paused": mib(paused.envoy_heap), "gone": mib(after.envoy_heap),
        },
        "companion_mib": {
            "before": mib(before.companion), "paused": mib(paused.companion), "gone": mib(after.companion),
        },
    });
    println!("paused: {row}");
    row
}

/// In MiB, rounded to a tenth.
fn mib(bytes: f64) -> f64 {
    (bytes / f64::from(1 << 20) * 10.0).round() / 10.0
}

async fn send(client: &mut TcpStream, chat: &str) {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        chat.len()
    );
    client.write_all((head + chat).as_bytes()).await.expect("the gateway reads");
}

/// Waits until Envoy has `count` client connections.
async fn connected(subject: &Subject, count: usize) {
    const NAME: &str = "http.penstock.downstream_cx_active";
    until(&format!("{count} connections"), || async {
        let page = subject.admin.get(&format!("/stats?filter={NAME}")).await?.text();
        if page.lines().any(|line| line == format!("{NAME}: {count}")) { Ok(()) } else { Err(page) }
    })
    .await;
}
