//! What filters say to a companion's control: any frames, at any time, over several streams of several root contexts.
//!
//! Whatever they say, the control doesn't panic, numbers its frames without a gap, says nothing on a stream that is over,
//! comes to rest at every moment, and holds nothing of anyone an hour after the last has left.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use penstock_control::{ConnId, Control, Event, Output, Settings};
use penstock_engine::Instant;
use penstock_server::serve;
use penstock_wire as wire;
use prost::Message;
use wire::filter_frame::Event as Said;

use super::dice::Dice;
use super::frames::{self, ADDRESSES};
use super::policies::configs;

/// Operations of one input.
const OPERATIONS: usize = 2_000;
/// Streams that are open at a time.
const SLOTS: u8 = 4;
/// Wake-ups at one moment, past which a control is taken not to come to rest.
const WAKES: usize = 100;

/// Lets filters speak as the input says.
pub fn run(input: &[u8]) {
    let mut dice = Dice::new(input);
    let settings = settings(&mut dice);
    let pools: Vec<Arc<str>> = settings.pools.iter().map(|it| it.name.as_str().into()).collect();
    let mut world = World {
        control: Control::new(settings, Instant::ZERO),
        now: Instant::ZERO,
        slots: [None; SLOTS as usize],
        streams: BTreeMap::new(),
        opened: 0,
        handed_over: false,
    };
    world.rest();
    for _ in 0..OPERATIONS {
        if dice.is_empty() {
            break;
        }
        world.operate(&mut dice, &pools);
    }
    world.leave();
}

fn settings(dice: &mut Dice<'_>) -> Settings {
    static SETTINGS: OnceLock<Vec<Settings>> = OnceLock::new();
    let all = SETTINGS.get_or_init(|| {
        let of = |config| Settings {
            term: 7,
            seed: 1,
            ..serve::settings(config, &serve::Birth::now(None))
        };
        configs().iter().map(of).collect()
    });
    let mut settings = all[usize::from(dice.byte()) % all.len()].clone();
    settings.sessions_expected = [None, Some(1), Some(3)][usize::from(dice.below(3))];
    settings
}

