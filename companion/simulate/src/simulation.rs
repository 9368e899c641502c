//! One run: a policy and servers against a list of requests.

use std::sync::Arc;
use std::time::Duration;

use penstock_engine::Policy;
use penstock_model::sizing;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model_server::HardwareError;

use crate::closed_loop::{
    Arrivals, GateBy, Mix, Placement, Planned, Record, Scenario, ServerSpec, Tenant, parameters, run_watched,
};
use crate::goal::Goal;
use crate::limits::{DRAIN_MAX, PARTS};
use crate::results::Results;

/// The shortest part of a run over whose time the load is recorded.
const PART_MIN: Duration = Duration::from_millis(100);

/// One run.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// At least one.
    pub servers: Vec<ServerSpec>,
    /// The policy of the pool.
    pub policy: Policy,
    /// The pool's targets, for a gate that follows them.
    pub slo: SloPolicy,
    /// For so long after the start, the autopilot regards servers as not representative.
    pub transient: Duration,
    /// What chooses a request's server.
    pub placement: Placement,
    /// In order of their arrivals; at least one.
    pub requests: Arc<[Planned]>,
    /// The tenants of the requests.
    pub tenants: Arc<[Tenant]>,
    /// The results leave out requests that arrive before this time.
    pub warmup: Duration,
    /// Equal seeds give equal results.
    pub seed: u64,
}

impl Simulation {
    /// The time of the last arrival.
    #[must_use]
    pub fn arrivals(&self) -> Duration {
        self.requests.last().map_or(Duration::ZERO, |last| last.at)
    }

    /// Runs to the end. Calls `watch` with the simulated time after each step.
    ///
    /// # Errors
    /// The hardware of a server is invalid.
    pub fn run(&self, goal: &Goal, watch: impl FnMut(Duration)) -> Result<Results, HardwareError> {
        Ok(self.results(&self.record(watch)?, goal))
    }

    /// Runs to the end and returns what happened to each request that arrived after the warm-up.
    ///
    /// # Errors
    /// The hardware of a server is invalid.
    pub fn record(&self, watch: impl FnMut(Duration)) -> Result<Record, HardwareError> {
        let arrivals = Arrivals::Listed { requests: self.requests.clone(), tenants: self.tenants.clone() };
        let mut scenario = Scenario::new(self.servers.clone(), GateBy::Policy, arrivals);
        let longest_wait = self.policy.queue.longest_wait();
        scenario.policy = self.policy.clone();
        scenario.placement = self.placement;
        scenario.slo = self.slo;
        scenario.transient = self.transient;
        scenario.is_sampled = false;
        scenario.load_part = (self.arrivals() / PARTS as u32).max(PART_MIN);
        scenario.duration = Some(self.arrivals().saturating_add(longest_wait).saturating_add(DRAIN_MAX));
        scenario.seed = self.seed;
        let mut record = run_watched(&scenario, watch)?;
        record.finished.retain(|finished| finished.arrived >= self.warmup);
        record.refused.retain(|refused| refused.arrived >= self.warmup);
        record.replicas_desired.retain(|desired| desired.time >= self.warmup);
        Ok(record)
    }

    /// The results of a record of this simulation.
    #[must_use]
    pub fn results(&self, record: &Record, goal: &Goal) -> Results {
        let first = self.requests.partition_point(|request| request.at < self.warmup);
        let weight = |tenant: &Tenant| self.policy.flows.weight_of(&tenant.flow);
        Results::new(&self.requests[first..], &self.tenants, self.warmup, record, goal, weight)
    }
}

/// Requests of this mix per second that the servers serve within the goal, by the closed form.
#[must_use]
pub fn capacity(servers: &[ServerSpec], mix: &Mix, goal: &Goal) -> f64 {
    let traffic = mix.mean();
    let targets = goal.targets(traffic.input, traffic.output);
    let rates = servers.iter().map(|server| {
        let requests_max = Some(server.hardware.seqs_max as f64);
        sizing::size(&parameters(&server.hardware), &traffic, &targets, requests_max, 1.0).lambda_star
    });
    rates.sum()
}

#[cfg(test)]
mod tests;
