//! Heaps for members that mostly join and leave in the order of their keys: requests by arrival or by expiry.
//!
//! All heaps of one arena share its memory: an empty heap takes four ids, a member three links beside its key, and
//! joining or leaving allocates nothing. So a flow's queue stays small however many flows there are, which is why
//! these queues aren't [`crate::indexed_heap`]s: those need a vector each.
//!
//! A heap consists of a run and a rest. The run is a sorted list: a member that belongs at one of its ends joins and
//! leaves in O(1). A member that belongs within the run joins the rest, a pairing heap: joining is O(1), leaving
//! O(log n) amortised (Fredman et al., "The pairing heap", 1986). One departure may visit every direct child of the
//! member that left.

use alloc::vec::Vec;

use crate::ids::Id;

/// One heap of an arena; empty at first.
#[derive(Debug)]
pub(crate) struct Root<I> {
    least: Option<I>,
    /// The ends of the run.
    first: Option<I>,
    last: Option<I>,
    /// The least member of the rest.
    rest: Option<I>,
}

impl<I> Default for Root<I> {
    fn default() -> Self {
        Self { least: None, first: None, last: None, rest: None }
    }
}

impl<I: Copy> Root<I> {
    /// The member with the least key.
    pub(crate) const fn least(&self) -> Option<I> {
        self.least
    }
}

/// Where a member is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In no heap.
    Absent,
    Run,
    Rest,
}

#[derive(Clone, Copy, Debug)]
struct Link<I, K> {
    key: K,
    place: Place,
    /// In the rest only.
    child: Option<I>,
    next: Option<I>,
    /// The left neighbour; in the rest, of a first child: its parent.
    previous: Option<I>,
}

/// The arena. A member is in one heap of an arena at most; its key changes by leaving and joining again.
#[derive(Debug)]
pub(crate) struct PairingHeaps<I, K> {
    links: Vec<Link<I, K>>,
}

impl<I, K> Default for PairingHeaps<I, K> {
    fn default() -> Self {
        Self { links: Vec::new() }
    }
}

impl<I: Id, K: Ord + Copy + Default> PairingHeaps<I, K> {
    /// Adds `member`, which is in no heap of this arena.
    pub(crate) fn insert(&mut self, root: &mut Root<I>, member: I, key: K) {
        if member.slot() >= self.links.len() {
            let absent =
                Link { key: K::default(), place: Place::Absent, child: None, next: None, previous: None };
            self.links.resize(member.slot() + 1, absent);
        }
        debug_assert_eq!(
            self.link(member).place,
            Place::Absent,
            "invariant: a member is in one heap at most"
        );
        match (root.first, root.last) {
            (Some(_), Some(last)) if self.link(last).key <= key => {
                self.link_mut(last).next = Some(member);
                self.append(member, key, Some(last), None);
                root.last = Some(member);
            }
            (Some(first), Some(_)) if key < self.link(first).key => {
                self.link_mut(first).previous = Some(member);
                self.append(member, key, None, Some(first));
                root.first = Some(member);
            }
            (Some(_), Some(_)) => {
                *self.link_mut(member) =
                    Link { key, place: Place::Rest, child: None, next: None, previous: None };
                root.rest = self.meld(root.rest, Some(member));
            }
            (None, _) | (_, None) => {
                self.append(member, key, None, None);
                (root.first, root.last) = (Some(member), Some(member));
            }
        }
        if root.least.is_none_or(|least| key < self.link(least).key) {
            root.least = Some(member);
        }
    }

    /// Takes `member` out of the heap of `root`, in which it is.
    pub(crate) fn remove(&mut self, root: &mut Root<I>, member: I) {
        let link = *self.link(member);
        match link.place {
            Place::Absent => debug_assert!(false, "invariant: only a member leaves"),
            Place::Run => self.unchain(root, link.previous, link.next),
            Place::Rest => self.remove_from_rest(root, member, &link),
        }
        self.link_mut(member).place = Place::Absent;
        if root.least == Some(member) {
            root.least = self.lesser(root.first, root.rest);
        }
    }

    /// The least member and its key.
    pub(crate) fn least(&self, root: &Root<I>) -> Option<(I, K)> {
        root.least().map(|member| (member, self.key(member)))
    }

    /// The key of a member that is in some heap.
    pub(crate) fn key(&self, member: I) -> K {
        self.link(member).key
    }

    /// Every member of `root`, in no particular order.
    pub(crate) fn members(&self, root: &Root<I>) -> Vec<I> {
        let mut found = Vec::new();
        let mut open: Vec<I> = [root.first, root.rest].into_iter().flatten().collect();
        while let Some(member) = open.pop() {
            found.push(member);
            let link = self.link(member);
            open.extend([link.child, link.next].into_iter().flatten());
        }
        found
    }

