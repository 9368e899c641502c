//! What is known of the model servers: their parameters, what they can do within their targets, and how many are needed.
//!
//! What isn't known has no series. An autoscaler that finds no `desired_replicas` leaves things as they are, which is
//! what "no decision" means; a 0 there would be an order.

use penstock_control::{PoolStatus, Status, VariantStatus};
use penstock_model::learner::State;
use penstock_model::slo::Source;
use prometheus::{GaugeVec, IntGaugeVec};

use super::{Maker, int};

const VARIANT: [&str; 2] = ["pool", "variant"];

/// Made at every scrape.
#[derive(Debug)]
pub(super) struct Gauges {
    alpha_ms: GaugeVec,
    beta_ms: GaugeVec,
    gamma_ms: GaugeVec,
    nis: GaugeVec,
    condition_number: GaugeVec,
    ttft_bias: GaugeVec,
    state: IntGaugeVec,
    slo_ttft_seconds: GaugeVec,
    slo_itl_seconds: GaugeVec,
    slo_source: IntGaugeVec,
    capacity_requests_per_second: GaugeVec,
    concurrency_limit: GaugeVec,
    capacity_total: GaugeVec,
    demand_total: GaugeVec,
    utilization: GaugeVec,
    desired_replicas: IntGaugeVec,
    current_replicas: IntGaugeVec,
    pending_replicas: IntGaugeVec,
    foreign_load: IntGaugeVec,
}

impl Gauges {
    /// All families, without a series.
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        let float = |name, help| make.float(name, help, &VARIANT);
        let whole = |name, help| make.gauge(name, help, &VARIANT);
        Ok(Self {
            alpha_ms: float(
                "model_alpha_ms",
                "Milliseconds that every iteration of a server takes.",
            )?,
            beta_ms: float(
                "model_beta_ms",
                "Milliseconds per token that an iteration processes.",
            )?,
            gamma_ms: float("model_gamma_ms", "Milliseconds per token in the KV cache.")?,
            nis: float(
                "model_nis",
                "Normalised innovation squared of the last window: how far it was from what was predicted.",
            )?,
            condition_number: float(
                "model_condition_number",
                "Condition number of what was observed: large means one operating point, which tells parameters not apart.",
            )?,
            ttft_bias: float(
                "model_ttft_bias",
                "Observed over predicted time to the first token.",
            )?,
            state: make.gauge(
                "model_state",
                "1 for the state that a variant's model is in, 0 for the others.",
                &["pool", "variant", "state"],
            )?,
            slo_ttft_seconds: make.float(
                "slo_ttft_seconds",
                "Target of the mean time to the first token.",
                &["pool"],
            )?,
            slo_itl_seconds: make.float(
                "slo_itl_seconds",
                "Target of the mean time between two tokens.",
                &["pool"],
            )?,
            slo_source: make.gauge(
                "slo_source",
                "1 for where the targets come from, 0 for the others.",
                &["pool", "source"],
            )?,
            capacity_requests_per_second: float(
                "capacity_requests_per_second",
                "Requests per second that one server of the variant takes within the targets.",
            )?,
            concurrency_limit: float(
                "concurrency_limit",
                "Requests in flight at one server of the variant at that rate. It is shown, it doesn't gate.",
            )?,
            capacity_total: float(
                "capacity_total",
                "Requests per second that the ready servers of the variant take within the targets; 0 if that isn't known.",
            )?,
            demand_total: float(
                "demand_total",
                "Requests per second that are offered and fall to the variant, the backlog's part included.",
            )?,
            utilization: float("utilization", "Demand over capacity; 0 if that isn't known.")?,
            desired_replicas: whole(
                "desired_replicas",
                "Servers of the variant that the offered load needs; not there while there is no decision.",
            )?,
            current_replicas: whole("current_replicas", "Servers of the variant that are ready.")?,
            pending_replicas: whole(
                "pending_replicas",
                "Servers of the variant that are listed and not ready.",
            )?,
            foreign_load: make.gauge(
                "foreign_load",
                "Requests that run at an endpoint and aren't ours, as its own metrics say.",
                &["pool", "endpoint"],
            )?,
        })
    }

    pub(super) fn set(&self, status: &Status) {
        for pool in &status.pools {
            self.foreign(pool);
            let name = pool.name.as_ref();
            let Some(model) = &pool.model else {
                continue;
            };
            let targets = model.slo.targets;
            for (gauge, target_ms) in [
                (&self.slo_ttft_seconds, targets.ttft_ms),
                (&self.slo_itl_seconds, targets.itl_ms),
            ] {
                if let Some(target_ms) = target_ms {
                    gauge.with_label_values(&[name]).set(target_ms / 1_000.0);
                }
            }
            for source in Source::ALL {
                self.slo_source
                    .with_label_values(&[name, source.as_str()])
                    .set(i64::from(source == model.slo.source));
            }
            for variant in &model.variants {
                self.variant(name, variant);
            }
        }
    }

    fn variant(&self, pool: &str, now: &VariantStatus) {
        let of = [pool, now.name.as_str()];
        let parameters = now.parameters;
        for (gauge, value) in [
            (&self.alpha_ms, parameters.map(|it| it.alpha_ms)),
            (&self.beta_ms, parameters.map(|it| it.beta_ms)),
            (&self.gamma_ms, parameters.map(|it| it.gamma_ms)),
            (&self.nis, now.nis),
            (&self.condition_number, now.condition),
            (&self.ttft_bias, Some(now.ttft_bias)),
            (&self.capacity_requests_per_second, now.lambda_star),
            (&self.concurrency_limit, now.n_star),
            (&self.capacity_total, Some(now.capacity)),
            (&self.demand_total, Some(now.demand)),
            (&self.utilization, Some(now.utilization)),
        ] {
            if let Some(value) = value {
                gauge.with_label_values(&of).set(value);
            }
        }
        for (gauge, value) in [
            (&self.desired_replicas, now.desired),
            (&self.current_replicas, Some(now.current)),
            (&self.pending_replicas, Some(now.pending)),
        ] {
            if let Some(value) = value {
                gauge.with_label_values(&of).set(int(value));
            }
        }
        for state in State::ALL {
            self.state
                .with_label_values(&[of[0], of[1], state.as_str()])
                .set(i64::from(state == now.state));
        }
    }

    fn foreign(&self, pool: &PoolStatus) {
        for endpoint in pool.snapshot.endpoints.iter().filter(|it| it.listed) {
            if pool.server(endpoint.id).is_some_and(|it| it.scraped.is_some()) {
                self.foreign_load
                    .with_label_values(&[pool.name.as_ref(), pool.address(endpoint.id)])
                    .set(int(endpoint.foreign));
            }
        }
    }
}
