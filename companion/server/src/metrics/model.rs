//! Gauges of the performance model: parameters, capacity within the targets, and needed servers.
//!
//! Unknown values have no series. An autoscaler that finds no `desired_replicas` changes nothing, which is right while
//! there is no decision; a 0 would scale down.

use penstock_control::{PoolStatus, Status, VariantStatus};
use penstock_model::learner::State;
use penstock_model::slo::Source;
use prometheus::{GaugeVec, IntGaugeVec};

use super::{Maker, int};

const VARIANT: [&str; 2] = ["pool", "variant"];

/// All gauges of the model, made for one scrape.
#[derive(Debug)]
pub(super) struct Gauges {
    parameters: ParameterGauges,
    capacity: CapacityGauges,
    slo_ttft_seconds: GaugeVec,
    slo_itl_seconds: GaugeVec,
    slo_source: IntGaugeVec,
    foreign_load: IntGaugeVec,
}

/// What the learner knows of a variant.
#[derive(Debug)]
struct ParameterGauges {
    alpha_ms: GaugeVec,
    beta_ms: GaugeVec,
    gamma_ms: GaugeVec,
    nis: GaugeVec,
    condition_number: GaugeVec,
    ttft_bias: GaugeVec,
    state: IntGaugeVec,
}

/// What a variant's servers can do, and how many are needed.
#[derive(Debug)]
struct CapacityGauges {
    capacity_requests_per_second: GaugeVec,
    concurrency_limit: GaugeVec,
    capacity_total: GaugeVec,
    demand_total: GaugeVec,
    utilization: GaugeVec,
    /// By source, too.
    desired_replicas: IntGaugeVec,
    current_replicas: IntGaugeVec,
    pending_replicas: IntGaugeVec,
}

impl ParameterGauges {
    fn new(make: &Maker) -> prometheus::Result<Self> {
        let float = |name, help| make.float_gauge(name, help, &VARIANT);
        Ok(Self {
            alpha_ms: float("model_alpha_ms", "Fixed milliseconds of a server's iteration.")?,
            beta_ms: float("model_beta_ms", "Milliseconds per token that an iteration processes.")?,
            gamma_ms: float("model_gamma_ms", "Milliseconds per token in the KV cache.")?,
            nis: float(
                "model_nis",
                "Normalised innovation squared of the last window: its distance from the prediction.",
            )?,
            condition_number: float(
                "model_condition_number",
                "Condition number of the observations; large when the load never varied, so that parameters can't be \
                 identified.",
            )?,
            ttft_bias: float("model_ttft_bias", "Observed over predicted time to first token.")?,
            state: make.gauge(
                "model_state",
                "1 for the state of a variant's model, 0 for the other states.",
                &["pool", "variant", "state"],
            )?,
        })
    }

    fn set(&self, pool: &str, variant: &VariantStatus) {
        let labels = [pool, variant.name.as_str()];
        let parameters = variant.parameters;
        for (gauge, value) in [
            (&self.alpha_ms, parameters.map(|parameters| parameters.alpha_ms)),
            (&self.beta_ms, parameters.map(|parameters| parameters.beta_ms)),
            (&self.gamma_ms, parameters.map(|parameters| parameters.gamma_ms)),
            (&self.nis, variant.nis),
            (&self.condition_number, variant.condition),
            (&self.ttft_bias, Some(variant.ttft_bias)),
        ] {
            if let Some(value) = value {
                gauge.with_label_values(&labels).set(value);
            }
        }
        for state in State::ALL {
            self.state
                .with_label_values(&[pool, variant.name.as_str(), state.as_str()])
                .set(i64::from(state == variant.state));
        }
    }
}

