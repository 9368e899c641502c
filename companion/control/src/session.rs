//! One stream: its frame numbers, its Hello, and the commands to send on it.

use penstock_engine::Instant;
use penstock_wire as wire;

use crate::host_clocks::SentAt;
use crate::ids::{Door, Epoch, Origin};
use crate::leadership::Asking;
use crate::limits::{HELLO_BYTES_MAX, REQUESTS_MAX};

/// Frames after which an acknowledgement is sent even if there is no command to send.
const ACK_EVERY: u64 = 64;

/// A stream from its opening to its end.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) origin: Origin,
    /// The time of its last frame.
    pub(crate) last_frame_at: Instant,
    pub(crate) stage: Stage,
    /// The number of the last frame that was handled.
    handled: u64,
    /// The last number that was acknowledged.
    acknowledged: u64,
    must_acknowledge: bool,
    /// The number of the last frame that was sent.
    sent: u64,
    outbox: Vec<wire::Command>,
    /// The number and the time of a frame that the filter hasn't acknowledged.
    unproved: Option<(u64, Instant)>,
    /// The time of the last frame of which it is known that the filter acknowledged it.
    proved_at: Instant,
}

/// The stage of a stream.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The parts of its Hello come in.
    Greeting(Box<Greeting>),
    /// The filter asks for the leader.
    Asking(Asking),
    /// The Hello is complete: the stream belongs to the root context with this epoch.
    Established(Epoch),
}

/// The parts of a Hello that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    /// When the filter sent it; `None` before the first part.
    pub(crate) sent_at: Option<SentAt>,
    pub(crate) parts: u32,
    bytes: usize,
    pub(crate) waiting: Vec<wire::Register>,
    pub(crate) running: Vec<wire::Running>,
}

/// A violation of the protocol. It ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    Gap,
    Empty,
    NoHello,
    Parts,
    Requests,
    Ack,
}

impl Violation {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "a frame is missing",
            Self::Empty => "a frame is empty",
            Self::NoHello => "the first frame isn't a Hello",
            Self::Parts => "a part of the Hello is missing, doubled or too large",
            Self::Requests => "the Hello names more requests than one filter may have",
            Self::Ack => "a frame acknowledges a frame that was never sent",
        }
    }
}

impl Session {
    pub(crate) fn new(now: Instant, door: Door) -> Self {
        Self {
            origin: Origin::from(door),
            last_frame_at: now,
            stage: Stage::Greeting(Box::default()),
            handled: 0,
            acknowledged: 0,
            must_acknowledge: false,
            sent: 0,
            outbox: Vec::new(),
            unproved: None,
            proved_at: now,
        }
    }

    /// A time at which the filter still took frames from this stream.
    pub(crate) const fn proved_at(&self) -> Instant {
        self.proved_at
    }

    /// Checks the number of a frame and the number that it acknowledges.
    pub(crate) fn receive(&mut self, now: Instant, seq: u64, ack: u64) -> Result<(), Violation> {
        if seq != self.handled + 1 {
            return Err(Violation::Gap);
        }
        if ack > self.sent {
            return Err(Violation::Ack);
        }
        self.handled = seq;
        self.last_frame_at = now;
        if let Some((sent, sent_at)) = self.unproved
            && ack >= sent
        {
            self.proved_at = sent_at;
            self.unproved = None;
        }
        Ok(())
    }

    /// Adds a part of the Hello. `true` if it was the last part.
    pub(crate) fn add_hello_part(
        &mut self,
        hello: &mut wire::Hello,
        bytes: usize,
    ) -> Result<bool, Violation> {
        let Stage::Greeting(greeting) = &mut self.stage else {
            return Err(Violation::Parts);
        };
        let requests = hello.waiting.len() + hello.running.len();
        if hello.part != greeting.parts || requests > wire::limits::HELLO_PART_REQUESTS {
            return Err(Violation::Parts);
        }
        greeting.parts += 1;
        greeting.bytes += bytes;
        if greeting.waiting.len() + greeting.running.len() + requests > REQUESTS_MAX
            || greeting.bytes > HELLO_BYTES_MAX
        {
            return Err(Violation::Requests);
        }
        greeting.waiting.append(&mut hello.waiting);
        greeting.running.append(&mut hello.running);
        Ok(hello.last)
    }

