//! Requests of a root context that have ended and that its filter may still send messages about.
//!
//! A filter that answers a request by itself repeats that until the companion acknowledges it. A request that the companion rejected may be
//! refused by its filter too, before the rejection arrives. A filter asks again if a rejection was lost. To count every
//! request once, ended requests are remembered until the filter has acknowledged a frame that was sent after their end:
//! everything that the filter sent before it knew of the end has arrived by then. The last few are remembered beyond that,
//! for messages that come over another session of the same Envoy.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::limits::{ENDED_MAX, ENDED_MIN, FRAME_MARKS_MAX};
use crate::rejection::Rejection;

/// The last sequence numbers that ended. A *position* counts the ended requests of the root context from the first one.
#[derive(Debug, Default)]
pub(crate) struct EndedRequests {
    /// With the rejection, until the filter has acknowledged it.
    rejections: HashMap<u64, Option<Arc<Rejection>>>,
    in_order: VecDeque<u64>,
    /// The position of the first in `in_order`: so many were forgotten.
    forgotten: u64,
    /// Frame numbers of the present stream, and the position after the last request that had ended when each was sent.
    frame_marks: VecDeque<(u64, u64)>,
    /// The filter knows of the end of every request before this position.
    acknowledged: u64,
}

impl EndedRequests {
    /// A request has ended. `false` if it had ended before.
    pub(crate) fn record(&mut self, sequence: u64) -> bool {
        if self.rejections.contains_key(&sequence) {
            return false;
        }
        self.rejections.insert(sequence, None);
        self.in_order.push_back(sequence);
        self.trim();
        true
    }

    /// Keeps the rejection of an ended request, to send it again if it is lost.
    pub(crate) fn keep_rejection(&mut self, sequence: u64, rejection: &Arc<Rejection>) {
        if let Some(kept) = self.rejections.get_mut(&sequence) {
            *kept = Some(rejection.clone());
        }
    }

    pub(crate) fn contains(&self, sequence: u64) -> bool {
        self.rejections.contains_key(&sequence)
    }

    /// The rejection of a request, unless the filter has acknowledged it.
    pub(crate) fn unacknowledged_rejection(&self, sequence: u64) -> Option<&Arc<Rejection>> {
        self.rejections.get(&sequence)?.as_ref()
    }

    /// The root context has another stream: frame numbers start again.
    pub(crate) fn restart_stream(&mut self) {
        self.frame_marks.clear();
    }

    /// A frame of this number is sent.
    pub(crate) fn record_frame(&mut self, frame: u64) {
        let position = self.forgotten + self.in_order.len() as u64;
        let last = self.frame_marks.back().map(|(_, position)| *position);
        if position == last.unwrap_or(self.acknowledged) {
            return;
        }
        if self.frame_marks.len() >= FRAME_MARKS_MAX {
            // The acknowledgement of the next frame covers it.
            self.frame_marks.pop_front();
        }
        self.frame_marks.push_back((frame, position));
    }

    /// The filter has acknowledged all frames up to this number, and every message that it sent before has arrived.
    pub(crate) fn acknowledge(&mut self, frame: u64) {
        while let Some(&(sent, position)) = self.frame_marks.front()
            && sent <= frame
        {
            self.frame_marks.pop_front();
            for ended in self.acknowledged.max(self.forgotten)..position {
                let sequence =
                    usize::try_from(ended - self.forgotten).ok().and_then(|index| self.in_order.get(index));
                if let Some(rejection) = sequence.and_then(|sequence| self.rejections.get_mut(sequence)) {
                    *rejection = None;
                }
            }
            self.acknowledged = self.acknowledged.max(position);
        }
        self.trim();
    }

    fn trim(&mut self) {
        while self.in_order.len() > ENDED_MAX
            || self.in_order.len() > ENDED_MIN && self.forgotten < self.acknowledged
        {
            let Some(oldest) = self.in_order.pop_front() else {
                return;
            };
            self.rejections.remove(&oldest);
            self.forgotten += 1;
        }
    }

    /// The number of remembered requests; `None` if the table and the order disagree.
    pub(crate) fn audit(&self) -> Option<usize> {
        let all_known = self.in_order.iter().all(|sequence| self.rejections.contains_key(sequence));
        (all_known && self.rejections.len() == self.in_order.len()).then_some(self.rejections.len())
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::Outcome;

    use super::*;
    use crate::answer;

    fn rejection(name: &str) -> Arc<Rejection> {
        Arc::new(Rejection::immediate(answer::unknown_model(name), Outcome::RejectedInvalid))
    }

    #[test]
    fn a_request_counts_once_and_is_remembered_until_the_filter_acknowledges() {
        let mut ended = EndedRequests::default();
        let all = 0..2 * ENDED_MIN as u64;
        assert!(all.clone().all(|sequence| ended.record(sequence)));
        assert!(!all.clone().any(|sequence| ended.record(sequence)));
        ended.record_frame(1);
        ended.acknowledge(0);
        assert!(!ended.record(0), "not acknowledged yet");
        ended.acknowledge(1);
        assert_eq!(ended.audit(), Some(ENDED_MIN));
        assert!(!ended.contains(0) && ended.contains(ENDED_MIN as u64));
    }

    #[test]
    fn requests_of_a_filter_that_never_acknowledges_are_forgotten_at_the_limit() {
        let mut ended = EndedRequests::default();
        for sequence in 0..=ENDED_MAX as u64 {
            ended.record(sequence);
            ended.record_frame(sequence);
        }
        assert_eq!(ended.audit(), Some(ENDED_MAX));
        assert!(!ended.contains(0) && ended.contains(1));
        assert_eq!(ended.frame_marks.len(), FRAME_MARKS_MAX);
        ended.acknowledge(u64::MAX);
        assert_eq!(ended.audit(), Some(ENDED_MIN));
    }

    #[test]
    fn a_rejection_is_kept_until_the_filter_acknowledges_it() {
        let mut ended = EndedRequests::default();
        let (first, second) = (rejection("a"), rejection("b"));
        ended.record(1);
        ended.keep_rejection(1, &first);
        ended.record_frame(1);
        ended.record(2);
        ended.keep_rejection(2, &second);
        ended.acknowledge(1);
        assert_eq!(
            (ended.unacknowledged_rejection(1), ended.unacknowledged_rejection(2)),
            (None, Some(&second))
        );
        ended.restart_stream();
        ended.acknowledge(9);
        assert_eq!(ended.unacknowledged_rejection(2), Some(&second), "nothing was sent on this stream");
        ended.record_frame(1);
        ended.acknowledge(1);
        assert_eq!(ended.unacknowledged_rejection(2), None);
        assert!(ended.contains(2));
    }
}
