//! The timers of all servers in order, so that an event costs the same work however many servers there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use penstock_engine::Instant;

/// When each server is due.
#[derive(Debug)]
pub(super) struct ServerTimers {
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// By server, the entry in `due` that counts.
    set: Vec<Option<Instant>>,
}

impl ServerTimers {
    pub(super) fn new(servers: usize) -> Self {
        Self { due: BinaryHeap::new(), set: vec![None; servers] }
    }

    /// Sets or clears a server's timer.
    pub(super) fn set(&mut self, server: usize, time: Option<Instant>) {
        if self.set[server] == time {
            return;
        }
        self.set[server] = time;
        if let Some(time) = time {
            self.due.push(Reverse((time, server)));
        }
    }

    pub(super) fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse((time, server))) = self.due.peek() {
            if self.set[*server] == Some(*time) {
                return Some(*time);
            }
            self.due.pop();
        }
        None
    }

    /// Removes and returns the next server that is due, in order of time and then of number.
    pub(super) fn pop(&mut self, now: Instant) -> Option<usize> {
        if self.next()? > now {
            return None;
        }
        let Reverse((_, server)) = self.due.pop()?;
        self.set[server] = None;
        Some(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn time(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn timers_are_due_in_order_of_time_and_the_last_setting_counts() {
        let mut timers = ServerTimers::new(3);
        timers.set(2, Some(time(5)));
        timers.set(1, Some(time(5)));
        timers.set(0, Some(time(3)));
        timers.set(0, Some(time(9)));
        assert_eq!(timers.next(), Some(time(5)));
        assert_eq!(timers.pop(time(4)), None);
        let due: Vec<usize> = std::iter::from_fn(|| timers.pop(time(8))).collect();
        assert_eq!(due, [1, 2]);
        timers.set(0, None);
        assert_eq!(timers.next(), None);
    }
}
