//! The cost of an event with 1 pool and with 1,000 pools: `bash tests/studies/run pools`.
//!
//! Every round registers requests of one pool, grants them and completes them. An event is one frame with its outputs and
//! one call of `poll_timeout`, as the companion's driver makes it. The least of all rounds is printed, in nanoseconds; with
//! `--once`, one round runs, so that a tool can count instructions.

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use penstock_control::{ConnId, Control, Door, EndpointSettings, Event, Output, PoolSettings, Settings};
use penstock_engine::Instant;
use penstock_engine::policy::{Gate, Policy};
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

const ROUNDS: usize = 30;
const REQUESTS: u64 = 2_000;
const CONN: ConnId = ConnId(1);

fn pool(number: usize) -> PoolSettings {
    let endpoint = |server: usize| EndpointSettings {
        address: format!("10.{}.{}.{server}:8000", number / 250, number % 250),
        ..EndpointSettings::default()
    };
    PoolSettings {
        name: format!("pool-{number}"),
        models: vec![format!("model-{number}")],
        endpoints: (1..=4).map(endpoint).collect(),
        policy: Policy { gate: Gate::requests(Decimal::whole(8)), ..Policy::default() },
        requeues: Some(3),
        ..PoolSettings::default()
    }
}

struct Session {
    control: Control,
    now: Instant,
    frame: u64,
    acknowledged: u64,
    granted: Vec<(u64, String)>,
    events: u64,
}

impl Session {
    fn new(pools: usize) -> Self {
        let settings = Settings {
            pools: (0..pools).map(pool).collect(),
            sessions_expected: Some(1),
            startup_wait: Duration::from_secs(2),
            flows_shown: 100,
            term: 1,
            seed: 1,
            ..Settings::default()
        };
        let mut session = Self {
            control: Control::new(settings, Instant::ZERO),
            now: Instant::ZERO,
            frame: 0,
            acknowledged: 0,
            granted: Vec::new(),
            events: 0,
        };
        session.control.handle(session.now, Event::Opened(CONN, Door::Filter));
        session.send(Message::Hello(wire::Hello {
            epoch_lo: 1,
            stream: 1,
            version_min: wire::limits::VERSION_MIN,
            version_max: wire::limits::VERSION_MAX,
            node: "envoy".into(),
            last: true,
            ..Default::default()
        }));
        session
    }

    fn send(&mut self, message: Message) {
        self.now = self.now.after(Duration::from_micros(10));
        while let Some(due) = self.control.poll_timeout().filter(|due| *due <= self.now) {
            self.control.handle_timeout(due);
        }
        self.frame += 1;
        let frame = wire::FilterFrame {
            seq: self.frame,
            ack: self.acknowledged,
            admitted: Vec::new(),
            event: Some(message),
        };
        self.control.handle(self.now, Event::Frame(CONN, Box::new(frame)));
        self.events += 1;
        while let Some(output) = self.control.poll_output() {
            if let Output::Send(_, frame) = output {
                self.acknowledged = frame.seq;
                for command in frame.commands {
                    if let Some(wire::command::Kind::Grant(grant)) = command.kind {
                        let endpoint = grant.endpoints.into_iter().next().unwrap_or_default();
                        self.granted.push((grant.sequence, endpoint));
                    }
                }
            }
        }
        black_box(self.control.poll_timeout());
    }

    fn round(&mut self, first: u64) {
        for sequence in first..first + REQUESTS {
            self.send(Message::Register(wire::Register {
                sequence,
                request_id: format!("00000000-0000-0000-0000-{sequence:012}"),
                model: "model-0".into(),
                prompt_bytes: 2_000,
                fairness_id: format!("tenant-{}", sequence % 16),
                ..Default::default()
            }));
            while self.granted.len() > 24 {
                self.complete();
            }
        }
        while !self.granted.is_empty() {
            self.complete();
        }
    }

    fn complete(&mut self) {
        let (sequence, endpoint) = self.granted.remove(0);
        self.send(Message::Completed(wire::Completed {
            sequence,
            endpoint,
            status: 200,
            attempts: 1,
            end: wire::EndReason::Served.into(),
            prompt_tokens: Some(500),
            output_tokens: Some(100),
            first_token_us: Some(100),
            last_byte_us: Some(900),
            output_chunks: 100,
            ..Default::default()
        }));
    }
}

fn main() {
    let is_once = std::env::args().any(|argument| argument == "--once");
    let rounds = if is_once { 1 } else { ROUNDS };
    let sizes: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    for pools in if sizes.is_empty() { vec![1, 1_000] } else { sizes } {
        let mut session = Session::new(pools);
        let mut least = f64::INFINITY;
        for round in 0..rounds as u64 {
            let (start, events) = (Clock::now(), session.events);
            session.round(1 + round * REQUESTS);
            let spent = start.elapsed().as_nanos() as f64;
            least = least.min(spent / (session.events - events) as f64);
        }
        println!("{pools} pools: {least:.0} ns per event");
    }
}
