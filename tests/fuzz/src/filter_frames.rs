//! A companion's control with hostile filters: any frames at any time, over several streams of several root contexts.
//!
//! The control must not panic, must number its frames without a gap, send nothing on a closed stream, finish its work
//! at every moment, and hold no state of any filter an hour after the last one has left.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use penstock_control::{ConnId, Control, Door, Event, Output, PoolEvent, Settings};
use penstock_engine::Instant;
use penstock_server::control_settings;
use penstock_wire as wire;
use prost::Message;
use wire::filter_frame::Event as FilterEvent;

use super::choices::Choices;
use super::frames::{self, ADDRESSES};
use super::policies::configs;

/// Operations of one input.
const OPERATIONS: usize = 2_000;
/// Streams that are open at the same time.
const SLOTS: u8 = 4;
/// The most timeouts that may follow each other at one moment.
const WAKES: usize = 100;

/// Runs the operations that the input encodes.
pub fn run(input: &[u8]) {
    let mut choices = Choices::new(input);
    let settings = settings(&mut choices);
    let pools: Vec<Arc<str>> = settings.pools.iter().map(|pool| pool.name.as_str().into()).collect();
    let mut world = World {
        control: Control::new(settings, Instant::ZERO),
        now: Instant::ZERO,
        slots: [None; SLOTS as usize],
        streams: BTreeMap::new(),
        opened: 0,
        handed_over: false,
    };
    world.settle();
    for _ in 0..OPERATIONS {
        if choices.is_empty() {
            break;
        }
        world.operate(&mut choices, &pools);
    }
    world.finish();
}

fn settings(choices: &mut Choices<'_>) -> Settings {
    static SETTINGS: OnceLock<Vec<Settings>> = OnceLock::new();
    let all = SETTINGS.get_or_init(|| {
        let convert = |config| Settings {
            term: 7,
            is_replicated: false,
            seed: 1,
            ..control_settings::settings(config, &control_settings::ProcessIdentity::now(None, false))
        };
        configs().iter().map(convert).collect()
    });
    let mut settings = all[usize::from(choices.byte()) % all.len()].clone();
    settings.sessions_expected = [None, Some(1), Some(3)][usize::from(choices.below(3))];
    settings
}

/// A stream with its frame counters.
#[derive(Default)]
struct Stream {
    sent: u64,
    received: u64,
    closed: bool,
}

struct World {
    control: Control,
    now: Instant,
    slots: [Option<ConnId>; SLOTS as usize],
    streams: BTreeMap<ConnId, Stream>,
    opened: u64,
    handed_over: bool,
}

impl World {
    fn operate(&mut self, choices: &mut Choices<'_>, pools: &[Arc<str>]) {
        match choices.below(16) {
            0 => self.open(choices, true),
            1 => self.open(choices, false),
            2..=8 => {
                let event = frames::event(choices);
                self.send(choices, Some(event));
            }
            9 => {
                // Raw bytes: a decoded frame may have any sequence number.
                let slot = usize::from(choices.below(SLOTS));
                if let (Some(conn), Ok(frame)) =
                    (self.slots[slot], wire::FilterFrame::decode(choices.bytes()))
                {
                    self.frame(conn, frame);
                }
            }
            10 => {
                let slot = usize::from(choices.below(SLOTS));
                if let Some(conn) = self.slots[slot].take() {
                    self.close(conn);
                }
            }
            11..=13 => self.advance(choices),
            14 => {
                let event = Event::Pool(
                    pools.get(usize::from(choices.below(4))).cloned().unwrap_or_else(|| "unknown".into()),
                    PoolEvent::EndpointReady {
                        address: choices.item(&ADDRESSES).to_owned(),
                        ready: choices.one_in(2),
                    },
                );
                self.handle(event);
            }
            _ => match choices.below(8) {
                0 => self.handle(Event::Drain(true)),
                1 if choices.one_in(4) => {
                    self.handed_over = true;
                    self.handle(Event::HandOver);
                }
                1..=4 => self.handle(Event::Drain(false)),
                _ => {
                    let _ = self.control.status(self.now);
                }
            },
        }
    }

    /// Opens a stream. A session sends its `Hello` at once.
    fn open(&mut self, choices: &mut Choices<'_>, is_session: bool) {
        let slot = usize::from(choices.below(SLOTS));
        if let Some(conn) = self.slots[slot] {
            self.close(conn);
        }
        self.opened += 1;
        let conn = ConnId(self.opened);
        self.slots[slot] = Some(conn);
        self.streams.insert(conn, Stream::default());
        self.handle(Event::Opened(conn, Door::Filter));
        if is_session {
            let hello = frames::hello(choices);
            self.send_frame(conn, Vec::new(), Some(FilterEvent::Hello(hello)), 0);
        }
    }

