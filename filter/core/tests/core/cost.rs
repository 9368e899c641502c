//! The cost of a request in the worker: allocations, messages, host calls for properties, and header edits.
//!
//! The costs are counted, not timed, so that the same code gives the same numbers on every machine. A change that makes a
//! request more expensive fails here, and must raise a bound on purpose.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{BodyAction, Effect, HeadersAction, SessionId, StreamAction};
use penstock_filter_core::headers::{Headers, serialize};
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::properties::Properties;
use penstock_filter_core::session::{Epoch, SessionEffect};
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire::command::Kind;
use penstock_wire::source::From;
use penstock_wire::{
    Api, Command, CompanionFrame, Credit, EndpointCredit, Grant, HelloAck, Identity, Policy, Pool, Route,
    Source,
};
use prost::Message;

/// An allocator that counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

// SAFETY: all calls are forwarded to the system's allocator. The counter is thread-local and needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|counter| {
            let (count, bytes) = counter.get();
            counter.set((count + 1, bytes + layout.size() as u64));
        });
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A host that counts the properties that are fetched.
#[derive(Default)]
struct Host {
    properties: Cell<u64>,
}

impl Properties for Host {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.properties.set(self.properties.get() + 1);
        match path {
            ["source", "address"] => Some(b"10.0.0.9:55555".to_vec()),
            ["upstream", "address"] => Some(b"10.1.0.1:8000".to_vec()),
            ["upstream", "request_attempt_count"] => Some(1_u64.to_le_bytes().to_vec()),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct SingleWorker;

impl SharedData for SingleWorker {
    fn get(&self, _: &str) -> Option<(Vec<u8>, u32)> {
        None
    }

    fn set(&self, _: &str, _: &[u8], _: SetIf) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    allocations: u64,
    allocated: u64,
    properties: u64,
    sent: u64,
    sent_bytes: u64,
    received_bytes: u64,
    edits: u64,
}

struct Rig {
    worker: Worker,
    host: Host,
    now: Instant,
    /// Frames received.
    received: u64,
    /// Number and bytes of the messages sent.
    sent: (u64, u64),
    edits: u64,
    received_bytes: u64,
    /// Number and bytes of the counted allocations.
    allocations: (u64, u64),
}

fn config() -> Config {
    let source = |from| Source { from: Some(from) };
    let header = |name: &str| source(From::Header(name.into()));
    let user = source(From::Body("user".into()));
    let identity = Identity {
        fairness_id: vec![header("x-gateway-inference-fairness-id"), header("x-tenant-id"), user.clone()],
        user: vec![user],
        priority: vec![header("x-priority")],
        ..Identity::default()
    };
    let pool = Pool {
        name: "chat".into(),
        hold_ms: 5_000,
        ttl_ms: 30_000,
        no_endpoint_ttl_ms: 60_000,
        capacity_status: 429,
        ..Pool::default()
    };
    Config {
        companion: "c".into(),
        node: "n".into(),
        requeue_listener: Some("127.0.0.1:1".into()),
        is_requeue_listener: false,
        routes_report_endpoint: true,
        logs_attempts: false,
        routes_requeue: false,
        restarts: false,
        keeps_alive: false,
        is_picker: false,
        policy: Policy {
            digest: "d".into(),
            body_bytes_max: 1_000_000,
            routes: vec![Route {
                path: "/v1/chat/completions".into(),
                api: Api::ChatCompletions.into(),
                ..Route::default()
            }],
            identity: Some(identity),
            pools: vec![pool],
            ..Policy::default()
        },
    }
}

impl Rig {
    fn new(config: &Config) -> Self {
        let random = RandomBits { epoch: Epoch { hi: 1, lo: 2 }, envoy: 3, key: [7; 16] };
        let now = Instant::from_nanos(1_000_000_000_000);
        let mut rig = Self {
            worker: Worker::new(now, &random, config, Box::new(SingleWorker)),
            host: Host::default(),
            now,
            received: 0,
            sent: (0, 0),
            edits: 0,
            received_bytes: 0,
            allocations: (0, 0),
        };
        rig.worker.handle_tick(rig.now);
        rig.effects();
        rig.worker.handle_opened(rig.now, SessionId::MAIN);
        rig.effects();
        rig.receive(Kind::HelloAck(HelloAck { version: 1, term: 1 }));
        rig
    }

    fn effects(&mut self) {
        while let Some(effect) = self.worker.poll_effect() {
            match effect {
                Effect::Session(_, SessionEffect::Send(message)) => {
                    self.sent.0 += 1;
                    self.sent.1 += message.len() as u64;
                }
                Effect::Stream { action: StreamAction::Resume { edits, .. }, .. } => {
                    self.edits += edits.len() as u64;
                }
                Effect::Session(..) | Effect::Stream { .. } | Effect::LogError(_) => {}
            }
        }
    }

    fn receive(&mut self, kind: Kind) {
        self.received += 1;
        let frame = CompanionFrame {
            seq: self.received,
            ack: self.sent.0,
            commands: vec![Command { kind: Some(kind) }],
        };
        let frame = frame.encode_to_vec();
        self.received_bytes += frame.len() as u64;
        self.worker.handle_message(self.now, SessionId::MAIN, &frame);
        self.effects();
    }

    /// Handles one request from its headers to its log entry. The host's maps and slices aren't counted.
    fn request(&mut self, body: &[u8], response: &[(&str, &str)], chunks: &[&[u8]]) -> Cost {
        let before = self.cost();
        let sequence = self.request_headers();
        self.request_body(sequence, body);
        let mut grant = Some(Kind::Grant(Grant {
            sequence,
            pool: "chat".into(),
            endpoints: vec!["10.1.0.1:8000".into(), "10.1.0.2:8000".into()],
            outcome: "dispatched".into(),
            queue_us: 12_345,
            saturation_milli: 420,
            requeue: true,
            ..Grant::default()
        }));
        self.count(|rig| rig.receive(grant.take().expect("once")));
        self.response(sequence, response, chunks);
        self.count(|rig| {
            rig.worker.handle_log(rig.now, sequence, &rig.host);
            rig.effects();
        });
        self.cost().minus(before)
    }

    /// The cost of a request that is admitted by credit.
    fn request_by_credit(&mut self, response: &[(&str, &str)], chunks: &[&[u8]]) -> Cost {
        // Not counted: one message serves many requests.
        self.receive(Kind::Credit(Credit {
            pool: "chat".into(),
            id: 1,
            ttl_ms: 2_000,
            endpoints: vec![EndpointCredit { address: "10.1.0.1:8000".into(), requests: 1 }],
            prompt_bytes_max: 0,
            saturation_milli: 420,
            requeue: true,
        }));
        let before = self.cost();
        let sequence = self.request_headers();
        let body = chat();
        let mut slice = Some(body.clone());
        self.count(|rig| {
            let read = |_, _| slice.take();
            let action = rig.worker.handle_request_body(rig.now, sequence, body.len(), true, read);
            let BodyAction::Continue(edits) = action else { panic!("not admitted: {action:?}") };
            rig.edits += edits.len() as u64;
            rig.effects();
        });
        self.response(sequence, response, chunks);
        self.count(|rig| {
            rig.worker.handle_log(rig.now, sequence, &rig.host);
            rig.effects();
        });
        self.cost().minus(before)
    }

    fn request_headers(&mut self) -> u64 {
        let map = serialize([
            (":authority", "gateway.example:8080"),
            (":path", "/v1/chat/completions"),
            (":method", "POST"),
            (":scheme", "http"),
            ("content-type", "application/json"),
            ("content-length", "1024"),
            ("user-agent", "client/1.0"),
            ("x-forwarded-for", "10.0.0.9"),
            ("x-forwarded-proto", "http"),
            ("x-request-id", "3f1c9a54-6a53-4f0e-9f5a-6ad54e31d5d2"),
            ("x-tenant-id", "acme"),
        ]);
        self.count(|rig| {
            let headers = Headers::new(&map);
            match rig.worker.handle_request_headers(rig.now, 7, headers, false, &rig.host) {
                HeadersAction::Pause(sequence, edits) => {
                    rig.edits += edits.len() as u64;
                    sequence
                }
                other => panic!("not paused: {other:?}"),
            }
        })
    }

    fn request_body(&mut self, sequence: u64, body: &[u8]) {
        let mut slice = Some(body.to_vec());
        self.count(|rig| {
            let read = |_, _| slice.take();
            let action = rig.worker.handle_request_body(rig.now, sequence, body.len(), true, read);
            assert!(matches!(action, BodyAction::Pause), "{action:?}");
            rig.effects();
        });
    }

    fn response(&mut self, sequence: u64, headers: &[(&str, &str)], chunks: &[&[u8]]) {
        let map = serialize(headers.iter().copied());
        self.count(|rig| {
            let headers = Headers::new(&map);
            let action =
                rig.worker.handle_response_headers(rig.now, Some(sequence), headers, false, &rig.host);
            rig.edits += action.edits.len() as u64;
            rig.effects();
        });
        for (index, chunk) in chunks.iter().enumerate() {
            let mut slice = Some(chunk.to_vec());
            let end = index + 1 == chunks.len();
            self.count(|rig| {
                let read = |_, _| slice.take();
                rig.worker.handle_response_body(rig.now, sequence, chunk.len(), end, read);
                rig.effects();
            });
        }
    }

    /// Calls `f`, and counts its allocations.
    fn count<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let (count, bytes) = ALLOCATIONS.get();
        let value = f(self);
        let (count_after, bytes_after) = ALLOCATIONS.get();
        self.allocations.0 += count_after - count;
        self.allocations.1 += bytes_after - bytes;
        value
    }

    /// The costs since the start.
    fn cost(&self) -> Cost {
        Cost {
            allocations: self.allocations.0,
            allocated: self.allocations.1,
            properties: self.host.properties.get(),
            sent: self.sent.0,
            sent_bytes: self.sent.1,
            received_bytes: self.received_bytes,
            edits: self.edits,
        }
    }
}

impl Cost {
    fn minus(self, before: Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            allocated: self.allocated - before.allocated,
            properties: self.properties - before.properties,
            sent: self.sent - before.sent,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            received_bytes: self.received_bytes - before.received_bytes,
            edits: self.edits - before.edits,
        }
    }
}

