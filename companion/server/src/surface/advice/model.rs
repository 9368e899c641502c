//! Advice on the model of a pool's servers: bounds that don't fit it, targets that no load meets, too few servers.

use penstock_control::{AutopilotStatus, DesiredSource, VariantStatus};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_model::learner::State;

use super::PoolFacts;

/// A bound is far from n* when one is more than this many times the other.
const FAR: f64 = 2.0;

pub(super) fn advice(facts: &PoolFacts<'_>) -> Vec<String> {
    let Some(model) = &facts.pool.model else {
        return Vec::new();
    };
    let ready = || model.variants.iter().filter(|variant| variant.current > 0);
    let mut advice = Vec::new();
    match facts.config.policy.gate {
        Gate::Bounded { unit: StockUnit::Requests | StockUnit::Sequences, watermark, .. } => {
            advice.extend(ready().filter_map(|variant| far_from_model(variant, watermark.to_f64())))
        }
        Gate::Auto { .. } | Gate::Bounded { unit: StockUnit::Tokens, .. } | Gate::Open | Gate::Manual => {}
    }
    if facts.config.slo.explicit.is_some() {
        advice.extend(model.variants.iter().filter_map(infeasible));
    }
    advice.extend(model.variants.iter().filter_map(|variant| too_few(variant, model)));
    advice
}

/// Advice on a configured bound that is far from the servers' capacity within the targets.
fn far_from_model(variant: &VariantStatus, watermark: f64) -> Option<String> {
    let n_star = variant.n_star.filter(|n_star| variant.state == State::Converged && *n_star >= 1.0)?;
    let (side, effect) = if watermark * FAR < n_star {
        ("below", "servers idle while requests wait")
    } else if watermark > n_star * FAR {
        ("above", "requests miss their targets and wait in the servers' queues")
    } else {
        return None;
    };
    Some(format!(
        "stock.watermark_per_backend ({watermark}) is far {side} n* {n_star:.1}, the requests that a server of variant {} takes within its targets: {effect}. Set it near n*, or to auto.",
        variant.name
    ))
}

/// Advice on targets that no load meets.
fn infeasible(variant: &VariantStatus) -> Option<String> {
    (variant.state == State::Infeasible).then(|| {
        format!(
            "no load on a server of variant {} meets the targets, not even one request at a time. Raise the targets of slo or stock.targets.",
            variant.name
        )
    })
}

/// Advice on a variant with fewer servers than its load needs, by a model that has converged: the numbers before that are those
/// of one load, and follow it.
fn too_few(variant: &VariantStatus, model: &AutopilotStatus) -> Option<String> {
    let existing = variant.current + variant.pending;
    let desired = variant.desired.filter(|desired| desired.source == DesiredSource::Model)?;
    let is_known = variant.state == State::Converged && model.capacity > 0.0;
    let desired = desired.replicas;
    if !is_known || desired <= existing {
        return None;
    }
    let pending = match variant.pending {
        0 => String::new(),
        pending => format!(" and {pending} not ready"),
    };
    Some(format!(
        "demand is {:.1} requests per second and the pool's capacity {:.1}: variant {} needs {desired} servers and has {}{pending}. Add {}.",
        model.demand,
        model.capacity,
        variant.name,
        variant.current,
        desired - existing
    ))
}
