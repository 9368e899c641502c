//! One stream: its numbers, its Hello, and what is to be sent on it.

use penstock_engine::{Instant, RequestId};
use penstock_wire as wire;

use crate::counted::Counted;

/// 128 random bits that name a root context of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Epoch(pub(crate) u128);

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
    /// It said Bye, or broke the protocol; nothing of it counts any more.
    Over,
}

/// The parts of a Hello so far.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    pub(crate) parts: u32,
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
}

impl Violation {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "a frame is missing",
            Self::Empty => "a frame says nothing",
            Self::NoHello => "the first frame isn't a Hello",
            Self::Parts => "a part of the Hello is missing, doubled or too large",
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

    /// Takes a frame's number.
    pub(crate) fn number(&mut self, now: Instant, seq: u64) -> Result<(), Violation> {
        if seq != self.handled + 1 {
            return Err(Violation::Gap);
        }
        self.handled = seq;
        self.last_seen = now;
        Ok(())
    }

    /// Takes a part of the Hello. `true`: it was the last, the Hello counts.
    pub(crate) fn part(&mut self, hello: &mut wire::Hello) -> Result<bool, Violation> {
        let Stage::Greeting(greeting) = &mut self.stage else {
            return Err(Violation::Parts);
        };
        let requests = hello.waiting.len() + hello.running.len();
        if hello.part != greeting.parts || requests > wire::limits::HELLO_PART_REQUESTS {
            return Err(Violation::Parts);
        }
        greeting.parts += 1;
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

    /// Many frames were handled without a word.
    pub(crate) fn owes_ack(&self) -> bool {
        self.handled - self.acked >= ACK_EVERY
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
    /// Which Envoy.
    pub(crate) node: Box<str>,
    /// Since when no stream speaks for it.
    pub(crate) orphaned: Option<Instant>,
    /// Its requests that haven't ended, by sequence.
    pub(crate) requests: hashbrown::HashMap<u64, RequestId>,
    /// Granted ones that its last Hello didn't name: released unless their end is repeated at once.
    pub(crate) absent: Vec<RequestId>,
    /// Those that have an outcome, of which it may speak again.
    pub(crate) counted: Counted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gap_and_acks_follow() {
        let mut session = Session::new(Instant::ZERO);
        assert_eq!(session.number(Instant::ZERO, 1), Ok(()));
        assert_eq!(session.number(Instant::ZERO, 3), Err(Violation::Gap));
        assert_eq!(session.frame(), None, "nothing to say");
        assert!(session.push(wire::command::Kind::Bye(wire::Bye {})));
        assert!(!session.acknowledge(), "already has something to send");
        let frame = session.frame().expect("a frame");
        assert_eq!((frame.seq, frame.ack, frame.commands.len()), (1, 1, 1));
    }

    #[test]
    fn parts_come_in_order_and_within_their_size() {
        let mut session = Session::new(Instant::ZERO);
        let part = |part, last| wire::Hello {
            part,
            last,
            ..Default::default()
        };
        assert_eq!(session.part(&mut part(0, false)), Ok(false));
        assert_eq!(session.part(&mut part(2, true)), Err(Violation::Parts));
        assert_eq!(session.part(&mut part(1, true)), Ok(true));
        let mut large = part(2, true);
        large
            .waiting
            .resize(wire::limits::HELLO_PART_REQUESTS + 1, wire::Register::default());
        assert_eq!(session.part(&mut large), Err(Violation::Parts));
    }
}
