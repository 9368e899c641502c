//! The cost of a takeover: `bash tests/studies/run takeover [ENVOYS CONTEXTS WAITING ENDPOINTS]`.
//!
//! A standby becomes the leader while all filters of the last leader ask for one. Each filter lists its requests, and the
//! new leader grants what the servers have places for. Every frame is encoded and decoded as on the wire. It prints the time that
//! the decisions take, bytes in both directions, and the memory of the process, in steps.

use std::time::{Duration, Instant as Clock};

use penstock_control::{
    ConnId, Control, Door, EndpointSettings, Event, KnownEnvoy, Output, PoolSettings, RoleChange, Settings,
};
use penstock_engine::Instant;
use penstock_engine::policy::{Gate, Policy, Queue};
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use prost::Message as _;
use wire::filter_frame::Event as Message;

/// Requests that run at each endpoint, which takes no more.
const RUNNING: usize = 1;
/// Names of tenants; each waiting request draws one.
const TENANTS: u64 = 1_000_000;

/// How large the gateway is.
#[derive(Clone, Copy)]
struct Size {
    envoys: usize,
    contexts: usize,
    waiting: usize,
    endpoints: usize,
}

impl Size {
    fn from_arguments() -> Self {
        let arguments = std::env::args().skip(1);
        let numbers: Vec<usize> = arguments.filter_map(|argument| argument.parse().ok()).collect();
        match numbers[..] {
            [envoys, contexts, waiting, endpoints] => Self { envoys, contexts, waiting, endpoints },
            _ => Self { envoys: 1_000, contexts: 16, waiting: 100_000, endpoints: 10_000 },
        }
    }

    const fn sessions(self) -> usize {
        self.envoys * self.contexts
    }
}

fn address(endpoint: usize) -> String {
    format!("10.{}.{}.{}:8000", endpoint >> 16, endpoint >> 8 & 255, endpoint & 255)
}

/// Endpoints of a pool, at most.
const POOL_ENDPOINTS: usize = 4_000;

fn pool_of(number: usize) -> usize {
    number / POOL_ENDPOINTS
}

fn pool(size: Size, number: usize) -> PoolSettings {
    let endpoint =
        |endpoint: usize| EndpointSettings { address: address(endpoint), ..EndpointSettings::default() };
    let first = number * POOL_ENDPOINTS;
    PoolSettings {
        name: format!("pool-{number}"),
        models: vec![format!("model-{number}")],
        endpoints: (first..size.endpoints.min(first + POOL_ENDPOINTS)).map(endpoint).collect(),
        policy: Policy {
            queue: Queue {
                total_capacity: 2 * size.waiting as u64,
                total_bytes: 1 << 40,
                ..Queue::default()
            },
            gate: Gate::requests(Decimal::whole(RUNNING as u64)),
            ..Policy::default()
        },
        ..PoolSettings::default()
    }
}

fn settings(size: Size) -> Settings {
    Settings {
        pools: (0..=pool_of(size.endpoints - 1)).map(|number| pool(size, number)).collect(),
        startup_wait: Duration::from_secs(2),
        flows_shown: 1_000,
        is_replicated: true,
        seed: 1,
        ..Settings::default()
    }
}

fn register(sequence: u64, pool: usize) -> wire::Register {
    wire::Register {
        sequence,
        age_us: 1_000_000,
        request_id: format!("00000000-0000-0000-0000-{sequence:012}"),
        model: format!("model-{pool}"),
        prompt_bytes: 2_000,
        body_bytes: 2_200,
        // A multiplicative hash, so that the tenants are drawn evenly.
        fairness_id: format!("tenant-{}", sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) % TENANTS),
        ..Default::default()
    }
}

/// The digest of the endpoints that the last leader announced.
fn digest(size: Size) -> u64 {
    let pools = settings(size).pools;
    let digests = pools.iter().map(|pool| {
        let ready = pool.endpoints.iter().map(|endpoint| endpoint.address.as_str());
        let bound = (pool.endpoints.len() * RUNNING / size.envoys).max(1);
        wire::endpoints_digest(&pool.name, ready, Some(bound as u64))
    });
    digests.fold(0, u64::wrapping_add)
}

/// The requests that one filter holds, of so many in all.
fn share(number: usize, of_all: usize, sessions: usize) -> std::ops::Range<u64> {
    let from = number * of_all / sessions;
    let to = (number + 1) * of_all / sessions;
    from as u64..to as u64
}

struct Takeover {
    size: Size,
    control: Control,
    now: Instant,
    frames: Vec<u64>,
    began: Clock,
    bytes_in: usize,
    bytes_out: usize,
    grants: usize,
}

impl Takeover {
    fn hello(&self, session: usize, is_probe: bool) -> wire::Hello {
        wire::Hello {
            epoch_hi: 1,
            epoch_lo: session as u64 + 1,
            stream: 1,
            version_min: wire::limits::VERSION_MIN,
            version_max: wire::limits::VERSION_MAX,
            node: format!("envoy-{}", session / self.size.contexts),
            envoy: (session / self.size.contexts) as u64 + 1,
            probe: is_probe,
            last: !is_probe,
            ..Default::default()
        }
    }

