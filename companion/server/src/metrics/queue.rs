//! Gauges of waiting and running requests, and the totals that the engines count themselves.

use std::collections::{BTreeSet, HashSet};

use penstock_control::{PoolStatus, Status};
use penstock_engine::policy::Discipline;
use penstock_engine::snapshot::FlowSnapshot;
use penstock_engine::units::thousandths;
use prometheus::{GaugeVec, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::{Maker, OTHER, REQUEST, int};

/// The bound of a gate without one (`watermark_per_backend: none`).
const UNBOUNDED: u64 = u64::MAX;

/// All gauges of queues and stocks, made for one scrape.
#[derive(Debug)]
pub(super) struct Gauges {
    queue: QueueGauges,
    fairness: FairnessGauges,
    stock: StockGauges,
    unacked_events: IntGaugeVec,
    sessions: IntGaugeVec,
    clock_backwards: IntCounterVec,
    dequeue_attempts: IntCounterVec,
    dequeue_successes: IntCounterVec,
}

impl Gauges {
    /// All families, without series.
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
            queue: QueueGauges::new(make)?,
            fairness: FairnessGauges::new(make)?,
            stock: StockGauges::new(make)?,
            unacked_events: make.gauge(
                "unacked_events",
                "Frames of filters that are handled and not acknowledged yet.",
                &[],
            )?,
            sessions: make.gauge("sessions", "Open sessions of filters.", &[])?,
            clock_backwards: make.counter(
                "clock_backwards_total",
                "Clock readings before an earlier one, which were clamped.",
                &["pool"],
            )?,
            dequeue_attempts: make.counter(
                "dequeue_attempts_total",
                "Attempts to dispatch a waiting request.",
                &["pool"],
            )?,
            dequeue_successes: make.counter(
                "dequeue_successes_total",
                "Attempts that dispatched a request.",
                &["pool"],
            )?,
        })
    }

    /// Sets all gauges, with at most `values_max` model names.
    pub(super) fn set(&self, status: &Status, values_max: usize) {
        let mut models: HashSet<&str> = HashSet::new();
        let open = status.sessions.iter().filter(|session| session.open).count();
        let no_labels: [&str; 0] = [];
        self.sessions.with_label_values(&no_labels).set(int(open));
        let unacked: u64 = status.sessions.iter().map(|session| session.unacked).sum();
        self.unacked_events.with_label_values(&no_labels).set(int(unacked));
        for pool in &status.pools {
            self.queue.set(pool);
            self.fairness.set(pool, &mut models, values_max);
            self.stock.set(pool);
            let name = &[pool.name.as_ref()];
            let counters = pool.snapshot.counters;
            self.clock_backwards.with_label_values(name).inc_by(counters.clock_backwards);
            self.dequeue_attempts.with_label_values(name).inc_by(counters.dequeue_attempts);
            self.dequeue_successes.with_label_values(name).inc_by(counters.dequeue_successes);
        }
    }
}

#[derive(Debug)]
struct QueueGauges {
    length: IntGaugeVec,
    held: IntGaugeVec,
    length_by_model: IntGaugeVec,
    cost_tokens: GaugeVec,
    bytes: IntGaugeVec,
    capacity: IntGaugeVec,
    bytes_capacity: IntGaugeVec,
    active_flows: IntGaugeVec,
}

