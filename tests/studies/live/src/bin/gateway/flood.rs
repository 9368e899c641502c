//! First tokens of a small tenant while another tenant floods a batching model server, through endpoint pickers and without one.
//!
//! Every gateway stands in front of a mock server of its own that batches 16 sequences. The flood has 64 requests at a time, the small tenant
//! two clients that ask once a second at most. All answers are streams of 64 tokens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use penstock_live_studies::peers::FlowControl;
use penstock_tests::mock::{Hardware, Mock};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::body;
use crate::model_server::STREAM;
use crate::options::Plan;
use crate::subject::{Subject, Under, Which};

const HARDWARE: Hardware = Hardware { alpha: 8.0, beta: 0.05, gamma: 0.0005, noise: 0.0 };
const BATCH: &str = "16";
/// Requests of the flood at a time.
const FLOOD: usize = 64;
/// Clients of the small tenant.
const SMALL: usize = 2;
/// The least time between two requests of one of them.
const PACE: Duration = Duration::from_secs(1);
/// Before the measurement: queues fill, and a gateway learns.
const WARM: Duration = Duration::from_secs(20);
const MEASURED: Duration = Duration::from_secs(60);

/// One tenant's requests while it was measured.
#[derive(Default)]
struct Seen {
    /// Until the first bytes of each answer, in ms.
    first_ms: Vec<f64>,
    ended: usize,
    refused: usize,
}

/// Measures the subjects of the plan that are pickers, and an Envoy without one.
pub(crate) async fn run(plan: &Plan) -> Value {
    let mut rows = Vec::new();
    for which in &plan.subjects {
        let ways: &[FlowControl] = match which {
            Which::EndpointPicker => &[FlowControl::Off, FlowControl::On],
            Which::Plain | Which::Picker => &[FlowControl::Off],
            _ => &[],
        };
        for flow_control in ways {
            let mock = Mock::start_with(HARDWARE, 1, &["--max-num-seqs", BATCH]).await;
            let subject = match which {
                Which::EndpointPicker => {
                    let program = plan.programs.endpoint_picker.as_deref();
                    let program = program.expect("the plan has its program");
                    Subject::endpoint_picker(mock.address(), program, *flow_control, Under::Nothing).await
                }
                Which::Picker => Subject::learning_picker(mock.address()).await,
                _ => which.start(mock.address(), &plan.programs, Under::Nothing).await,
            };
            let mut row = measure(subject.address).await;
            row["gateway"] = json!(which.name());
            row["flow_control"] = json!(*flow_control == FlowControl::On);
            println!("flood: {row}");
            rows.push(row);
        }
    }
    Value::Array(rows)
}

async fn measure(address: SocketAddr) -> Value {
    let is_measured = Arc::new(AtomicBool::new(false));
    let [mut flood, mut small] = [JoinSet::new(), JoinSet::new()];
    let ends = Instant::now() + WARM + MEASURED;
    for _ in 0..FLOOD {
        flood.spawn(client(address, "flood", Duration::ZERO, ends, is_measured.clone()));
    }
    for _ in 0..SMALL {
        small.spawn(client(address, "small", PACE, ends, is_measured.clone()));
    }
    tokio::time::sleep(WARM).await;
    is_measured.store(true, Ordering::SeqCst);
    let together = |all: Vec<Seen>| {
        let mut seen = Seen::default();
        for one in all {
            seen.first_ms.extend(one.first_ms);
            seen.ended += one.ended;
            seen.refused += one.refused;
        }
        seen.first_ms.sort_by(f64::total_cmp);
        seen
    };
    let [flood, small] = [together(flood.join_all().await), together(small.join_all().await)];
    json!({
        "flood_requests_per_s": flood.ended as f64 / MEASURED.as_secs_f64(),
        "flood_first_p50_ms": at(&flood.first_ms, 0.5),
        "small_requests": small.ended,
        "small_first_p50_ms": at(&small.first_ms, 0.5),
        "small_first_p99_ms": at(&small.first_ms, 0.99),
        "refused": flood.refused + small.refused,
    })
}

fn at(sorted: &[f64], part: f64) -> Value {
    let index = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    json!(sorted.get(index).map(|ms| ms.round()))
}

/// Asks until `ends`, one request after the other.
async fn client(
    address: SocketAddr,
    tenant: &str,
    pace: Duration,
    ends: Instant,
    is_measured: Arc<AtomicBool>,
) -> Seen {
    let mut seen = Seen::default();
    while Instant::now() < ends {
        let begun = Instant::now();
        match ask(address, tenant).await {
            Ok(first) if is_measured.load(Ordering::SeqCst) && Instant::now() < ends => {
                seen.first_ms.push(first.as_secs_f64() * 1e3);
                seen.ended += 1;
            }
            Ok(_) => {}
            Err(why) => {
                eprintln!("{tenant}: {why}");
                seen.refused += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        tokio::time::sleep_until((begun + pace).into()).await;
    }
    seen
}

/// Sends a request and reads its answer. Returns the time to the first bytes of the answer.
async fn ask(
    address: SocketAddr,
    tenant: &str,
) -> Result<Duration, Box<dyn std::error::Error + Send + Sync>> {
    let socket = TcpStream::connect(address).await?;
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::post("/v1/chat/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .header("x-gateway-inference-fairness-id", tenant)
        .body(Full::new(Bytes::from(body::chat_that_begins(STREAM, body::SHORT))))?;
    let begun = Instant::now();
    let response = client.send_request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut first = None;
    while let Some(frame) = body.frame().await {
        if frame?.is_data() {
            first.get_or_insert_with(|| begun.elapsed());
        }
    }
    match first {
        Some(first) if status == 200 => Ok(first),
        _ => Err(format!("status {status}").into()),
    }
}
