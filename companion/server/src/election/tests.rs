//! The election of two companions with a lease in a file.

use penstock_election::{KnownEnvoy, Pickers, Report, Role};

use super::*;

const LONG: Duration = Duration::from_secs(60);

struct Sink(mpsc::UnboundedSender<RoleChange>);

impl RoleSink for Sink {
    async fn apply(&mut self, change: RoleChange) -> Result<(), Gone> {
        self.0.send(change).map_err(|_| Gone)
    }
}

struct Companion {
    election: Election,
    reporter: Reporter,
    roles: mpsc::UnboundedReceiver<RoleChange>,
}

impl Companion {
    fn start(lease: &Lease, address: &str) -> Self {
        let settings = Settings { address: address.into(), duration: Duration::from_secs(3), pool: None };
        let (sender, roles) = mpsc::unbounded_channel();
        let reporter = Reporter::new();
        let (_, begins) = watch::channel(true);
        let election = spawn(lease, None, settings, Clock::start(), Sink(sender), reporter.clone(), begins);
        Self { election: election.expect("usable"), reporter, roles }
    }

    /// Waits for a change that fits.
    async fn until<T>(&mut self, fits: impl Fn(RoleChange) -> Option<T>) -> T {
        let wait = async {
            loop {
                let change = self.roles.recv().await.expect("the election runs");
                if let Some(found) = fits(change) {
                    return found;
                }
            }
        };
        tokio::time::timeout(LONG, wait).await.expect("a change that fits")
    }

    async fn leads(&mut self) -> (u64, Vec<KnownEnvoy>) {
        let lead = |change| match change {
            RoleChange::Lead { term, known, .. } => Some((term, known)),
            _ => None,
        };
        self.until(lead).await
    }
}

#[tokio::test]
async fn a_standby_leads_as_soon_as_the_leader_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let lease = Lease::File(folder.path().join("lease"));
    let mut first = Companion::start(&lease, "127.0.0.1:9190");
    let (term, _) = first.leads().await;
    let mut second = Companion::start(&lease, "127.0.0.1:9290");
    let leader = |change| match change {
        RoleChange::StandBy { leader, term } => leader.map(|leader| (leader, term)),
        _ => None,
    };
    assert_eq!(second.until(leader).await, ("127.0.0.1:9190".to_owned(), term));

    let envoys = vec![KnownEnvoy { envoy: 7, contexts: 2, digest: 7 }];
    let known = envoys.clone();
    first.reporter.report(Report::Known { term, envoys, pickers: Pickers::default() });
    let renewed = |change| matches!(change, RoleChange::Renewed { .. }).then_some(());
    first.until(renewed).await;
    // Without a release: the lock is free, so the process is gone.
    first.election.stop().await;
    let (next_term, found) = second.leads().await;
    assert!(next_term > term);
    assert_eq!(found, known);

    let mut third = Companion::start(&lease, "127.0.0.1:9390");
    third.until(leader).await;
    second.election.resign().await;
    let (last_term, _) = third.leads().await;
    assert!(last_term > next_term);
}

#[tokio::test]
async fn the_status_says_when_the_store_works_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("lease.record");
    std::fs::write(&record, "{").expect("written");
    let lease = Lease::File(folder.path().join("lease"));
    let mut companion = Companion::start(&lease, "127.0.0.1:9190");
    let mut status = companion.election.status();
    assert!(!status.borrow().store_up);
    std::fs::remove_file(&record).expect("it exists");
    companion.leads().await;
    let up = tokio::time::timeout(LONG, status.wait_for(|status| status.store_up)).await;
    let role = up.expect("soon").expect("the election runs").role.role;
    assert_eq!(role, Role::Leader);
}
