//! Both heaps beside sorted sets.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::ids::JobId;
use crate::rng::Rng;

fn id(index: u32) -> JobId {
    JobId::from_index(index as usize)
}

proptest! {
    #[test]
    fn two_heaps_that_share_positions_agree_with_sorted_sets(
        operations in prop::collection::vec((0..2_usize, 0..40_u32, 0..100_u64, 0..3_u8), 0..400)
    ) {
        let mut positions = Positions::default();
        let mut heaps = [SharedHeap::default(), SharedHeap::default()];
        let mut sets = [BTreeSet::new(), BTreeSet::new()];
        let mut members: BTreeMap<JobId, (usize, u64)> = BTreeMap::new();
        for (heap, member, key, action) in operations {
            let first = heaps[heap].least().map(|(member, _)| member);
            let member = id(member);
            let member = if action == 0 { first.unwrap_or(member) } else { member };
            if let Some((heap, old)) = members.remove(&member) {
                prop_assert_eq!(heaps[heap].key(&positions, member), Some((old, member)));
                sets[heap].remove(&(old, member));
                if action == 1 {
                    heaps[heap].rekey(&mut positions, member, (key, member));
                    sets[heap].insert((key, member));
                    members.insert(member, (heap, key));
                } else {
                    heaps[heap].remove(&mut positions, member);
                }
            } else {
                heaps[heap].insert(&mut positions, member, (key, member));
                sets[heap].insert((key, member));
                members.insert(member, (heap, key));
            }
            for (heap, set) in heaps.iter().zip(&sets) {
                prop_assert!(heap.audit(&positions).is_ok());
                prop_assert_eq!(heap.least().map(|(_, key)| key), set.first().copied());
                let members: BTreeSet<JobId> = heap.ids().collect();
                let expected: BTreeSet<JobId> = set.iter().map(|&(_, member)| member).collect();
                prop_assert_eq!(members, expected);
                prop_assert_eq!(heap.is_empty(), set.is_empty());
            }
        }
    }
}

#[test]
fn the_first_members_agree_with_a_sorted_list() {
    let mut rng = Rng::new(3);
    let mut heap = IndexedHeap::default();
    let mut slow: BTreeMap<JobId, (u64, u32, JobId)> = BTreeMap::new();
    for _ in 0..20_000 {
        let member = id(rng.next_u32() % 40);
        if rng.next_u32().is_multiple_of(3) {
            heap.remove(member);
            slow.remove(&member);
        } else {
            let key = (u64::from(rng.next_u32() % 4), rng.next_u32() % 3, member);
            heap.set(member, key);
            slow.insert(member, key);
        }
        heap.audit().expect("sound");
        assert_eq!(heap.len(), slow.len());
        assert!(slow.iter().all(|(&member, &key)| heap.key(member) == Some(key)));
        assert_eq!(heap.is_empty(), slow.is_empty());
        let mut sorted: Vec<(u64, u32, JobId)> = slow.values().copied().collect();
        sorted.sort_unstable();
        // From all members allowed to hardly any.
        let every = 1 + (rng.next_u32() % 12) as usize;
        let allows = |member: JobId| member.index().is_multiple_of(every);
        let expected: Vec<JobId> =
            sorted.iter().map(|&(_, _, member)| member).filter(|&member| allows(member)).take(3).collect();
        assert_eq!(heap.first(3, allows), expected);
    }
}

#[test]
fn an_empty_heap_has_no_first_member() {
    let mut heap = IndexedHeap::default();
    assert!(heap.first(3, |_| true).is_empty());
    heap.remove(id(7));
    heap.set(id(2), (u64::MAX, u32::MAX));
    assert!(heap.first(3, |_| false).is_empty());
    assert_eq!(heap.first(3, |_| true), [id(2)]);
}

#[test]
fn keys_mapped_in_order_keep_the_heap_sound() {
    let mut heap = IndexedHeap::default();
    for member in 0..100 {
        heap.set(id(member), u64::from(member * 37 % 100) + 1_000);
    }
    heap.map_keys(|_, key| key - 1_000);
    heap.audit().expect("sound");
    assert_eq!(heap.least().map(|(_, key)| key), Some(0));
}
