//! What is measured of one policy in one cell.

use std::time::Duration;

use penstock_engine::Policy;
use penstock_model::slo::Policy as SloPolicy;
use penstock_simulate::closed_loop::{Placement, Planned, Record};
use penstock_simulate::results::{Percentiles, Results};
use penstock_simulate::simulation::Simulation;
use serde_json::{Value, json};

use crate::cell::{Cell, MEASURED, WARMUP};
use crate::servers::{GOAL, TARGETS};
use crate::tenants::{self, Kind};

/// How a policy treats the requests of a cell.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) policy: Policy,
    pub(crate) placement: Placement,
    pub(crate) has_priorities: bool,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) results: Results,
    record: Record,
    /// Requests that were refused before they reached the gateway's queue.
    refused_before: usize,
    /// Jain's index of what the tenants were served while requests arrived.
    jain: f64,
    /// Small tenants' requests, and those of them that were served within the targets.
    small: (usize, usize),
}

impl Measured {
    /// Runs all requests of the cell.
    pub(crate) fn run(cell: &Cell, setup: &Setup) -> Self {
        Self::run_admitted(cell, setup, cell.requests.to_vec())
    }

    /// Runs those requests of the cell that an earlier limit let through.
    pub(crate) fn run_admitted(cell: &Cell, setup: &Setup, admitted: Vec<Planned>) -> Self {
        let counted = |requests: &[Planned]| requests.iter().filter(|request| request.at >= WARMUP).count();
        let refused_before = counted(&cell.requests) - counted(&admitted);
        let simulation = Simulation {
            servers: cell.servers.clone(),
            policy: setup.policy.clone(),
            slo: SloPolicy { explicit: Some(TARGETS), ..SloPolicy::default() },
            transient: Duration::ZERO,
            placement: setup.placement,
            requests: admitted.into(),
            tenants: tenants::listed(setup.has_priorities),
            warmup: WARMUP,
            seed: 1,
        };
        let record = simulation.record(|_| {}).expect("invariant: the hardware is valid");
        let names = &simulation.tenants;
        let is_small = |request: &&Planned| {
            request.at >= WARMUP && tenants::kind(&names[request.tenant as usize].name) == Kind::Small
        };
        let sent = cell.requests.iter().filter(is_small).count();
        let small = record.finished.iter().filter(|finished| tenants::kind(&finished.kind) == Kind::Small);
        let small = (sent, small.filter(|finished| GOAL.is_met(finished)).count());
        let mut in_time = record.clone();
        in_time.finished.retain(|finished| finished.last <= WARMUP + MEASURED);
        Self {
            jain: simulation.results(&in_time, &GOAL).jain,
            results: simulation.results(&record, &GOAL),
            record,
            refused_before,
            small,
        }
    }

    /// Requests within the targets per second.
    pub(crate) const fn goodput(&self) -> f64 {
        self.results.goodput_requests_per_s
    }

    /// The row of the table.
    pub(crate) fn figures(&self, name: &str, setting: &str) -> Value {
        let results = &self.results;
        let sent = results.requests + self.refused_before;
        let good = results.within_targets * results.requests as f64;
        json!({
            "policy": name,
            "setting": setting,
            "good_requests_s": rounded(results.goodput_requests_per_s),
            "good_tokens_s": rounded(results.goodput_tokens_per_s),
            "in_time": rounded(good / sent as f64),
            "small_in_time": rounded(self.small.1 as f64 / self.small.0 as f64),
            "small": times(self.first_tokens(Kind::Small)),
            "urgent": times(self.first_tokens(Kind::Urgent)),
            "urgent_wait_ms": rounded(self.wait_ms(Kind::Urgent)),
            "jain": rounded(self.jain),
            "jain_greedy": rounded(self.jain_of_greedy()),
            "utilisation": rounded(results.utilisation),
            "refused": rounded((results.refused + self.refused_before) as f64 / sent as f64),
            "wasted": rounded(results.wasted),
            "replicas": self.replicas(),
        })
    }

    fn first_tokens(&self, kind: Kind) -> Percentiles {
        let finished = self.record.finished.iter().filter(|finished| tenants::kind(&finished.kind) == kind);
        Percentiles::of(finished.map(|finished| finished.first - finished.arrived).collect())
    }

    /// The median of the replicas that the autopilot asked for while requests arrived; `None`: it had no answer.
    fn replicas(&self) -> Option<u64> {
        let asked = self.record.replicas_desired.iter().filter(|desired| desired.time <= WARMUP + MEASURED);
        let mut replicas: Vec<u64> = asked.map(|desired| desired.replicas).collect();
        replicas.sort_unstable();
        replicas.get(replicas.len() / 2).copied().filter(|replicas| *replicas > 0)
    }

    /// Jain's index of the tokens that the two greedy tenants, of equal weight, were served while requests arrived.
    fn jain_of_greedy(&self) -> f64 {
        let tokens = ["greedy-1", "greedy-2"].map(|name| {
            let served = self
                .record
                .finished
                .iter()
                .filter(|finished| *finished.kind == *name && finished.last <= WARMUP + MEASURED);
            served.map(|finished| finished.input + finished.output).sum::<u64>() as f64
        });
        let [first, second] = tokens;
        (first + second).powi(2) / (2.0 * (first * first + second * second)).max(1.0)
    }

    /// The mean wait in the gateway of this kind's served requests.
    fn wait_ms(&self, kind: Kind) -> f64 {
        let finished =
            || self.record.finished.iter().filter(|finished| tenants::kind(&finished.kind) == kind);
        let sum: Duration = finished().map(|finished| finished.granted - finished.arrived).sum();
        sum.as_secs_f64() * 1e3 / finished().count().max(1) as f64
    }
}

fn times(percentiles: Percentiles) -> Value {
    json!({"p50_ms": percentiles.p50.map(rounded), "p99_ms": percentiles.p99.map(rounded)})
}

/// Four decimals, for a readable file.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
