//! The policy that a worker applies, from the policies of its sessions' companions.
//!
//! The main session's policy counts as a whole, except for the entries of pools whose own sessions have sent another policy:
//! those are as their pool's leader sent them.

use std::collections::BTreeMap;

use penstock_wire as wire;

#[derive(Debug)]
pub(super) struct Policies {
    main: wire::Policy,
    /// By pool, the entry that its own session has sent last, and the digest of that policy. Only where the digest isn't that of the main
    /// session's policy.
    own: BTreeMap<String, (String, wire::Pool)>,
}

impl Policies {
    pub(super) const fn new(main: wire::Policy) -> Self {
        Self {
            main,
            own: BTreeMap::new(),
        }
    }

    /// A session has received a policy; `pool`: the pool of the session, empty for the main session. Returns the policy that
    /// applies from now on.
    pub(super) fn update(&mut self, pool: &str, policy: &wire::Policy) -> wire::Policy {
        if pool.is_empty() {
            self.main.clone_from(policy);
        } else {
            let entry = policy.pools.iter().find(|entry| entry.name == pool);
            match entry {
                Some(entry) => drop(
                    self.own
                        .insert(pool.to_owned(), (policy.digest.clone(), entry.clone())),
                ),
                None => drop(self.own.remove(pool)),
            }
        }
        let main = &self.main;
        self.own.retain(|pool, (digest, _)| {
            main.session_per_pool
                && *digest != main.digest
                && main.pools.iter().any(|entry| entry.name == *pool)
        });
        self.composed()
    }

    /// Its digest is that of the main session's policy, or empty if it is no companion's policy as a whole: then every companion sends
    /// its own to a worker that starts with it.
    fn composed(&self) -> wire::Policy {
        let mut policy = self.main.clone();
        if !self.own.is_empty() {
            policy.digest.clear();
        }
        for entry in &mut policy.pools {
            if let Some((_, own)) = self.own.get(&entry.name) {
                entry.clone_from(own);
            }
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(digest: &str, ttls: &[(&str, u64)]) -> wire::Policy {
        let pool = |&(name, ttl_ms): &(&str, u64)| wire::Pool {
            name: name.into(),
            ttl_ms,
            ..wire::Pool::default()
        };
        wire::Policy {
            digest: digest.into(),
            session_per_pool: true,
            pools: ttls.iter().map(pool).collect(),
            ..wire::Policy::default()
        }
    }

    fn ttls(policy: &wire::Policy) -> Vec<(&str, u64)> {
        let pools = policy.pools.iter();
        pools.map(|pool| (pool.name.as_str(), pool.ttl_ms)).collect()
    }

    #[test]
    fn an_entry_of_a_pools_own_session_counts_for_this_pool_alone() {
        let mut policies = Policies::new(policy("d1", &[("a", 1), ("b", 1)]));
        let composed = policies.update("a", &policy("d2", &[("a", 2), ("b", 2)]));
        assert_eq!(ttls(&composed), [("a", 2), ("b", 1)]);
        assert_eq!(composed.digest, "", "no companion has this policy");
        let composed = policies.update("", &policy("d3", &[("a", 3), ("b", 3)]));
        assert_eq!(ttls(&composed), [("a", 2), ("b", 3)]);
        let composed = policies.update("a", &policy("d3", &[("a", 3), ("b", 3)]));
        assert_eq!(
            (ttls(&composed), &*composed.digest),
            (vec![("a", 3), ("b", 3)], "d3")
        );
    }

    #[test]
    fn an_entry_goes_with_its_pool_or_its_session() {
        let mut policies = Policies::new(policy("d1", &[("a", 1), ("b", 1)]));
        policies.update("a", &policy("d2", &[("a", 2)]));
        let composed = policies.update("", &policy("d4", &[("b", 4)]));
        assert_eq!((ttls(&composed), &*composed.digest), (vec![("b", 4)], "d4"));
        policies.update("b", &policy("d5", &[("b", 5)]));
        let mut alone = policy("d6", &[("b", 6)]);
        alone.session_per_pool = false;
        assert_eq!(policies.update("", &alone), alone);
        let composed = policies.update("b", &policy("d7", &[("a", 7)]));
        assert_eq!(ttls(&composed), [("b", 6)], "a policy without the pool");
    }
}
