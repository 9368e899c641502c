//! The leader lease in a real etcd.

use std::time::Duration;

use penstock_config::Lease;
use penstock_election::{KnownEnvoy, Pickers, Report, Role, RoleChange, RoleStatus, Settings};
use penstock_server::election::{self, Election, RoleSink, Status};
use penstock_server::{Clock, Gone, Reporter};
use penstock_tests::ports::free_address;
use penstock_tests::wait::soon;
use penstock_tests::{Etcd, run, until};
use serde_json::json;
use tokio::sync::mpsc;

const DURATION: Duration = Duration::from_secs(2);

struct Sink(mpsc::UnboundedSender<RoleChange>);

impl RoleSink for Sink {
    async fn apply(&mut self, change: RoleChange) -> Result<(), Gone> {
        self.0.send(change).map_err(|_| Gone)
    }
}

/// A companion's part in the election.
struct Companion {
    election: Election,
    reporter: Reporter,
    roles: mpsc::UnboundedReceiver<RoleChange>,
}

impl Companion {
    fn start(url: String, address: &str) -> Self {
        Self::start_with(vec![url], address)
    }

    fn start_with(endpoints: Vec<String>, address: &str) -> Self {
        let lease = Lease::Etcd { endpoints, prefix: "/penstock/".into() };
        let settings = Settings { address: address.into(), duration: DURATION, pool: None };
        let (sender, roles) = mpsc::unbounded_channel();
        let reporter = Reporter::new();
        let (_, begins) = tokio::sync::watch::channel(true);
        let election =
            election::spawn(&lease, None, settings, Clock::start(), Sink(sender), reporter.clone(), begins);
        Self { election: election.expect("usable"), reporter, roles }
    }

    async fn next_role(&mut self) -> RoleChange {
        next_role(&mut self.roles).await
    }

    /// Waits for a status that fits.
    async fn status_with(&self, fits: impl FnMut(&Status) -> bool) -> Status {
        let mut status = self.election.status();
        let found = soon("a status that fits", status.wait_for(fits)).await;
        found.expect("the election runs").clone()
    }

    async fn next_renewal(&mut self) -> u64 {
        soon("a renewal", async {
            loop {
                if let RoleChange::Renewed { term, .. } = self.roles.recv().await.expect("the election runs")
                {
                    return term;
                }
            }
        })
        .await
    }

    /// The term and the known Envoys when it leads.
    async fn leads(&mut self) -> (u64, Vec<KnownEnvoy>) {
        loop {
            if let RoleChange::Lead { term, known, .. } = self.next_role().await {
                return (term, known);
            }
        }
    }

    /// Leads, and has this Envoy, which the record in the store names.
    async fn leads_with(&mut self, etcd: &Etcd, envoy: u64) -> u64 {
        let (term, _) = self.leads().await;
        let before = record(etcd).await;
        let envoys = envoys(envoy);
        self.reporter.report(Report::Known { term, envoys, pickers: Pickers::default() });
        until("the Envoys are written", || async {
            let present = record(etcd).await;
            if present == before { Err(present) } else { Ok(()) }
        })
        .await;
        term
    }
}

/// The next change that isn't a renewal.
async fn next_role(roles: &mut mpsc::UnboundedReceiver<RoleChange>) -> RoleChange {
    soon("a change of the role", async {
        loop {
            match roles.recv().await.expect("the election runs") {
                RoleChange::Renewed { .. } => {}
                change => return change,
            }
        }
    })
    .await
}

fn envoys(envoy: u64) -> Vec<KnownEnvoy> {
    vec![KnownEnvoy { envoy, contexts: 2, digest: 7 }]
}

