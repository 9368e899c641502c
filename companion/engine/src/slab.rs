//! A table of entries that keep their id while they exist.
//!
//! The ids of removed entries are used again, so vectors that are indexed by the same ids stay as small as the largest
//! number of entries that ever existed at once.

use alloc::vec::Vec;

use crate::ids::Id;

#[derive(Debug)]
pub(crate) struct Slab<I, T> {
    /// By [`Id::slot`].
    entries: Vec<Option<T>>,
    free: Vec<I>,
}

impl<I, T> Default for Slab<I, T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<I: Id, T> Slab<I, T> {
    pub(crate) fn insert(&mut self, value: T) -> I {
        if let Some(id) = self.free.pop() {
            self.entries[id.slot()] = Some(value);
            return id;
        }
        if self.entries.is_empty() {
            self.entries.push(None);
        }
        let id = I::from_index(self.entries.len() - 1);
        self.entries.push(Some(value));
        id
    }

    /// Takes out the entry of `id`, which exists.
    pub(crate) fn remove(&mut self, id: I) -> T {
        let value = self.entries[id.slot()].take().expect("invariant: an id in use has an entry");
        self.free.push(id);
        value
    }

    /// Drops the entry of `id`, which exists, in place: cheaper than [`Self::remove`] for large entries.
    pub(crate) fn discard(&mut self, id: I) {
        let entry = &mut self.entries[id.slot()];
        assert!(entry.is_some(), "invariant: an id in use has an entry");
        *entry = None;
        self.free.push(id);
    }

    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.entries.get(id.slot())?.as_ref()
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len().saturating_sub(self.free.len() + 1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let entries = self.entries.iter().skip(1).enumerate();
        entries.filter_map(|(index, entry)| Some((I::from_index(index), entry.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        let entries = self.entries.iter_mut().skip(1).enumerate();
        entries.filter_map(|(index, entry)| Some((I::from_index(index), entry.as_mut()?)))
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = I> {
        self.iter().map(|(id, _)| id)
    }
}

impl<I: Id, T> core::ops::Index<I> for Slab<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        self.entries[id.slot()].as_ref().expect("invariant: an id in use has an entry")
    }
}

impl<I: Id, T> core::ops::IndexMut<I> for Slab<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        self.entries[id.slot()].as_mut().expect("invariant: an id in use has an entry")
    }
}
