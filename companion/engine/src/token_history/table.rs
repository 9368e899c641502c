//! A bounded table by name. A new name takes the place of one that wasn't used for long (second chance).

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::hashed_name::HashedName;

#[derive(Debug)]
pub(super) struct Table<V> {
    entries: Vec<Entry<V>>,
    index: HashTable<u32>,
    /// The next candidate for eviction.
    hand: usize,
    max: usize,
    /// The entry that was changed last.
    last: usize,
}

#[derive(Debug)]
struct Entry<V> {
    name: Box<str>,
    hash: u64,
    value: V,
    used: bool,
}

impl<V: Default> Table<V> {
    pub(super) const fn new(max: usize) -> Self {
        Self { entries: Vec::new(), index: HashTable::new(), hand: 0, max, last: 0 }
    }

    /// Every name with its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.entries.iter().map(|entry| (&*entry.name, &entry.value))
    }

    pub(super) fn get(&self, name: HashedName<'_>) -> Option<&V> {
        Some(&self.entries[self.position(name)?].value)
    }

    pub(super) fn entry(&mut self, name: HashedName<'_>) -> &mut V {
        self.last = match self.position(name) {
            Some(position) => position,
            None => self.add(name),
        };
        self.last_mut()
    }

    /// The entry that was changed last, if it is the one of `name`.
    pub(super) fn last_used(&self, name: &str) -> Option<&V> {
        let last = self.entries.get(self.last)?;
        (&*last.name == name).then_some(&last.value)
    }

    pub(super) fn last_mut(&mut self) -> &mut V {
        let entry = &mut self.entries[self.last];
        entry.used = true;
        &mut entry.value
    }

    fn position(&self, name: HashedName<'_>) -> Option<usize> {
        let is_same = |&position: &u32| &*self.entries[position as usize].name == name.text;
        let found = self.index.find(name.hash, is_same)?;
        Some(*found as usize)
    }

    fn add(&mut self, name: HashedName<'_>) -> usize {
        let entry = Entry { name: name.text.into(), hash: name.hash, value: V::default(), used: true };
        let position = if self.entries.len() < self.max {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            self.evict_for(entry)
        };
        let number = u32::try_from(position).expect("invariant: tables have limits far below 2^32");
        let entries = &self.entries;
        self.index.insert_unique(name.hash, number, |&other| entries[other as usize].hash);
        position
    }

    /// Puts `entry` in the place of one that wasn't used since the hand last passed it.
    fn evict_for(&mut self, entry: Entry<V>) -> usize {
        while core::mem::take(&mut self.entries[self.hand].used) {
            self.hand = (self.hand + 1) % self.max;
        }
        let position = self.hand;
        self.hand = (self.hand + 1) % self.max;
        let old = core::mem::replace(&mut self.entries[position], entry);
        if let Ok(found) = self.index.find_entry(old.hash, |&other| other as usize == position) {
            found.remove();
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;
    use crate::hashed_name::NameHasher;

    #[test]
    fn a_full_table_evicts_an_unused_entry() {
        let hasher = NameHasher::default();
        let mut table = Table::<u64>::new(4);
        for name in ["a", "b", "c", "d"] {
            *table.entry(hasher.hashed(name)) = 1;
        }
        *table.entry(hasher.hashed("e")) = 1;
        assert!(table.get(hasher.hashed("a")).is_none());
        assert_eq!((table.last_used("a"), table.last_used("e")), (None, Some(&1)));
        *table.entry(hasher.hashed("b")) = 2;
        *table.entry(hasher.hashed("f")) = 1;
        let get = |name| table.get(hasher.hashed(name));
        assert_eq!((get("b"), get("c")), (Some(&2), None));
        for number in 0..100 {
            table.entry(hasher.hashed(&format!("{number}")));
            assert!(table.entries.len() == 4 && table.index.len() == 4);
        }
    }
}
