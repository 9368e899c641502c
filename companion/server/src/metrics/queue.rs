//! Waiting and running requests, shares, and the totals that the engines count themselves.

use std::collections::{BTreeSet, HashSet};

use penstock_control::{ModelStatus, PoolStatus, Status};
use penstock_engine::HealthState;
use penstock_engine::policy::Discipline;
use penstock_engine::snapshot::{FlowSnapshot, Snapshot};
use penstock_engine::units::thousandths;

use super::page::{Page, Series};
use super::{OTHER, REQUEST, count};
use crate::base::liveness::Liveness;

/// The bound of a gate without one (`watermark_per_backend: none`).
const UNBOUNDED: u64 = u64::MAX;

/// Adds the families. At most `values_max` model names are shown.
pub(super) fn render(page: &mut Page, status: &Status, liveness: &Liveness, values_max: usize) {
    let open = status.sessions.iter().filter(|session| session.open).count();
    page.gauge("sessions", "Open sessions of filters.", [], |series| series.add([], count(open)));
    let unacked: u64 = status.sessions.iter().map(|session| session.unacked).sum();
    page.gauge(
        "unacked_events",
        "Frames of filters that are handled and not acknowledged yet.",
        [],
        |series| series.add([], unacked),
    );
    waiting(page, status);
    shares(page, status);
    gaps(page, status, values_max);
    bounds(page, status);
    stock(page, status, liveness);
    counters(page, status);
}

fn waiting(page: &mut Page, status: &Status) {
    page.gauge("queue_length", "Waiting requests.", ["pool", "flow", "band"], |series| {
        by_flow(series, status, |flow| flow.waiting);
        // A query of an autoscaler finds a pool from the start.
        for pool in status.pools.iter().filter(|pool| pool.snapshot.flows.is_empty()) {
            for band in &pool.snapshot.bands {
                series.add([&pool.name, OTHER, band.band.as_str()], 0_u64);
            }
        }
    });
    page.gauge(
        "queue_cost_tokens",
        "Estimated cost of the waiting requests.",
        ["pool", "flow", "band"],
        |series| by_flow(series, status, |flow| flow.waiting_cost.0),
    );
    page.gauge(
        "queue_held",
        "Waiting requests that a limit of their own holds back. limit=\"flow\": their flow's budget or max_in_flight. \
         limit=\"other\": all others while the pool has room that none of them may use, or dispatches at queue.max_rate.",
        ["pool", "band", "limit"],
        |series| {
            for pool in &status.pools {
                for band in &pool.snapshot.bands {
                    for (limit, held) in [("flow", band.held_by_flow), ("other", band.held_otherwise)] {
                        series.add([&pool.name, band.band.as_str(), limit], held);
                    }
                }
            }
        },
    );
    page.gauge(
        "queue_length_by_model",
        "Waiting requests by the requested model and the target model.",
        REQUEST,
        |series| by_model(series, status, |model| model.waiting),
    );
    page.pool_gauge(
        "queue_bytes",
        "Bytes of the bodies that Envoy holds for waiting requests.",
        status,
        |pool| pool.snapshot.waiting_bytes,
    );
    page.pool_gauge(
        "queue_capacity",
        "Requests that may wait (queue.total_capacity); 0 if none may.",
        status,
        |pool| pool.snapshot.waiting_max,
    );
    page.pool_gauge(
        "queue_bytes_capacity",
        "Bytes of bodies that may wait (queue.total_bytes); 0 if none may.",
        status,
        |pool| pool.snapshot.waiting_bytes_max,
    );
    page.pool_gauge("active_flows", "Flows with waiting or running requests.", status, |pool| {
        count(active_flows(&pool.snapshot.flows))
    });
}

