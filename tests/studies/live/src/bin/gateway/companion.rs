//! The companion alone, with a scripted session instead of a filter and an Envoy: memory per waiting request at 100,000 requests, and CPU
//! per request at 10,000 requests/s.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_tests::ports::free_address;
use penstock_tests::process::resident_bytes;
use penstock_tests::until;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{
    Api, Cancel, CompanionFrame, Completed, EndReason, FilterFrame, Grant, Heartbeat, Hello, METHOD,
    Register, SERVICE, Started, limits,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use crate::subject::{Companion, NO_CREDITS, cpu_us, slots};

const WAITING: u64 = 100_000;
const FLOWS: u64 = 1_000;
/// Sessions that register the waiting requests; one may have 65,536.
const SESSIONS: u64 = 2;
/// Requests per second, and per tick of one millisecond.
const RATE: u64 = 10_000;
const PER_TICK: u64 = RATE / 1_000;
/// Warm-up before the measurement.
const SETTLING: Duration = Duration::from_secs(1);
/// The HTTP/2 window, as in the companion.
const WINDOW_BYTES: u32 = 64 << 20;
/// Frames between the script and the connection.
const FRAMES: usize = 1_024;

/// Measures memory and CPU.
pub(crate) async fn run(seconds: u32) -> Value {
    let (waiting, cycles) = (waiting().await, cycles(seconds).await);
    let all = json!({"waiting": waiting, "cycles": cycles});
    println!("companion: {all}");
    all
}

/// Memory per waiting request.
async fn waiting() -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let companion =
        Companion::start(folder.path(), [free_address(); 2], free_address(), &slots(1), NO_CREDITS).await;
    let mut sessions = Vec::new();
    for epoch in 1..=SESSIONS {
        sessions.push(Session::open(companion.grpc, epoch, false).await);
    }
    let resident = || resident_bytes(companion.process.pid()).expect("it runs") as f64;
    let mut mib = Vec::new();
    let mut note = |bytes: f64| mib.push((bytes / f64::from(1 << 20) * 10.0).round() / 10.0);
    let before = resident();
    note(before);
    // The first request takes the place and never completes.
    sessions[0].say(Event::Register(register(WAITING + 1))).await;
    sessions[0].handled().await;
    for sequence in 1..=WAITING {
        let session = &sessions[(sequence % SESSIONS) as usize];
        session.say(Event::Register(register(sequence))).await;
    }
    for session in &sessions {
        session.handled().await;
    }
    let full = resident();
    note(full);
    companion.pages.waiting("p", WAITING).await;
    for sequence in 1..=WAITING {
        let session = &sessions[(sequence % SESSIONS) as usize];
        session.say(Event::Cancel(Cancel { sequence })).await;
    }
    for session in &sessions {
        session.handled().await;
    }
    companion.pages.waiting("p", 0).await;
    note(resident());
    json!({
        "waiting": WAITING, "flows": FLOWS,
        "bytes_each": ((full - before) / WAITING as f64).round(),
        "mib_before_waiting_gone": mib,
    })
}

/// CPU of requests that bypass the queue.
async fn cycles(seconds: u32) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stock = "stock: {watermark_per_backend: 1000}";
    let companion =
        Companion::start(folder.path(), [free_address(); 2], free_address(), stock, NO_CREDITS).await;
    let session = Session::open(companion.grpc, 1, true).await;
    let mut pace = tokio::time::interval(Duration::from_millis(1));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut sequence = 0;
    let mut before = (0, 0.0, Instant::now());
    let settling = u64::try_from(SETTLING.as_millis()).unwrap_or(u64::MAX);
    for tick in 0..settling + u64::from(seconds) * 1_000 {
        if tick == settling {
            before = (session.served(), cpu_us(&companion.process), Instant::now());
        }
        pace.tick().await;
        for _ in 0..PER_TICK {
            sequence += 1;
            session.say(Event::Register(register(sequence))).await;
        }
    }
    let served = session.served() - before.0;
    let cpu = cpu_us(&companion.process) - before.1;
    let rate = served as f64 / before.2.elapsed().as_secs_f64();
    let due = RATE * u64::from(seconds);
    assert!(served >= due * 95 / 100, "the companion served {served} requests of {due}");
    json!({
        "requests_per_s": rate.round(),
        "cpu_us_per_request": (cpu / served as f64 * 100.0).round() / 100.0,
    })
}

/// The registration of a chat request of 1 KB.
fn register(sequence: u64) -> Register {
    Register {
        sequence,
        request_id: format!("6f2b1a90-0000-4000-8000-{sequence:012}"),
        api: Api::ChatCompletions.into(),
        model: "m".to_owned(),
        prompt_bytes: 930,
        max_tokens: Some(64),
        body_bytes: 1_024,
        fairness_id: format!("tenant-{}", sequence % FLOWS),
        client: "127.0.0.1".to_owned(),
        ..Register::default()
    }
}

