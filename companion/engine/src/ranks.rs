//! PairingHeaps whose members know their places: for few heaps of many members whose keys change all the time.
//!
//! Four below each: to take the first's key further back costs a look at four neighbours a level. Members are named
//! by small numbers that the owner hands out, and their places are in one table for all heaps of an owner: a member
//! is in one of them at most.

use alloc::vec::Vec;
use core::hint::select_unpredictable;

const BELOW: usize = 4;

/// Where members are in their heaps; of who is in none it says nothing.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<u32>);

impl Places {
    fn of(&self, member: u32) -> usize {
        self.0[member as usize] as usize
    }

    fn set(&mut self, member: u32, place: usize) {
        self.0[member as usize] = place as u32;
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    member: u32,
}

#[derive(Debug)]
pub(crate) struct Ranks<K> {
    entries: Vec<Entry<K>>,
}

impl<K> Default for Ranks<K> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K: Ord + Copy> Ranks<K> {
    /// Adds `member`, which is in no heap of these places.
    pub(crate) fn insert(&mut self, places: &mut Places, member: u32, key: K) {
        if member as usize >= places.0.len() {
            places.0.resize(member as usize + 1, 0);
        }
        let entry = Entry { key, member };
        self.entries.push(entry);
        self.rise(places, self.entries.len() - 1, entry);
    }

    /// Takes out `member`, which is in it.
    pub(crate) fn remove(&mut self, places: &mut Places, member: u32) {
        let place = places.of(member);
        let last = self.entries.pop().expect("invariant: a member is in its heap");
        if place < self.entries.len() {
            self.settle(places, place, last);
        }
    }

    /// Gives `member`, which is in it, another key.
    pub(crate) fn rekey(&mut self, places: &mut Places, member: u32, key: K) {
        self.settle(places, places.of(member), Entry { key, member });
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The least member and its key.
    pub(crate) fn least(&self) -> Option<(u32, K)> {
        self.entries.first().map(|entry| (entry.member, entry.key))
    }

    /// The key of `member`, which is in it.
    pub(crate) fn key(&self, places: &Places, member: u32) -> K {
        self.entries[places.of(member)].key
    }

    /// Every member, in no order that means anything.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|entry| entry.member)
    }

    /// `entry` belongs at `place` or wherever its key takes it from there.
    fn settle(&mut self, places: &mut Places, place: usize, entry: Entry<K>) {
        if place > 0 && entry.key < self.entries[(place - 1) / BELOW].key {
            self.rise(places, place, entry);
        } else {
            self.sink(places, place, entry);
        }
    }

    fn rise(&mut self, places: &mut Places, mut place: usize, entry: Entry<K>) {
        while place > 0 {
            let above = (place - 1) / BELOW;
            if entry.key >= self.entries[above].key {
                break;
            }
            self.put(places, place, self.entries[above]);
            place = above;
        }
        self.put(places, place, entry);
    }

    fn sink(&mut self, places: &mut Places, mut place: usize, entry: Entry<K>) {
        loop {
            let first = place * BELOW + 1;
            let (at, least) = match self.entries.get(first..).unwrap_or_default() {
                [a, b, c, d, ..] => lesser(
                    lesser((first, a), (first + 1, b)),
                    lesser((first + 2, c), (first + 3, d)),
                ),
                [a, rest @ ..] => (first + 1..).zip(rest).fold((first, a), lesser),
                [] => break,
            };
            if least.key >= entry.key {
                break;
            }
            self.put(places, place, *least);
            place = at;
        }
        self.put(places, place, entry);
    }

    fn put(&mut self, places: &mut Places, place: usize, entry: Entry<K>) {
        self.entries[place] = entry;
        places.set(entry.member, place);
    }
}

/// Of two with their places the one with the lesser key; of equal ones the first. Which it is can't be foretold, so no
/// branch is taken by it.
fn lesser<'a, K: Ord>(one: (usize, &'a Entry<K>), other: (usize, &'a Entry<K>)) -> (usize, &'a Entry<K>) {
    let less = other.1.key < one.1.key;
    (
        select_unpredictable(less, other.0, one.0),
        select_unpredictable(less, other.1, one.1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn two_heaps_of_the_same_places_agree_with_sorted_sets(
            operations in prop::collection::vec((0..2_usize, 0..40_u32, 0..100_u64, 0..3_u8), 0..400)
        ) {
            let mut places = Places::default();
            let mut heaps = [Ranks::default(), Ranks::default()];
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            let mut known: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
            for (heap, member, key, what) in operations {
                let first = heaps[heap].least().map(|(member, _)| member);
                let member = if what == 0 { first.unwrap_or(member) } else { member };
                if let Some((at, old)) = known.remove(&member) {
                    prop_assert_eq!(heaps[at].key(&places, member), (old, member));
                    sets[at].remove(&(old, member));
                    if what == 1 {
                        heaps[at].rekey(&mut places, member, (key, member));
                        sets[at].insert((key, member));
                        known.insert(member, (at, key));
                    } else {
                        heaps[at].remove(&mut places, member);
                    }
                } else {
                    heaps[heap].insert(&mut places, member, (key, member));
                    sets[heap].insert((key, member));
                    known.insert(member, (heap, key));
                }
                for (heap, set) in heaps.iter().zip(&sets) {
                    prop_assert_eq!(heap.least().map(|(_, key)| key), set.first().copied());
                    let members: BTreeSet<u32> = heap.members().collect();
                    let expected: BTreeSet<u32> = set.iter().map(|&(_, member)| member).collect();
                    prop_assert_eq!(members, expected);
                    prop_assert_eq!(heap.is_empty(), set.is_empty());
                }
            }
        }
    }
}
