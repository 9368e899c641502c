//! The endpoints that have room, by who takes the next one: least stock first, then by tie.
//!
//! A binary heap in which every member knows its place, because one changes with every request that starts or ends:
//! that moves it by a step or two, where a search tree would take it out and put it in again.

use alloc::vec::Vec;

const NOWHERE: u32 = u32::MAX;
/// How many of the first are looked at one by one before all are.
const FIRST: usize = 6;

#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Stock, tie and number, each least first.
    heap: Vec<u128>,
    /// By number.
    places: Vec<u32>,
}

fn key(stock: u64, tie: u32, number: u32) -> u128 {
    u128::from(stock) << 64 | u128::from(tie) << 32 | u128::from(number)
}

const fn number(key: u128) -> u32 {
    (key & 0xffff_ffff) as u32
}

impl Room {
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// All of them, in no order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.heap.iter().map(|&key| number(key))
    }

    /// `number` has room, and this stock and tie.
    pub(crate) fn set(&mut self, number: u32, stock: u64, tie: u32) {
        let at = number as usize;
        if at >= self.places.len() {
            self.places.resize(at + 1, NOWHERE);
        }
        let key = key(stock, tie, number);
        let place = match self.places[at] {
            NOWHERE => {
                self.heap.push(key);
                self.heap.len() - 1
            }
            place => {
                self.heap[place as usize] = key;
                place as usize
            }
        };
        self.settle(place);
    }

    /// `number` has no room, if it had any.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(place) = self.places.get_mut(number as usize) else {
            return;
        };
        let place = core::mem::replace(place, NOWHERE) as usize;
        if place == NOWHERE as usize {
            return;
        }
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.settle(place);
        }
    }

    /// The first `limit` of those that `allows` allows, in order.
    pub(crate) fn first(&self, limit: usize, allows: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut found = Vec::with_capacity(limit);
        // A member's successors are below it or below one that was looked at before.
        let mut open = [0; FIRST + 1];
        let mut len = usize::from(!self.is_empty());
        for _ in 0..FIRST {
            let Some(best) = (0..len).min_by_key(|&at| self.heap[open[at]]) else {
                return found;
            };
            let place = open[best];
            len -= 1;
            open[best] = open[len];
            for below in [2 * place + 1, 2 * place + 2] {
                if below < self.heap.len() {
                    open[len] = below;
                    len += 1;
                }
            }
            let number = number(self.heap[place]);
            if allows(number) {
                found.push(number);
                if found.len() == limit {
                    return found;
                }
            }
        }
        if len == 0 {
            return found;
        }
        let mut able: Vec<u128> = self
            .heap
            .iter()
            .copied()
            .filter(|&key| allows(number(key)))
            .collect();
        able.sort_unstable();
        able.into_iter().take(limit).map(number).collect()
    }

    /// It holds just these, in order.
    pub(crate) fn holds(&self, members: impl Iterator<Item = (u32, u64, u32)>) -> bool {
        let mut held = self.heap.clone();
        held.sort_unstable();
        let mut expected: Vec<u128> = members
            .map(|(number, stock, tie)| key(stock, tie, number))
            .collect();
        expected.sort_unstable();
        let in_order = (1..self.heap.len()).all(|at| self.heap[(at - 1) / 2] < self.heap[at]);
        let placed = self
            .heap
            .iter()
            .enumerate()
            .all(|(at, &key)| self.places[number(key) as usize] as usize == at);
        let rest = self.places.iter().filter(|&&place| place != NOWHERE).count();
        held == expected && in_order && placed && rest == held.len()
    }

    /// Moves the member at `place` to where it belongs.
    fn settle(&mut self, mut place: usize) {
        let key = self.heap[place];
        while place > 0 && key < self.heap[(place - 1) / 2] {
            self.put(place, self.heap[(place - 1) / 2]);
            place = (place - 1) / 2;
        }
        loop {
            let left = 2 * place + 1;
            let below = [left, left + 1].into_iter().filter(|&at| at < self.heap.len());
            let Some(least) = below
                .min_by_key(|&at| self.heap[at])
                .filter(|&at| self.heap[at] < key)
            else {
                break;
            };
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, key);
    }

    fn put(&mut self, place: usize, key: u128) {
        self.heap[place] = key;
        self.places[number(key) as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_agrees_with_a_sorted_list() {
        let mut rng = Rng::new(3);
        let mut room = Room::default();
        let mut slow: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for _ in 0..20_000 {
            let number = rng.next_u32() % 40;
            if rng.next_u32().is_multiple_of(3) {
                room.remove(number);
                slow.remove(&number);
            } else {
                let (stock, tie) = (u64::from(rng.next_u32() % 4), rng.next_u32() % 3);
                room.set(number, stock, tie);
                slow.insert(number, (stock, tie));
            }
            assert!(room.holds(slow.iter().map(|(&number, &(stock, tie))| (number, stock, tie))));
            assert_eq!(room.is_empty(), slow.is_empty());
            let mut sorted: Vec<(u64, u32, u32)> = slow
                .iter()
                .map(|(&number, &(stock, tie))| (stock, tie, number))
                .collect();
            sorted.sort_unstable();
            // From everybody to hardly anybody allowed.
            let every = 1 + rng.next_u32() % 12;
            let allows = |number: u32| number.is_multiple_of(every);
            let expected: Vec<u32> = sorted
                .iter()
                .map(|&(_, _, number)| number)
                .filter(|&number| allows(number))
                .take(3)
                .collect();
            assert_eq!(room.first(3, allows), expected);
        }
    }

    #[test]
    fn nobody_is_found_where_nobody_is() {
        let mut room = Room::default();
        assert!(room.first(3, |_| true).is_empty());
        room.remove(7);
        room.set(2, u64::MAX, u32::MAX);
        assert!(room.first(3, |_| false).is_empty());
        assert_eq!(room.first(3, |_| true), [2]);
    }
}
