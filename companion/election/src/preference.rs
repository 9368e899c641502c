//! Which companion a pool prefers, where each pool has a leader of its own: rendezvous hashing (highest random weight). Every
//! companion computes the same preferences, and a companion that comes or goes moves only the pools that prefer it.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// How much a pool prefers the companion at this address: a number that is random for each pair, and the same everywhere.
#[must_use]
pub fn score(pool: &str, address: &str) -> u64 {
    // Fixed keys and algorithm: companions of different releases must agree.
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(pool.as_bytes());
    hasher.write_u8(0);
    hasher.write(address.as_bytes());
    hasher.finish()
}

/// The pool prefers the companion at `one` to the one at `other`.
#[must_use]
pub fn prefers(pool: &str, one: &str, other: &str) -> bool {
    (score(pool, one), one) > (score(pool, other), other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPANIONS: [&str; 3] = ["10.0.0.1:9190", "10.0.0.2:9190", "10.0.0.3:9190"];

    fn preferred<'a>(pool: &str, companions: &[&'a str]) -> &'a str {
        let best = |one: &'a str, other: &'a str| if prefers(pool, one, other) { one } else { other };
        companions.iter().copied().reduce(best).expect("a companion")
    }

    #[test]
    fn pools_spread_and_a_new_companion_takes_only_pools_that_prefer_it() {
        let pools: Vec<String> = (0..300).map(|number| format!("pool-{number}")).collect();
        let mut counts = [0; 3];
        for pool in &pools {
            let before = preferred(pool, &COMPANIONS[..2]);
            let after = preferred(pool, &COMPANIONS);
            assert!(after == before || after == COMPANIONS[2], "{pool}: {before}, {after}");
            counts[COMPANIONS.iter().position(|other| *other == after).expect("one of them")] += 1;
        }
        assert!(counts.iter().all(|count| (70..=130).contains(count)), "{counts:?}");
    }

    #[test]
    fn exactly_one_of_two_companions_is_preferred() {
        for pool in ["a", "b", "chat"] {
            assert_ne!(
                prefers(pool, COMPANIONS[0], COMPANIONS[1]),
                prefers(pool, COMPANIONS[1], COMPANIONS[0])
            );
            assert!(!prefers(pool, COMPANIONS[0], COMPANIONS[0]));
        }
    }

    #[test]
    fn scores_never_change() {
        // As computed when the function was written.
        assert_eq!(score("chat", "10.0.0.1:9190"), 12_893_796_480_384_737_011);
    }
}
