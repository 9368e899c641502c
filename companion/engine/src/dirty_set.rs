//! The endpoints that changed since the blocked head was last offered to all of them, so that only these are
//! offered to it again.

use alloc::vec::Vec;

use crate::ids::EndpointIndex;

/// Rarely do more endpoints change between two decisions.
const TRACKED_MAX: usize = 8;

/// A few endpoints, each once, or an overflow that stands for all of them.
#[derive(Debug, Default)]
pub(crate) struct DirtySet {
    endpoints: Vec<EndpointIndex>,
    overflowed: bool,
}

impl DirtySet {
    pub(crate) fn add(&mut self, endpoint: EndpointIndex) {
        if self.overflowed || self.endpoints.contains(&endpoint) {
            return;
        }
        if self.endpoints.len() == TRACKED_MAX {
            self.overflowed = true;
        } else {
            self.endpoints.push(endpoint);
        }
    }

    /// Indices were removed, so they no longer identify endpoints: every endpoint counts as changed.
    pub(crate) const fn invalidate(&mut self) {
        self.overflowed = true;
    }

    pub(crate) fn clear(&mut self) {
        self.endpoints.clear();
        self.overflowed = false;
    }

    /// The endpoints that changed; `None`: any of them may have.
    pub(crate) fn endpoints(&self) -> Option<&[EndpointIndex]> {
        (!self.overflowed).then_some(&self.endpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Id;

    #[test]
    fn up_to_eight_endpoints_are_tracked_and_more_stand_for_all() {
        let endpoints: Vec<EndpointIndex> = (0..9).map(EndpointIndex::from_index).collect();
        let mut dirty = DirtySet::default();
        for &endpoint in endpoints[..8].iter().chain(&endpoints[..8]) {
            dirty.add(endpoint);
        }
        assert_eq!(dirty.endpoints(), Some(&endpoints[..8]));
        dirty.add(endpoints[8]);
        assert_eq!(dirty.endpoints(), None);
        dirty.clear();
        assert_eq!(dirty.endpoints(), Some(&[][..]));
        dirty.invalidate();
        dirty.add(endpoints[1]);
        assert_eq!(dirty.endpoints(), None);
    }
}