    /// There is no command to send.
    pub(crate) const fn is_outbox_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Gives the empty outbox the memory of an empty list.
    pub(crate) fn reuse(&mut self, list: Vec<wire::Command>) {
        self.outbox = list;
    }

    /// Queues a command. `true` if the stream had nothing to send before.
    pub(crate) fn push(&mut self, kind: wire::command::Kind) -> bool {
        let was_idle = !self.has_output();
        self.outbox.push(wire::Command { kind: Some(kind) });
        was_idle
    }

    /// Makes the next frame due even without a command. `true` if the stream had nothing to send before.
    pub(crate) fn acknowledge(&mut self) -> bool {
        let was_idle = !self.has_output();
        self.must_acknowledge = true;
        was_idle
    }

    /// Frames that were handled and aren't acknowledged yet.
    pub(crate) const fn unacknowledged(&self) -> u64 {
        self.handled - self.acknowledged
    }

    /// Enough frames were handled that an acknowledgement is due.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.unacknowledged() >= ACK_EVERY
    }

    const fn has_output(&self) -> bool {
        !self.outbox.is_empty() || self.must_acknowledge
    }

    /// The next frame, if there is something to send.
    pub(crate) fn next_frame(&mut self, now: Instant) -> Option<wire::CompanionFrame> {
        if !self.has_output() {
            return None;
        }
        self.must_acknowledge = false;
        self.acknowledged = self.handled;
        self.sent += 1;
        self.unproved.get_or_insert((self.sent, now));
        Some(wire::CompanionFrame {
            seq: self.sent,
            ack: self.handled,
            commands: core::mem::take(&mut self.outbox),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_numbers_have_no_gap_and_frames_acknowledge() {
        let mut session = Session::new(Instant::ZERO, Door::Filter);
        assert_eq!(session.receive(Instant::ZERO, 1, 0), Ok(()));
        assert_eq!(session.receive(Instant::ZERO, 3, 0), Err(Violation::Gap));
        assert_eq!(session.next_frame(Instant::ZERO), None, "nothing to send");
        assert!(session.push(wire::command::Kind::Bye(wire::Bye {})));
        assert!(!session.acknowledge(), "already has something to send");
        let frame = session.next_frame(Instant::ZERO).expect("a frame");
        assert_eq!((frame.seq, frame.ack, frame.commands.len()), (1, 1, 1));
        assert_eq!(session.receive(Instant::ZERO, 2, 2), Err(Violation::Ack));
        assert_eq!(session.receive(Instant::ZERO, 2, 1), Ok(()));
    }

    #[test]
    fn hello_parts_come_in_order_and_within_their_size() {
        let mut session = Session::new(Instant::ZERO, Door::Filter);
        let part = |part, last| wire::Hello { part, last, ..Default::default() };
        assert_eq!(session.add_hello_part(&mut part(0, false), 0), Ok(false));
        assert_eq!(session.add_hello_part(&mut part(2, true), 0), Err(Violation::Parts));
        assert_eq!(session.add_hello_part(&mut part(1, true), 0), Ok(true));
        let mut large = part(2, true);
        large.waiting.resize(wire::limits::HELLO_PART_REQUESTS + 1, wire::Register::default());
        assert_eq!(session.add_hello_part(&mut large, 0), Err(Violation::Parts));
    }

    #[test]
    fn a_hello_has_a_limit() {
        let mut session = Session::new(Instant::ZERO, Door::Filter);
        let part = |part| wire::Hello {
            part,
            waiting: vec![wire::Register::default(); wire::limits::HELLO_PART_REQUESTS],
            ..Default::default()
        };
        let parts = u32::try_from(REQUESTS_MAX / wire::limits::HELLO_PART_REQUESTS).expect("few parts");
        for number in 0..parts {
            assert_eq!(session.add_hello_part(&mut part(number), 0), Ok(false));
        }
        assert_eq!(session.add_hello_part(&mut part(parts), 0), Err(Violation::Requests));
        let mut session = Session::new(Instant::ZERO, Door::Filter);
        let mut huge = part(0);
        assert_eq!(session.add_hello_part(&mut huge, HELLO_BYTES_MAX + 1), Err(Violation::Requests));
    }
}
