//! What is known of the demo at this moment, and how its tables read.

use std::time::Duration;

use super::look::Pool;
use super::share::{self, Backlog, Claim};
use super::tally::Tally;
use super::tenants::Tenant;
use super::text::{duration, percent};

/// Until the queue has filled, nobody has a backlog and shares mean nothing.
const WARM_UP: Duration = Duration::from_secs(1);

/// Everything that the screen and the summary are made of.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) tenants: Vec<Tenant>,
    pub(super) tallies: Vec<Tally>,
    backlogs: Vec<Backlog>,
    /// The latest look at the companion; `None`: it didn't answer.
    pub(super) pool: Option<Pool>,
    /// Since the first request.
    pub(super) elapsed: Duration,
    /// Nothing is sent any more.
    pub(super) stopping: bool,
}

impl Scene {
    pub(super) fn new(tenants: &[Tenant]) -> Self {
        Self {
            tenants: tenants.to_vec(),
            tallies: vec![Tally::default(); tenants.len()],
            backlogs: vec![Backlog::default(); tenants.len()],
            pool: None,
            elapsed: Duration::ZERO,
            stopping: false,
        }
    }

    /// Shares are counted now: after the warm-up, while all tenants send.
    pub(super) fn counting(&self) -> bool {
        self.elapsed >= WARM_UP && !self.stopping
    }

    /// A look at the companion.
    pub(super) fn saw(&mut self, pool: Option<Pool>) {
        if let Some(pool) = pool.as_ref().filter(|_| self.counting()) {
            for (tenant, backlog) in self.tenants.iter().zip(&mut self.backlogs) {
                backlog.look(pool.flow(tenant.name).0 > 0);
            }
        }
        self.pool = pool;
    }

    /// Real and ideal share of each tenant; `None`: nothing was served.
    pub(super) fn shares(&self) -> Option<Vec<(f64, f64)>> {
        let all = self.tenants.iter().zip(&self.tallies).zip(&self.backlogs);
        let claims: Vec<Claim> = all
            .map(|((tenant, tally), backlog)| Claim {
                service: tally.service,
                weight: tenant.weight,
                backlogged: backlog.kept(),
            })
            .collect();
        share::shares(&claims)
    }

    /// Tenants that always had something waiting, in words.
    pub(super) fn backlogged(&self) -> Vec<&'static str> {
        let all = self.tenants.iter().zip(&self.backlogs);
        all.filter(|(_, backlog)| backlog.kept())
            .map(|(tenant, _)| tenant.name)
            .collect()
    }

    pub(super) const TENANT_HEADER: [&str; 11] = [
        "tenant", "weight", "waiting", "running", "served", "refused", "failed", "TTFT p50", "p99", "share",
        "ideal",
    ];

    /// A row for each tenant.
    pub(super) fn tenant_rows(&self) -> Vec<Vec<String>> {
        let shares = self.shares();
        let row = |(place, (tenant, tally)): (usize, (&Tenant, &Tally))| {
            let share = shares.as_ref().and_then(|shares| shares.get(place)).copied();
            let flow = self.pool.as_ref().map(|pool| pool.flow(tenant.name));
            let number = |of: Option<u64>| of.map_or_else(|| "-".to_owned(), |n| n.to_string());
            vec![
                tenant.name.to_owned(),
                tenant.weight.to_string(),
                number(flow.map(|(waiting, _)| waiting)),
                number(flow.map(|(_, running)| running)),
                tally.served.to_string(),
                tally.refused.to_string(),
                (tally.cut + tally.failed).to_string(),
                duration(tally.ttft(0.5)),
                duration(tally.ttft(0.99)),
                percent(share.map(|(real, _)| real)),
                percent(share.map(|(_, ideal)| ideal)),
            ]
        };
        self.tenants
            .iter()
            .zip(&self.tallies)
            .enumerate()
            .map(row)
            .collect()
    }

    pub(super) const SERVER_HEADER: [&str; 4] = ["server", "stock", "bound", "ready"];

    /// A row for each server.
    pub(super) fn server_rows(&self) -> Vec<Vec<String>> {
        let endpoints = self.pool.iter().flat_map(|pool| &pool.endpoints);
        let row = |endpoint: &super::look::Endpoint| {
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

    /// One line on the pool as a whole.
    pub(super) fn headline(&self) -> String {
        let seconds = self.elapsed.as_secs();
        let what = if self.stopping {
            "ending, waiting for what is out"
        } else {
            "running"
        };
        match &self.pool {
            None => format!("{seconds} s, {what}; the companion doesn't answer"),
            Some(pool) => format!(
                "{seconds} s, {what}; stock {} of {}..{}, waiting {}, saturation {:.2}",
                pool.stock, pool.lower, pool.upper, pool.waiting, pool.saturation
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::client::Ending;
    use crate::demo::look::Flow;
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
    fn only_looks_and_tokens_while_counting_make_shares() {
        let mut scene = Scene::new(&TENANTS);
        let waits = |key: &str| Flow {
            key: key.to_owned(),
            waiting: 1,
            in_flight: 0,
        };
        let pool = Pool {
            flows: vec![waits("greedy"), waits("light")],
            ..Pool::default()
        };
        scene.saw(Some(Pool::default()));
        let counts = scene.counting();
        scene.tallies[0].ended(served(1_000_000), counts);
        assert_eq!(scene.shares(), None);

        scene.elapsed = Duration::from_secs(2);
        for _ in 0..10 {
            scene.saw(Some(pool.clone()));
        }
        let counts = scene.counting();
        for (place, tokens) in [(0, 30), (1, 60), (2, 10)] {
            scene.tallies[place].ended(served(tokens), counts);
        }
        assert_eq!(scene.backlogged(), ["greedy", "light"]);
        let rows = scene.tenant_rows();
        assert_eq!(rows[0][9..], ["30.0 %", "22.5 %"]);
        assert_eq!(rows[1][9..], ["60.0 %", "67.5 %"]);
        assert_eq!(rows[2][9..], ["10.0 %", "10.0 %"]);
        assert_eq!(rows[0][2..5], ["1", "0", "2"]);

        scene.stopping = true;
        scene.saw(None);
        assert!(!scene.counting());
        assert_eq!(scene.backlogged(), ["greedy", "light"]);
        assert!(scene.headline().contains("doesn't answer"));
    }
}
