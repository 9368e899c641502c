//! The leases of pools, where each pool has a leader of its own: their places, which follow from the configured one.

use std::hash::Hasher as _;
use std::path::PathBuf;

use penstock_config::Lease;
use siphasher::sip::SipHasher13;

/// The place of a pool's lease: `PREFIX/pools/POOL` in etcd, `NAME-POOL` in Kubernetes, `FILE.POOL` on one machine.
pub(super) fn place(lease: &Lease, pool: &str) -> Lease {
    match lease {
        Lease::Etcd { endpoints, prefix } => {
            Lease::Etcd { endpoints: endpoints.clone(), prefix: format!("{prefix}/pools/{pool}") }
        }
        Lease::Kubernetes { namespace, name } => {
            Lease::Kubernetes { namespace: namespace.clone(), name: format!("{name}-{}", object_name(pool)) }
        }
        Lease::File(path) => {
            let mut path = path.clone().into_os_string();
            path.push(".");
            path.push(pool);
            Lease::File(PathBuf::from(path))
        }
    }
}

/// A pool's name as a part of an object's name in Kubernetes, which has lower-case letters, digits, `-` and `.`, and ends with a
/// letter or a digit. A name with other characters is changed, and gets a digest, so that no two pools have the same.
fn object_name(pool: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_inner = |c: char| is_allowed(c) || c == '-';
    if pool.chars().all(is_inner) && pool.starts_with(is_allowed) && pool.ends_with(is_allowed) {
        return pool.to_owned();
    }
    let fitting = |c: char| if is_inner(c) { c } else { '-' };
    let changed: String = pool.to_ascii_lowercase().chars().map(fitting).collect();
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(pool.as_bytes());
    let digest = hasher.finish() >> 32;
    format!("{}-{digest:08x}", changed.trim_matches('-')).trim_start_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_has_a_place_of_its_own() {
        let etcd =
            Lease::Etcd { endpoints: vec!["http://127.0.0.1:2379".into()], prefix: "/penstock".into() };
        assert!(
            matches!(place(&etcd, "chat"), Lease::Etcd { prefix, .. } if prefix == "/penstock/pools/chat")
        );
        let file = Lease::File("/run/penstock/lease".into());
        assert_eq!(place(&file, "chat"), Lease::File("/run/penstock/lease.chat".into()));
        let object = Lease::Kubernetes { namespace: "models".into(), name: "penstock".into() };
        assert!(matches!(place(&object, "chat"), Lease::Kubernetes { name, .. } if name == "penstock-chat"));
    }

    #[test]
    fn every_name_of_a_pool_gives_a_valid_and_different_object_name() {
        let pools = ["a", "A", "a-b", "a_b", "a.b", "-a", "a-", "-", "_", "...", "7"];
        let names: Vec<String> = pools.iter().map(|pool| object_name(pool)).collect();
        for (index, name) in names.iter().enumerate() {
            let is_outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            assert!(name.starts_with(is_outer) && name.ends_with(is_outer), "{name}");
            assert!(name.chars().all(|c| is_outer(c) || c == '-'), "{name}");
            assert!(!names[..index].contains(name), "{name} stands for two pools");
        }
        assert_eq!(names[2], "a-b");
    }
}