/// A filter's side of a session.
struct Session {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    frames: mpsc::Sender<FilterFrame>,
    /// Frames sent.
    said: Mutex<u64>,
    /// The last frame that the companion has handled.
    acked: AtomicU64,
    /// Frames received from the companion.
    heard: AtomicU64,
    served: AtomicU64,
}

impl Session {
    /// Opens a session. If `serves`, it completes each granted request at once.
    async fn open(companion: SocketAddr, epoch: u64, serves: bool) -> Self {
        let (frames, outgoing) = mpsc::channel(FRAMES);
        let shared = Arc::new(Shared {
            frames,
            said: Mutex::new(0),
            acked: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            served: AtomicU64::new(0),
        });
        let hello = Hello {
            epoch_hi: 1,
            epoch_lo: epoch,
            envoy: 1,
            stream: 1,
            version_min: limits::VERSION_MIN,
            version_max: limits::VERSION_MAX,
            node: "bench".to_owned(),
            last: true,
            ..Hello::default()
        };
        shared.say(Event::Hello(hello)).await;
        let endpoint = Endpoint::from_shared(format!("http://{companion}")).expect("an address");
        let endpoint =
            endpoint.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let mut client = Grpc::new(endpoint.connect().await.expect("the companion listens"));
        client.ready().await.expect("an open connection");
        let path = format!("/{SERVICE}/{METHOD}").parse().expect("a path");
        let codec = ProstCodec::<FilterFrame, CompanionFrame>::default();
        let request = Request::new(ReceiverStream::new(outgoing));
        let response = client.streaming(request, path, codec).await;
        let mut incoming = response.expect("the companion takes sessions").into_inner();
        let mut tasks = JoinSet::new();
        let listener = shared.clone();
        tasks.spawn(async move {
            while let Some(frame) = incoming.message().await.expect("the session lasts") {
                listener.hear(frame, serves).await;
            }
        });
        let beating = shared.clone();
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(limits::HEARTBEAT_INTERVAL).await;
                beating.say(Event::Heartbeat(Heartbeat::default())).await;
            }
        });
        Self { shared, _tasks: tasks }
    }

    async fn say(&self, event: Event) {
        self.shared.say(event).await;
    }

    fn served(&self) -> u64 {
        self.shared.served.load(Ordering::SeqCst)
    }

    /// Waits until the companion has handled every frame sent so far.
    async fn handled(&self) {
        let said = *self.shared.said.lock().expect("no one panics with it");
        until("all is handled", || async {
            match self.shared.acked.load(Ordering::SeqCst) {
                acked if acked >= said => Ok(()),
                acked => Err(format!("{acked} of {said}")),
            }
        })
        .await;
    }
}

impl Shared {
    async fn say(&self, event: Event) {
        let place = self.frames.reserve().await.expect("the session is open");
        // The lock is held while sending, so that frames leave in the order of their numbers.
        let mut said = self.said.lock().expect("no one panics with it");
        *said += 1;
        place.send(FilterFrame {
            seq: *said,
            ack: self.heard.load(Ordering::SeqCst),
            admitted: Vec::new(),
            event: Some(event),
        });
    }

    async fn hear(&self, frame: CompanionFrame, serves: bool) {
        self.heard.store(frame.seq, Ordering::SeqCst);
        self.acked.store(frame.ack, Ordering::SeqCst);
        for command in frame.commands {
            match command.kind {
                Some(Kind::Grant(grant)) if serves => self.serve(grant).await,
                Some(Kind::Reject(reject)) => panic!("the companion refuses: {reject:?}"),
                Some(_) | None => {}
            }
        }
    }

    /// Completes the granted requests at once.
    async fn serve(&self, grant: Grant) {
        let (sequence, endpoint) = (grant.sequence, grant.endpoints.into_iter().next().unwrap_or_default());
        self.say(Event::Started(Started {
            sequence,
            endpoint: endpoint.clone(),
            status: 200,
            attempts: 1,
            after_us: 500,
            ..Started::default()
        }))
        .await;
        self.say(Event::Completed(Completed {
            sequence,
            endpoint,
            status: 200,
            attempts: 1,
            end: EndReason::Served.into(),
            first_token_us: Some(500),
            last_byte_us: Some(500),
            prompt_tokens: Some(240),
            output_tokens: Some(1),
            ..Completed::default()
        }))
        .await;
        self.served.fetch_add(1, Ordering::SeqCst);
    }
}
