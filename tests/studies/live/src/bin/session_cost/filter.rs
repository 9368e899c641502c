//! The filters' side of the sessions: a script in rounds. All requests of a round are registered at once, and the next round
//! begins when all of them are completed.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, SelectAll};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{
    Admitted, Api, Command, CompanionFrame, Completed, EndReason, FilterFrame, Heartbeat, Hello, METHOD,
    Register, Running, SERVICE, Started, limits,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::{ENDPOINT, Load, POOL};

const TENANTS: u64 = 100;
const WINDOW_BYTES: u32 = 64 << 20;
/// Before the companion gives places, no request may have waited for a second, with time to spare.
const CALM: Duration = Duration::from_millis(1_500);
/// Rounds of requests that ask before the others go by credit: the companion gives places only to busy filters.
const ROUNDS_TO_CREDIT: u64 = 4;
/// The companion starts slowly under valgrind.
const START_ATTEMPTS: u32 = 600;

/// Sends `requests` requests and waits until the companion has handled the last frame.
///
/// # Panics
/// If the companion doesn't start, or refuses a request.
pub(crate) async fn run(companion: SocketAddr, load: Load, requests: u64) {
    let mut script = Script::open(companion, load).await;
    if load.by_credit {
        script.get_credit().await;
    }
    for _ in 0..requests / load.round {
        if load.by_credit {
            script.report();
        } else {
            script.ask().await;
        }
    }
    script.finish().await;
}

type Incoming = BoxStream<'static, (usize, Result<CompanionFrame, Status>)>;

struct Script {
    load: Load,
    sessions: Vec<Session>,
    /// The companion has given places.
    has_credit: bool,
    /// The frames of all sessions, each with the number of its session.
    incoming: SelectAll<Incoming>,
}

impl Script {
    async fn open(companion: SocketAddr, load: Load) -> Self {
        let mut script = Self { load, sessions: Vec::new(), has_credit: false, incoming: SelectAll::new() };
        for epoch in 1..=load.sessions {
            let (session, incoming) = Session::open(companion, epoch).await;
            let number = script.sessions.len();
            script.sessions.push(session);
            script.incoming.push(incoming.map(move |frame| (number, frame)).boxed());
        }
        script
    }

    /// Asks until the companion gives places.
    ///
    /// # Panics
    /// If it gives none.
    async fn get_credit(&mut self) {
        // The first requests wait until dispatch begins.
        self.ask().await;
        tokio::time::sleep(CALM).await;
        for _ in 0..ROUNDS_TO_CREDIT {
            self.ask().await;
        }
        assert!(self.has_credit, "the companion gives a busy filter places");
    }

    /// Registers the requests of a round, and completes them as they are granted.
    async fn ask(&mut self) {
        self.register();
        let mut completed = 0;
        while completed < self.load.round {
            completed += self.complete_granted().await;
        }
    }

    fn register(&mut self) {
        for session in &mut self.sessions {
            for _ in 0..self.load.round / self.load.sessions {
                session.sequence += 1;
                let register = register(session.sequence);
                session.send(Event::Register(register));
            }
        }
    }

    /// Reports the requests of a round: each session sends one frame.
    fn report(&mut self) {
        for session in &mut self.sessions {
            let requests = self.load.round / self.load.sessions;
            let sequences = session.sequence + 1..=session.sequence + requests;
            session.sequence += requests;
            session.send_frame(sequences.map(report).collect(), None);
        }
    }

    /// Waits for a frame, and completes the requests that it grants. Returns their number.
    async fn complete_granted(&mut self) -> u64 {
        let (number, frame) = self.incoming.next().await.expect("there is a session");
        let session = &mut self.sessions[number];
        let commands = session.receive(frame);
        let mut completed = 0;
        for kind in commands.into_iter().filter_map(|command| command.kind) {
            assert!(!matches!(kind, Kind::Reject(_)), "the companion refuses: {kind:?}");
            self.has_credit |= matches!(kind, Kind::Credit(_));
            let Kind::Grant(grant) = kind else { continue };
            let endpoint = grant.endpoints.into_iter().next().unwrap_or_default();
            if self.load.streams {
                session.send(Event::Started(started(grant.sequence, endpoint.clone())));
            }
            session.send(Event::Completed(end(grant.sequence, endpoint)));
            completed += 1;
        }
        completed
    }

