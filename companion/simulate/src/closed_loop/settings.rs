//! What a closed loop's scenario means for the engine and the autopilot: policy, settings, and true allowances.

use penstock_autopilot::{AutopilotEndpoint, AutopilotSettings};
use penstock_engine::input::EndpointId;
use penstock_engine::policy::Gate;
use penstock_engine::units::Decimal;
use penstock_engine::{Allowance, Policy};
use penstock_model::{Parameters, Traffic, sizing, slo};
use penstock_model_server::Hardware;

use super::scenario::{GateBy, Placement, Scenario};
use super::traffic::{Arrivals, Planned};

/// The part of a target that an allowance uses; the autopilot's margin.
const MARGIN: f64 = 0.9;

/// The allowance of a server, from its true parameters.
pub(super) fn true_allowance(scenario: &Scenario, hardware: &Hardware) -> Allowance {
    let parameters = parameters(hardware);
    let traffic = match &scenario.arrivals {
        Arrivals::Poisson(phases) => phases[0].mix.mean(),
        Arrivals::Closed { mix, .. } => mix.mean(),
        Arrivals::Listed { requests, .. } => mean(requests),
    };
    let policy = &scenario.slo;
    let targets =
        policy.explicit.unwrap_or_else(|| slo::inferred(&parameters, &traffic, policy.multiplier()));
    let requests_max = Some(hardware.seqs_max as f64);
    let size = sizing::size(&parameters, &traffic, &targets, requests_max, 1.0);
    Allowance {
        alpha_ms: parameters.alpha_ms,
        beta_ms: parameters.beta_ms,
        gamma_ms: parameters.gamma_ms,
        iteration_ms_max: targets.itl_ms.map_or(f64::INFINITY, |target| MARGIN * target),
        first_token_ms_max: targets.ttft_ms.map_or(f64::INFINITY, |target| MARGIN * target),
        ttft_bias: 1.0,
        kv_tokens_max: Some((MARGIN * hardware.kv_tokens as f64) as u64),
        requests_max: Some(hardware.seqs_max as u64),
        sequences_max: Some(hardware.seqs_max as u64),
        typical: size.n_star.map_or(1, |n| n.max(1.0) as u64),
        rate: None,
    }
}

pub(super) fn endpoint(server: usize) -> EndpointId {
    EndpointId(u32::try_from(server).expect("invariant: there are few servers"))
}

/// The servers that the request with this number may go to; `None`: all.
pub(super) fn eligible(placement: Placement, request: u64, servers: usize) -> Option<Box<[EndpointId]>> {
    match placement {
        Placement::Engine => None,
        Placement::RoundRobin => {
            let index = request % servers as u64;
            Some([endpoint(index as usize)].into())
        }
    }
}

/// The parameters that a model of this server should find.
#[must_use]
pub const fn parameters(hardware: &Hardware) -> Parameters {
    Parameters { alpha_ms: hardware.alpha_ms, beta_ms: hardware.beta_ms, gamma_ms: hardware.gamma_ms }
}

/// The pool's policy.
pub(super) fn policy(scenario: &Scenario) -> Policy {
    let mut policy = scenario.policy.clone();
    // A simulated server ends with what it was sent, and no sooner.
    policy.eviction = None;
    policy.gate = match scenario.gate {
        GateBy::Watermark(watermark) => {
            let bound = Decimal::from_billionths((watermark * Decimal::ONE as f64) as u128);
            Gate::requests(bound)
        }
        GateBy::Truth | GateBy::Learned => Gate::Auto { initial: Decimal::whole(8) },
        GateBy::Unlimited => Gate::Open,
        GateBy::Policy => return policy,
    };
    policy
}

/// Whether the engine follows the autopilot's allowances.
pub(super) fn is_learned(scenario: &Scenario) -> bool {
    match scenario.gate {
        GateBy::Learned => true,
        GateBy::Policy => matches!(scenario.policy.gate, Gate::Auto { .. }),
        GateBy::Watermark(_) | GateBy::Truth | GateBy::Unlimited => false,
    }
}

/// The mean request of a list; the rate is 0.
fn mean(requests: &[Planned]) -> Traffic {
    let count = requests.len().max(1) as f64;
    let mean =
        |size: fn(&Planned) -> u64| requests.iter().map(|request| size(request) as f64).sum::<f64>() / count;
    Traffic { rate: 0.0, input: mean(|request| request.input), output: mean(|request| request.output) }
}

/// The autopilot's settings.
pub(super) fn autopilot(scenario: &Scenario) -> AutopilotSettings {
    let endpoints = scenario.servers.iter().enumerate().map(|(index, server)| AutopilotEndpoint {
        id: endpoint(index),
        variant: server.variant.to_string(),
        max_batch: scenario.max_batch.unwrap_or(server.hardware.seqs_max as u64),
        bound_initial: policy(scenario).gate.bound_of(server.weight),
    });
    AutopilotSettings {
        endpoints: endpoints.collect(),
        pending: Vec::new(),
        slo: scenario.slo,
        gates: is_learned(scenario),
        extra_places: scenario.policy.extra_for_idle_flows,
        ttl: scenario.policy.queue.ttl,
        window: scenario.window,
        transient: scenario.transient,
        kept: scenario.kept.clone(),
    }
}