fn shares(page: &mut Page, status: &Status) {
    let usage = |tokens: fn(&Snapshot) -> u64| {
        move |pool: &PoolStatus| (pool.discipline == Discipline::Usage).then(|| tokens(&pool.snapshot))
    };
    page.pool_gauge(
        "usage_window_tokens",
        "Weighted tokens of all flows in the sliding window and in flight, with the usage discipline.",
        status,
        usage(|snapshot| snapshot.usage.0),
    );
    page.pool_gauge(
        "usage_running_elsewhere_tokens",
        "The part of usage_window_tokens that runs at other companions of the same redis store, at its estimate.",
        status,
        usage(|snapshot| snapshot.running_elsewhere.0),
    );
    page.gauge(
        "class_deficit_tokens",
        "Tokens that a policy class may dispatch before its next turn, over bands and models.",
        ["pool", "class"],
        |series| {
            for pool in &status.pools {
                for class in &pool.snapshot.classes {
                    series.add([&pool.name, &class.name], class.deficit);
                }
            }
        },
    );
    page.counter(
        "fairness_service_tokens_total",
        "Service of a flow, at its settled cost.",
        ["pool", "flow"],
        |series| {
            for pool in &status.pools {
                for (flow, cost) in &pool.served {
                    series.add([&pool.name, flow], *cost);
                }
                series.add([&pool.name, OTHER], pool.other_served);
            }
        },
    );
}

/// Adds the gaps in service. At most `values_max` model names are shown.
fn gaps(page: &mut Page, status: &Status, values_max: usize) {
    page.gauge(
        "fairness_gap_ratio",
        "Largest gap in service per weight between two waiting flows, over the gap that fairness allows. Compares the \
         first 16 flows that wait; the others are served by the same rule.",
        ["pool", "band", "class", "model"],
        |series| {
            let mut models: HashSet<&str> = HashSet::new();
            for pool in &status.pools {
                for gap in &pool.snapshot.fairness_lags {
                    let is_shown = models.len() < values_max || models.contains(&*gap.model);
                    let model = if is_shown {
                        models.insert(&gap.model);
                        &gap.model
                    } else {
                        OTHER
                    };
                    series.raise([&pool.name, gap.band.as_str(), &gap.class, model], gap.ratio);
                }
            }
        },
    );
}

fn bounds(page: &mut Page, status: &Status) {
    let bounded = |pool: &PoolStatus| pool.snapshot.upper != UNBOUNDED;
    page.pool_gauge(
        "upper_bound",
        "Below this stock, without extra_stock, a new request bypasses the queue; in the unit of stock_level; absent without a bound.",
        status,
        |pool| bounded(pool).then_some(pool.snapshot.upper),
    );
    page.pool_gauge(
        "lower_bound",
        "Below this stock, without extra_stock, waiting requests are dispatched; in the unit of stock_level; absent without a bound.",
        status,
        |pool| bounded(pool).then_some(pool.snapshot.lower),
    );
    page.pool_gauge(
        "watermark",
        "The stock between the bounds, summed over ready endpoints; in the unit of stock_level; absent without a bound.",
        status,
        |pool| bounded(pool).then(|| pool.snapshot.watermark.to_f64()),
    );
    page.pool_gauge(
        "saturation",
        "The larger of stock/upper bound, 0 without a bound, and waiting/total capacity. 1 with an empty queue: the \
         servers are busy, and the next request waits. queue_length/queue_capacity tells how full the queue is.",
        status,
        |pool| thousandths(pool.snapshot.saturation_milli),
    );
    page.pool_gauge(
        "extra_stock",
        "The part of the stock at ready endpoints above their bounds, in places for flows with nothing running.",
        status,
        |pool| pool.snapshot.extra,
    );
    page.pool_gauge("ready_endpoints", "Endpoints that may be given requests.", status, |pool| {
        count(pool.snapshot.endpoints.iter().filter(|endpoint| endpoint.ready).count())
    });
    page.pool_gauge(
        "lease_credit",
        "Places at endpoints that filters may fill without asking. The bounds and saturation count them as if they were \
         taken.",
        status,
        |pool| pool.snapshot.credit,
    );
}

