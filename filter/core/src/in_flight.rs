//! Counts what all workers of one Envoy have in flight in a pool, by records in Envoy's shared data: one value for each
//! pool, with one record for each worker.
//!
//! To reserve room, a worker reads the value, sums the live records, and writes the value with its new record only if no
//! other worker has written in between. So two workers never both take the last room. Each record has the time of its
//! writing; a record that isn't renewed belongs to a dead worker and no longer counts.

use crate::limits::{IN_FLIGHT_RECORD_TTL, IN_FLIGHT_WRITE_ATTEMPTS};
use crate::session::Epoch;
use crate::shared_data::{SetIf, SharedData};
use crate::time::Instant;

/// What requests in flight amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// In a pool whose bound counts sequences, their sequences.
    pub(crate) requests: u64,
    /// Tokens of the prompts and of the expected output.
    pub(crate) tokens: u64,
}

impl Load {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: self.tokens.saturating_sub(other.tokens),
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Self::default()
    }
}

/// How much may be in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Requests(u64),
    Tokens(u64),
}

impl Bound {
    /// Whether there is room for `new` beside `current`. An idle pool has room for any request.
    fn admits(self, current: Load, new: Load) -> bool {
        let sum = current.plus(new);
        let fits = match self {
            Self::Requests(max) => sum.requests <= max,
            Self::Tokens(max) => sum.tokens <= max,
        };
        fits || current.requests == 0
    }
}

/// One worker's access to the records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightStore<'a> {
    pub(crate) shared_data: &'a dyn SharedData,
    pub(crate) worker: Epoch,
    pub(crate) now: Instant,
}

impl InFlightStore<'_> {
    /// Publishes what this worker has in flight in a pool.
    pub(crate) fn publish(self, pool: &str, own: Load) {
        self.write(pool, own, |_| true);
    }

    /// Reserves room for `new` beside what this worker has in flight. Returns whether there was room.
    pub(crate) fn reserve(self, pool: &str, own: Load, new: Load, bound: Bound) -> bool {
        self.write(pool, own.plus(new), |others| bound.admits(others.plus(own), new))
    }

    /// Replaces this worker's record if the sum of the other workers' records allows it.
    fn write(self, pool: &str, own: Load, allows: impl Fn(Load) -> bool) -> bool {
        let key = format!("penstock/flight/{pool}");
        let mut stored = None;
        for _ in 0..IN_FLIGHT_WRITE_ATTEMPTS {
            stored = self.shared_data.get(&key);
            let (records, condition) = match &stored {
                Some((records, version)) => (records.as_slice(), SetIf::Version(*version)),
                None => (&[][..], SetIf::Absent),
            };
            let mut others = Load::default();
            let mut next = Vec::with_capacity(records.len().saturating_add(RECORD_BYTES));
            for record in records.as_chunks::<RECORD_BYTES>().0 {
                let (worker, written_at, load) = decode(record);
                if worker != self.worker && self.now.since(written_at) < IN_FLIGHT_RECORD_TTL {
                    others = others.plus(load);
                    next.extend_from_slice(record);
                }
            }
            if !allows(others) {
                return false;
            }
            if !own.is_zero() {
                next.extend(encode(self.worker, self.now, own));
            }
            if self.shared_data.set(&key, &next, condition) {
                return true;
            }
        }
        // Without shared data each worker counts alone. Otherwise too many workers write at once, and admitting the request
        // could exceed the bound.
        stored.is_none() && allows(Load::default())
    }
}

/// Size of a record: epoch (two numbers), requests, tokens, time of writing; each number in 8 bytes, little endian.
const RECORD_BYTES: usize = 40;

fn encode(worker: Epoch, now: Instant, load: Load) -> impl Iterator<Item = u8> {
    let numbers = [worker.hi, worker.lo, load.requests, load.tokens, now.as_nanos()];
    numbers.into_iter().flat_map(u64::to_le_bytes)
}

