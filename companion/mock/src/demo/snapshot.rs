//! The current state of the demo, and the rows of its tables.

use std::time::Duration;

use super::companion::Pool;
use super::companions::Sample;
use super::share::{self, Backlog, Shares, TenantService};
use super::takeover::{Kill, Takeover};
use super::tally::Tally;
use super::tenants::Tenant;
use super::text::{duration, percent};
use super::traffic::Event;

/// Until the queues have filled, no tenant has a backlog and shares are meaningless.
const WARM_UP: Duration = Duration::from_secs(1);

/// The data for the screen and the summary.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) tenants: Vec<Tenant>,
    pub(super) tallies: Vec<Tally>,
    backlogs: Vec<Backlog>,
    /// The latest state of the pool; `None`: the companion didn't answer.
    pub(super) pool: Option<Pool>,
    /// Time since the first request.
    pub(super) elapsed: Duration,
    /// No new requests are sent.
    pub(super) stopping: bool,
    /// With `--kill-leader`.
    pub(super) takeover: Option<Takeover>,
    /// The service and the backlog of each tenant when the leader was killed.
    at_kill: Option<Vec<(f64, Backlog)>>,
}

impl Snapshot {
    pub(super) fn new(tenants: &[Tenant]) -> Self {
        Self {
            tenants: tenants.to_vec(),
            tallies: vec![Tally::default(); tenants.len()],
            backlogs: vec![Backlog::default(); tenants.len()],
            pool: None,
            elapsed: Duration::ZERO,
            stopping: false,
            takeover: None,
            at_kill: None,
        }
    }

    /// Whether shares are counted now: after the warm-up, while all tenants send.
    pub(super) fn is_counting(&self) -> bool {
        self.elapsed >= WARM_UP && !self.stopping
    }

    pub(super) fn count(&mut self, event: Event) {
        match event {
            Event::Sent(tenant) => self.tallies[tenant].sent(),
            Event::Granted { sent, answered } => {
                if let Some(takeover) = &mut self.takeover {
                    takeover.granted(sent, answered);
                }
            }
            Event::Ended(tenant, ending) => {
                let counting = self.is_counting();
                self.tallies[tenant].ended(ending, counting);
            }
        }
    }

    /// Takes over the latest answers of the companions.
    pub(super) fn sample(&mut self, sample: Sample) {
        if let (Some(takeover), Some(leader)) = (&mut self.takeover, sample.leader) {
            takeover.leads(leader, sample.asked);
        }
        self.update(sample.pool);
    }

    /// Takes over the pool's latest state.
    pub(super) fn update(&mut self, pool: Option<Pool>) {
        if let Some(pool) = pool.as_ref().filter(|_| self.is_counting()) {
            for (tenant, backlog) in self.tenants.iter().zip(&mut self.backlogs) {
                backlog.sample(pool.flow(tenant.name).0 > 0);
            }
        }
        self.pool = pool;
    }

    /// Real and ideal share of each tenant; `None`: no tokens were served.
    pub(super) fn shares(&self) -> Option<Shares> {
        self.shares_of(&self.served())
    }

    /// The shares before and after the leader was killed; `None`: it wasn't killed.
    pub(super) fn shares_around_kill(&self) -> Option<[Option<Shares>; 2]> {
        let before = self.at_kill.as_ref()?;
        let after: Vec<_> = self
            .served()
            .iter()
            .zip(before)
            .map(|((service, backlog), (earlier_service, earlier))| {
                (service - earlier_service, backlog.since(*earlier))
            })
            .collect();
        Some([self.shares_of(before), self.shares_of(&after)])
    }

    /// Records that the leader was killed, at the end of the time that counts as before.
    pub(super) fn leader_killed(&mut self, kill: Kill) {
        self.at_kill = Some(self.served());
        if let Some(takeover) = &mut self.takeover {
            takeover.killed(kill);
        }
    }

    /// The log of the takeover, which only `--kill-leader` has.
    pub(super) fn log(&self) -> &[String] {
        self.takeover.as_ref().map_or(&[], Takeover::log)
    }