fn stock(page: &mut Page, status: &Status, liveness: &Liveness) {
    page.gauge(
        "stock_level",
        "Dispatched to an endpoint and not ended: requests, or tokens with stock.unit: tokens.",
        ["pool", "endpoint"],
        |series| {
            for pool in &status.pools {
                for endpoint in &pool.snapshot.endpoints {
                    series.add([&pool.name, pool.address(endpoint.id)], endpoint.stock);
                }
            }
        },
    );
    page.gauge(
        "endpoint_silent_seconds",
        "How long a listed endpoint has sent no byte of any answer while a request ran there; 0: no request runs, or a byte has just come.",
        ["pool", "endpoint"],
        |series| {
            for pool in &status.pools {
                for endpoint in pool.snapshot.endpoints.iter().filter(|endpoint| endpoint.listed) {
                    let address = pool.address(endpoint.id);
                    let oldest = pool.server(endpoint.id).and_then(|server| server.oldest_running);
                    series.add([&pool.name, address], liveness.silence(address, oldest).as_secs());
                }
            }
        },
    );
    page.gauge(
        "endpoint_state",
        "1 for the state that a listed endpoint is in, 0 for the others: healthy, failing, down or probing.",
        ["pool", "endpoint", "state"],
        |series| {
            for pool in &status.pools {
                for endpoint in pool.snapshot.endpoints.iter().filter(|endpoint| endpoint.listed) {
                    for state in HealthState::ALL {
                        let is_in = u64::from(endpoint.state == state);
                        series.add([&pool.name, pool.address(endpoint.id), state.as_str()], is_in);
                    }
                }
            }
        },
    );
    page.gauge(
        "stock_by_model",
        "Requests dispatched and not ended, at ready endpoints and others, by the requested model and the target \
         model.",
        REQUEST,
        |series| by_model(series, status, |model| model.running),
    );
    page.pool_gauge(
        "draining_stock",
        "Running on endpoints that aren't ready: requests, or tokens with stock.unit: tokens.",
        status,
        |pool| pool.snapshot.draining_stock,
    );
    page.pool_gauge(
        "orphaned_stock",
        "Running requests of lost sessions; released after the grace period.",
        status,
        |pool| pool.orphaned_stock,
    );
}

fn counters(page: &mut Page, status: &Status) {
    page.pool_counter(
        "lease_admissions_total",
        "Requests that filters admitted without asking, counted when they are reported.",
        status,
        |pool| pool.snapshot.counters.admitted_by_credit,
    );
    page.pool_counter(
        "clock_backwards_total",
        "Clock readings before an earlier one, which were clamped.",
        status,
        |pool| pool.snapshot.counters.clock_backwards,
    );
    page.pool_counter("dequeue_attempts_total", "Attempts to dispatch a waiting request.", status, |pool| {
        pool.snapshot.counters.dequeue_attempts
    });
    page.pool_counter("dequeue_successes_total", "Attempts that dispatched a request.", status, |pool| {
        pool.snapshot.counters.dequeue_successes
    });
}

fn by_flow(series: &mut Series<3>, status: &Status, value: impl Fn(&FlowSnapshot) -> u64) {
    for pool in &status.pools {
        for flow in &pool.snapshot.flows {
            series.add([&pool.name, pool.shown(&flow.key), flow.band.as_str()], value(flow));
        }
    }
}

fn by_model(series: &mut Series<3>, status: &Status, value: impl Fn(&ModelStatus) -> u64) {
    for pool in &status.pools {
        for model in &pool.models {
            series.add([&pool.name, &model.model.requested, &model.model.target], value(model));
        }
    }
}

/// Distinct identities with waiting or running requests in any band.
fn active_flows(flows: &[FlowSnapshot]) -> usize {
    let active = flows.iter().filter(|flow| flow.waiting > 0 || flow.in_flight > 0);
    active.map(|flow| &flow.key).collect::<BTreeSet<_>>().len()
}

/// Adds the waiting requests of all pools under Nexus' name.
pub(super) fn add_nexus_alias(page: &mut Page, status: &Status) {
    let waiting: u64 = status.pools.iter().map(|pool| pool.snapshot.waiting).sum();
    page.alias("nexus_queue_depth", "Waiting requests in all pools.", waiting);
}