    async fn finish(&mut self) {
        for session in &mut self.sessions {
            // The companion acknowledges a heartbeat at once.
            session.send(Event::Heartbeat(Heartbeat::default()));
        }
        while self.sessions.iter().any(|session| session.handled < session.sent) {
            self.complete_granted().await;
        }
    }
}

struct Session {
    outgoing: mpsc::UnboundedSender<FilterFrame>,
    /// The last frame that was sent, and the last one that was received.
    sent: u64,
    received: u64,
    /// The last frame that the companion has handled.
    handled: u64,
    /// The last request.
    sequence: u64,
}

impl Session {
    async fn open(companion: SocketAddr, epoch: u64) -> (Self, Streaming<CompanionFrame>) {
        let mut client = Grpc::new(connect(companion).await);
        client.ready().await.expect("an open connection");
        let (outgoing, frames) = mpsc::unbounded_channel();
        let mut session = Self { outgoing, sent: 0, received: 0, handled: 0, sequence: 0 };
        session.send(Event::Hello(Hello {
            epoch_hi: 1,
            epoch_lo: epoch,
            envoy: 1,
            stream: 1,
            version_min: limits::VERSION_MIN,
            version_max: limits::VERSION_MAX,
            node: "cost".to_owned(),
            last: true,
            ..Hello::default()
        }));
        let path = format!("/{SERVICE}/{METHOD}").parse().expect("a path");
        let request = Request::new(UnboundedReceiverStream::new(frames));
        let response = client.streaming(request, path, FrameCodec).await;
        (session, response.expect("the companion takes sessions").into_inner())
    }

    fn send(&mut self, event: Event) {
        self.send_frame(Vec::new(), Some(event));
    }

    fn send_frame(&mut self, admitted: Vec<Admitted>, event: Option<Event>) {
        self.sent += 1;
        let frame = FilterFrame { seq: self.sent, ack: self.received, admitted, event };
        self.outgoing.send(frame).expect("the stream is open");
    }

    /// The commands of a frame.
    fn receive(&mut self, frame: Result<CompanionFrame, Status>) -> Vec<Command> {
        let frame = frame.expect("the session lasts");
        (self.received, self.handled) = (frame.seq, frame.ack);
        frame.commands
    }
}

async fn connect(companion: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{companion}")).expect("an address");
    let endpoint =
        endpoint.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    for _ in 0..START_ATTEMPTS {
        if let Ok(channel) = endpoint.connect().await {
            return channel;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the companion doesn't listen on {companion}");
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
        fairness_id: format!("tenant-{}", sequence % TENANTS),
        client: "127.0.0.1".to_owned(),
        ..Register::default()
    }
}

fn started(sequence: u64, endpoint: String) -> Started {
    Started { sequence, endpoint, status: 200, attempts: 1, after_us: 500, ..Started::default() }
}

fn end(sequence: u64, endpoint: String) -> Completed {
    Completed {
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
    }
}

/// The report of a request that was admitted by credit, and has ended.
fn report(sequence: u64) -> Admitted {
    let endpoint = ENDPOINT.to_owned();
    Admitted {
        running: Some(Running {
            register: Some(register(sequence)),
            pool: POOL.to_owned(),
            endpoint: endpoint.clone(),
            age_us: 500,
            started: true,
            first_token: true,
            prefill_endpoint: String::new(),
        }),
        credit: 1,
        completed: Some(end(sequence, endpoint)),
    }
}

/// Sends each frame in a DATA frame of its own, as Envoy does.
#[derive(Clone, Copy)]
struct FrameCodec;

impl Codec for FrameCodec {
    type Encode = FilterFrame;
    type Decode = CompanionFrame;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for FrameCodec {
    type Item = FilterFrame;
    type Error = Status;

    fn encode(&mut self, frame: FilterFrame, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        frame.encode(to).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(8 << 10, 1)
    }
}

impl Decoder for FrameCodec {
    type Item = CompanionFrame;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<CompanionFrame>, Status> {
        let frame = CompanionFrame::decode(from);
        frame.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