impl QueueGauges {
    fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
            length: make.gauge("queue_length", "Waiting requests.", &["pool", "flow", "band"])?,
            held: make.gauge(
                "queue_held",
                "Waiting requests that a limit of their own holds back. limit=\"flow\": their flow's budget or max_in_flight. \
                 limit=\"other\": all others while the pool has room that none of them may use, or dispatches at queue.max_rate.",
                &["pool", "band", "limit"],
            )?,
            length_by_model: make.gauge(
                "queue_length_by_model",
                "Waiting requests by the requested model and the target model.",
                &REQUEST,
            )?,
            cost_tokens: make.float_gauge(
                "queue_cost_tokens",
                "Estimated cost of the waiting requests.",
                &["pool", "flow", "band"],
            )?,
            bytes: make.gauge(
                "queue_bytes",
                "Bytes of the bodies that Envoy holds for waiting requests.",
                &["pool"],
            )?,
            capacity: make.gauge(
                "queue_capacity",
                "Requests that may wait (queue.total_capacity); 0 if none may.",
                &["pool"],
            )?,
            bytes_capacity: make.gauge(
                "queue_bytes_capacity",
                "Bytes of bodies that may wait (queue.total_bytes); 0 if none may.",
                &["pool"],
            )?,
            active_flows: make.gauge(
                "active_flows",
                "Flows with waiting or running requests.",
                &["pool"],
            )?,
        })
    }

    fn set(&self, pool: &PoolStatus) {
        let name = pool.name.as_ref();
        let snapshot = &pool.snapshot;
        self.bytes.with_label_values(&[name]).set(int(snapshot.waiting_bytes));
        self.capacity.with_label_values(&[name]).set(int(snapshot.waiting_max));
        self.bytes_capacity.with_label_values(&[name]).set(int(snapshot.waiting_bytes_max));
        for band in &snapshot.bands {
            for (limit, held) in [("flow", band.held_by_flow), ("other", band.held_otherwise)] {
                self.held.with_label_values(&[name, band.band.as_str(), limit]).set(int(held));
            }
        }
        self.active_flows.with_label_values(&[name]).set(int(active_flows(&snapshot.flows)));
        for model in &pool.models {
            let labels = [name, &model.model.requested, &model.model.target];
            self.length_by_model.with_label_values(&labels).add(int(model.waiting));
        }
        for flow in &snapshot.flows {
            let labels = [name, pool.shown(&flow.key), flow.band.as_str()];
            self.length.with_label_values(&labels).add(int(flow.waiting));
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            self.cost_tokens.with_label_values(&labels).add(flow.waiting_cost.0 as f64);
        }
    }
}

#[derive(Debug)]
struct FairnessGauges {
    class_deficit_tokens: IntGaugeVec,
    usage_window_tokens: GaugeVec,
    usage_running_elsewhere_tokens: GaugeVec,
    service_tokens: IntCounterVec,
    gap_ratio: GaugeVec,
}

impl FairnessGauges {
    fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
            usage_window_tokens: make.float_gauge(
                "usage_window_tokens",
                "Weighted tokens of all flows in the sliding window and in flight, with the usage discipline.",
                &["pool"],
            )?,
            usage_running_elsewhere_tokens: make.float_gauge(
                "usage_running_elsewhere_tokens",
                "The part of usage_window_tokens that runs at other companions of the same redis store, at its estimate.",
                &["pool"],
            )?,
            class_deficit_tokens: make.gauge(
                "class_deficit_tokens",
                "Tokens that a policy class may dispatch before its next turn, over bands and models.",
                &["pool", "class"],
            )?,
            service_tokens: make.counter(
                "fairness_service_tokens_total",
                "Service of a flow, at its settled cost.",
                &["pool", "flow"],
            )?,
            gap_ratio: make.float_gauge(
                "fairness_gap_ratio",
                "Largest gap in service per weight between two waiting flows, over the gap that fairness allows. Compares the \
                 first 16 flows that wait; the others are served by the same rule.",
                &["pool", "band", "class", "model"],
            )?,
        })
    }

    fn set<'a>(&self, pool: &'a PoolStatus, models: &mut HashSet<&'a str>, values_max: usize) {
        let name = pool.name.as_ref();
        let snapshot = &pool.snapshot;
        for gap in &snapshot.fairness_lags {
            let model = if models.len() < values_max || models.contains(&*gap.model) {
                models.insert(&gap.model);
                &gap.model
            } else {
                OTHER
            };
            let labels = [name, gap.band.as_str(), &gap.class, model];
            let gauge = self.gap_ratio.with_label_values(&labels);
            gauge.set(gauge.get().max(gap.ratio));
        }
        for (flow, cost) in &pool.served {
            self.service_tokens.with_label_values(&[name, flow]).inc_by(*cost);
        }
        self.service_tokens.with_label_values(&[name, OTHER]).inc_by(pool.other_served);
        if pool.discipline == Discipline::Usage {
            for (gauge, tokens) in [
                (&self.usage_window_tokens, snapshot.usage),
                (&self.usage_running_elsewhere_tokens, snapshot.running_elsewhere),
            ] {
                #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
                gauge.with_label_values(&[name]).set(tokens.0 as f64);
            }
        }
        for class in &snapshot.classes {
            self.class_deficit_tokens.with_label_values(&[name, &class.name]).set(int(class.deficit));
        }
    }
}

#[derive(Debug)]
struct StockGauges {
    stock_level: IntGaugeVec,
    stock_by_model: IntGaugeVec,
    draining_stock: IntGaugeVec,
    orphaned_stock: IntGaugeVec,
    upper_bound: IntGaugeVec,
    lower_bound: IntGaugeVec,
    watermark: GaugeVec,
    saturation: GaugeVec,
    ready_endpoints: IntGaugeVec,
    lease_credit: IntGaugeVec,
    lease_admissions: IntCounterVec,
}