    /// Requests without a complete response that no limit of the queue refused.
    pub(super) fn lost(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.lost).sum()
    }

    /// The service and the backlog of each tenant.
    fn served(&self) -> Vec<(f64, Backlog)> {
        let all = self.tallies.iter().zip(&self.backlogs);
        all.map(|(tally, backlog)| (tally.service, *backlog)).collect()
    }

    fn shares_of(&self, served: &[(f64, Backlog)]) -> Option<Shares> {
        let all = self.tenants.iter().zip(served);
        let services: Vec<TenantService> = all
            .map(|(tenant, (service, backlog))| TenantService {
                service: *service,
                weight: tenant.weight,
                backlogged: backlog.is_persistent(),
            })
            .collect();
        share::shares(&services)
    }

    /// Names of the tenants that always had a waiting request.
    pub(super) fn backlogged(&self) -> Vec<&'static str> {
        let all = self.tenants.iter().zip(&self.backlogs);
        all.filter(|(_, backlog)| backlog.is_persistent()).map(|(tenant, _)| tenant.name).collect()
    }

    pub(super) const TENANT_HEADER: [&str; 11] = [
        "tenant", "weight", "waiting", "running", "served", "refused", "failed", "TTFT p50", "p99", "share",
        "ideal",
    ];

    pub(super) fn tenant_rows(&self) -> Vec<Vec<String>> {
        let shares = self.shares();
        let row = |(index, (tenant, tally)): (usize, (&Tenant, &Tally))| {
            let flow = self.pool.as_ref().map(|pool| pool.flow(tenant.name));
            let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
            let mut cells = vec![
                tenant.name.to_owned(),
                tenant.weight.to_string(),
                number(flow.map(|(waiting, _)| waiting)),
                number(flow.map(|(_, running)| running)),
            ];
            cells.extend(result_cells(tally, shares.as_ref().map(|shares| shares[index])));
            cells
        };
        self.tenants.iter().zip(&self.tallies).enumerate().map(row).collect()
    }

    pub(super) const SERVER_HEADER: [&str; 4] = ["server", "stock", "bound", "ready"];

    pub(super) fn server_rows(&self) -> Vec<Vec<String>> {
        let endpoints = self.pool.iter().flat_map(|pool| &pool.endpoints);
        let row = |endpoint: &super::companion::Endpoint| {
            let ready = if endpoint.ready { "yes" } else { "no" };
            vec![
                endpoint.address.clone(),
                endpoint.stock.to_string(),
                endpoint.bound.to_string(),
                ready.to_owned(),
            ]
        };
        endpoints.map(row).collect()
    }

    /// One line about the pool.
    pub(super) fn headline(&self) -> String {
        let seconds = self.elapsed.as_secs();
        let phase = if self.stopping { "stopping, waiting for outstanding requests" } else { "running" };
        let lost = match &self.takeover {
            Some(_) => format!(", {} lost", self.lost()),
            None => String::new(),
        };
        match (&self.pool, &self.takeover) {
            (None, None) => format!("{seconds} s, {phase}; the companion doesn't answer"),
            (None, Some(_)) => format!("{seconds} s, {phase}{lost}; no companion leads"),
            (Some(pool), _) => format!(
                "{seconds} s, {phase}{lost}; stock {} of {}..{}, waiting {}, saturation {:.2}",
                pool.stock, pool.lower, pool.upper, pool.waiting, pool.saturation
            ),
        }
    }
}

/// The cells of a tenant's results: served, refused, failed, TTFT p50 and p99, real and ideal share.
pub(super) fn result_cells(tally: &Tally, share: Option<(f64, f64)>) -> [String; 7] {
    [
        tally.served.to_string(),
        tally.refused.to_string(),
        (tally.cut + tally.failed).to_string(),
        duration(tally.ttft(0.5)),
        duration(tally.ttft(0.99)),
        percent(share.map(|(real, _)| real)),
        percent(share.map(|(_, ideal)| ideal)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::client::Ending;
    use crate::demo::companion::Flow;
    use crate::demo::tenants::TENANTS;

    fn served(tokens: u64) -> Ending {
        Ending::Served {
            outcome: "dispatched".to_owned(),
            ttft: Duration::from_millis(5),
            input: tokens,
            output: 0,
        }
    }

    #[test]
    fn shares_use_only_samples_and_tokens_from_the_counting_phase() {
        let mut snapshot = Snapshot::new(&TENANTS);
        let waits = |key: &str| Flow { key: key.to_owned(), waiting: 1, in_flight: 0 };
        let pool = Pool { flows: vec![waits("greedy"), waits("light")], ..Pool::default() };
        snapshot.update(Some(Pool::default()));
        let counts = snapshot.is_counting();
        snapshot.tallies[0].ended(served(1_000_000), counts);
        assert_eq!(snapshot.shares(), None);

        snapshot.elapsed = Duration::from_secs(2);
        for _ in 0..10 {
            snapshot.update(Some(pool.clone()));
        }
        let counts = snapshot.is_counting();
        for (tenant, tokens) in [(0, 30), (1, 60), (2, 10)] {
            snapshot.tallies[tenant].ended(served(tokens), counts);
        }
        assert_eq!(snapshot.backlogged(), ["greedy", "light"]);
        let rows = snapshot.tenant_rows();
        assert_eq!(rows[0][9..], ["30.0 %", "22.5 %"]);
        assert_eq!(rows[1][9..], ["60.0 %", "67.5 %"]);
        assert_eq!(rows[2][9..], ["10.0 %", "10.0 %"]);
        assert_eq!(rows[0][2..5], ["1", "0", "2"]);

        snapshot.stopping = true;
        snapshot.update(None);
        assert!(!snapshot.is_counting());
        assert_eq!(snapshot.backlogged(), ["greedy", "light"]);
        assert!(snapshot.headline().contains("doesn't answer"));
    }
}
