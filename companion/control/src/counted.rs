//! Which requests of a root context are counted already, though their filter may speak of them again.
//!
//! A filter repeats what it answered by itself until that is acknowledged, and an acknowledgement can be lost; what
//! this companion refused or cancelled may have been refused by the filter too, before it heard of it. One request
//! is one arrival with one outcome, so the last of these are remembered: as many as a filter repeats at most.

use std::collections::VecDeque;

use hashbrown::HashSet;
use penstock_wire::limits::UNACKED_EVENTS_MAX;

/// The last sequences that were counted.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    known: HashSet<u64>,
    in_order: VecDeque<u64>,
}

impl Counted {
    /// `true`: it wasn't, or that is too long ago. From now on it is.
    pub(crate) fn insert(&mut self, sequence: u64) -> bool {
        if !self.known.insert(sequence) {
            return false;
        }
        self.in_order.push_back(sequence);
        if self.in_order.len() > UNACKED_EVENTS_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_once_and_only_the_last_are_remembered() {
        let mut counted = Counted::default();
        let all = 0..UNACKED_EVENTS_MAX as u64;
        assert!(all.clone().all(|sequence| counted.insert(sequence)));
        assert!(!all.clone().any(|sequence| counted.insert(sequence)));
        assert!(counted.insert(all.end));
        assert!(!counted.insert(1));
        assert!(counted.insert(0), "the oldest has made place");
        assert_eq!(counted.known.len(), UNACKED_EVENTS_MAX);
        assert_eq!(counted.in_order.len(), UNACKED_EVENTS_MAX);
    }
}
