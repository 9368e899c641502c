//! Running requests that were settled by their estimates, because their filter was lost. It may come back, and report how they ended: they
//! are charged already.

use std::collections::VecDeque;

use hashbrown::HashSet;

use crate::ids::RequestKey;
use crate::limits::RELEASED_MAX;

/// The last of these requests.
#[derive(Debug, Default)]
pub(crate) struct ReleasedRequests {
    keys: HashSet<RequestKey>,
    in_order: VecDeque<RequestKey>,
}

impl ReleasedRequests {
    pub(crate) fn record(&mut self, key: RequestKey) {
        if self.keys.insert(key) {
            self.in_order.push_back(key);
        }
        while self.in_order.len() > RELEASED_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }

    pub(crate) fn contains(&self, key: RequestKey) -> bool {
        self.keys.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    #[test]
    fn the_oldest_are_forgotten() {
        let key = |sequence| RequestKey { epoch: Epoch { high: 1, low: 2 }, sequence };
        let mut released = ReleasedRequests::default();
        for sequence in 0..=RELEASED_MAX as u64 {
            released.record(key(sequence));
            released.record(key(sequence));
        }
        assert!(!released.contains(key(0)) && released.contains(key(1)));
        assert!(released.contains(key(RELEASED_MAX as u64)));
    }
}
