//! Publishes the roles of this companion to the HTTP API, and counts failovers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use penstock_config::Per;
use penstock_control::{Role as ControlRole, Scope};
use tokio::sync::watch;

use crate::base::role::{Role, Roles};
use crate::decisions::driver::{RoleTerm, RoleTerms};
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
    pub(crate) fn publish(&mut self, terms: &RoleTerms) {
        let present = |scope: &Scope| match self.per {
            Per::Gateway => *scope == Scope::Gateway,
            Per::Pool => scope.pool().is_some(),
        };
        let terms: Vec<_> = terms.iter().filter(|(scope, _)| present(scope)).collect();
        let roles: Vec<(&Scope, Role)> =
            terms.into_iter().map(|(scope, term)| (scope, self.role(scope, term))).collect();
        self.last_leaders.retain(|scope, _| roles.iter().any(|(present, _)| *present == scope));
        let roles = match self.per {
            Per::Gateway => {
                Roles::Gateway(roles.into_iter().map(|(_, role)| role).next().unwrap_or_default())
            }
            Per::Pool => Roles::Pools(
                roles.into_iter().filter_map(|(scope, role)| Some((scope.pool()?.clone(), role))).collect(),
            ),
        };
        self.roles.send_if_modified(|before| {
            let is_changed = *before != roles;
            *before = roles;
            is_changed
        });
    }

    fn role(&mut self, scope: &Scope, term: &RoleTerm) -> Role {
        match &term.role {
            ControlRole::Leader | ControlRole::Alone => self.leader(scope, term.term),
            ControlRole::Standby { leader, term } => {
                let leader = leader.as_deref().map(str::to_owned);
                if let Some(leader) = &leader {
                    self.last_leaders.insert(scope.clone(), leader.clone());
                }
                Role { is_leader: false, term: *term, leader }
            }
            // Until the filters follow it, it doesn't lead.
            ControlRole::TakingOver => Role { is_leader: false, term: term.term, leader: None },
        }
    }

    fn leader(&mut self, scope: &Scope, term: u64) -> Role {
        let last = self.last_leaders.insert(scope.clone(), self.advertise.clone());
        if last.is_some_and(|last| last != self.advertise) {
            self.metrics.count_failover();
        }
        Role { is_leader: true, term, leader: Some(self.advertise.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "127.0.0.1:9290";

    fn publisher(per: Per) -> (RolePublisher, watch::Receiver<Roles>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new().expect("distinct names"));
        let advertise = "127.0.0.1:9190".parse().expect("an address");
        let (publisher, roles) = RolePublisher::new(per, advertise, metrics.clone());
        (publisher, roles, metrics)
    }

    fn leads(term: u64) -> RoleTerm {
        RoleTerm { role: ControlRole::Leader, term }
    }

    fn stands_by(leader: Option<&str>, term: u64) -> RoleTerm {
        RoleTerm { role: ControlRole::Standby { leader: leader.map(Into::into), term }, term: 0 }
    }

    #[test]
    fn a_companion_that_leads_after_another_has_had_a_failover() {
        let (mut publisher, roles, metrics) = publisher(Per::Gateway);
        let mut publish = |term| publisher.publish(&RoleTerms::from([(Scope::Gateway, term)]));
        assert_eq!(*roles.borrow(), Roles::Gateway(Role::default()));
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
        let expected = Role { is_leader: true, term: 5, leader: Some("127.0.0.1:9190".into()) };
        assert_eq!(*roles.borrow(), Roles::Gateway(expected));
    }

    #[test]
    fn each_pool_has_a_role_and_failovers_of_all_pools_are_counted() {
        let (mut publisher, roles, metrics) = publisher(Per::Pool);
        let pool = |name: &str| Scope::Pool(name.into());
        publisher.publish(&RoleTerms::from([
            (Scope::Gateway, leads(0)),
            (pool("a"), leads(3)),
            (pool("b"), stands_by(Some(OTHER), 4)),
        ]));
        assert!(roles.borrow().of("a").is_leader && !roles.borrow().of("b").is_leader);
        publisher.publish(&RoleTerms::from([
            (Scope::Gateway, leads(0)),
            (pool("a"), leads(3)),
            (pool("b"), leads(5)),
        ]));
        assert_eq!(metrics.failovers(), 1);
        publisher.publish(&RoleTerms::from([(Scope::Gateway, leads(0)), (pool("a"), leads(3))]));
        assert_eq!(roles.borrow().of("b"), Role::default(), "the pool is gone");
    }
}