/// A stream, as its filter counts.
#[derive(Default)]
struct Stream {
    said: u64,
    heard: u64,
    over: bool,
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
    fn operate(&mut self, dice: &mut Dice<'_>, pools: &[Arc<str>]) {
        match dice.below(16) {
            0 => self.open(dice, true),
            1 => self.open(dice, false),
            2..=8 => {
                let said = frames::said(dice);
                self.say(dice, Some(said));
            }
            9 => {
                // Bytes as they are: what decodes is a frame, and a number that doesn't follow is part of it.
                let slot = usize::from(dice.below(SLOTS));
                if let (Some(conn), Ok(frame)) = (self.slots[slot], wire::FilterFrame::decode(dice.bytes())) {
                    self.frame(conn, frame);
                }
            }
            10 => {
                let slot = usize::from(dice.below(SLOTS));
                if let Some(conn) = self.slots[slot].take() {
                    self.close(conn);
                }
            }
            11..=13 => self.pass(dice),
            14 => {
                let event = Event::EndpointReady {
                    pool: pools
                        .get(usize::from(dice.below(4)))
                        .cloned()
                        .unwrap_or_else(|| "nobody".into()),
                    address: dice.of(&ADDRESSES).to_owned(),
                    ready: dice.one_in(2),
                };
                self.handle(event);
            }
            _ => match dice.below(8) {
                0 => self.handle(Event::Drain(true)),
                1 if dice.one_in(4) => {
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

    /// Opens a stream, which greets at once if it is to be a session.
    fn open(&mut self, dice: &mut Dice<'_>, greets: bool) {
        let slot = usize::from(dice.below(SLOTS));
        if let Some(conn) = self.slots[slot] {
            self.close(conn);
        }
        self.opened += 1;
        let conn = ConnId(self.opened);
        self.slots[slot] = Some(conn);
        self.streams.insert(conn, Stream::default());
        self.handle(Event::Opened(conn));
        if greets {
            let hello = frames::hello(dice);
            self.said(conn, Some(Said::Hello(hello)), 0);
        }
    }

    fn say(&mut self, dice: &mut Dice<'_>, event: Option<Said>) {
        let slot = usize::from(dice.below(SLOTS));
        let jump = if dice.one_in(32) { dice.number() } else { 0 };
        if let Some(conn) = self.slots[slot] {
            self.said(conn, event, jump);
        }
    }

    /// A frame with the next number, or one that is `jump` off.
    fn said(&mut self, conn: ConnId, event: Option<Said>, jump: u64) {
        let stream = self.streams.entry(conn).or_default();
        stream.said += 1;
        let frame = wire::FilterFrame {
            seq: stream.said.wrapping_add(jump),
            ack: stream.heard,
            event,
        };
        self.frame(conn, frame);
    }

    fn frame(&mut self, conn: ConnId, frame: wire::FilterFrame) {
        self.handle(Event::Frame(conn, Box::new(frame)));
    }

    fn close(&mut self, conn: ConnId) {
        self.streams.entry(conn).or_default().over = true;
        self.handle(Event::Closed(conn));
    }

    fn handle(&mut self, event: Event) {
        self.control.handle(self.now, event);
        self.rest();
        self.audit();
    }

    fn audit(&self) {
        if let Err(error) = self.control.audit() {
            panic!("{error}");
        }
    }

    /// Time passes, mostly little; every deadline on the way is kept.
    fn pass(&mut self, dice: &mut Dice<'_>) {
        let by = match dice.below(8) {
            0..=3 => Duration::from_micros(u64::from(dice.byte())),
            4 | 5 => Duration::from_millis(10 * u64::from(dice.byte())),
            6 => Duration::from_secs(u64::from(dice.byte())),
            _ => Duration::from_nanos(dice.number()),
        };
        // Also back, as far as a clock that is set might.
        if dice.one_in(32) {
            self.now = self.now.before(by);
            return self.rest();
        }
        let until = self.now.after(by);
        for _ in 0..OPERATIONS {
            match self.control.poll_timeout() {
                Some(at) if at < until => self.now = self.now.max(at),
                Some(_) | None => break,
            }
            self.rest();
        }
        self.now = self.now.max(until);
        self.rest();
    }

    /// Does what is due, and takes what is said, until nothing is.
    fn rest(&mut self) {
        for wake in 0.. {
            self.take();
            match self.control.poll_timeout() {
                Some(at) if at <= self.now => self.control.handle_timeout(self.now),
                Some(_) | None => return,
            }
            assert!(wake < WAKES, "it doesn't come to rest at {:?}", self.now);
        }
    }

    fn take(&mut self) {
        while let Some(output) = self.control.poll_output() {
            match output {
                Output::Send(conn, frame) => {
                    let stream = self.streams.entry(conn).or_default();
                    assert!(!stream.over, "a frame after the end of {conn:?}");
                    assert_eq!(frame.seq, stream.heard + 1, "a gap on {conn:?}");
                    assert!(frame.ack <= stream.said, "acknowledged before it was said");
                    stream.heard = frame.seq;
                    let length = frame.encoded_len();
                    assert!(
                        length <= wire::limits::MESSAGE_BYTES_MAX,
                        "{length} bytes in a frame"
                    );
                }
                Output::Close(conn, _) => {
                    self.streams.entry(conn).or_default().over = true;
                    for slot in &mut self.slots {
                        slot.take_if(|it| *it == conn);
                    }
                    // As the shell does, when the stream has ended.
                    self.control.handle(self.now, Event::Closed(conn));
                }
                Output::Observe(_) => {}
            }
        }
    }

    /// All streams end; an hour later nothing is left of them. What was handed over is another companion's: this one has
    /// ended all streams, and says no more.
    fn leave(mut self) {
        if self.handed_over {
            assert!(self.slots.iter().all(Option::is_none), "a stream goes on");
            assert_eq!(self.control.poll_timeout(), None);
            return;
        }
        for slot in 0..self.slots.len() {
            if let Some(conn) = self.slots[slot].take() {
                self.close(conn);
            }
        }
        let end = self.now.after(Duration::from_secs(3_600));
        while let Some(at) = self.control.poll_timeout().filter(|at| *at < end) {
            self.now = self.now.max(at);
            self.rest();
        }
        self.now = end;
        self.rest();
        let status = self.control.status(self.now);
        assert!(
            self.control.is_idle() && status.requests == 0,
            "{} requests leaked",
            status.requests
        );
        assert!(
            status.sessions.is_empty(),
            "sessions leaked: {:?}",
            status.sessions
        );
        for pool in &status.pools {
            let at_rest = &pool.snapshot;
            assert_eq!(
                (
                    at_rest.waiting,
                    at_rest.stock,
                    at_rest.draining_stock,
                    at_rest.waiting_bytes
                ),
                (0, 0, 0, 0),
                "pool {} leaks",
                pool.name
            );
        }
    }
}
