//! The last displacements of identities that have left a band, so that an identity that empties and comes back isn't
//! displaced before all others again.
//!
//! Clients choose the names, so the memory is bounded. Past the bound the displacement that is longest ago is forgotten: its
//! identity would be among the first to be displaced anyway.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::limits::DISPLACED_REMEMBERED_MAX;

/// Displacements are numbered from 1; none has a number twice.
#[derive(Debug, Default)]
pub(super) struct Displacements {
    by_name: BTreeMap<Arc<str>, u64>,
    by_number: BTreeMap<u64, Arc<str>>,
}

impl Displacements {
    /// The identity `name`, whose last displacement has this number, leaves the band.
    pub(super) fn remember(&mut self, name: &Arc<str>, number: u64) {
        if self.by_number.len() >= DISPLACED_REMEMBERED_MAX
            && let Some((_, forgotten)) = self.by_number.pop_first()
        {
            self.by_name.remove(&forgotten);
        }
        self.by_name.insert(name.clone(), number);
        self.by_number.insert(number, name.clone());
    }

    /// The identity `name` comes back. Returns its last displacement; 0: none is known.
    pub(super) fn recall(&mut self, name: &str) -> u64 {
        let number = self.by_name.remove(name).unwrap_or(0);
        self.by_number.remove(&number);
        number
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn the_displacements_longest_ago_are_forgotten_first() {
        let mut displacements = Displacements::default();
        for number in 1..=DISPLACED_REMEMBERED_MAX as u64 + 2 {
            displacements.remember(&format!("f{number}").into(), number);
        }
        assert_eq!(displacements.by_name.len(), DISPLACED_REMEMBERED_MAX);
        assert_eq!(["f1", "f2", "f3"].map(|name| displacements.recall(name)), [0, 0, 3]);
        assert_eq!(displacements.recall("f3"), 0, "it is back");
        assert_eq!(displacements.by_number.len(), displacements.by_name.len());
    }
}
