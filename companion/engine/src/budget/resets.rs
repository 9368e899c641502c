//! Resets of flows' budgets at this engine, until they come in the order in which all engines hear of resets and usage.

use alloc::boxed::Box;

use hashlink::LinkedHashMap;

use crate::limits::{BUDGET_RESET_KEPT, BUDGET_RESETS_MAX};
use crate::time::Instant;

/// The last reset of each flow, by number and time, in the order of the resets.
#[derive(Debug, Default)]
pub(super) struct Resets {
    last_number: u64,
    pending: LinkedHashMap<Box<str>, (u64, Instant)>,
}

fn is_old(begun: Instant, now: Instant) -> bool {
    now.since(begun) > BUDGET_RESET_KEPT
}

impl Resets {
    /// The flow is reset now. Returns the reset's number. `is_told`: it is expected to come in the order of all.
    pub(super) fn begin(&mut self, name: &str, is_told: bool, now: Instant) -> u64 {
        self.last_number = self.last_number.wrapping_add(1);
        self.pending.remove(name);
        if is_told {
            self.pending.insert(name.into(), (self.last_number, now));
        }
        while let Some((_, (_, first))) = self.pending.front()
            && (is_old(*first, now) || self.pending.len() > BUDGET_RESETS_MAX)
        {
            self.pending.pop_front();
        }
        self.last_number
    }

    /// The reset of this number has come.
    pub(super) fn end(&mut self, name: &str, number: u64) {
        if self.pending.get(name).is_some_and(|(last, _)| *last == number) {
            self.pending.remove(name);
        }
    }

    /// The flow's last reset hasn't come yet.
    pub(super) fn is_pending(&self, name: &str, now: Instant) -> bool {
        self.pending.get(name).is_some_and(|(_, begun)| !is_old(*begun, now))
    }
}
