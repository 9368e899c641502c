//! A digest of the endpoints that a filter knows, by which a companion sees whether it must send them.

/// The endpoints of one pool. The order of `ready` doesn't matter. The digests of several pools are added, wrapping.
#[must_use]
pub fn endpoints_digest<'a>(
    pool: &str,
    ready: impl Iterator<Item = &'a str>,
    fallback_bound: Option<u64>,
) -> u64 {
    let bound = fallback_bound.map_or(0, |bound| mix(bound.wrapping_add(1)));
    let seed = hash(OFFSET, pool.as_bytes());
    ready.fold(mix(seed).wrapping_add(bound), |sum, address| {
        sum.wrapping_add(mix(hash(seed, address.as_bytes())))
    })
}

/// FNV-1a: the offset basis and the prime for 64 bits (RFC 9923).
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

fn hash(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// Spreads a hash over all bits, so that a sum of hashes tells sets apart: the finalizer of SplitMix64.
const fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_sets_have_equal_digests() {
        let digest = |pool, ready: &[&str], bound| endpoints_digest(pool, ready.iter().copied(), bound);
        let of_two = digest("p", &["10.0.0.1:80", "10.0.0.2:80"], None);
        assert_eq!(of_two, digest("p", &["10.0.0.2:80", "10.0.0.1:80"], None));
        for other in [
            digest("p", &["10.0.0.1:80"], None),
            digest("p", &["10.0.0.1:80", "10.0.0.3:80"], None),
            digest("p", &["10.0.0.1:80", "10.0.0.2:80"], Some(0)),
            digest("q", &["10.0.0.1:80", "10.0.0.2:80"], None),
            digest("p", &[], None),
            0,
        ] {
            assert_ne!(of_two, other);
        }
    }
}
