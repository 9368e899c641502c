//! The next deadline of every pool, and the earliest of them. A deadline moves in time logarithmic in the number of pools.

use std::collections::BTreeSet;

use penstock_engine::Instant;

use crate::ids::PoolId;

/// Deadlines by pool. Of equal deadlines the lower id comes first.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    in_order: BTreeSet<(Instant, PoolId)>,
    by_pool: Vec<Option<Instant>>,
}

impl Deadlines {
    /// The earliest deadline.
    pub(crate) fn first(&self) -> Option<(Instant, PoolId)> {
        self.in_order.first().copied()
    }

    /// The deadline of a pool.
    pub(crate) fn get(&self, pool: PoolId) -> Option<Instant> {
        self.by_pool.get(pool.index()).copied().flatten()
    }

    /// Sets or removes the deadline of a pool.
    pub(crate) fn set(&mut self, pool: PoolId, deadline: Option<Instant>) {
        if pool.index() >= self.by_pool.len() {
            self.by_pool.resize(pool.index() + 1, None);
        }
        let previous = std::mem::replace(&mut self.by_pool[pool.index()], deadline);
        if previous == deadline {
            return;
        }
        if let Some(previous) = previous {
            self.in_order.remove(&(previous, pool));
        }
        if let Some(deadline) = deadline {
            self.in_order.insert((deadline, pool));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Deadlines and a map, under the same pseudorandom changes.
    #[test]
    fn the_earliest_deadline_comes_first_after_every_change() {
        let (mut deadlines, mut model) = (Deadlines::default(), BTreeMap::new());
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
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
