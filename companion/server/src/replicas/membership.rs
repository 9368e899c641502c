//! One companion among several: connects the election with the control, the metrics and the HTTP API.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::Replicas;
use penstock_control::{LeadershipChange, Role as ControlRole};
use penstock_election::{RoleChange, Settings};
use tokio::sync::watch;

use super::{Election, Error, Reporter, RoleSink, Status};
use crate::clock::Clock;
use crate::driver::{Gone, Handle, RoleTerm};
use crate::essential;
use crate::metrics::Metrics;
use crate::role::RoleReceiver;
use crate::role_publisher::RolePublisher;

/// The name of the task that publishes the role.
const PUBLISHER: &str = "the companion's role";

/// What a companion needs to take part in the election of the leader.
#[derive(Debug)]
pub struct Start {
    /// The driver, which owns the control.
    pub driver: Handle,
    /// The control's role.
    pub role: watch::Receiver<RoleTerm>,
    /// The reports of the control.
    pub reports: Reporter,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The companion's clock.
    pub clock: Clock,
}

/// Takes part in the election of the leader, if there are several companions. Returns the election and the role.
///
/// # Errors
/// If the lease store can't be used with this binary or this configuration.
pub fn join(replicas: Option<&Replicas>, start: Start) -> Result<(Option<Election>, RoleReceiver), Error> {
    let Some(replicas) = replicas else {
        return Ok((None, None));
    };
    let settings = Settings {
        address: replicas.advertise.to_string(),
        duration: replicas.duration,
    };
    let sink = ControlSink {
        driver: start.driver,
        metrics: start.metrics.clone(),
    };
    let election = super::spawn(&replicas.lease, settings, start.clock, sink, start.reports)?;
    let (publisher, receiver) = RolePublisher::new(replicas.advertise, start.metrics.clone());
    essential::spawn(
        PUBLISHER,
        publish(publisher, start.role, election.status(), start.metrics),
    );
    Ok((Some(election), Some(receiver)))
}

/// Passes changes of the role to the control.
struct ControlSink {
    driver: Handle,
    metrics: Arc<Metrics>,
}

impl RoleSink for ControlSink {
    async fn apply(&mut self, change: RoleChange) -> Result<(), Gone> {
        self.driver.change_leadership(leadership_change(change)).await
    }

    fn renewed(&mut self, took: Duration) {
        self.metrics.record_lease_renewal(took);
    }
}

fn leadership_change(change: RoleChange) -> LeadershipChange {
    match change {
        RoleChange::Lead {
            term,
            known,
            is_last_leader_gone,
            grants_until,
        } => LeadershipChange::Lead {
            term,
            known,
            is_last_leader_gone,
            grants_until,
        },
        RoleChange::Renewed { term, grants_until } => LeadershipChange::Renewed { term, grants_until },
        RoleChange::StoreUnreachable => LeadershipChange::StoreUnreachable,
        RoleChange::StandBy { leader, term } => LeadershipChange::StandBy {
            leader: leader.map(Into::into),
            term,
        },
    }
}

/// Publishes the role of the control, and whether the lease store answers. Ends with the driver or the election.
async fn publish(
    mut publisher: RolePublisher,
    mut role: watch::Receiver<RoleTerm>,
    mut election: watch::Receiver<Status>,
    metrics: Arc<Metrics>,
) {
    loop {
        match &*role.borrow_and_update() {
            RoleTerm {
                role: ControlRole::Leader | ControlRole::Alone,
                term,
            } => publisher.publish_leader(*term),
            RoleTerm {
                role: ControlRole::Standby { leader, term },
                ..
            } => publisher.publish_standby(*term, leader.as_deref().map(str::to_owned)),
            // Until the filters follow it, it doesn't lead.
            RoleTerm {
                role: ControlRole::TakingOver,
                term,
            } => publisher.publish_standby(*term, None),
        }
        metrics.set_lease_store_up(election.borrow_and_update().store_up);
        let ended = tokio::select! {
            changed = role.changed() => changed.is_err(),
            changed = election.changed() => changed.is_err(),
        };
        if ended {
            return;
        }
    }
}
