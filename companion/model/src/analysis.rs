//! Analyses the variants of one model together: targets, capacity, demand, and the replicas that the load needs.

use crate::bootstrap::bootstrap;
use crate::closed_form::Parameters;
use crate::sizing::{Targets, required_replicas, size};
use crate::slo::{self, Policy, Slo, Source};
use crate::workload::{Observed, aggregate};

/// A variant: servers of the same hardware and settings.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Name of the variant.
    pub name: String,
    /// Running servers.
    pub replicas: u64,
    /// Starting servers.
    pub pending: u64,
    /// Requests in one batch; `None`: unlimited.
    pub max_batch: Option<f64>,
    /// Learned parameters, if any.
    pub parameters: Option<Parameters>,
    /// Without learned parameters the variant is sized by its bootstrap parameters. Targets never follow from these.
    pub sizes_by_bootstrap: bool,
    /// Observed over predicted time to the first token; 0 if not known.
    pub ttft_bias: f64,
    /// The variant's endpoints in the last window.
    pub windows: Vec<Observed>,
}

/// Why a variant can't be analysed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No endpoint was measured.
    #[error("no metrics")]
    NoMetrics,
    /// No endpoint had traffic.
    #[error("no traffic")]
    NoTraffic,
    /// No parameters were learned.
    #[error("no parameters")]
    NoParameters,
    /// There are no targets.
    #[error("no targets")]
    NoTargets,
    /// No load meets the targets.
    #[error("infeasible")]
    Infeasible,
}

/// Capacity and demand of a variant.
#[derive(Clone, Debug)]
pub struct VariantAnalysis {
    /// Name of the variant.
    pub name: String,
    /// Parameters from the variant's averages alone.
    pub bootstrap: Option<Parameters>,
    /// The variant was sized by `bootstrap`, because no parameters are learned. An error is then that of parameters from one
    /// window.
    pub is_bootstrapped: bool,
    /// lambda*, requests per second of one server; 0 with an error.
    pub lambda_star: f64,
    /// n* of one server; `None` if unlimited or not known.
    pub n_star: Option<f64>,
    /// Servers that its part of the load needs; `None` if not known.
    pub required: Option<u64>,
    /// lambda* of all of its servers.
    pub capacity: f64,
    /// The variant's part of the load, requests per second.
    pub demand: f64,
    /// demand / capacity; 0 with an error.
    pub utilization: f64,
    /// Why all values are 0.
    pub error: Option<Error>,
}

/// Analysis of a model's variants.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The targets in force.
    pub slo: Slo,
    /// Variants in the given order.
    pub variants: Vec<VariantAnalysis>,
}

/// Analyses the variants of one model. `total_rate` is the offered load in requests per second; `None` means the
/// served load.
///
/// The load is divided among the variants in proportion to what each of them served. A variant that can't be analysed
/// keeps its part: it keeps the replicas it has, and the other variants aren't sized for its load.
#[must_use]
pub fn analyze(policy: &Policy, total_rate: Option<f64>, variants: &[Variant]) -> Analysis {
    let workloads: Vec<Observed> = variants.iter().map(|variant| aggregate(&variant.windows)).collect();
    let model = aggregate(&workloads);
    let slo = resolve_targets(policy, variants, &workloads, &model);
    let served = model.traffic.rate;
    let total_rate = total_rate.unwrap_or(served);
    let variants = variants
        .iter()
        .zip(&workloads)
        .map(|(variant, workload)| {
            let share = if served > 0.0 { workload.traffic.rate / served } else { 0.0 };
            analyze_one(variant, workload, &slo, total_rate * share)
        })
        .collect();
    Analysis { slo, variants }
}

/// The targets from the first source that applies.
///
/// Learned parameters of all variants count, including idle ones, so that targets don't jump when a variant pauses.
/// An idle variant is assumed to serve the model's average request. The inferred TTFT target of a variant is
/// multiplied by its bias, the TTFT its servers really show; otherwise a large bias would leave no room for a single
/// request.
fn resolve_targets(policy: &Policy, variants: &[Variant], workloads: &[Observed], model: &Observed) -> Slo {
    if let Some(targets) = policy.explicit {
        return Slo { targets, source: Source::Explicit };
    }
    let inferred = variants
        .iter()
        .zip(workloads)
        .filter(|_| model.busy > 0)
        .filter_map(|(variant, workload)| {
            let parameters = variant.parameters.filter(Parameters::is_valid)?;
            let traffic = if workload.busy > 0 { workload } else { model }.traffic;
            let mut targets = slo::inferred(&parameters, &traffic, policy.multiplier());
            targets.ttft_ms = targets.ttft_ms.map(|ttft| ttft * bias(variant));
            Some(targets)
        })
        .reduce(slo::maximum);
    if let Some(targets) = inferred {
        return Slo { targets, source: Source::Model };
    }
    match slo::observed(model.ttft_ms, model.itl_ms) {
        Some(targets) => Slo { targets, source: Source::Observed },
        None => Slo { targets: Targets::default(), source: Source::None },
    }
}

fn analyze_one(variant: &Variant, workload: &Observed, slo: &Slo, demand: f64) -> VariantAnalysis {
    let initial = bootstrap(workload);
    let failed = |error| VariantAnalysis {
        name: variant.name.clone(),
        bootstrap: initial,
        is_bootstrapped: false,
        lambda_star: 0.0,
        n_star: (error == Error::Infeasible).then_some(0.0),
        required: None,
        capacity: 0.0,
        demand: 0.0,
        utilization: 0.0,
        error: Some(error),
    };
    if variant.windows.is_empty() {
        return failed(Error::NoMetrics);
    }
    if workload.busy == 0 {
        return failed(Error::NoTraffic);
    }
    let learned = variant.parameters.filter(Parameters::is_valid);
    let fallback = initial.filter(|_| variant.sizes_by_bootstrap);
    let Some(parameters) = learned.or(fallback) else {
        return failed(Error::NoParameters);
    };
    let is_bootstrapped = learned.is_none();
    let failed = |error| VariantAnalysis { is_bootstrapped, ..failed(error) };
    if slo.source == Source::None {
        return failed(Error::NoTargets);
    }
    let sizing = size(&parameters, &workload.traffic, &slo.targets, variant.max_batch, bias(variant));
    if !sizing.feasible {
        return failed(Error::Infeasible);
    }
    let capacity = match variant.replicas {
        0 => 0.0,
        replicas => replicas as f64 * sizing.lambda_star,
    };
    VariantAnalysis {
        name: variant.name.clone(),
        bootstrap: initial,
        is_bootstrapped,
        lambda_star: sizing.lambda_star,
        n_star: sizing.n_star,
        required: required_replicas(demand, sizing.lambda_star),
        capacity,
        demand,
        utilization: if capacity > 0.0 { demand / capacity } else { 0.0 },
        error: None,
    }
}

/// The variant's bias; 1 if not known.
fn bias(variant: &Variant) -> f64 {
    if variant.ttft_bias.is_finite() && variant.ttft_bias > 0.0 { variant.ttft_bias } else { 1.0 }
}
