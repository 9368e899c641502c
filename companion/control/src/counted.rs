//! Which requests of a root context have their outcome already, though their filter may speak of them again.
//!
//! A filter repeats what it answered by itself until that is acknowledged, and an acknowledgement can be lost; what
//! this companion refused may have been refused by the filter too, before it heard of it; and a refusal that was lost
//! is asked for again. One request is one arrival with one outcome, so those that ended are remembered until the
//! filter has acknowledged a frame that was sent after it: everything it said before it knew is in by then. The last
//! few are remembered beyond that, for what comes by another of its Envoy's sessions.

use std::collections::VecDeque;

use hashbrown::HashMap;
use penstock_wire as wire;

use crate::limits::{COUNTED_MAX, COUNTED_MIN, MARKS_MAX};

/// The last sequences that ended.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// With what the filter was told of it, as long as it may not have heard that.
    known: HashMap<u64, Option<Box<wire::Reject>>>,
    in_order: VecDeque<u64>,
    /// How many were forgotten: the place of the first in order.
    forgotten: u64,
    /// Frames of the present stream, and the place behind the last that had ended when each was sent.
    marks: VecDeque<(u64, u64)>,
    /// All before this place are known to the filter.
    heard: u64,
}

impl Counted {
    /// `true`: it hadn't ended, as far as is remembered. From now on it has.
    pub(crate) fn insert(&mut self, sequence: u64) -> bool {
        if self.known.contains_key(&sequence) {
            return false;
        }
        self.known.insert(sequence, None);
        self.in_order.push_back(sequence);
        self.trim();
        true
    }

    /// What the filter is told of one that has ended, to be said again if that is lost.
    pub(crate) fn told(&mut self, reject: &wire::Reject) {
        if let Some(said) = self.known.get_mut(&reject.sequence) {
            *said = Some(Box::new(reject.clone()));
        }
    }

    /// It has ended, as far as is remembered.
    pub(crate) fn contains(&self, sequence: u64) -> bool {
        self.known.contains_key(&sequence)
    }

    /// What its filter was told of it, and may not have heard.
    pub(crate) fn said(&self, sequence: u64) -> Option<&wire::Reject> {
        self.known.get(&sequence)?.as_deref()
    }

    /// Another stream speaks for the context: frames are numbered anew.
    pub(crate) fn restart(&mut self) {
        self.marks.clear();
    }

    /// A frame of this number goes out.
    pub(crate) fn sent(&mut self, frame: u64) {
        let place = self.forgotten + self.in_order.len() as u64;
        if place == self.marks.back().map_or(self.heard, |(_, last)| *last) {
            return;
        }
        if self.marks.len() >= MARKS_MAX {
            // What it stands for is heard with the next one.
            self.marks.pop_front();
        }
        self.marks.push_back((frame, place));
    }

    /// The filter has handled all frames up to this one, and we all that it had said by then.
    pub(crate) fn acknowledged(&mut self, frame: u64) {
        while let Some(&(sent, place)) = self.marks.front()
            && sent <= frame
        {
            self.marks.pop_front();
            for at in self.heard.max(self.forgotten)..place {
                let sequence = usize::try_from(at - self.forgotten)
                    .ok()
                    .and_then(|at| self.in_order.get(at));
                if let Some(said) = sequence.and_then(|sequence| self.known.get_mut(sequence)) {
                    *said = None;
                }
            }
            self.heard = self.heard.max(place);
        }
        self.trim();
    }

    fn trim(&mut self) {
        while self.in_order.len() > COUNTED_MAX
            || self.in_order.len() > COUNTED_MIN && self.forgotten < self.heard
        {
            let Some(oldest) = self.in_order.pop_front() else {
                return;
            };
            self.known.remove(&oldest);
            self.forgotten += 1;
        }
    }

    /// How many are remembered, if all that is kept of them agrees.
    pub(crate) fn audit(&self) -> Option<usize> {
        let all = self.in_order.iter().all(|it| self.known.contains_key(it));
        (all && self.known.len() == self.in_order.len()).then_some(self.known.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reject(sequence: u64) -> wire::Reject {
        wire::Reject {
            sequence,
            ..Default::default()
        }
    }

    #[test]
    fn each_counts_once_and_is_remembered_until_the_filter_knows() {
        let mut counted = Counted::default();
        let all = 0..2 * COUNTED_MIN as u64;
        assert!(all.clone().all(|sequence| counted.insert(sequence)));
        assert!(!all.clone().any(|sequence| counted.insert(sequence)));
        counted.sent(1);
        counted.acknowledged(0);
        assert!(!counted.insert(0), "not acknowledged yet");
        counted.acknowledged(1);
        assert_eq!(counted.audit(), Some(COUNTED_MIN));
        assert!(!counted.contains(0) && counted.contains(COUNTED_MIN as u64));
    }

    #[test]
    fn who_never_acknowledges_is_forgotten_too() {
        let mut counted = Counted::default();
        for sequence in 0..=COUNTED_MAX as u64 {
            counted.insert(sequence);
            counted.sent(sequence);
        }
        assert_eq!(counted.audit(), Some(COUNTED_MAX));
        assert!(!counted.contains(0) && counted.contains(1));
        assert_eq!(counted.marks.len(), MARKS_MAX);
        counted.acknowledged(u64::MAX);
        assert_eq!(counted.audit(), Some(COUNTED_MIN));
    }

    #[test]
    fn a_refusal_is_kept_until_it_was_heard() {
        let mut counted = Counted::default();
        counted.insert(1);
        counted.told(&reject(1));
        counted.sent(1);
        counted.insert(2);
        counted.told(&reject(2));
        counted.acknowledged(1);
        assert_eq!((counted.said(1), counted.said(2)), (None, Some(&reject(2))));
        counted.restart();
        counted.acknowledged(9);
        assert_eq!(
            counted.said(2),
            Some(&reject(2)),
            "nothing was sent on this stream"
        );
        counted.sent(1);
        counted.acknowledged(1);
        assert_eq!(counted.said(2), None);
        assert!(counted.contains(2));
    }
}
