//! Advice on what is known of the model servers: bounds that don't fit them, a gate without a model, too few of them.

use penstock_control::{AutopilotStatus, VariantStatus};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_model::learner::State;
use penstock_model::slo::Source;

use super::PoolFacts;
use crate::metrics::decimal;

/// A bound is far from n* when one is more than so many times the other.
const FAR: f64 = 2.0;

pub(super) fn advice(of: &PoolFacts<'_>) -> Vec<String> {
    let Some(model) = &of.pool.model else {
        return Vec::new();
    };
    let ready = || model.variants.iter().filter(|it| it.current > 0);
    let mut advice = Vec::new();
    match of.config.policy.gate {
        Gate::Auto { initial } => {
            if model.slo.source == Source::None {
                advice.push(format!(
                    "stock.watermark_per_backend is auto and there is no target to hold to: the gate is {} requests a server (auto_initial). Set slo.target_ttft and slo.target_itl.",
                    decimal(initial)
                ));
            }
            advice.extend(ready().filter_map(|it| unknown(it, decimal(initial))));
        }
        Gate::Bounded {
            unit: StockUnit::Requests,
            watermark,
            ..
        } => advice.extend(ready().filter_map(|it| far(it, decimal(watermark)))),
        Gate::Bounded {
            unit: StockUnit::Tokens,
            ..
        }
        | Gate::Open
        | Gate::Manual => {}
    }
    advice.extend(model.variants.iter().filter_map(infeasible));
    advice.extend(model.variants.iter().filter_map(|it| too_few(it, model)));
    advice
}

/// The gate goes by a model that isn't known.
fn unknown(of: &VariantStatus, initial: f64) -> Option<String> {
    let why = match of.state {
        State::Learning => "is still being learnt",
        State::Unidentifiable => "can't be told from one operating point; it needs load that varies",
        State::Error => "contradicts what is seen, and was given up",
        State::NoTraffic if of.parameters.is_none() => "isn't known, it has served nothing",
        State::NoTraffic | State::Converged | State::Infeasible => return None,
    };
    Some(format!(
        "the gate is auto, and the model of variant {} {why}: until then its servers are held to the last good parameters, or to {initial} requests each (auto_initial).",
        of.name
    ))
}

/// A bound that somebody gave, far from what the servers take within their targets.
fn far(of: &VariantStatus, watermark: f64) -> Option<String> {
    let n_star = of
        .n_star
        .filter(|it| of.state == State::Converged && *it >= 1.0)?;
    let (how, what) = if watermark * FAR < n_star {
        ("below", "servers idle while requests wait")
    } else if watermark > n_star * FAR {
        (
            "above",
            "requests miss their targets and wait in the servers' own queues",
        )
    } else {
        return None;
    };
    Some(format!(
        "stock.watermark_per_backend ({watermark}) is far {how} n* {n_star:.1}, what a server of variant {} takes within its limits: {what}. Set it near n*, or to auto.",
        of.name
    ))
}

/// No load meets the targets.
fn infeasible(of: &VariantStatus) -> Option<String> {
    (of.state == State::Infeasible).then(|| {
        format!(
            "no load on a server of variant {} meets the targets, not even one request at a time. Raise slo.target_ttft or slo.target_itl.",
            of.name
        )
    })
}

/// What is offered needs more servers than there are.
fn too_few(of: &VariantStatus, model: &AutopilotStatus) -> Option<String> {
    let there = of.current + of.pending;
    let desired = of.desired.filter(|desired| *desired > there)?;
    let pending = match of.pending {
        0 => String::new(),
        pending => format!(" and {pending} not ready"),
    };
    Some(format!(
        "{:.1} requests per second are offered and the pool takes {:.1}: variant {} needs {desired} servers and has {}{pending}. Add {}.",
        model.demand,
        model.capacity,
        of.name,
        of.current,
        desired - there
    ))
}
