//! Publishes the roles of this companion to the HTTP API, and counts failovers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use penstock_config::Per;
use penstock_control::Scope;
use penstock_election::RoleStatus;
use tokio::sync::watch;

use crate::base::role::Roles;
use crate::decisions::driver::ScopeRoles;
use crate::metrics::Metrics;

/// Publishes the roles of this companion, and counts failovers.
#[derive(Debug)]
pub(crate) struct RolePublisher {
    per: Per,
    roles: watch::Sender<Roles>,
    metrics: Arc<Metrics>,
    /// The address of this companion.
    advertise: String,
    /// The last leader that was known.
    last_leaders: BTreeMap<Scope, String>,
}

impl RolePublisher {
    /// A publisher for the companion that filters reach at `advertise`. It starts as a standby that knows no leader.
    #[must_use]
    pub(crate) fn new(
        per: Per,
        advertise: SocketAddr,
        metrics: Arc<Metrics>,
    ) -> (Self, watch::Receiver<Roles>) {
        let (roles, receiver) = watch::channel(Roles::unknown(per));
        let publisher =
            Self { per, roles, metrics, advertise: advertise.to_string(), last_leaders: BTreeMap::new() };
        (publisher, receiver)
    }

    /// Publishes the roles of the controls.
    pub(crate) fn publish(&mut self, known: &ScopeRoles) {
        let per = self.per;
        let is_present = |scope: &Scope| match per {
            Per::Gateway => *scope == Scope::Gateway,
            Per::Pool => scope.pool().is_some(),
        };
        let present: Vec<_> = known.iter().filter(|(scope, _)| is_present(scope)).collect();
        self.last_leaders.retain(|scope, _| present.iter().any(|(present, _)| *present == scope));
        let mut roles =
            present.into_iter().map(|(scope, role)| (scope, self.with_leader(scope, role.clone())));
        let roles = match per {
            Per::Gateway => Roles::Gateway(roles.next().map(|(_, role)| role).unwrap_or_default()),
            Per::Pool => {
                Roles::Pools(roles.filter_map(|(scope, role)| Some((scope.pool()?.clone(), role))).collect())
            }
        };
        self.roles.send_if_modified(|before| {
            let is_changed = *before != roles;
            *before = roles;
            is_changed
        });
    }

    /// Names the leader, which may be this companion, and counts a failover.
    fn with_leader(&mut self, scope: &Scope, mut role: RoleStatus) -> RoleStatus {
        if role.is_leader() {
            let last = self.last_leaders.insert(scope.clone(), self.advertise.clone());
            if last.is_some_and(|last| last != self.advertise) {
                self.metrics.count_failover();
            }
            role.leader = Some(self.advertise.clone());
        } else if let Some(leader) = &role.leader {
            self.last_leaders.insert(scope.clone(), leader.clone());
        }
        role
    }
}

#[cfg(test)]
mod tests {
    use penstock_election::Role;

    use super::*;

    const OTHER: &str = "127.0.0.1:9290";

    fn publisher(per: Per) -> (RolePublisher, watch::Receiver<Roles>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new().expect("distinct names"));
        let advertise = "127.0.0.1:9190".parse().expect("an address");
        let (publisher, roles) = RolePublisher::new(per, advertise, metrics.clone());
        (publisher, roles, metrics)
    }

    fn leads(term: u64) -> RoleStatus {
        RoleStatus { role: Role::Leader, term, leader: None }
    }

    fn stands_by(leader: Option<&str>, term: u64) -> RoleStatus {
        RoleStatus { role: Role::Standby, term, leader: leader.map(Into::into) }
    }

    #[test]
    fn a_companion_that_leads_after_another_has_had_a_failover() {
        let (mut publisher, roles, metrics) = publisher(Per::Gateway);
        let mut publish = |term| publisher.publish(&ScopeRoles::from([(Scope::Gateway, term)]));
        assert_eq!(*roles.borrow(), Roles::Gateway(RoleStatus::default()));
        publish(leads(1));
        assert_eq!(metrics.failovers(), 0, "no other companion has led");
        publish(stands_by(Some(OTHER), 2));
        assert_eq!(roles.borrow().summary().leader.as_deref(), Some(OTHER));
        publish(stands_by(None, 2));
        publish(leads(3));
        assert_eq!(metrics.failovers(), 1);
        publish(leads(4));
        assert_eq!(metrics.failovers(), 1, "a renewed lease with a new term");
        publish(stands_by(None, 4));
        publish(leads(5));
        assert_eq!(metrics.failovers(), 1, "no other companion has led meanwhile");
        let expected = RoleStatus { role: Role::Leader, term: 5, leader: Some("127.0.0.1:9190".into()) };
        assert_eq!(*roles.borrow(), Roles::Gateway(expected));
    }

    #[test]
    fn each_pool_has_a_role_and_failovers_of_all_pools_are_counted() {
        let (mut publisher, roles, metrics) = publisher(Per::Pool);
        let pool = |name: &str| Scope::Pool(name.into());
        publisher.publish(&ScopeRoles::from([
            (Scope::Gateway, leads(0)),
            (pool("a"), leads(3)),
            (pool("b"), stands_by(Some(OTHER), 4)),
        ]));
        assert!(roles.borrow().of("a").is_leader() && !roles.borrow().of("b").is_leader());
        publisher.publish(&ScopeRoles::from([
            (Scope::Gateway, leads(0)),
            (pool("a"), leads(3)),
            (pool("b"), leads(5)),
        ]));
        assert_eq!(metrics.failovers(), 1);
        publisher.publish(&ScopeRoles::from([(Scope::Gateway, leads(0)), (pool("a"), leads(3))]));
        assert_eq!(roles.borrow().of("b"), RoleStatus::default(), "the pool is gone");
    }
}