fn decode(record: &[u8; RECORD_BYTES]) -> (Epoch, Instant, Load) {
    let mut numbers = record.as_chunks().0.iter().copied().map(u64::from_le_bytes);
    let mut next = || numbers.next().unwrap_or(0);
    let (hi, lo, requests, tokens, written_at) = (next(), next(), next(), next(), next());
    (Epoch { hi, lo }, Instant::from_nanos(written_at), Load { requests, tokens })
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::collections::BTreeMap;

    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[derive(Debug, Default)]
    struct Map {
        values: RefCell<BTreeMap<String, (Vec<u8>, u32)>>,
        /// Before this many writes, another worker reserves room first.
        raced: RefCell<u32>,
    }

    const fn epoch(lo: u64) -> Epoch {
        Epoch { hi: 0, lo }
    }

    fn instant(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn store(map: &Map, worker: u64, seconds: u64) -> InFlightStore<'_> {
        InFlightStore { shared_data: map, worker: epoch(worker), now: instant(seconds) }
    }

    const ONE: Load = Load { requests: 1, tokens: 300 };
    const NONE: Load = Load { requests: 0, tokens: 0 };

    impl SharedData for Map {
        fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
            self.values.borrow().get(key).cloned()
        }

        fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
            let races = self.raced.take();
            if races > 0 {
                let worker = 100 + u64::from(races);
                assert!(store(self, worker, 0).reserve("p", NONE, ONE, Bound::Requests(u64::MAX)));
                self.raced.replace(races - 1);
            }
            let mut values = self.values.borrow_mut();
            let version = values.get(key).map(|(_, version)| *version);
            let holds = condition.holds(version);
            if holds {
                values.insert(key.to_owned(), (value.to_vec(), version.unwrap_or(0) + 1));
            }
            holds
        }
    }

    #[test]
    fn room_is_reserved_up_to_the_bound_and_again_once_freed() {
        let map = Map::default();
        assert!(store(&map, 1, 0).reserve("p", NONE, ONE, Bound::Requests(3)));
        assert!(store(&map, 1, 0).reserve("p", ONE, ONE, Bound::Requests(3)));
        assert!(store(&map, 2, 0).reserve("p", NONE, ONE, Bound::Requests(3)));
        assert!(!store(&map, 2, 0).reserve("p", ONE, ONE, Bound::Requests(3)));
        assert!(!store(&map, 3, 0).reserve("p", NONE, ONE, Bound::Requests(3)));
        // Each pool has a separate bound.
        assert!(store(&map, 3, 0).reserve("q", NONE, ONE, Bound::Requests(1)));
        store(&map, 1, 0).publish("p", ONE);
        assert!(store(&map, 3, 0).reserve("p", NONE, ONE, Bound::Requests(3)));
        assert!(!store(&map, 2, 0).reserve("p", ONE, ONE, Bound::Requests(3)));
    }

    #[test]
    fn only_one_of_two_concurrent_workers_takes_the_last_room() {
        let map = Map::default();
        assert!(store(&map, 1, 0).reserve("p", NONE, ONE, Bound::Requests(2)));
        // Another worker takes the room between the read and the write.
        *map.raced.borrow_mut() = 1;
        assert!(!store(&map, 2, 0).reserve("p", NONE, ONE, Bound::Requests(2)));
        assert!(!store(&map, 1, 0).reserve("p", ONE, ONE, Bound::Requests(2)));
        // With room for both, both succeed.
        *map.raced.borrow_mut() = 1;
        assert!(store(&map, 2, 0).reserve("p", NONE, ONE, Bound::Requests(4)));
    }

    #[test]
    fn worker_that_always_loses_the_race_reserves_nothing() {
        let map = Map::default();
        *map.raced.borrow_mut() = 10_000;
        assert!(!store(&map, 2, 0).reserve("p", NONE, ONE, Bound::Requests(u64::MAX)));
    }

    #[test]
    fn record_of_a_dead_worker_expires() {
        let map = Map::default();
        assert!(store(&map, 1, 0).reserve("p", NONE, ONE, Bound::Requests(1)));
        assert!(!store(&map, 2, 9).reserve("p", NONE, ONE, Bound::Requests(1)));
        store(&map, 1, 9).publish("p", ONE);
        assert!(!store(&map, 2, 18).reserve("p", NONE, ONE, Bound::Requests(1)));
        assert!(store(&map, 2, 19).reserve("p", NONE, ONE, Bound::Requests(1)));
        // The expired record is removed, and an idle worker leaves none.
        store(&map, 2, 19).publish("p", NONE);
        assert_eq!(map.get("penstock/flight/p").map(|(list, _)| list), Some(Vec::new()));
    }

    #[test]
    fn bound_may_count_tokens_and_an_idle_pool_admits_any_request() {
        let map = Map::default();
        assert!(store(&map, 1, 0).reserve("p", NONE, ONE, Bound::Tokens(100)));
        assert!(!store(&map, 2, 0).reserve("p", NONE, ONE, Bound::Tokens(599)));
        assert!(store(&map, 2, 0).reserve("p", NONE, ONE, Bound::Tokens(600)));
    }

    #[test]
    fn malformed_records_are_discarded() {
        let map = Map::default();
        map.set("penstock/flight/p", &[1; 39], SetIf::Always);
        assert!(store(&map, 1, 0).reserve("p", NONE, ONE, Bound::Requests(1)));
        assert!(!store(&map, 2, 0).reserve("p", NONE, ONE, Bound::Requests(1)));
    }

    #[derive(Debug)]
    struct NoSharedData;

    impl SharedData for NoSharedData {
        fn get(&self, _: &str) -> Option<(Vec<u8>, u32)> {
            None
        }

        fn set(&self, _: &str, _: &[u8], _: SetIf) -> bool {
            false
        }
    }

    #[test]
    fn without_shared_data_each_worker_counts_alone() {
        let store = InFlightStore { shared_data: &NoSharedData, worker: epoch(1), now: instant(0) };
        assert!(store.reserve("p", NONE, ONE, Bound::Requests(2)));
        assert!(store.reserve("p", ONE, ONE, Bound::Requests(2)));
        assert!(!store.reserve("p", ONE.plus(ONE), ONE, Bound::Requests(2)));
    }
}
