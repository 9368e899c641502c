//! What waits and what runs at this moment, and the totals that the engines keep themselves.

use std::collections::{BTreeSet, HashSet};

use penstock_control::Status;
use penstock_data_plane::policy::band_name;
use penstock_engine::policy::Discipline;
use penstock_engine::snapshot::FlowSnapshot;
use prometheus::{GaugeVec, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::{Maker, OTHER, decimal, int, thousandths};

/// Made at every scrape.
#[derive(Debug)]
pub(super) struct Gauges {
    queue_length: IntGaugeVec,
    queue_cost_tokens: GaugeVec,
    queue_bytes: IntGaugeVec,
    stock_level: IntGaugeVec,
    draining_stock: IntGaugeVec,
    orphaned_stock: IntGaugeVec,
    unacked_events: IntGaugeVec,
    upper_bound: IntGaugeVec,
    lower_bound: IntGaugeVec,
    watermark: GaugeVec,
    saturation: GaugeVec,
    ready_endpoints: IntGaugeVec,
    active_flows: IntGaugeVec,
    class_deficit_tokens: IntGaugeVec,
    usage_window_tokens: GaugeVec,
    fairness_service_tokens: IntCounterVec,
    fairness_gap_ratio: GaugeVec,
    lease_credit: IntGaugeVec,
    sessions: IntGaugeVec,
    clock_backwards: IntCounterVec,
    dequeue_attempts: IntCounterVec,
    dequeue_successes: IntCounterVec,
}

impl Gauges {
    /// All families, without a series.
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
                queue_length: make.gauge("queue_length", "Requests that wait.", &["pool", "flow", "band"])?,
                queue_cost_tokens: make.float(
                    "queue_cost_tokens",
                    "Estimated cost of the requests that wait.",
                    &["pool", "flow", "band"],
                )?,
                queue_bytes: make.gauge(
                    "queue_bytes",
                    "Bytes of the bodies that wait in Envoy.",
                    &["pool"],
                )?,
                stock_level: make.gauge(
                    "stock_level",
                    "Requests dispatched to an endpoint and not ended.",
                    &["pool", "endpoint"],
                )?,
                draining_stock: make.gauge(
                    "draining_stock",
                    "Requests that still run on endpoints that aren't ready.",
                    &["pool"],
                )?,
                orphaned_stock: make.gauge(
                    "orphaned_stock",
                    "Requests that run and whose session is lost; released after its grace.",
                    &["pool"],
                )?,
                unacked_events: make.gauge(
                    "unacked_events",
                    "Frames of filters that were handled and aren't acknowledged yet.",
                    &[],
                )?,
                upper_bound: make.gauge(
                    "upper_bound",
                    "Below this stock a newcomer bypasses the queue.",
                    &["pool"],
                )?,
                lower_bound: make.gauge(
                    "lower_bound",
                    "Below this stock what waits is dispatched.",
                    &["pool"],
                )?,
                watermark: make.float(
                    "watermark",
                    "The stock between the bounds, summed over ready endpoints.",
                    &["pool"],
                )?,
                saturation: make.float(
                    "saturation",
                    "The larger of stock/upper bound and waiting/total capacity.",
                    &["pool"],
                )?,
                ready_endpoints: make.gauge(
                    "ready_endpoints",
                    "Endpoints that may be given requests.",
                    &["pool"],
                )?,
                active_flows: make.gauge(
                    "active_flows",
                    "Flows that wait, or have something in flight.",
                    &["pool"],
                )?,
                usage_window_tokens: make.float(
                    "usage_window_tokens",
                    "Weighted tokens of all flows in the sliding window and in flight, where the discipline is usage.",
                    &["pool"],
                )?,
                class_deficit_tokens: make.gauge(
                    "class_deficit_tokens",
                    "What a policy class may send before its next turn, over bands and models.",
                    &["pool", "class"],
                )?,
                fairness_service_tokens: make.counter(
                    "fairness_service_tokens_total",
                    "What a flow was served, at its settled cost.",
                    &["pool", "flow"],
                )?,
                fairness_gap_ratio: make.float(
                    "fairness_gap_ratio",
                    "Largest gap in service per weight between two flows that wait, over what fairness allows them.",
                    &["pool", "band", "class", "model"],
                )?,
                lease_credit: make.gauge(
                    "lease_credit",
                    "Requests that filters may let go without asking.",
                    &["pool"],
                )?,
                sessions: make.gauge("sessions", "Filters with an open stream.", &[])?,
                clock_backwards: make.counter(
                    "clock_backwards_total",
                    "Times that went backwards and were clamped.",
                    &["pool"],
                )?,
                dequeue_attempts: make.counter(
                    "dequeue_attempts_total",
                    "Looks for a request to dispatch.",
                    &["pool"],
                )?,
                dequeue_successes: make.counter(
                    "dequeue_successes_total",
                    "Looks that dispatched one.",
                    &["pool"],
                )?,
        })
    }

    /// With at most `values_max` names of models.
    pub(super) fn set(&self, status: &Status, values_max: usize) {
        let mut models: HashSet<&str> = HashSet::new();
        let open = status.sessions.iter().filter(|it| it.open).count();
        let none: [&str; 0] = [];
        self.sessions.with_label_values(&none).set(int(open));
        let unacked: u64 = status.sessions.iter().map(|it| it.unacked).sum();
        self.unacked_events.with_label_values(&none).set(int(unacked));
        for pool in &status.pools {
            let of = &[pool.name.as_ref()];
            let now = &pool.snapshot;
            self.upper_bound.with_label_values(of).set(int(now.upper));
            self.lower_bound.with_label_values(of).set(int(now.lower));
            self.watermark.with_label_values(of).set(decimal(now.watermark));
            self.saturation
                .with_label_values(of)
                .set(thousandths(now.saturation_milli));
            self.draining_stock
                .with_label_values(of)
                .set(int(now.draining_stock));
            self.orphaned_stock
                .with_label_values(of)
                .set(int(pool.orphaned_stock));
            self.queue_bytes.with_label_values(of).set(int(now.waiting_bytes));
            self.lease_credit.with_label_values(of).set(0);
            for gap in &now.fairness_lags {
                let model = if models.len() < values_max || models.contains(&*gap.model) {
                    models.insert(&gap.model);
                    &gap.model
                } else {
                    OTHER
                };
                let labels = [of[0], band_name(gap.band), &gap.class, model];
                let gauge = self.fairness_gap_ratio.with_label_values(&labels);
                gauge.set(gauge.get().max(gap.ratio));
            }
            for (flow, cost) in &pool.served {
                self.fairness_service_tokens
                    .with_label_values(&[of[0], flow])
                    .inc_by(*cost);
            }
            self.fairness_service_tokens
                .with_label_values(&[of[0], OTHER])
                .inc_by(pool.other_served);
            self.ready_endpoints.with_label_values(of).set(int(now
                .endpoints
                .iter()
                .filter(|it| it.ready)
                .count()));
            self.active_flows
                .with_label_values(of)
                .set(int(active_flows(&now.flows)));
            if pool.discipline == Discipline::Usage {
                // What is first to go there is who used least per weight.
                let used = now.flows.iter().map(|flow| flow.finish * flow.weight);
                self.usage_window_tokens
                    .with_label_values(of)
                    .set(used.sum::<f64>().round());
            }
            for class in &now.classes {
                self.class_deficit_tokens
                    .with_label_values(&[of[0], &class.name])
                    .set(int(class.deficit));
            }
            self.clock_backwards
                .with_label_values(of)
                .inc_by(now.counters.clock_backwards);
            self.dequeue_attempts
                .with_label_values(of)
                .inc_by(now.counters.dequeue_attempts);
            self.dequeue_successes
                .with_label_values(of)
                .inc_by(now.counters.dequeue_successes);
            for endpoint in &now.endpoints {
                let address = pool.address(endpoint.id);
                self.stock_level
                    .with_label_values(&[of[0], address])
                    .set(int(endpoint.stock));
            }
            for flow in &now.flows {
                let labels = [of[0], pool.shown(&flow.key), band_name(flow.band)];
                self.queue_length
                    .with_label_values(&labels)
                    .add(int(flow.waiting));
                #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
                self.queue_cost_tokens
                    .with_label_values(&labels)
                    .add(flow.waiting_cost.0 as f64);
            }
        }
    }
}

/// What waits in all pools, under Nexus' name.
pub(super) fn nexus(registry: &Registry, status: &Status) -> prometheus::Result<()> {
    let depth = IntGauge::new("nexus_queue_depth", "Requests that wait, in all pools.")?;
    depth.set(int(status
        .pools
        .iter()
        .map(|pool| pool.snapshot.waiting)
        .sum::<u64>()));
    registry.register(Box::new(depth))
}

/// Identities that wait or have something in flight, in whatever band.
fn active_flows(flows: &[FlowSnapshot]) -> usize {
    let active = flows.iter().filter(|flow| flow.waiting > 0 || flow.in_flight > 0);
    active.map(|flow| &flow.key).collect::<BTreeSet<_>>().len()
}
