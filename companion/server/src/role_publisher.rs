//! Publishes the role of this companion to the HTTP API, and counts failovers.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::role::Role;

/// Publishes the role of this companion, and counts failovers.
#[derive(Debug)]
pub struct RolePublisher {
    role: watch::Sender<Role>,
    metrics: Arc<Metrics>,
    /// The address of this companion.
    advertise: String,
    /// The last leader that was known.
    last_leader: Option<String>,
}

impl RolePublisher {
    /// A publisher for the companion that filters reach at `advertise`. It starts as a standby that knows no leader.
    #[must_use]
    pub fn new(advertise: SocketAddr, metrics: Arc<Metrics>) -> (Self, watch::Receiver<Role>) {
        let (role, receiver) = watch::channel(Role::default());
        let publisher = Self {
            role,
            metrics,
            advertise: advertise.to_string(),
            last_leader: None,
        };
        (publisher, receiver)
    }

    /// This companion leads.
    pub fn publish_leader(&mut self, term: u64) {
        let is_new = !self.role.borrow().is_leader;
        let is_failover = self
            .last_leader
            .as_ref()
            .is_some_and(|last| *last != self.advertise);
        if is_new && is_failover {
            self.metrics.count_failover();
        }
        self.last_leader = Some(self.advertise.clone());
        self.publish(Role {
            is_leader: true,
            term,
            leader: Some(self.advertise.clone()),
        });
    }

    /// This companion is a standby, and `leader` leads; `None`: no leader is known.
    pub fn publish_standby(&mut self, term: u64, leader: Option<String>) {
        if leader.is_some() {
            self.last_leader.clone_from(&leader);
        }
        self.publish(Role {
            is_leader: false,
            term,
            leader,
        });
    }

    fn publish(&self, role: Role) {
        self.role.send_if_modified(|before| {
            let is_changed = *before != role;
            *before = role;
            is_changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "127.0.0.1:9290";

    fn publisher() -> (RolePublisher, watch::Receiver<Role>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new().expect("distinct names"));
        let advertise = "127.0.0.1:9190".parse().expect("an address");
        let (publisher, role) = RolePublisher::new(advertise, metrics.clone());
        (publisher, role, metrics)
    }

    #[test]
    fn a_companion_that_leads_after_another_has_had_a_failover() {
        let (mut publisher, role, metrics) = publisher();
        assert_eq!(*role.borrow(), Role::default());
        publisher.publish_leader(1);
        assert_eq!(metrics.failovers(), 0, "no other companion has led");
        publisher.publish_standby(2, Some(OTHER.into()));
        assert_eq!(role.borrow().leader.as_deref(), Some(OTHER));
        publisher.publish_standby(2, None);
        publisher.publish_leader(3);
        assert_eq!(metrics.failovers(), 1);
        publisher.publish_leader(4);
        assert_eq!(metrics.failovers(), 1, "a renewed lease with a new term");
        publisher.publish_standby(4, None);
        publisher.publish_leader(5);
        assert_eq!(metrics.failovers(), 1, "no other companion has led meanwhile");
        let expected = Role {
            is_leader: true,
            term: 5,
            leader: Some("127.0.0.1:9190".into()),
        };
        assert_eq!(*role.borrow(), expected);
    }
}
