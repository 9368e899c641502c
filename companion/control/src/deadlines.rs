//! The next deadline of every pool, and the earliest of them: a binary heap in which a pool's place is known, so that a
//! deadline moves in time logarithmic in the number of pools.

use penstock_engine::Instant;

use crate::ids::PoolId;

/// Deadlines by pool. Of equal deadlines the lower id comes first.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: Vec<(Instant, PoolId)>,
    /// By pool: its index in the heap.
    places: Vec<Option<usize>>,
}

impl Deadlines {
    /// The earliest deadline.
    pub(crate) fn first(&self) -> Option<(Instant, PoolId)> {
        self.heap.first().copied()
    }

    /// The deadline of a pool.
    pub(crate) fn get(&self, pool: PoolId) -> Option<Instant> {
        let place = self.places.get(pool.index()).copied().flatten()?;
        Some(self.heap[place].0)
    }

    /// Sets or removes the deadline of a pool.
    pub(crate) fn set(&mut self, pool: PoolId, deadline: Option<Instant>) {
        if pool.index() >= self.places.len() {
            self.places.resize(pool.index() + 1, None);
        }
        match (self.places[pool.index()], deadline) {
            (Some(place), Some(deadline)) => {
                if self.heap[place].0 != deadline {
                    self.heap[place].0 = deadline;
                    self.restore(place);
                }
            }
            (None, Some(deadline)) => {
                self.heap.push((deadline, pool));
                self.restore(self.heap.len() - 1);
            }
            (Some(place), None) => {
                self.heap.swap_remove(place);
                self.places[pool.index()] = None;
                if place < self.heap.len() {
                    self.restore(place);
                }
            }
            (None, None) => {}
        }
    }

    /// Moves the entry at `place` up or down to where it belongs.
    fn restore(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent] <= self.heap[place] {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child]) else {
                break;
            };
            if self.heap[place] <= self.heap[least] {
                break;
            }
            self.swap(place, least);
            place = least;
        }
        self.places[self.heap[place].1.index()] = Some(place);
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for place in [one, other] {
            self.places[self.heap[place].1.index()] = Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A heap and a sorted map, under the same pseudorandom changes.
    #[test]
    fn the_earliest_deadline_comes_first_after_every_change() {
        let (mut deadlines, mut model) = (Deadlines::default(), BTreeMap::new());
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            let pool = PoolId((state >> 33) as u32 % 17);
            let deadline = (state >> 40) % 50;
            if deadline == 0 {
                deadlines.set(pool, None);
                model.remove(&pool);
            } else {
                let deadline = Instant::from_nanos(deadline);
                deadlines.set(pool, Some(deadline));
                model.insert(pool, deadline);
            }
            let first = model.iter().map(|(pool, deadline)| (*deadline, *pool)).min();
            assert_eq!(deadlines.first(), first);
            assert_eq!(deadlines.get(pool), model.get(&pool).copied());
        }
    }
}
