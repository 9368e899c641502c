//! What the workers of one Envoy have in flight in a pool, kept in the shared_data: one list of words a pool, one word a
//! worker.
//!
//! Who takes a place reads the list, adds all that counts, and writes the list with itself in it only if nobody wrote in
//! between: so two workers never both take the last one. A word says when it was written; one that wasn't renewed is a
//! dead worker's and counts no longer.

use crate::{
    limits::{IN_FLIGHT_RECORD_TTL, IN_FLIGHT_WRITE_ATTEMPTS},
    session::Epoch,
    shared_data::SharedData,
    time::Instant,
};

/// Requests in flight, counted both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    /// Of prompts and expected output.
    pub(crate) tokens: u64,
}

impl Load {
    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(more.requests),
            tokens: self.tokens.saturating_add(more.tokens),
        }
    }

    pub(crate) fn minus(self, less: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(less.requests),
            tokens: self.tokens.saturating_sub(less.tokens),
        }
    }
}

/// How much may be in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) most: u64,
    pub(crate) in_tokens: bool,
}

impl Bound {
    /// Whether there is room for `more` beside `others`. Where nothing is, there is room for anything.
    fn admits(self, others: Load, more: Load) -> bool {
        let sum = others.plus(more);
        let sum = if self.in_tokens { sum.tokens } else { sum.requests };
        sum <= self.most || others.requests == 0
    }
}

/// One worker's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightStore<'a> {
    pub(crate) shared_data: &'a dyn SharedData,
    pub(crate) worker: Epoch,
    pub(crate) now: Instant,
}

impl InFlightStore<'_> {
    /// Says what this worker has in flight in a pool.
    pub(crate) fn say(self, pool: &str, own: Load) {
        self.write(pool, own, |_| true);
    }

    /// Takes a place for `more` beside what this worker has in flight. False: there is none.
    pub(crate) fn take(self, pool: &str, own: Load, more: Load, bound: Bound) -> bool {
        self.write(pool, own.plus(more), |others| {
            bound.admits(others.plus(own), more)
        })
    }

    /// Replaces this worker's word if the sum of the others' allows it.
    fn write(self, pool: &str, own: Load, allows: impl Fn(Load) -> bool) -> bool {
        let key = format!("penstock/flight/{pool}");
        let mut kept = None;
        for _ in 0..IN_FLIGHT_WRITE_ATTEMPTS {
            kept = self.shared_data.get(&key);
            let (list, number) = kept
                .as_ref()
                .map_or((&[][..], 0), |(list, number)| (list, *number));
            let mut others = Load::default();
            let mut next = Vec::with_capacity(list.len().saturating_add(RECORD_BYTES));
            for word in list.as_chunks::<RECORD_BYTES>().0 {
                let (worker, said_at, load) = read(word);
                if worker != self.worker && self.now.since(said_at) < IN_FLIGHT_RECORD_TTL {
                    others = others.plus(load);
                    next.extend_from_slice(word);
                }
            }
            if !allows(others) {
                return false;
            }
            if own != Load::default() {
                next.extend(written(self.worker, self.now, own));
            }
            if self.shared_data.set(&key, &next, Some(number)) {
                return true;
            }
        }
        // A host without shared_data: then each worker is alone. Else too many write at once, and nobody may guess.
        kept.is_none() && allows(Load::default())
    }
}

/// Epoch, requests, tokens and time, each number in 8 bytes, little endian.
const RECORD_BYTES: usize = 40;

fn written(worker: Epoch, now: Instant, load: Load) -> impl Iterator<Item = u8> {
    let numbers = [worker.hi, worker.lo, load.requests, load.tokens, now.as_nanos()];
    numbers.into_iter().flat_map(u64::to_le_bytes)
}

