//! One model's variants together: targets, capacity, demand, and the replicas that the load needs.

use crate::bootstrap::bootstrap;
use crate::closed_form::Parameters;
use crate::sizing::{Targets, required_replicas, size};
use crate::slo::{self, Policy, Slo, Source};
use crate::workload::{Observed, together};

/// A variant as it is: servers of one kind.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// Servers that run.
    pub replicas: u64,
    /// Servers that start.
    pub pending: u64,
    /// Requests in one batch; `None`: not limited.
    pub max_batch: Option<f64>,
    /// What is known of it.
    pub parameters: Option<Parameters>,
    /// Observed over predicted time to the first token; 0: not known.
    pub ttft_bias: f64,
    /// Its endpoints in the last window.
    pub windows: Vec<Observed>,
}

/// Why a variant can't be analysed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No endpoint of it was seen.
    #[error("no metrics")]
    NoMetrics,
    /// Nothing was asked of it.
    #[error("no traffic")]
    NoTraffic,
    /// Nothing was learned of it.
    #[error("no parameters")]
    NoParameters,
    /// There are no targets.
    #[error("no targets")]
    NoTargets,
    /// No load meets the targets.
    #[error("infeasible")]
    Infeasible,
}

/// What a variant can do, and has to.
#[derive(Clone, Debug)]
pub struct VariantAnalysis {
    /// Its name.
    pub name: String,
    /// Parameters from its averages alone.
    pub bootstrap: Option<Parameters>,
    /// lambda*, requests per second of one server; 0 with an error.
    pub lambda_star: f64,
    /// n* of one server; `None`: not limited, or not known.
    pub n_star: Option<f64>,
    /// Servers that its part of the load needs; `None`: can't be said.
    pub required: Option<u64>,
    /// lambda* of all of its servers.
    pub capacity: f64,
    /// Its part of the load, requests per second.
    pub demand: f64,
    /// demand / capacity; 0 with an error.
    pub utilization: f64,
    /// Why there are only zeros.
    pub error: Option<Error>,
}

/// A model's variants together.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The targets in force.
    pub slo: Slo,
    /// In the order given.
    pub variants: Vec<VariantAnalysis>,
}

/// Analyses the variants of one model. `total_rate`: the offered load in requests per second, `None`: what was served.
///
/// The load falls to the variants as what they served does, also to those that can't be analysed: those keep the
/// replicas they have, and what they serve isn't asked of others.
#[must_use]
pub fn analyze(policy: &Policy, total_rate: Option<f64>, variants: &[Variant]) -> Analysis {
    let workloads: Vec<Observed> = variants.iter().map(|it| together(&it.windows)).collect();
    let model = together(&workloads);
    let slo = resolve(policy, variants, &workloads, &model);
    let served = model.traffic.rate;
    let total_rate = total_rate.unwrap_or(served);
    let variants = variants
        .iter()
        .zip(&workloads)
        .map(|(variant, workload)| {
            let share = if served > 0.0 {
                workload.traffic.rate / served
            } else {
                0.0
            };
            analyze_one(variant, workload, &slo, total_rate * share)
        })
        .collect();
    Analysis { slo, variants }
}

/// The first that applies. Learned parameters of all variants count, also of idle ones, so that targets don't jump when
/// one pauses: an idle one is taken to serve what the others do. A variant's inferred time to the first token is what
/// its servers really show, bias and all; else no bias would leave room for a single request.
fn resolve(policy: &Policy, variants: &[Variant], workloads: &[Observed], model: &Observed) -> Slo {
    if let Some(targets) = policy.explicit {
        return Slo {
            targets,
            source: Source::Explicit,
        };
    }
    let inferred = variants
        .iter()
        .zip(workloads)
        .filter(|_| model.busy > 0)
        .filter_map(|(variant, workload)| {
            let parameters = variant.parameters.filter(Parameters::is_valid)?;
            let traffic = if workload.busy > 0 { workload } else { model }.traffic;
            let mut targets = slo::inferred(&parameters, &traffic, policy.multiplier);
            targets.ttft_ms = targets.ttft_ms.map(|ttft| ttft * bias(variant));
            Some(targets)
        })
        .reduce(slo::maximum);
    if let Some(targets) = inferred {
        return Slo {
            targets,
            source: Source::Model,
        };
    }
    match slo::observed(model.ttft_ms, model.itl_ms) {
        Some(targets) => Slo {
            targets,
            source: Source::Observed,
        },
        None => Slo {
            targets: Targets::default(),
            source: Source::None,
        },
    }
}

fn analyze_one(variant: &Variant, workload: &Observed, slo: &Slo, demand: f64) -> VariantAnalysis {
    let nothing = |error| VariantAnalysis {
        name: variant.name.clone(),
        bootstrap: bootstrap(workload),
        lambda_star: 0.0,
        n_star: (error == Error::Infeasible).then_some(0.0),
        required: None,
        capacity: 0.0,
        demand: 0.0,
        utilization: 0.0,
        error: Some(error),
    };
    if variant.windows.is_empty() {
        return nothing(Error::NoMetrics);
    }
    if workload.busy == 0 {
        return nothing(Error::NoTraffic);
    }
    let Some(parameters) = variant.parameters.filter(Parameters::is_valid) else {
        return nothing(Error::NoParameters);
    };
    if slo.source == Source::None {
        return nothing(Error::NoTargets);
    }
    let sizing = size(
        &parameters,
        &workload.traffic,
        &slo.targets,
        variant.max_batch,
        bias(variant),
    );
    if !sizing.feasible {
        return nothing(Error::Infeasible);
    }
    let capacity = match variant.replicas {
        0 => 0.0,
        replicas => replicas as f64 * sizing.lambda_star,
    };
    VariantAnalysis {
        name: variant.name.clone(),
        bootstrap: bootstrap(workload),
        lambda_star: sizing.lambda_star,
        n_star: sizing.n_star,
        required: required_replicas(demand, sizing.lambda_star),
        capacity,
        demand,
        utilization: if capacity > 0.0 { demand / capacity } else { 0.0 },
        error: None,
    }
}

/// A variant's bias; one that isn't known is none.
fn bias(variant: &Variant) -> f64 {
    if variant.ttft_bias.is_finite() && variant.ttft_bias > 0.0 {
        variant.ttft_bias
    } else {
        1.0
    }
}
