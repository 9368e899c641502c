//! One stream: its numbers, its Hello, and what is to be sent on it.

use penstock_engine::{Instant, RequestId};
use penstock_wire as wire;

use crate::counted::Counted;
use crate::envoys::Envoy;
use crate::limits::{HELLO_BYTES_MAX, REQUESTS_MAX};

/// 128 random bits that name a root context of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Epoch(pub(crate) u128);

impl Epoch {
    pub(crate) const fn new(hi: u64, lo: u64) -> Self {
        Self((hi as u128) << 64 | lo as u128)
    }
}

/// Frames handled without a word before an acknowledgement is sent of its own.
const ACK_EVERY: u64 = 64;

/// A stream from its opening to its end.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) last_seen: Instant,
    pub(crate) stage: Stage,
    handled: u64,
    acked: u64,
    ack_now: bool,
    sent: u64,
    outbox: Vec<wire::Command>,
}

/// How far a stream is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Parts of its Hello come in.
    Greeting(Box<Greeting>),
    /// It speaks for this epoch.
    Established(Epoch),
}

/// The parts of a Hello so far.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    pub(crate) parts: u32,
    bytes: usize,
    pub(crate) waiting: Vec<wire::Register>,
    pub(crate) running: Vec<wire::Running>,
}

/// What a stream did that the protocol doesn't have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("a frame is missing")]
    Gap,
    #[error("a frame says nothing")]
    Empty,
    #[error("the first frame isn't a Hello")]
    NoHello,
    #[error("a part of the Hello is missing, doubled or too large")]
    Parts,
    #[error("the Hello names more requests than one filter may have")]
    Requests,
    #[error("a frame acknowledges what was never said")]
    Ack,
}

impl Violation {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "a frame is missing",
            Self::Empty => "a frame says nothing",
            Self::NoHello => "the first frame isn't a Hello",
            Self::Parts => "a part of the Hello is missing, doubled or too large",
            Self::Requests => "the Hello names more requests than one filter may have",
            Self::Ack => "a frame acknowledges what was never said",
        }
    }
}

impl Session {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            last_seen: now,
            stage: Stage::Greeting(Box::default()),
            handled: 0,
            acked: 0,
            ack_now: false,
            sent: 0,
            outbox: Vec::new(),
        }
    }

    /// Takes a frame's number, and what it acknowledges.
    pub(crate) fn number(&mut self, now: Instant, seq: u64, ack: u64) -> Result<(), Violation> {
        if seq != self.handled + 1 {
            return Err(Violation::Gap);
        }
        if ack > self.sent {
            return Err(Violation::Ack);
        }
        self.handled = seq;
        self.last_seen = now;
        Ok(())
    }

    /// Takes a part of the Hello. `true`: it was the last, the Hello counts.
    pub(crate) fn part(&mut self, hello: &mut wire::Hello, bytes: usize) -> Result<bool, Violation> {
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

    /// Queues a command. `true`: it is the first, so the stream has something to send from now on.
    pub(crate) fn push(&mut self, kind: wire::command::Kind) -> bool {
        let first = self.outbox.is_empty() && !self.ack_now;
        self.outbox.push(wire::Command { kind: Some(kind) });
        first
    }

    /// Acknowledges at the next chance, even without a command. `true`: there is something to send from now on.
    pub(crate) fn acknowledge(&mut self) -> bool {
        let first = self.outbox.is_empty() && !self.ack_now;
        self.ack_now = true;
        first
    }

    /// Frames that were handled and not acknowledged yet.
    pub(crate) const fn unacked(&self) -> u64 {
        self.handled - self.acked
    }

    /// Many frames were handled without a word.
    pub(crate) fn owes_ack(&self) -> bool {
        self.unacked() >= ACK_EVERY
    }

    /// The next frame, if there is something to say.
    pub(crate) fn frame(&mut self) -> Option<wire::CompanionFrame> {
        if self.outbox.is_empty() && !self.ack_now {
            return None;
        }
        self.ack_now = false;
        self.acked = self.handled;
        self.sent += 1;
        Some(wire::CompanionFrame {
            seq: self.sent,
            ack: self.handled,
            commands: core::mem::take(&mut self.outbox),
        })
    }
}

/// A root context, over all its streams.
#[derive(Debug)]
pub(crate) struct Context {
    /// The stream that speaks for it; `None`: orphaned.
    pub(crate) conn: Option<crate::event::ConnId>,
    /// Its number, to know older ones.
    pub(crate) stream: u32,
    /// The version that both sides speak.
    pub(crate) version: u32,
    /// How its operator calls it.
    pub(crate) node: Box<str>,
    /// Which Envoy.
    pub(crate) envoy: Envoy,
    /// Since when no stream speaks for it.
    pub(crate) orphaned: Option<Instant>,
    /// Its requests that haven't ended, by sequence.
    pub(crate) requests: hashbrown::HashMap<u64, RequestId>,
    /// Granted ones that its last Hello didn't name: released unless their end is repeated at once.
    pub(crate) absent: Vec<RequestId>,
    /// Those that have ended, of which it may speak again.
    pub(crate) counted: Counted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gap_and_acks_follow() {
        let mut session = Session::new(Instant::ZERO);
        assert_eq!(session.number(Instant::ZERO, 1, 0), Ok(()));
        assert_eq!(session.number(Instant::ZERO, 3, 0), Err(Violation::Gap));
        assert_eq!(session.frame(), None, "nothing to say");
        assert!(session.push(wire::command::Kind::Bye(wire::Bye {})));
        assert!(!session.acknowledge(), "already has something to send");
        let frame = session.frame().expect("a frame");
        assert_eq!((frame.seq, frame.ack, frame.commands.len()), (1, 1, 1));
        assert_eq!(session.number(Instant::ZERO, 2, 2), Err(Violation::Ack));
        assert_eq!(session.number(Instant::ZERO, 2, 1), Ok(()));
    }

    #[test]
    fn parts_come_in_order_and_within_their_size() {
        let mut session = Session::new(Instant::ZERO);
        let part = |part, last| wire::Hello {
            part,
            last,
            ..Default::default()
        };
        assert_eq!(session.part(&mut part(0, false), 0), Ok(false));
        assert_eq!(session.part(&mut part(2, true), 0), Err(Violation::Parts));
        assert_eq!(session.part(&mut part(1, true), 0), Ok(true));
        let mut large = part(2, true);
        large
            .waiting
            .resize(wire::limits::HELLO_PART_REQUESTS + 1, wire::Register::default());
        assert_eq!(session.part(&mut large, 0), Err(Violation::Parts));
    }
    #[test]
    fn a_hello_has_an_end() {
        let mut session = Session::new(Instant::ZERO);
        let part = |part| wire::Hello {
            part,
            waiting: vec![wire::Register::default(); wire::limits::HELLO_PART_REQUESTS],
            ..Default::default()
        };
        let parts = u32::try_from(REQUESTS_MAX / wire::limits::HELLO_PART_REQUESTS).expect("few parts");
        for number in 0..parts {
            assert_eq!(session.part(&mut part(number), 0), Ok(false));
        }
        assert_eq!(session.part(&mut part(parts), 0), Err(Violation::Requests));
        let mut session = Session::new(Instant::ZERO);
        let mut huge = part(0);
        assert_eq!(
            session.part(&mut huge, HELLO_BYTES_MAX + 1),
            Err(Violation::Requests)
        );
    }
}
