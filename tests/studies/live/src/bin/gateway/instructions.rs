//! Envoy's instructions a request and an event, counted by callgrind: they depend little on the hour, unlike times on a machine with neighbours.
//! What the idle Envoy does in the same time is subtracted.
//!
//! Each subject's Envoy runs under valgrind, some thirty times slower. One connection sends one request after the other.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use penstock_tests::pages::Pages;
use penstock_tests::until;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::body;
use crate::model_server::{EVENT, STREAM};
use crate::options::Plan;
use crate::subject::{Subject, Under, Which};

/// Requests before the count: caches are warm, and a companion gives credit.
const WARM: usize = 1_000;
/// Counted requests of 1 KB.
const SHORT: usize = 1_500;
/// Counted requests of 220 KB.
const LONG: usize = 150;
/// Counted events, of one stream.
const EVENTS: usize = 300;

/// How long the idle Envoy is counted.
const IDLE: Duration = Duration::from_secs(4);

/// A command that runs a program under callgrind, whose counts come into files of a folder.
pub(crate) fn counting(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", folder.join("counts").display()));
    command.arg(pipes(folder)).arg(program);
    command
}

/// The place of the pipes by which callgrind is controlled; the default depends on each process's environment.
fn pipes(folder: &Path) -> String {
    format!("--vgdb-prefix={}", folder.join("pipe").display())
}

/// Checks that valgrind is installed.
pub(crate) fn installed() -> Result<(), String> {
    body::installed("callgrind_control", "instructions' count", "`apt-get install valgrind`")
}

/// Counts for all subjects of the plan but those where requests wait.
pub(crate) async fn run(plan: &Plan, server: std::net::SocketAddr) -> Value {
    let mut all = Map::new();
    for which in plan.subjects.iter().filter(|which| !matches!(which, Which::Queued | Which::Replicas)) {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let kept = plan.keep.as_ref().map(|keep| keep.join(which.name()));
        let folder = kept.as_deref().unwrap_or(temporary.path());
        if kept.is_some() {
            // Counts of an earlier run would be read as this one's. The first run has none.
            let _ = std::fs::remove_dir_all(folder);
        }
        std::fs::create_dir_all(folder).expect("a folder for the counts");
        let subject = which.start(server, &plan.programs, Under::Callgrind(folder)).await;
        let counted = of_subject(&subject, folder).await;
        println!("instructions, {}: {counted}", which.name());
        all.insert(which.name().to_owned(), counted);
    }
    Value::Object(all)
}

async fn of_subject(subject: &Subject, folder: &Path) -> Value {
    let mut counter = Counter { subject, folder, dumps: 0, last: Instant::now(), idle_per_s: 0.0 };
    let (short, long) = (body::chat(body::SHORT), body::chat(body::LONG));
    let mut client = connect(subject).await;
    // An Envoy that is so slow listens before its filter has a session.
    let gateway = Pages::at(format!("http://{}", subject.address));
    until("a request is answered", || async {
        let answer = gateway.try_post("/v1/chat/completions", &short).await?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    ask(&mut client, &short, WARM).await;
    counter.since_last().await;
    tokio::time::sleep(IDLE).await;
    counter.idle_per_s = counter.since_last().await / IDLE.as_secs_f64();
    let admitted = subject.admitted().await;
    counter.since_last().await;
    ask(&mut client, &short, SHORT).await;
    let short = counter.since_last().await / SHORT as f64;
    let leased = match (admitted, subject.admitted().await) {
        (Some(before), Some(after)) => json!((after.leased - before.leased) / SHORT as f64),
        _ => Value::Null,
    };
    ask(&mut client, &long, LONG / 5).await;
    counter.since_last().await;
    ask(&mut client, &long, LONG).await;
    let long = counter.since_last().await / LONG as f64;
    // Filters may hold what is short, so the stream has begun before the count.
    let mut stream = events(&mut client).await;
    stream.read(EVENTS / 10).await;
    counter.since_last().await;
    stream.read(EVENTS).await;
    let event = counter.since_last().await / EVENTS as f64;
    json!({"1kb": short.round(), "220kb": long.round(), "event": event.round(), "by_credit": leased})
}

/// The counts of one Envoy.
struct Counter<'a> {
    subject: &'a Subject,
    folder: &'a Path,
    dumps: u32,
    /// When the last count ended.
    last: Instant,
    /// What an idle Envoy takes.
    idle_per_s: f64,
}

impl Counter<'_> {
    /// The instructions since the last call, or since Envoy's start.
    async fn since_last(&mut self) -> f64 {
        self.dumps += 1;
        let mut control = Command::new("callgrind_control");
        control.arg(pipes(self.folder)).arg("--dump").arg(self.subject.envoy.pid().to_string());
        let said = control.output().await.expect("callgrind_control runs");
        let file = self.folder.join(format!("counts.{}", self.dumps));
        let total: f64 = until("callgrind has written its counts", || async {
            let text = std::fs::read_to_string(&file).map_err(|error| format!("{error}; {said:?}"))?;
            let total = text.lines().rev().find_map(|line| line.strip_prefix("totals: "));
            total.and_then(|total| total.trim().parse().ok()).ok_or_else(|| "no totals yet".to_owned())
        })
        .await;
        let now = Instant::now();
        let idle = self.idle_per_s * (now - std::mem::replace(&mut self.last, now)).as_secs_f64();
        total - idle
    }
}

type Client = SendRequest<Full<Bytes>>;

async fn connect(subject: &Subject) -> Client {
    let socket = TcpStream::connect(subject.address).await.expect("it listens");
    socket.set_nodelay(true).expect("a TCP socket");
    let (client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("a connection");
    tokio::spawn(connection);
    client
}

fn post(body: &str) -> Request<Full<Bytes>> {
    Request::post("/v1/chat/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_owned())))
        .expect("a request")
}

/// Sends so many requests, one after the other.
async fn ask(client: &mut Client, body: &str, count: usize) {
    for _ in 0..count {
        client.ready().await.expect("an open connection");
        let response = client.send_request(post(body)).await.expect("an answer");
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.expect("a whole answer");
    }
}

/// A stream of events.
struct Events {
    body: hyper::body::Incoming,
}

async fn events(client: &mut Client) -> Events {
    let chat = body::chat_that_begins(STREAM, body::SHORT);
    client.ready().await.expect("an open connection");
    let response = client.send_request(post(&chat)).await.expect("an answer");
    assert_eq!(response.status(), 200);
    Events { body: response.into_body() }
}

impl Events {
    /// Reads so many events.
    async fn read(&mut self, count: usize) {
        let mut left = count * EVENT.len();
        while left > 0 {
            let frame = self.body.frame().await.expect("the stream goes on").expect("no error");
            left = left.saturating_sub(frame.into_data().map_or(0, |data| data.len()));
        }
    }
}