    fn send(&mut self, choices: &mut Choices<'_>, event: Option<FilterEvent>) {
        let slot = usize::from(choices.below(SLOTS));
        let jump = if choices.one_in(32) { choices.number() } else { 0 };
        let reports = frames::reports(choices);
        if let Some(conn) = self.slots[slot] {
            self.send_frame(conn, reports, event, jump);
        }
    }

    /// Sends a frame with the next sequence number plus `jump`.
    fn send_frame(
        &mut self,
        conn: ConnId,
        admitted: Vec<wire::Admitted>,
        event: Option<FilterEvent>,
        jump: u64,
    ) {
        let stream = self.streams.entry(conn).or_default();
        stream.sent += 1;
        let frame =
            wire::FilterFrame { seq: stream.sent.wrapping_add(jump), ack: stream.received, admitted, event };
        self.frame(conn, frame);
    }

    fn frame(&mut self, conn: ConnId, frame: wire::FilterFrame) {
        self.handle(Event::Frame(conn, Box::new(frame)));
    }

    fn close(&mut self, conn: ConnId) {
        self.streams.entry(conn).or_default().closed = true;
        self.handle(Event::Closed(conn));
    }

    fn handle(&mut self, event: Event) {
        self.control.handle(self.now, event);
        self.settle();
        self.audit();
    }

    fn audit(&self) {
        if let Err(error) = self.control.audit() {
            panic!("{error}");
        }
    }

    /// Advances the time, usually by little, and handles every timeout on the way.
    fn advance(&mut self, choices: &mut Choices<'_>) {
        let duration = match choices.below(8) {
            0..=3 => Duration::from_micros(u64::from(choices.byte())),
            4 | 5 => Duration::from_millis(10 * u64::from(choices.byte())),
            6 => Duration::from_secs(u64::from(choices.byte())),
            _ => Duration::from_nanos(choices.number()),
        };
        // Sometimes the clock goes back, as after a clock change.
        if choices.one_in(32) {
            self.now = self.now.before(duration);
            return self.settle();
        }
        let until = self.now.after(duration);
        for _ in 0..OPERATIONS {
            match self.control.poll_timeout() {
                Some(due) if due < until => self.now = self.now.max(due),
                Some(_) | None => break,
            }
            self.settle();
        }
        self.now = self.now.max(until);
        self.settle();
    }

    /// Handles the timeouts that are due and takes all outputs until none is left.
    fn settle(&mut self) {
        for wake in 0.. {
            self.take_outputs();
            match self.control.poll_timeout() {
                Some(due) if due <= self.now => self.control.handle_timeout(self.now),
                Some(_) | None => return,
            }
            assert!(wake < WAKES, "timeouts don't end at {:?}", self.now);
        }
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.control.poll_output() {
            match output {
                Output::Send(conn, frame) => {
                    let stream = self.streams.entry(conn).or_default();
                    assert!(!stream.closed, "a frame on the closed stream {conn:?}");
                    assert_eq!(frame.seq, stream.received + 1, "a gap on {conn:?}");
                    assert!(frame.ack <= stream.sent, "an unsent frame is acknowledged");
                    stream.received = frame.seq;
                    let length = frame.encoded_len();
                    assert!(length <= wire::limits::MESSAGE_BYTES_MAX, "{length} bytes in a frame");
                }
                Output::Close(conn, _) => {
                    self.streams.entry(conn).or_default().closed = true;
                    for slot in &mut self.slots {
                        slot.take_if(|open| *open == conn);
                    }
                    // The server reports the end of the stream.
                    self.control.handle(self.now, Event::Closed(conn));
                }
                Output::Observe(_) | Output::Election(_) => {}
            }
        }
    }

    /// Closes all streams; an hour later no state of them is left. After a handover, control has already closed all
    /// streams and sends nothing more.
    fn finish(mut self) {
        if self.handed_over {
            assert!(self.slots.iter().all(Option::is_none), "a stream is still open");
            assert_eq!(self.control.poll_timeout(), None);
            return;
        }
        for slot in 0..self.slots.len() {
            if let Some(conn) = self.slots[slot].take() {
                self.close(conn);
            }
        }
        let end = self.now.after(Duration::from_secs(3_600));
        while let Some(due) = self.control.poll_timeout().filter(|due| *due < end) {
            self.now = self.now.max(due);
            self.settle();
        }
        self.now = end;
        self.settle();
        let status = self.control.status(self.now);
        assert!(self.control.is_idle() && status.requests == 0, "{} requests leaked", status.requests);
        assert!(status.sessions.is_empty(), "sessions leaked: {:?}", status.sessions);
        for pool in &status.pools {
            let snapshot = &pool.snapshot;
            assert_eq!(
                (snapshot.waiting, snapshot.stock, snapshot.draining_stock, snapshot.waiting_bytes),
                (0, 0, 0, 0),
                "pool {} leaks",
                pool.name
            );
        }
    }
}