    /// Passes a filter's frame through the wire format to the control.
    fn send(&mut self, session: usize, message: Message) {
        self.frames[session] += 1;
        let frame = wire::FilterFrame {
            seq: self.frames[session],
            ack: 0,
            admitted: Vec::new(),
            event: Some(message),
        };
        let bytes = frame.encode_to_vec();
        self.bytes_in += bytes.len();
        let frame = wire::FilterFrame::decode(bytes.as_slice()).expect("just encoded");
        self.handle(Event::Frame(ConnId(session as u64), Box::new(frame)));
    }

    fn handle(&mut self, event: Event) {
        self.now = self.now.after(Duration::from_micros(1));
        self.control.handle(self.now, event);
        while let Some(output) = self.control.poll_output() {
            if let Output::Send(_, frame) = output {
                self.bytes_out += frame.encoded_len();
                let kinds = frame.commands.iter().filter_map(|command| command.kind.as_ref());
                self.grants += kinds.filter(|kind| matches!(kind, wire::command::Kind::Grant(_))).count();
            }
        }
    }

    fn step(&mut self, what: &str) {
        println!(
            "{what:<58} {:>8.0} ms  {:>8.1} MB in  {:>8.1} MB out  {:>7.0} MB resident",
            self.began.elapsed().as_secs_f64() * 1e3,
            self.bytes_in as f64 / 1e6,
            self.bytes_out as f64 / 1e6,
            resident_bytes() as f64 / 1e6,
        );
        self.began = Clock::now();
        (self.bytes_in, self.bytes_out) = (0, 0);
    }
}

/// The memory of this process; 0 where the operating system doesn't say.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

impl Takeover {
    fn new(size: Size) -> Self {
        Self {
            size,
            control: Control::new(settings(size), Instant::ZERO),
            now: Instant::ZERO,
            frames: vec![0; size.sessions()],
            began: Clock::now(),
            bytes_in: 0,
            bytes_out: 0,
            grants: 0,
        }
    }

    fn lead(&mut self) {
        let contexts = u32::try_from(self.size.contexts).expect("few");
        // As in a Hello: the upper half of an epoch is 1, the lower half the number of the session, from 1.
        let digest = |envoy: u64| {
            let first = (envoy - 1) * u64::from(contexts);
            let epochs = (first..first + u64::from(contexts)).map(|session| 1 ^ (session + 1));
            epochs.fold(0, u64::wrapping_add)
        };
        let known =
            (1..=self.size.envoys as u64).map(|envoy| KnownEnvoy { envoy, contexts, digest: digest(envoy) });
        let change = RoleChange::Lead {
            term: 2,
            known: known.collect(),
            pickers: Vec::new(),
            is_last_leader_gone: false,
            grants_until: self.now.after(Duration::from_secs(3_600)),
        };
        self.handle(Event::Leadership(change));
    }

    /// The Hello of a filter with its share of the requests. It knows the endpoints from the last leader.
    fn list_requests(&mut self, session: usize, running: usize, digest: u64) {
        let (size, sessions) = (self.size, self.size.sessions());
        let pools = pool_of(size.endpoints - 1) + 1;
        let index = |number: u64| usize::try_from(number).expect("an index");
        let mut hello = self.hello(session, false);
        hello.endpoints_digest = digest;
        hello.waiting = share(session, size.waiting, sessions)
            .map(|number| register(number, index(number) % pools))
            .collect();
        let runs = |number: u64| wire::Running {
            register: Some(register(size.waiting as u64 + number, pool_of(index(number)))),
            pool: format!("pool-{}", pool_of(index(number))),
            endpoint: address(index(number)),
            age_us: 500_000,
            started: true,
            first_token: false,
            prefill_endpoint: String::new(),
        };
        hello.running = share(session, running, sessions).map(runs).collect();
        self.send(session, Message::Hello(hello));
    }

    fn complete(&mut self, session: usize, number: u64) {
        let completed = wire::Completed {
            sequence: self.size.waiting as u64 + number,
            endpoint: address(usize::try_from(number).expect("an index")),
            status: 200,
            end: wire::EndReason::Served.into(),
            output_tokens: Some(100),
            ..Default::default()
        };
        self.send(session, Message::Completed(completed));
    }
}

fn main() {
    let size = Size::from_arguments();
    let sessions = size.sessions();
    let mut takeover = Takeover::new(size);
    takeover.step(&format!("a standby with {} endpoints", size.endpoints));
    for session in 0..sessions {
        takeover.handle(Event::Opened(ConnId(session as u64), Door::Filter));
        let probe = takeover.hello(session, true);
        takeover.send(session, Message::Hello(probe));
    }
    takeover.step(&format!("{sessions} filters of {} Envoys ask for the leader", size.envoys));
    takeover.lead();
    takeover.step("the standby gets the lease and calls them");
    let running = size.endpoints * RUNNING;
    let digest = digest(size);
    for session in 0..sessions {
        takeover.list_requests(session, running, digest);
    }
    takeover.step(&format!("their Hellos: {} waiting, {running} running", size.waiting));
    assert_eq!(takeover.grants, 0, "no place is free");
    for session in 0..sessions {
        for number in share(session, running, sessions) {
            takeover.complete(session, number);
        }
    }
    let grants = takeover.grants;
    takeover.step(&format!("{running} requests end, {grants} are granted"));
    assert_eq!(grants, running, "each place goes to the next request");
}
