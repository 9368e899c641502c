//! Heaps that know the position of every member, so that a key changes in place.
//!
//! A node has four children: one or two cache lines a level, and half the levels of a binary heap. Keys here move by a
//! little and often, and the least key is read far more often than a key changes.

use alloc::vec::Vec;
use core::hint::select_unpredictable;
use core::num::NonZeroU32;

use crate::audit::{AuditError, check};
use crate::ids::Id;

const CHILDREN: usize = 4;
/// [`IndexedHeap::first`] visits this many members in order before it sorts all of them.
const VISITED_IN_ORDER: usize = 6;

/// The positions of members in their heaps. Several heaps share one table if a member is in one of them at most.
#[derive(Debug)]
pub(crate) struct Positions<I> {
    /// Position plus one.
    by_id: Vec<Option<NonZeroU32>>,
    ids: core::marker::PhantomData<I>,
}

impl<I> Default for Positions<I> {
    fn default() -> Self {
        Self { by_id: Vec::new(), ids: core::marker::PhantomData }
    }
}

impl<I: Id> Positions<I> {
    fn get(&self, id: I) -> Option<usize> {
        let position = (*self.by_id.get(id.slot())?)?;
        Some(position.get() as usize - 1)
    }

    fn set(&mut self, id: I, position: usize) {
        self.by_id[id.slot()] = NonZeroU32::new(position as u32 + 1);
    }

    fn clear(&mut self, id: I) {
        self.by_id[id.slot()] = None;
    }