impl CapacityGauges {
    fn new(make: &Maker) -> prometheus::Result<Self> {
        let float = |name, help| make.float_gauge(name, help, &VARIANT);
        let whole = |name, help| make.gauge(name, help, &VARIANT);
        Ok(Self {
            capacity_requests_per_second: float(
                "capacity_requests_per_second",
                "Requests per second that one server of the variant takes within the targets.",
            )?,
            concurrency_limit: float(
                "concurrency_limit",
                "Requests in flight at one server of the variant at that rate. Informational: it limits nothing.",
            )?,
            capacity_total: float(
                "capacity_total",
                "Requests per second that the variant's ready servers take within the targets; 0 if unknown.",
            )?,
            demand_total: float(
                "demand_total",
                "Requests per second that more servers could serve and that fall to the variant, including its part of the backlog.",
            )?,
            utilization: float("utilization", "Demand over capacity; 0 if unknown.")?,
            desired_replicas: make.gauge(
                "desired_replicas",
                "Servers of the variant that the offered load needs, by source: the learned model; before one is learned, \
                 bootstrap parameters or a steady saturation. Absent while there is no decision.",
                &["pool", "variant", "source"],
            )?,
            current_replicas: whole("current_replicas", "Ready servers of the variant.")?,
            pending_replicas: whole(
                "pending_replicas",
                "Servers of the variant that exist and are not ready: listed endpoints, and pods of an InferencePool.",
            )?,
        })
    }

    fn set(&self, pool: &str, variant: &VariantStatus) {
        let labels = [pool, variant.name.as_str()];
        for (gauge, value) in [
            (&self.capacity_requests_per_second, variant.lambda_star),
            (&self.concurrency_limit, variant.n_star),
            (&self.capacity_total, Some(variant.capacity)),
            (&self.demand_total, Some(variant.demand)),
            (&self.utilization, Some(variant.utilization)),
        ] {
            if let Some(value) = value {
                gauge.with_label_values(&labels).set(value);
            }
        }
        for (gauge, value) in
            [(&self.current_replicas, variant.current), (&self.pending_replicas, variant.pending)]
        {
            gauge.with_label_values(&labels).set(int(value));
        }
        if let Some(desired) = variant.desired {
            self.desired_replicas
                .with_label_values(&[pool, variant.name.as_str(), desired.source.as_str()])
                .set(int(desired.replicas));
        }
    }
}

impl Gauges {
    /// All families, without series.
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
            parameters: ParameterGauges::new(make)?,
            capacity: CapacityGauges::new(make)?,
            slo_ttft_seconds: make.float_gauge(
                "slo_ttft_seconds",
                "Target of the mean time to first token.",
                &["pool"],
            )?,
            slo_itl_seconds: make.float_gauge(
                "slo_itl_seconds",
                "Target of the mean time between two tokens.",
                &["pool"],
            )?,
            slo_source: make.gauge(
                "slo_source",
                "1 for the source of the targets, 0 for the other sources.",
                &["pool", "source"],
            )?,
            foreign_load: make.gauge(
                "foreign_load",
                "Requests at an endpoint that didn't come through Penstock, by the endpoint's own metrics.",
                &["pool", "endpoint"],
            )?,
        })
    }

    pub(super) fn set(&self, status: &Status) {
        for pool in &status.pools {
            self.set_foreign_load(pool);
            let name = pool.name.as_ref();
            let Some(model) = &pool.model else {
                continue;
            };
            let targets = model.slo.targets;
            for (gauge, target_ms) in
                [(&self.slo_ttft_seconds, targets.ttft_ms), (&self.slo_itl_seconds, targets.itl_ms)]
            {
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
                self.parameters.set(name, variant);
                self.capacity.set(name, variant);
            }
        }
    }

    fn set_foreign_load(&self, pool: &PoolStatus) {
        let endpoints = pool.snapshot.endpoints.iter();
        for endpoint in endpoints.filter(|endpoint| endpoint.listed) {
            let server = pool.server(endpoint.id);
            if server.is_some_and(|server| server.scraped.is_some()) {
                self.foreign_load
                    .with_label_values(&[pool.name.as_ref(), pool.address(endpoint.id)])
                    .set(int(endpoint.foreign));
            }
        }
    }
}
