//! The role of this companion among several, as the HTTP API and the metrics show it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use penstock_config::{Companions, Per, Replicas};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The role of this companion. Only with `replicas`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    /// This companion leads: it grants. Otherwise it is a standby.
    pub(crate) is_leader: bool,
    /// The leader's term; 0: unknown.
    pub(crate) term: u64,
    /// Where the leader listens for filters, `ip:port`; of a leader, its own address. `None`: no leader is known.
    pub(crate) leader: Option<String>,
}

impl Role {
    /// The role in one word.
    #[must_use]
    pub(crate) const fn as_str(&self) -> &'static str {
        if self.is_leader { "leader" } else { "standby" }
    }

    fn status(&self) -> Value {
        json!({"role": self.as_str(), "term": self.term, "leader": self.leader})
    }
}

/// The roles of this companion: one for all pools, or one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roles {
    /// All pools have the same leader.
    Gateway(Role),
    /// Each pool has a leader of its own. A pool that isn't there has no known leader.
    Pools(BTreeMap<Arc<str>, Role>),
}

impl Roles {
    /// The roles of a companion that knows no leader.
    #[must_use]
    pub(crate) fn unknown(per: Per) -> Self {
        match per {
            Per::Gateway => Self::Gateway(Role::default()),
            Per::Pool => Self::Pools(BTreeMap::new()),
        }
    }

    #[must_use]
    pub(crate) fn of(&self, pool: &str) -> Role {
        match self {
            Self::Gateway(role) => role.clone(),
            Self::Pools(pools) => pools.get(pool).cloned().unwrap_or_default(),
        }
    }

    /// This companion leads a pool.
    #[must_use]
    pub(crate) fn leads_any(&self) -> bool {
        match self {
            Self::Gateway(role) => role.is_leader,
            Self::Pools(pools) => pools.values().any(|role| role.is_leader),
        }
    }

    /// The role for all pools. Where each pool has a leader of its own, that of a pool which this companion leads, otherwise that
    /// of one with a known leader.
    #[must_use]
    pub(crate) fn summary(&self) -> Role {
        match self {
            Self::Gateway(role) => role.clone(),
            Self::Pools(pools) => {
                let rank = |role: &&Role| (role.is_leader, role.leader.is_some());
                // Of several equal ones the first: `max_by_key` returns the last.
                pools.values().rev().max_by_key(rank).cloned().unwrap_or_default()
            }
        }
    }

    /// The object `replicas` of `/status`.
    #[must_use]
    pub(crate) fn status(&self, replicas: &Replicas) -> Value {
        let companions: Vec<String> = match &replicas.companions {
            Companions::List(addresses) => addresses.iter().map(SocketAddr::to_string).collect(),
            Companions::Dns { name, port } => vec![format!("{name}:{port}")],
        };
        let mut status = match self {
            Self::Gateway(role) => role.status(),
            Self::Pools(_) => json!({"per": "pool"}),
        };
        status["companions"] = companions.into();
        status
    }

    /// The object `replicas` of a pool in `/status`; `None` if all pools have the same leader.
    #[must_use]
    pub(crate) fn pool_status(&self, pool: &str) -> Option<Value> {
        match self {
            Self::Gateway(_) => None,
            Self::Pools(_) => Some(self.of(pool).status()),
        }
    }
}

/// Follows the roles of this companion; `None` without `replicas`.
pub(crate) type RoleReceiver = Option<watch::Receiver<Roles>>;

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "127.0.0.1:9290";

    #[test]
    fn status_names_the_companions_of_a_list_or_of_a_name() {
        let role = Role { is_leader: false, term: 7, leader: Some(OTHER.into()) };
        for (companions, expected) in [
            (Companions::List(vec![OTHER.parse().expect("an address")]), json!([OTHER])),
            (
                Companions::Dns { name: "companions.models".into(), port: 9190 },
                json!(["companions.models:9190"]),
            ),
        ] {
            let replicas = Replicas {
                companions,
                advertise: OTHER.parse().expect("an address"),
                lease: penstock_config::Lease::File("l".into()),
                per: Per::Gateway,
                duration: std::time::Duration::from_secs(3),
            };
            let status = Roles::Gateway(role.clone()).status(&replicas);
            assert_eq!(
                status,
                json!({"role": "standby", "term": 7, "leader": OTHER, "companions": expected})
            );
        }
    }

    #[test]
    fn where_each_pool_has_a_leader_the_summary_prefers_a_pool_that_is_led_here() {
        let role =
            |is_leader, leader: Option<&str>| Role { is_leader, term: 3, leader: leader.map(str::to_owned) };
        let mut pools = BTreeMap::from([
            (Arc::from("a"), role(false, None)),
            (Arc::from("b"), role(false, Some(OTHER))),
            (Arc::from("c"), role(false, None)),
        ]);
        let roles = Roles::Pools(pools.clone());
        assert_eq!(roles.summary(), role(false, Some(OTHER)));
        assert!(!roles.leads_any());
        assert_eq!(roles.of("z"), Role::default(), "an unknown pool");
        pools.insert(Arc::from("c"), role(true, Some("127.0.0.1:9190")));
        let roles = Roles::Pools(pools);
        assert!(roles.leads_any() && roles.summary().is_leader);
        assert_eq!(roles.pool_status("b"), Some(json!({"role": "standby", "term": 3, "leader": OTHER})));
    }
}