/// The record in the store.
async fn record(etcd: &Etcd) -> String {
    let range = json!({"key": "L3BlbnN0b2NrL3JlY29yZA=="});
    let found = etcd.call("kv/range", &range).await;
    found["kvs"][0]["value"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_second_companion_stands_by_and_leads_once_the_first_one_resigns() {
    run(async {
        let etcd = Etcd::start().await;
        let mut first = Companion::start(etcd.url(), "10.0.0.1:9190");
        let term = first.leads_with(&etcd, 7).await;
        let mut second = Companion::start(etcd.url(), "10.0.0.2:9190");
        let leader = Some("10.0.0.1:9190".to_owned());
        assert_eq!(second.next_role().await, RoleChange::StandBy { leader: leader.clone(), term });
        let status = second.status_with(|status| status.role.leader.is_some()).await;
        assert_eq!(status.role, RoleStatus { role: Role::Standby, term, leader });
        assert_eq!(first.next_renewal().await, term);

        soon("the release", first.election.resign()).await;
        let resigned = next_role(&mut first.roles).await;
        assert_eq!(resigned, RoleChange::StandBy { leader: None, term });
        let standby = second.next_role().await;
        assert_eq!(standby, RoleChange::StandBy { leader: None, term });
        let (next_term, known) = second.leads().await;
        assert!(next_term > term);
        assert_eq!(known, envoys(7));
    });
}

#[test]
fn a_leader_that_dies_is_succeeded_when_filters_ask_and_its_lease_has_expired() {
    run(async {
        let etcd = Etcd::start().await;
        let mut first = Companion::start(etcd.url(), "10.0.0.1:9190");
        let term = first.leads_with(&etcd, 7).await;
        let mut second = Companion::start(etcd.url(), "10.0.0.2:9190");
        second.next_role().await;
        soon("the end", first.election.stop()).await;
        second.reporter.report(Report::Wanted);
        let (next_term, known) = second.leads().await;
        assert!(next_term > term);
        assert_eq!(known, envoys(7));
    });
}

#[test]
fn a_restart_of_etcd_changes_no_leader() {
    run(async {
        let mut etcd = Etcd::start().await;
        let mut first = Companion::start(etcd.url(), "10.0.0.1:9190");
        let term = first.leads_with(&etcd, 7).await;
        let mut second = Companion::start(etcd.url(), "10.0.0.2:9190");
        second.next_role().await;
        etcd.kill().await;
        assert_eq!(first.next_role().await, RoleChange::StoreUnreachable { recorded: envoys(7) });
        first.status_with(|status| !status.store_up).await;
        etcd.restart().await;
        let renewed = first.next_renewal().await;
        assert!(renewed >= term);
        assert_eq!(first.election.status().borrow().role.role, Role::Leader);
        // The standby's watch works again, too.
        soon("the release", first.election.resign()).await;
        let (next_term, _) = second.leads().await;
        assert!(next_term > renewed);
    });
}

#[test]
fn an_etcd_that_answers_nothing_changes_no_leader() {
    run(async {
        let etcd = Etcd::start().await;
        let mut first = Companion::start(etcd.url(), "10.0.0.1:9190");
        let term = first.leads_with(&etcd, 7).await;
        assert_eq!(first.next_renewal().await, term);
        etcd.freeze().await;
        assert_eq!(first.next_role().await, RoleChange::StoreUnreachable { recorded: envoys(7) });
        first.status_with(|status| !status.store_up).await;
        etcd.thaw();
        assert!(first.next_renewal().await >= term);
        let status = first.status_with(|status| status.store_up).await;
        assert_eq!(status.role.role, Role::Leader);
    });
}

#[test]
fn a_leader_whose_key_is_deleted_takes_it_again_with_a_higher_term() {
    run(async {
        let etcd = Etcd::start().await;
        let mut first = Companion::start(etcd.url(), "10.0.0.1:9190");
        let term = first.leads_with(&etcd, 7).await;
        assert_eq!(first.next_renewal().await, term);
        let mut second = Companion::start(etcd.url(), "10.0.0.2:9190");
        second.next_role().await;
        etcd.call("kv/deleterange", &json!({"key": "L3BlbnN0b2NrL2xlYWRlcg=="})).await;
        loop {
            let renewed = first.next_renewal().await;
            if renewed > term {
                break;
            }
        }
        let leader = Some("10.0.0.1:9190".to_owned());
        loop {
            // The standby may have seen the deletion before.
            if let RoleChange::StandBy { leader: shown, term: next } = second.next_role().await
                && next > term
            {
                assert_eq!(shown, leader);
                break;
            }
        }
    });
}

#[test]
fn a_member_that_is_down_is_passed_over() {
    run(async {
        let etcd = Etcd::start().await;
        let closed_url = format!("http://{}", free_address());
        let mut first = Companion::start_with(vec![closed_url.clone(), etcd.url()], "10.0.0.1:9190");
        let term = first.leads_with(&etcd, 7).await;
        assert_eq!(first.next_renewal().await, term);
        let mut second = Companion::start_with(vec![etcd.url(), closed_url], "10.0.0.2:9190");
        let leader = Some("10.0.0.1:9190".to_owned());
        assert_eq!(second.next_role().await, RoleChange::StandBy { leader, term });
    });
}