impl StockGauges {
    fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
            stock_level: make.gauge(
                "stock_level",
                "Dispatched to an endpoint and not ended: requests, or tokens with stock.unit: tokens.",
                &["pool", "endpoint"],
            )?,
            stock_by_model: make.gauge(
                "stock_by_model",
                "Requests dispatched and not ended, at ready endpoints and others, by the requested model and the target \
                 model.",
                &REQUEST,
            )?,
            draining_stock: make.gauge(
                "draining_stock",
                "Running on endpoints that aren't ready: requests, or tokens with stock.unit: tokens.",
                &["pool"],
            )?,
            orphaned_stock: make.gauge(
                "orphaned_stock",
                "Running requests of lost sessions; released after the grace period.",
                &["pool"],
            )?,
            upper_bound: make.gauge(
                "upper_bound",
                "Below this stock a new request bypasses the queue; in the unit of stock_level; absent without a bound.",
                &["pool"],
            )?,
            lower_bound: make.gauge(
                "lower_bound",
                "Below this stock waiting requests are dispatched; in the unit of stock_level; absent without a bound.",
                &["pool"],
            )?,
            watermark: make.float_gauge(
                "watermark",
                "The stock between the bounds, summed over ready endpoints; in the unit of stock_level; absent without a bound.",
                &["pool"],
            )?,
            saturation: make.float_gauge(
                "saturation",
                "The larger of stock/upper bound, 0 without a bound, and waiting/total capacity. 1 with an empty queue: the \
                 servers are busy, and the next request waits. queue_length/queue_capacity tells how full the queue is.",
                &["pool"],
            )?,
            ready_endpoints: make.gauge(
                "ready_endpoints",
                "Endpoints that may be given requests.",
                &["pool"],
            )?,
            lease_credit: make.gauge(
                "lease_credit",
                "Places at endpoints that filters may fill without asking. The bounds and saturation count them as if they were \
                 taken.",
                &["pool"],
            )?,
            lease_admissions: make.counter(
                "lease_admissions_total",
                "Requests that filters admitted without asking, counted when they are reported.",
                &["pool"],
            )?,
        })
    }

    fn set(&self, pool: &PoolStatus) {
        let name = &[pool.name.as_ref()];
        let snapshot = &pool.snapshot;
        if snapshot.upper != UNBOUNDED {
            self.upper_bound.with_label_values(name).set(int(snapshot.upper));
            self.lower_bound.with_label_values(name).set(int(snapshot.lower));
            self.watermark.with_label_values(name).set(snapshot.watermark.to_f64());
        }
        self.saturation.with_label_values(name).set(thousandths(snapshot.saturation_milli));
        self.draining_stock.with_label_values(name).set(int(snapshot.draining_stock));
        self.orphaned_stock.with_label_values(name).set(int(pool.orphaned_stock));
        let ready = snapshot.endpoints.iter().filter(|endpoint| endpoint.ready);
        self.ready_endpoints.with_label_values(name).set(int(ready.count()));
        self.lease_credit.with_label_values(name).set(int(snapshot.credit));
        self.lease_admissions.with_label_values(name).inc_by(snapshot.counters.admitted_by_credit);
        for model in &pool.models {
            let labels = [name[0], &model.model.requested, &model.model.target];
            self.stock_by_model.with_label_values(&labels).add(int(model.running));
        }
        for endpoint in &snapshot.endpoints {
            self.stock_level
                .with_label_values(&[name[0], pool.address(endpoint.id)])
                .set(int(endpoint.stock));
        }
    }
}

/// Registers the waiting requests of all pools under Nexus' name.
pub(super) fn register_nexus_alias(registry: &Registry, status: &Status) -> prometheus::Result<()> {
    let depth = IntGauge::new("nexus_queue_depth", "Waiting requests in all pools.")?;
    let waiting: u64 = status.pools.iter().map(|pool| pool.snapshot.waiting).sum();
    depth.set(int(waiting));
    registry.register(Box::new(depth))
}

/// Distinct identities with waiting or running requests in any band.
fn active_flows(flows: &[FlowSnapshot]) -> usize {
    let active = flows.iter().filter(|flow| flow.waiting > 0 || flow.in_flight > 0);
    active.map(|flow| &flow.key).collect::<BTreeSet<_>>().len()
}
