//! PairingHeaps that take anything out: over one arena, so that a member costs 12 bytes of links beside its key, nothing is
//! allocated by joining or leaving, and many heaps share the arena.
//!
//! A heap is a run and a rest. The run is a sorted list: who belongs at one of its ends joins and leaves in O(1),
//! which is all that mostly happens where keys are times. Who belongs within goes to the rest, a pairing heap:
//! joining is O(1), leaving O(log n) amortised (Fredman et al., "The pairing heap", 1986): one departure may visit
//! every direct child of its place, which is the price of paying nothing at joining.
//!
//! Members are named by small numbers that the owner hands out; a member is in one heap of an arena at most.

use alloc::vec::Vec;

const NONE: u32 = u32::MAX;
const ABSENT: u32 = u32::MAX - 1;
/// In place of a first child: of the run.
const RUN: u32 = u32::MAX - 2;

/// One heap of an arena; empty at first.
#[derive(Debug)]
pub(crate) struct Root {
    least: u32,
    /// The run's ends.
    first: u32,
    last: u32,
    /// The least of the rest.
    rest: u32,
}

impl Default for Root {
    fn default() -> Self {
        Self {
            least: NONE,
            first: NONE,
            last: NONE,
            rest: NONE,
        }
    }
}

impl Root {
    /// The member with the least key.
    pub(crate) const fn least(&self) -> Option<u32> {
        if self.least == NONE {
            None
        } else {
            Some(self.least)
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Link<K> {
    key: K,
    /// [`RUN`] in the run.
    child: u32,
    next: u32,
    /// The left neighbour, or the parent of a first child; [`NONE`] at a root, [`ABSENT`] outside of all heaps.
    prev: u32,
}

/// The arena. Keys of members that are in a heap change by leaving and joining again.
#[derive(Debug)]
pub(crate) struct PairingHeaps<K> {
    links: Vec<Link<K>>,
}

impl<K> Default for PairingHeaps<K> {
    fn default() -> Self {
        Self { links: Vec::new() }
    }
}

impl<K: Ord + Copy + Default> PairingHeaps<K> {
    /// Adds `member`, which is in no heap of this arena.
    pub(crate) fn insert(&mut self, root: &mut Root, member: u32, key: K) {
        let index = member as usize;
        if index >= self.links.len() {
            let vacant = Link {
                key: K::default(),
                child: NONE,
                next: NONE,
                prev: ABSENT,
            };
            self.links.resize(index + 1, vacant);
        }
        debug_assert_eq!(
            self.links[index].prev, ABSENT,
            "invariant: a member is in one heap at most"
        );
        if root.first == NONE {
            (root.first, root.last) = (member, member);
            self.links[index] = run(key, NONE, NONE);
        } else if self.links[root.last as usize].key <= key {
            self.links[root.last as usize].next = member;
            self.links[index] = run(key, root.last, NONE);
            root.last = member;
        } else if key < self.links[root.first as usize].key {
            self.links[root.first as usize].prev = member;
            self.links[index] = run(key, NONE, root.first);
            root.first = member;
        } else {
            self.links[index] = Link {
                key,
                child: NONE,
                next: NONE,
                prev: NONE,
            };
            root.rest = self.meld(root.rest, member);
        }
        if root.least == NONE || key < self.links[root.least as usize].key {
            root.least = member;
        }
    }

    /// Takes `member` out of the heap of `root`, in which it is.
    pub(crate) fn remove(&mut self, root: &mut Root, member: u32) {
        let link = self.links[member as usize];
        debug_assert_ne!(link.prev, ABSENT, "invariant: only a member leaves");
        if link.child == RUN {
            self.unchain(root, link.prev, link.next);
        } else {
            let orphans = self.pair(link.child);
            if root.rest == member {
                root.rest = orphans;
            } else {
                if self.links[link.prev as usize].child == member {
                    self.links[link.prev as usize].child = link.next;
                } else {
                    self.links[link.prev as usize].next = link.next;
                }
                if link.next != NONE {
                    self.links[link.next as usize].prev = link.prev;
                }
                root.rest = self.meld(root.rest, orphans);
            }
        }
        self.links[member as usize].prev = ABSENT;
        if root.least == member {
            root.least = self.lesser(root.first, root.rest);
        }
    }

    /// Gives `member` of the heap of `root` another key.
    pub(crate) fn rekey(&mut self, root: &mut Root, member: u32, key: K) {
        if (root.first, root.last, root.rest) == (member, member, NONE) {
            // Alone, it is first whatever its key.
            self.links[member as usize].key = key;
            return;
        }
        self.remove(root, member);
        self.insert(root, member, key);
    }

    /// The least member and its key.
    pub(crate) fn least(&self, root: &Root) -> Option<(u32, K)> {
        root.least()
            .map(|member| (member, self.links[member as usize].key))
    }

    /// The key of a member that is in some heap.
    pub(crate) fn key(&self, member: u32) -> K {
        self.links[member as usize].key
    }

    /// Every member of `root`, in no order that means anything.
    pub(crate) fn members(&self, root: &Root) -> Vec<u32> {
        let mut found = Vec::new();
        let mut open: Vec<u32> = [root.first, root.rest].into();
        open.retain(|&member| member != NONE);
        while let Some(member) = open.pop() {
            found.push(member);
            let link = &self.links[member as usize];
            open.extend([link.child, link.next].into_iter().filter(|&other| other < RUN));
        }
        found
    }

    /// Takes out of the run who is between these.
    fn unchain(&mut self, root: &mut Root, prev: u32, next: u32) {
        match prev {
            NONE => root.first = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => root.last = prev,
            next => self.links[next as usize].prev = prev,
        }
    }

    /// Of two that may be missing.
    fn lesser(&self, a: u32, b: u32) -> u32 {
        if a == NONE || (b != NONE && self.links[b as usize].key < self.links[a as usize].key) {
            b
        } else {
            a
        }
    }

    /// Joins two trees; neither root has siblings.
    fn meld(&mut self, a: u32, b: u32) -> u32 {
        if a == NONE || b == NONE {
            return if a == NONE { b } else { a };
        }
        let (over, under) = if self.links[b as usize].key < self.links[a as usize].key {
            (b, a)
        } else {
            (a, b)
        };
        let first = self.links[over as usize].child;
        if first != NONE {
            self.links[first as usize].prev = under;
        }
        self.links[under as usize].next = first;
        self.links[under as usize].prev = over;
        self.links[over as usize].child = under;
        over
    }

    /// Joins a row of siblings into one tree: pairs from the left, then all of them from the right.
    fn pair(&mut self, mut first: u32) -> u32 {
        let mut pairs = NONE;
        while first != NONE {
            let second = self.links[first as usize].next;
            let rest = if second == NONE {
                NONE
            } else {
                self.links[second as usize].next
            };
            self.detach(first);
            if second != NONE {
                self.detach(second);
            }
            let both = self.meld(first, second);
            self.links[both as usize].next = pairs;
            pairs = both;
            first = rest;
        }
        let mut all = NONE;
        while pairs != NONE {
            let next = self.links[pairs as usize].next;
            self.detach(pairs);
            all = self.meld(all, pairs);
            pairs = next;
        }
        all
    }

    fn detach(&mut self, member: u32) {
        let link = &mut self.links[member as usize];
        link.next = NONE;
        link.prev = NONE;
    }
}

/// A link of the run.
const fn run<K>(key: K, prev: u32, next: u32) -> Link<K> {
    Link {
        key,
        child: RUN,
        next,
        prev,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn two_heaps_of_one_arena_agree_with_sorted_sets(
            operations in prop::collection::vec((0..2_usize, 0..40_u32, 0..100_u64, any::<bool>()), 0..400)
        ) {
            let mut heaps = PairingHeaps::<(u64, u32)>::default();
            let mut roots = [Root::default(), Root::default()];
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            let mut place: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
            for (heap, member, key, pop) in operations {
                let member = if pop { roots[heap].least().unwrap_or(member) } else { member };
                if let Some((at, old)) = place.remove(&member) {
                    heaps.remove(&mut roots[at], member);
                    sets[at].remove(&(old, member));
                } else {
                    heaps.insert(&mut roots[heap], member, (key, member));
                    sets[heap].insert((key, member));
                    place.insert(member, (heap, key));
                }
                for (root, set) in roots.iter().zip(&sets) {
                    prop_assert_eq!(heaps.least(root).map(|(_, key)| key), set.first().copied());
                    let mut members = heaps.members(root);
                    members.sort_unstable();
                    let mut expected: Vec<u32> = set.iter().map(|&(_, member)| member).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(members, expected);
                }
            }
        }
    }
}