/// The least cost of several equal requests: the first ones grow tables, and a tree node splits now and then.
fn least(run: impl FnMut(&mut Rig) -> Cost) -> Cost {
    least_with(&config(), run)
}

/// [`least`] with this configuration of the plugin.
fn least_with(config: &Config, mut run: impl FnMut(&mut Rig) -> Cost) -> Cost {
    let mut rig = Rig::new(config);
    let costs = (0..32).map(|_| run(&mut rig));
    costs.min_by_key(|cost| cost.allocations).expect("some")
}

fn chat() -> Vec<u8> {
    let text = "All work and no play. ".repeat(40);
    format!(r#"{{"model":"m","max_tokens":64,"messages":[{{"role":"user","content":"{text}"}}]}}"#)
        .into_bytes()
}

const WHOLE: [(&str, &str); 5] = [
    (":status", "200"),
    ("content-type", "application/json"),
    ("content-length", "300"),
    ("server", "uvicorn"),
    ("x-gateway-destination-endpoint-served", "10.1.0.1:8000"),
];
const ANSWER: &[u8] = br#"{"id":"1","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":240,"completion_tokens":1}}"#;

const STREAMED: [(&str, &str); 3] = [
    (":status", "200"),
    ("content-type", "text/event-stream"),
    ("x-gateway-destination-endpoint-served", "10.1.0.1:8000"),
];
const CHUNK: &[u8] = b"data: {\"id\":\"1\",\"choices\":[{\"delta\":{\"content\":\" word\"}}]}\n\n";

#[test]
fn cost_of_a_whole_response() {
    let cost = least(|rig| rig.request(&chat(), &WHOLE, &[ANSWER]));
    println!("{cost:?}");
    assert_eq!(cost.sent, 2, "Register and Completed: {cost:?}");
    assert!(cost.allocations <= 31, "{cost:?}");
    assert_eq!(cost.properties, 0, "the headers say where it went: {cost:?}");
}

#[test]
fn cost_of_a_streamed_response() {
    // One of them is the template of the stream's events.
    assert_streamed(&config(), 34);
}

/// The first byte is reported in the message that is sent anyway.
#[test]
fn cost_of_a_streamed_response_whose_first_token_is_reported() {
    let mut config = config();
    config.policy.pools[0].first_token = true;
    // The message waits for the byte in a box of its own.
    assert_streamed(&config, 35);
}

fn assert_streamed(config: &Config, allocations: u64) {
    let stream =
        |chunks: usize| least_with(config, |rig| rig.request(&chat(), &STREAMED, &vec![CHUNK; chunks]));
    let (few, many) = (stream(2), stream(102));
    println!("{few:?}\n{many:?}");
    assert_eq!(few.sent, 3, "Register, Started and Completed: {few:?}");
    assert!(few.allocations <= allocations, "{few:?}");
    assert_eq!(few.allocations, many.allocations, "a chunk allocates nothing");
    assert_eq!(few.properties, many.properties);
}

#[test]
fn cost_of_a_whole_response_by_credit() {
    let mut sent = 0;
    let cost = least(|rig| {
        let cost = rig.request_by_credit(&WHOLE, &[ANSWER]);
        sent += cost.sent;
        cost
    });
    println!("{cost:?}");
    assert_eq!(sent, 2, "32 requests: 16 reports share a message");
    assert_eq!(cost.received_bytes, 0, "{cost:?}");
    assert!(cost.allocations <= 24, "{cost:?}");
    assert_eq!(cost.properties, 0, "{cost:?}");
}

#[test]
fn cost_of_a_streamed_response_by_credit() {
    let cost = least(|rig| rig.request_by_credit(&STREAMED, &[CHUNK; 2]));
    println!("{cost:?}");
    assert_eq!((cost.sent, cost.received_bytes), (1, 0), "one message for Admitted and Completed: {cost:?}");
    assert!(cost.allocations <= 32, "{cost:?}");
    assert_eq!(cost.properties, 0, "{cost:?}");
}