fn read(word: &[u8; RECORD_BYTES]) -> (Epoch, Instant, Load) {
    let mut numbers = word.as_chunks().0.iter().copied().map(u64::from_le_bytes);
    let mut next = || numbers.next().unwrap_or(0);
    let (hi, lo, requests, tokens, said_at) = (next(), next(), next(), next(), next());
    (
        Epoch { hi, lo },
        Instant::from_nanos(said_at),
        Load { requests, tokens },
    )
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[derive(Debug, Default)]
    struct Map {
        values: RefCell<BTreeMap<String, (Vec<u8>, u32)>>,
        /// So many sets fail, and so many times somebody else takes a place first.
        raced: RefCell<u32>,
    }

    const fn epoch(lo: u64) -> Epoch {
        Epoch { hi: 0, lo }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn words(map: &Map, worker: u64, seconds: u64) -> InFlightStore<'_> {
        InFlightStore {
            shared_data: map,
            worker: epoch(worker),
            now: at(seconds),
        }
    }

    const ONE: Load = Load {
        requests: 1,
        tokens: 300,
    };
    const NONE: Load = Load {
        requests: 0,
        tokens: 0,
    };

    fn requests(most: u64) -> Bound {
        Bound {
            most,
            in_tokens: false,
        }
    }

    impl SharedData for Map {
        fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
            self.values.borrow().get(key).cloned()
        }

        fn set(&self, key: &str, value: &[u8], replaces: Option<u32>) -> bool {
            let races = self.raced.take();
            if races > 0 {
                let worker = 100 + u64::from(races);
                assert!(words(self, worker, 0).take("p", NONE, ONE, requests(u64::MAX)));
                self.raced.replace(races - 1);
            }
            let mut values = self.values.borrow_mut();
            let number = values.get(key).map_or(0, |(_, number)| *number);
            if replaces.is_some_and(|replaces| replaces != number) {
                return false;
            }
            values.insert(key.to_owned(), (value.to_vec(), number + 1));
            true
        }
    }

    #[test]
    fn places_are_taken_until_the_bound_and_again_when_some_are_free() {
        let map = Map::default();
        assert!(words(&map, 1, 0).take("p", NONE, ONE, requests(3)));
        assert!(words(&map, 1, 0).take("p", ONE, ONE, requests(3)));
        assert!(words(&map, 2, 0).take("p", NONE, ONE, requests(3)));
        assert!(!words(&map, 2, 0).take("p", ONE, ONE, requests(3)));
        assert!(!words(&map, 3, 0).take("p", NONE, ONE, requests(3)));
        // Another pool is another matter.
        assert!(words(&map, 3, 0).take("q", NONE, ONE, requests(1)));
        words(&map, 1, 0).say("p", ONE);
        assert!(words(&map, 3, 0).take("p", NONE, ONE, requests(3)));
        assert!(!words(&map, 2, 0).take("p", ONE, ONE, requests(3)));
    }

    #[test]
    fn of_two_at_once_one_takes_the_last_place() {
        let map = Map::default();
        assert!(words(&map, 1, 0).take("p", NONE, ONE, requests(2)));
        // Between the look and the word another takes it.
        *map.raced.borrow_mut() = 1;
        assert!(!words(&map, 2, 0).take("p", NONE, ONE, requests(2)));
        assert!(!words(&map, 1, 0).take("p", ONE, ONE, requests(2)));
        // With room for both, both go.
        *map.raced.borrow_mut() = 1;
        assert!(words(&map, 2, 0).take("p", NONE, ONE, requests(4)));
    }

    #[test]
    fn who_is_always_too_late_takes_nothing() {
        let map = Map::default();
        *map.raced.borrow_mut() = 10_000;
        assert!(!words(&map, 2, 0).take("p", NONE, ONE, requests(u64::MAX)));
    }

    #[test]
    fn a_dead_workers_word_expires() {
        let map = Map::default();
        assert!(words(&map, 1, 0).take("p", NONE, ONE, requests(1)));
        assert!(!words(&map, 2, 9).take("p", NONE, ONE, requests(1)));
        words(&map, 1, 9).say("p", ONE);
        assert!(!words(&map, 2, 18).take("p", NONE, ONE, requests(1)));
        assert!(words(&map, 2, 19).take("p", NONE, ONE, requests(1)));
        // Its word is gone for good, and who is idle leaves none.
        words(&map, 2, 19).say("p", NONE);
        assert_eq!(
            map.get("penstock/flight/p").map(|(list, _)| list),
            Some(Vec::new())
        );
    }

    #[test]
    fn tokens_bound_too_and_one_always_goes() {
        let map = Map::default();
        let bound = |most| Bound {
            most,
            in_tokens: true,
        };
        assert!(words(&map, 1, 0).take("p", NONE, ONE, bound(100)));
        assert!(!words(&map, 2, 0).take("p", NONE, ONE, bound(599)));
        assert!(words(&map, 2, 0).take("p", NONE, ONE, bound(600)));
    }

    #[test]
    fn a_list_that_isnt_one_is_begun_anew() {
        let map = Map::default();
        map.set("penstock/flight/p", &[1; 39], None);
        assert!(words(&map, 1, 0).take("p", NONE, ONE, requests(1)));
        assert!(!words(&map, 2, 0).take("p", NONE, ONE, requests(1)));
    }

    #[derive(Debug)]
    struct Nothing;

    impl SharedData for Nothing {
        fn get(&self, _: &str) -> Option<(Vec<u8>, u32)> {
            None
        }

        fn set(&self, _: &str, _: &[u8], _: Option<u32>) -> bool {
            false
        }
    }

    #[test]
    fn without_commons_each_worker_is_alone() {
        let words = InFlightStore {
            shared_data: &Nothing,
            worker: epoch(1),
            now: at(0),
        };
        assert!(words.take("p", NONE, ONE, requests(2)));
        assert!(words.take("p", ONE, ONE, requests(2)));
        assert!(!words.take("p", ONE.plus(ONE), ONE, requests(2)));
    }
}
