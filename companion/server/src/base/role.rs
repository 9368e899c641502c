//! The role of this companion among several, as the HTTP API and the metrics show it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use penstock_config::{Companions, Per, Replicas};
use penstock_election::RoleStatus;
use serde_json::{Value, json};
use tokio::sync::watch;

/// A role in one word. Until the filters follow a companion that takes over, it is a standby.
#[must_use]
pub(crate) const fn as_str(role: &RoleStatus) -> &'static str {
    if role.is_leader() { "leader" } else { "standby" }
}

fn status(role: &RoleStatus) -> Value {
    json!({"role": as_str(role), "term": role.term, "leader": role.leader})
}

/// The roles of this companion with `replicas`: one for all pools, or one for each. That of a leader names this companion's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roles {
    /// All pools have the same leader.
    Gateway(RoleStatus),
    /// Each pool has a leader of its own. A pool that isn't there has no known leader.
    Pools(BTreeMap<Arc<str>, RoleStatus>),
}

impl Roles {
    /// The roles of a companion that knows no leader.
    #[must_use]
    pub(crate) fn unknown(per: Per) -> Self {
        match per {
            Per::Gateway => Self::Gateway(RoleStatus::default()),
            Per::Pool => Self::Pools(BTreeMap::new()),
        }
    }

    #[must_use]
    pub(crate) fn of(&self, pool: &str) -> RoleStatus {
        match self {
            Self::Gateway(role) => role.clone(),
            Self::Pools(pools) => pools.get(pool).cloned().unwrap_or_default(),
        }
    }

    /// This companion leads a pool.
    #[must_use]
    pub(crate) fn leads_any(&self) -> bool {
        match self {
            Self::Gateway(role) => role.is_leader(),
            Self::Pools(pools) => pools.values().any(RoleStatus::is_leader),
        }
    }

    /// The role for all pools. Where each pool has a leader of its own, that of a pool which this companion leads, otherwise that
    /// of one with a known leader.
    #[must_use]
    pub(crate) fn summary(&self) -> RoleStatus {
        match self {
            Self::Gateway(role) => role.clone(),
            Self::Pools(pools) => {
                let rank = |role: &&RoleStatus| (role.is_leader(), role.leader.is_some());
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
        let mut document = match self {
            Self::Gateway(role) => status(role),
            Self::Pools(_) => json!({"per": "pool"}),
        };
        document["companions"] = companions.into();
        document
    }

    /// The object `replicas` of a pool in `/status`; `None` if all pools have the same leader.
    #[must_use]
    pub(crate) fn pool_status(&self, pool: &str) -> Option<Value> {
        match self {
            Self::Gateway(_) => None,
            Self::Pools(_) => Some(status(&self.of(pool))),
        }
    }
}

/// Follows the roles of this companion; `None` without `replicas`.
pub(crate) type RoleReceiver = Option<watch::Receiver<Roles>>;

#[cfg(test)]
mod tests {
    use penstock_election::Role;

    use super::*;

    const OTHER: &str = "127.0.0.1:9290";

    #[test]
    fn status_names_the_companions_of_a_list_or_of_a_name() {
        let role = RoleStatus { role: Role::Standby, term: 7, leader: Some(OTHER.into()) };
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
            |role, leader: Option<&str>| RoleStatus { role, term: 3, leader: leader.map(str::to_owned) };
        let mut pools = BTreeMap::from([
            (Arc::from("a"), role(Role::Standby, None)),
            (Arc::from("b"), role(Role::Standby, Some(OTHER))),
            (Arc::from("c"), role(Role::Standby, None)),
        ]);
        let roles = Roles::Pools(pools.clone());
        assert_eq!(roles.summary(), role(Role::Standby, Some(OTHER)));
        assert!(!roles.leads_any());
        assert_eq!(roles.of("z"), RoleStatus::default(), "an unknown pool");
        pools.insert(Arc::from("c"), role(Role::Leader, Some("127.0.0.1:9190")));
        let roles = Roles::Pools(pools);
        assert!(roles.leads_any() && roles.summary().is_leader());
        assert_eq!(roles.pool_status("b"), Some(json!({"role": "standby", "term": 3, "leader": OTHER})));
    }
}
