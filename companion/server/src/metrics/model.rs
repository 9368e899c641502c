//! The performance model: parameters, capacity within the targets, and needed servers.
//!
//! An autoscaler that finds no `desired_replicas` changes nothing, which is right while there is no decision; a 0 would scale down.

use penstock_control::Status;
use penstock_model::learner::State;
use penstock_model::slo::Source;

use super::page::{Page, variants};

/// Adds the families.
pub(super) fn render(page: &mut Page, status: &Status) {
    parameters(page, status);
    capacity(page, status);
    replicas(page, status);
    targets(page, status);
    page.gauge(
        "foreign_load",
        "Sequences at an endpoint that didn't come through Penstock, by the endpoint's own metrics.",
        ["pool", "endpoint"],
        |series| {
            for pool in &status.pools {
                for endpoint in pool.snapshot.endpoints.iter().filter(|endpoint| endpoint.listed) {
                    let server = pool.server(endpoint.id);
                    if server.is_some_and(|server| server.scraped.is_some()) {
                        series.add([&pool.name, pool.address(endpoint.id)], endpoint.foreign);
                    }
                }
            }
        },
    );
}

fn parameters(page: &mut Page, status: &Status) {
    page.variant_gauge("model_alpha_ms", "Fixed milliseconds of a server's iteration.", status, |variant| {
        variant.parameters.map(|parameters| parameters.alpha_ms)
    });
    page.variant_gauge(
        "model_beta_ms",
        "Milliseconds per token that an iteration processes.",
        status,
        |variant| variant.parameters.map(|parameters| parameters.beta_ms),
    );
    page.variant_gauge("model_gamma_ms", "Milliseconds per token in the KV cache.", status, |variant| {
        variant.parameters.map(|parameters| parameters.gamma_ms)
    });
    page.variant_gauge(
        "model_nis",
        "Normalised innovation squared of the last window: its distance from the prediction.",
        status,
        |variant| variant.nis,
    );
    page.variant_gauge(
        "model_condition_number",
        "Condition number of the observations; large when the load never varied, so that parameters can't be \
         identified.",
        status,
        |variant| variant.condition,
    );
    page.variant_gauge(
        "model_ttft_bias",
        "Observed over predicted time to first token.",
        status,
        |variant| variant.ttft_bias,
    );
    page.gauge(
        "model_state",
        "1 for the state of a variant's model, 0 for the other states.",
        ["pool", "variant", "state"],
        |series| {
            for (pool, variant) in variants(status) {
                for state in State::ALL {
                    series.add([pool, &variant.name, state.as_str()], state == variant.state);
                }
            }
        },
    );
}

fn capacity(page: &mut Page, status: &Status) {
    page.variant_gauge(
        "capacity_requests_per_second",
        "Requests per second that one server of the variant takes within the targets.",
        status,
        |variant| variant.lambda_star,
    );
    page.variant_gauge(
        "concurrency_limit",
        "Requests in flight at one server of the variant at that rate. Informational: it limits nothing.",
        status,
        |variant| variant.n_star,
    );
    page.variant_gauge(
        "capacity_total",
        "Requests per second that the variant's ready servers take within the targets; 0 if unknown.",
        status,
        |variant| variant.capacity,
    );
    page.variant_gauge(
        "demand_total",
        "Requests per second that more servers could serve and that fall to the variant, including its part of the backlog.",
        status,
        |variant| variant.demand,
    );
    page.variant_gauge("utilization", "Demand over capacity; 0 if unknown.", status, |variant| {
        variant.utilization
    });
}

fn replicas(page: &mut Page, status: &Status) {
    page.gauge(
        "desired_replicas",
        "Servers of the variant that the offered load needs, by source: the learned model; before one is learned, \
         bootstrap parameters or a steady saturation. Absent while there is no decision.",
        ["pool", "variant", "source"],
        |series| {
            for (pool, variant) in variants(status) {
                if let Some(desired) = variant.desired {
                    series.add([pool, &variant.name, desired.source.as_str()], desired.replicas);
                }
            }
        },
    );
    page.variant_gauge("current_replicas", "Ready servers of the variant.", status, |variant| {
        variant.current
    });
    page.variant_gauge(
        "pending_replicas",
        "Servers of the variant that exist and are not ready: listed endpoints, and pods of an InferencePool.",
        status,
        |variant| variant.pending,
    );
}

fn targets(page: &mut Page, status: &Status) {
    let seconds = |target_ms: Option<f64>| target_ms.map(|target_ms| target_ms / 1_000.0);
    page.pool_gauge("slo_ttft_seconds", "Target of the mean time to first token.", status, |pool| {
        pool.model.as_ref().and_then(|model| seconds(model.slo.targets.ttft_ms))
    });
    page.pool_gauge("slo_itl_seconds", "Target of the mean time between two tokens.", status, |pool| {
        pool.model.as_ref().and_then(|model| seconds(model.slo.targets.itl_ms))
    });
    page.gauge(
        "slo_source",
        "1 for the source of the targets, 0 for the other sources.",
        ["pool", "source"],
        |series| {
            for pool in &status.pools {
                let Some(model) = &pool.model else { continue };
                for source in Source::ALL {
                    series.add([&pool.name, source.as_str()], source == model.slo.source);
                }
            }
        },
    );
}