    fn link(&self, member: I) -> &Link<I, K> {
        &self.links[member.slot()]
    }

    fn link_mut(&mut self, member: I) -> &mut Link<I, K> {
        &mut self.links[member.slot()]
    }

    /// Writes the link of a member of the run.
    fn append(&mut self, member: I, key: K, previous: Option<I>, next: Option<I>) {
        *self.link_mut(member) = Link { key, place: Place::Run, child: None, next, previous };
    }

    /// Closes the run over the member between `previous` and `next`.
    fn unchain(&mut self, root: &mut Root<I>, previous: Option<I>, next: Option<I>) {
        match previous {
            None => root.first = next,
            Some(previous) => self.link_mut(previous).next = next,
        }
        match next {
            None => root.last = previous,
            Some(next) => self.link_mut(next).previous = previous,
        }
    }

    fn remove_from_rest(&mut self, root: &mut Root<I>, member: I, link: &Link<I, K>) {
        let orphans = self.pair(link.child);
        let Some(previous) = link.previous else {
            root.rest = orphans;
            return;
        };
        if self.link(previous).child == Some(member) {
            self.link_mut(previous).child = link.next;
        } else {
            self.link_mut(previous).next = link.next;
        }
        if let Some(next) = link.next {
            self.link_mut(next).previous = Some(previous);
        }
        root.rest = self.meld(root.rest, orphans);
    }

    /// The member with the lesser key, of two that may be missing.
    fn lesser(&self, a: Option<I>, b: Option<I>) -> Option<I> {
        match (a, b) {
            (Some(first), Some(second)) if self.key(second) < self.key(first) => b,
            (Some(_), _) => a,
            (None, _) => b,
        }
    }

    /// Joins two trees. Neither root has siblings.
    fn meld(&mut self, a: Option<I>, b: Option<I>) -> Option<I> {
        let (Some(first), Some(second)) = (a, b) else {
            return a.or(b);
        };
        let (parent, child) =
            if self.key(second) < self.key(first) { (second, first) } else { (first, second) };
        let sibling = self.link(parent).child;
        if let Some(sibling) = sibling {
            self.link_mut(sibling).previous = Some(child);
        }
        let link = self.link_mut(child);
        link.next = sibling;
        link.previous = Some(parent);
        self.link_mut(parent).child = Some(child);
        Some(parent)
    }

    /// Joins a row of siblings into one tree: pairs from the left, then all pairs from the right.
    fn pair(&mut self, mut first: Option<I>) -> Option<I> {
        let mut pairs = None;
        while let Some(one) = first {
            let second = self.link(one).next;
            let rest = second.and_then(|second| self.link(second).next);
            self.detach(one);
            if let Some(second) = second {
                self.detach(second);
            }
            let both = self.meld(Some(one), second);
            if let Some(both) = both {
                self.link_mut(both).next = pairs;
            }
            pairs = both;
            first = rest;
        }
        let mut all = None;
        while let Some(pair) = pairs {
            let next = self.link(pair).next;
            self.detach(pair);
            all = self.meld(all, Some(pair));
            pairs = next;
        }
        all
    }

    fn detach(&mut self, member: I) {
        let link = self.link_mut(member);
        link.next = None;
        link.previous = None;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::ids::JobId;

    proptest! {
        #[test]
        fn two_heaps_of_one_arena_agree_with_sorted_sets(
            operations in prop::collection::vec((0..2_usize, 0..40_usize, 0..100_u64, any::<bool>()), 0..400)
        ) {
            let mut heaps = PairingHeaps::<JobId, (u64, usize)>::default();
            let mut roots = [Root::default(), Root::default()];
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            let mut places: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
            for (heap, member, key, pop) in operations {
                let least = roots[heap].least().filter(|_| pop);
                let member = least.map_or(member, JobId::index);
                let id = JobId::from_index(member);
                if let Some((heap, old)) = places.remove(&member) {
                    heaps.remove(&mut roots[heap], id);
                    sets[heap].remove(&(old, member));
                } else {
                    heaps.insert(&mut roots[heap], id, (key, member));
                    sets[heap].insert((key, member));
                    places.insert(member, (heap, key));
                }
                for (root, set) in roots.iter().zip(&sets) {
                    prop_assert_eq!(heaps.least(root).map(|(_, key)| key), set.first().copied());
                    let mut members: Vec<usize> =
                        heaps.members(root).into_iter().map(JobId::index).collect();
                    members.sort_unstable();
                    let mut expected: Vec<usize> = set.iter().map(|&(_, member)| member).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(members, expected);
                }
            }
        }
    }
}