    fn reserve(&mut self, id: I) {
        if id.slot() >= self.by_id.len() {
            self.by_id.resize(id.slot() + 1, None);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry<I, K> {
    key: K,
    id: I,
}

/// A heap over a table of [`Positions`] that other heaps may share.
#[derive(Debug)]
pub(crate) struct SharedHeap<I, K> {
    entries: Vec<Entry<I, K>>,
}

impl<I, K> Default for SharedHeap<I, K> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<I: Id, K: Ord + Copy> SharedHeap<I, K> {
    /// Adds `id`, which is in no heap of these positions.
    pub(crate) fn insert(&mut self, positions: &mut Positions<I>, id: I, key: K) {
        positions.reserve(id);
        debug_assert!(positions.get(id).is_none(), "invariant: a member is in one heap at most");
        let entry = Entry { key, id };
        self.entries.push(entry);
        self.rise(positions, self.entries.len() - 1, entry);
    }

    /// Takes out `id`, which is a member.
    pub(crate) fn remove(&mut self, positions: &mut Positions<I>, id: I) {
        let position = positions.get(id).expect("invariant: only a member is removed");
        positions.clear(id);
        self.remove_at(positions, position);
    }

    /// Changes the key of `id`, which is a member.
    pub(crate) fn rekey(&mut self, positions: &mut Positions<I>, id: I, key: K) {
        let position = positions.get(id).expect("invariant: only a member has a key");
        self.move_from(positions, position, Entry { key, id });
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The member with the least key, and that key.
    pub(crate) fn least(&self) -> Option<(I, K)> {
        self.entries.first().map(|entry| (entry.id, entry.key))
    }

    /// The key of `id`; `None` if it is no member.
    pub(crate) fn key(&self, positions: &Positions<I>, id: I) -> Option<K> {
        let entry = self.entries.get(positions.get(id)?)?;
        Some(entry.key)
    }

    /// Every member, in no particular order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = I> {
        self.entries.iter().map(|entry| entry.id)
    }

    fn remove_at(&mut self, positions: &mut Positions<I>, position: usize) {
        let last = self.entries.pop().expect("invariant: a member is in its heap");
        if position < self.entries.len() {
            self.move_from(positions, position, last);
        }
    }

    /// Puts `entry` at `position`, or wherever its key belongs from there.
    fn move_from(&mut self, positions: &mut Positions<I>, position: usize, entry: Entry<I, K>) {
        if position > 0 && entry.key < self.entries[(position - 1) / CHILDREN].key {
            self.rise(positions, position, entry);
        } else {
            self.sink(positions, position, entry);
        }
    }

    fn rise(&mut self, positions: &mut Positions<I>, mut position: usize, entry: Entry<I, K>) {
        while position > 0 {
            let parent = (position - 1) / CHILDREN;
            if entry.key >= self.entries[parent].key {
                break;
            }
            self.put(positions, position, self.entries[parent]);
            position = parent;
        }
        self.put(positions, position, entry);
    }

    fn sink(&mut self, positions: &mut Positions<I>, mut position: usize, entry: Entry<I, K>) {
        loop {
            let first = position * CHILDREN + 1;
            let (child, least) = match self.entries.get(first..).unwrap_or_default() {
                [a, b, c, d, ..] => {
                    lesser(lesser((first, a), (first + 1, b)), lesser((first + 2, c), (first + 3, d)))
                }
                [a, rest @ ..] => (first + 1..).zip(rest).fold((first, a), lesser),
                [] => break,
            };
            if least.key >= entry.key {
                break;
            }
            self.put(positions, position, *least);
            position = child;
        }
        self.put(positions, position, entry);
    }

    fn put(&mut self, positions: &mut Positions<I>, position: usize, entry: Entry<I, K>) {
        self.entries[position] = entry;
        positions.set(entry.id, position);
    }

    /// Every member has the position that the table records, and no key is less than its parent's.
    fn audit(&self, positions: &Positions<I>) -> Result<(), AuditError> {
        for (position, entry) in self.entries.iter().enumerate() {
            check("a heap member has the recorded position", positions.get(entry.id) == Some(position))?;
            let parent = &self.entries[position.saturating_sub(1) / CHILDREN];
            check("no key is less than its parent's", parent.key <= entry.key)?;
        }
        Ok(())
    }
}

/// The lesser of two children by key; of equal ones the first. The comparison is unpredictable, so this compiles to
/// conditional moves instead of a branch.
fn lesser<'a, I, K: Ord>(
    one: (usize, &'a Entry<I, K>),
    other: (usize, &'a Entry<I, K>),
) -> (usize, &'a Entry<I, K>) {
    let less = other.1.key < one.1.key;
    (select_unpredictable(less, other.0, one.0), select_unpredictable(less, other.1, one.1))
}

/// A heap with positions of its own.
#[derive(Debug)]
pub(crate) struct IndexedHeap<I, K> {
    heap: SharedHeap<I, K>,
    positions: Positions<I>,
}

impl<I, K> Default for IndexedHeap<I, K> {
    fn default() -> Self {
        Self { heap: SharedHeap::default(), positions: Positions::default() }
    }
}

impl<I: Id, K: Ord + Copy> IndexedHeap<I, K> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.heap.entries.len()
    }

    /// The member with the least key, and that key.
    pub(crate) fn least(&self) -> Option<(I, K)> {
        self.heap.least()
    }

    /// The key of `id`; `None` if it is no member.
    pub(crate) fn key(&self, id: I) -> Option<K> {
        self.heap.key(&self.positions, id)
    }

    /// Every member, in no particular order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = I> {
        self.heap.ids()
    }

    /// Adds `id`, or changes its key.
    pub(crate) fn set(&mut self, id: I, key: K) {
        let Some(position) = self.positions.get(id) else {
            self.heap.insert(&mut self.positions, id, key);
            return;
        };
        if let [only] = &mut *self.heap.entries {
            only.key = key;
        } else if self.heap.entries[position].key != key {
            let entry = Entry { key, id };
            self.heap.move_from(&mut self.positions, position, entry);
        }
    }

    /// Takes out `id` if it is a member.
    pub(crate) fn remove(&mut self, id: I) {
        if let Some(position) = self.positions.get(id) {
            self.positions.clear(id);
            self.heap.remove_at(&mut self.positions, position);
        }
    }

    /// Changes every key by `rule`, which keeps the order of the keys.
    pub(crate) fn map_keys(&mut self, rule: impl Fn(I, K) -> K) {
        for entry in &mut self.heap.entries {
            entry.key = rule(entry.id, entry.key);
        }
    }

    /// The first `limit` members that `allows` accepts, in the order of their keys.
    pub(crate) fn first(&self, limit: usize, allows: impl Fn(I) -> bool) -> Vec<I> {
        let entries = &self.heap.entries;
        let mut found = Vec::with_capacity(limit);
        // The next member in order is a child of a visited one, so these are all candidates.
        let mut candidates = [0; VISITED_IN_ORDER * (CHILDREN - 1) + 1];
        let mut len = usize::from(!entries.is_empty());
        for _ in 0..VISITED_IN_ORDER {
            let Some(best) = (0..len).min_by_key(|&index| entries[candidates[index]].key) else {
                return found;
            };
            let position = candidates[best];
            len -= 1;
            candidates[best] = candidates[len];
            let id = entries[position].id;
            if allows(id) {
                found.push(id);
                if found.len() == limit {
                    return found;
                }
            }
            let first_child = position * CHILDREN + 1;
            for child in first_child..(first_child + CHILDREN).min(entries.len()) {
                candidates[len] = child;
                len += 1;
            }
        }
        if len == 0 {
            return found;
        }
        let allowed = entries.iter().filter(|entry| allows(entry.id));
        let mut sorted: Vec<Entry<I, K>> = allowed.copied().collect();
        sorted.sort_unstable_by_key(|entry| entry.key);
        sorted.truncate(limit);
        sorted.into_iter().map(|entry| entry.id).collect()
    }

    /// Checks positions and order, in time proportional to the members.
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        self.heap.audit(&self.positions)?;
        let recorded = self.positions.by_id.iter().flatten().count();
        check("only members have a position", recorded == self.len())
    }
}

#[cfg(test)]
mod tests;
