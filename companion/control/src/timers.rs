//! Deadlines of the sessions, the earliest first.
//!
//! A timer isn't moved when its session is active: it fires, is checked against the session, and is set again if the
//! session's deadline has moved. So a frame costs nothing here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use penstock_engine::Instant;

use crate::ids::{ConnId, CreditId, Epoch, PoolId};

/// The deadline that a timer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Dispatch begins, even if expected sessions are missing.
    Startup,
    /// Filters of the last leader are missing.
    Takeover,
    /// The lease must be checked.
    Lease,
    /// The stream has been silent for too long.
    Silence(ConnId),
    /// The grace period of an orphaned root context is over.
    Grace(Epoch),
    /// A filter should have returned a credit that was recalled over this stream.
    Recall(ConnId, PoolId, CreditId),
}

/// All timers.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, Timer)>>);

impl Timers {
    pub(crate) fn set(&mut self, deadline: Instant, timer: Timer) {
        self.0.push(Reverse((deadline, timer)));
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// Takes the earliest timer that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let Reverse((deadline, timer)) = *self.0.peek()?;
        if deadline > now {
            return None;
        }
        self.0.pop();
        Some(timer)
    }
}
