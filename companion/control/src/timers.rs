//! The control's own deadlines, the least one first.
//!
//! A timer isn't taken out when what it watches moves on: when it fires it is checked, and set again if need be.
//! So a frame costs nothing here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use penstock_engine::Instant;

use crate::event::ConnId;
use crate::session::Epoch;

/// What happens when a deadline comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Dispatch begins, whoever hasn't said Hello.
    Startup,
    /// A stream without a frame for too long is closed.
    Silence(ConnId),
    /// What an orphaned session left is released.
    Grace(Epoch),
}

/// A heap of deadlines.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, Timer)>>);

impl Timers {
    pub(crate) fn set(&mut self, at: Instant, timer: Timer) {
        self.0.push(Reverse((at, timer)));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let Reverse((at, timer)) = *self.0.peek()?;
        if at > now {
            return None;
        }
        self.0.pop();
        Some(timer)
    }
}
