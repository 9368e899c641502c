//! The policy that a worker applies, from the policies of its sessions' companions.
//!
//! The main session's policy counts as a whole, except for the entries of pools that have sessions of their own: those are as
//! their pool's leader sent them.

use std::collections::BTreeMap;

use penstock_wire as wire;

#[derive(Debug)]
pub(super) struct Policies {
    main: wire::Policy,
    /// By pool with a session of its own, the entry that its leader has, and the digest of the leader's policy. The leader sends its policy
    /// only to a session that has another digest, so the entry is kept even while it equals that of the main session's policy.
    own: BTreeMap<String, (String, wire::Pool)>,
}

impl Policies {
    pub(super) fn new(main: wire::Policy) -> Self {
        let mut policies = Self { main, own: BTreeMap::new() };
        policies.follow_main();
        policies
    }

    /// A session has received a policy; `pool`: the pool of the session, empty for the main session. Returns the policy that
    /// applies from now on.
    pub(super) fn update(&mut self, pool: &str, policy: &wire::Policy) -> wire::Policy {
        if pool.is_empty() {
            self.main.clone_from(policy);
        } else if let Some(entry) = policy.pools.iter().find(|entry| entry.name == pool) {
            let own = (policy.digest.clone(), entry.clone());
            self.own.insert(pool.to_owned(), own);
        }
        self.follow_main();
        self.composed()
    }

    /// Only pools of the main session's policy have sessions. A new session begins with the digest of that policy.
    fn follow_main(&mut self) {
        let main = &self.main;
        let has = |name: &str| main.session_per_pool && main.pools.iter().any(|entry| entry.name == name);
        self.own.retain(|pool, _| has(pool));
        for entry in main.pools.iter().filter(|_| main.session_per_pool) {
            if !self.own.contains_key(&entry.name) {
                let own = (main.digest.clone(), entry.clone());
                self.own.insert(entry.name.clone(), own);
            }
        }
    }

    /// The policy that the worker applies. Its digest is the main session's, or empty if it is no one companion's policy: then each sends
    /// its own to a worker that starts with it.
    fn composed(&self) -> wire::Policy {
        let mut policy = self.main.clone();
        if self.own.values().any(|(digest, _)| *digest != policy.digest) {
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

/// A stored policy. If only that of the plugin configuration has API keys, they count until a companion sends its policy: the
/// stored one may be from before the keys, and must not let every client in.
pub(super) fn with_api_keys(stored: wire::Policy, configured: &wire::Policy) -> wire::Policy {
    let keys =
        |policy: &wire::Policy| policy.identity.as_ref().and_then(|identity| identity.api_keys.clone());
    let (None, Some(api_keys)) = (keys(&stored), keys(configured)) else {
        return stored;
    };
    let identity = stored.identity.unwrap_or_default();
    wire::Policy {
        // No companion has this policy.
        digest: String::new(),
        identity: Some(wire::Identity { api_keys: Some(api_keys), ..identity }),
        ..stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(digest: &str, ttls: &[(&str, u64)]) -> wire::Policy {
        let pool =
            |&(name, ttl_ms): &(&str, u64)| wire::Pool { name: name.into(), ttl_ms, ..wire::Pool::default() };
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
        let composed = policies.update("a", &policy("d2", &[("a", 2)]));
        assert_eq!(ttls(&composed), [("a", 2), ("b", 1)]);
        assert_eq!(composed.digest, "", "no companion has this policy");
        let composed = policies.update("", &policy("d3", &[("a", 3), ("b", 3)]));
        assert_eq!(ttls(&composed), [("a", 2), ("b", 1)], "b's leader hasn't sent another");
        policies.update("a", &policy("d3", &[("a", 3)]));
        let composed = policies.update("b", &policy("d3", &[("b", 3)]));
        assert_eq!((ttls(&composed), &*composed.digest), (vec![("a", 3), ("b", 3)], "d3"));
    }

    #[test]
    fn a_main_session_at_another_companion_changes_no_entry_that_a_pools_leader_has_sent() {
        let mut policies = Policies::new(policy("d0", &[("a", 0), ("b", 0)]));
        // A change at the leader of both pools, to which the main session is open as well.
        for pool in ["", "a", "b"] {
            policies.update(pool, &policy("d1", &[("a", 1), ("b", 0)]));
        }
        let composed = policies.update("", &policy("d0", &[("a", 0), ("b", 0)]));
        assert_eq!(ttls(&composed), [("a", 1), ("b", 0)]);
    }

    #[test]
    fn api_keys_of_the_configuration_count_until_a_companion_has_sent_some() {
        let keyed = |digest: &str, tenant: &str| wire::Policy {
            identity: Some(wire::Identity {
                api_keys: Some(wire::ApiKeys { headers: vec![tenant.into()], ..wire::ApiKeys::default() }),
                ..wire::Identity::default()
            }),
            ..policy(digest, &[("a", 1)])
        };
        let configured = keyed("d1", "configured");
        let stored = with_api_keys(policy("d2", &[("a", 1)]), &configured);
        assert_eq!(stored, keyed("", "configured"), "the companion sends its policy");
        let newer = keyed("d3", "newer");
        assert_eq!(with_api_keys(newer.clone(), &configured), newer);
        let without = policy("d4", &[("a", 1)]);
        assert_eq!(with_api_keys(without.clone(), &policy("d1", &[])), without);
    }

    #[test]
    fn an_entry_goes_with_its_pool_or_its_session() {
        let mut policies = Policies::new(policy("d1", &[("a", 1), ("b", 1)]));
        policies.update("a", &policy("d2", &[("a", 2)]));
        let composed = policies.update("", &policy("d4", &[("b", 4)]));
        assert_eq!(ttls(&composed), [("b", 1)]);
        let composed = policies.update("b", &policy("d4", &[("b", 4)]));
        assert_eq!((ttls(&composed), &*composed.digest), (vec![("b", 4)], "d4"));
        let mut alone = policy("d6", &[("b", 6)]);
        alone.session_per_pool = false;
        assert_eq!(policies.update("", &alone), alone);
        let composed = policies.update("b", &policy("d7", &[("b", 7)]));
        assert_eq!(ttls(&composed), [("b", 6)], "there is no such session any more");
    }
}
