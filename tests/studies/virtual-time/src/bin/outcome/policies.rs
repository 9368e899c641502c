//! The policies that are compared.

use std::time::Duration;

use penstock_engine::Policy;
use penstock_engine::policy::{Discipline, Gate, Queue, Scorers};
use penstock_engine::units::Decimal;
use penstock_simulate::closed_loop::Placement;
use serde_json::{Value, json};

use crate::cell::Cell;
use crate::fixed_limit::FixedLimit;
use crate::measured::{Measured, Setup};
use crate::{rate_limits, tenants};

/// A tenant's limit as a multiple of an equal part of the capacity.
const RATE_FACTORS: [f64; 7] = [0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// How long a request may wait under a learned gate.
const WAIT: Duration = Duration::from_millis(1_500);

/// All policies in a cell.
pub(crate) fn compare(cell: &Cell) -> Value {
    let mut rows = vec![
        row(cell, "no gate, least requests", &open(Placement::Engine)),
        row(cell, "no gate, round robin over servers", &open(Placement::RoundRobin)),
        rate_limited(cell),
    ];
    for row in &mut rows {
        // A balancer without a gate has no model that could ask for replicas.
        row["replicas"] = Value::Null;
    }
    let (limit, fifo) = FixedLimit::best(cell);
    rows.push(fifo.figures("fixed limit, fifo", &limit.text()));
    for (name, discipline, has_priorities) in [
        ("fixed limit, round_robin", Discipline::RoundRobin, false),
        ("fixed limit, wfq and bands", Discipline::Wfq, true),
    ] {
        let measured = Measured::run(cell, &limit.setup(discipline, has_priorities));
        rows.push(measured.figures(name, &limit.text()));
    }
    for discipline in [Discipline::Fifo, Discipline::Wfq, Discipline::Drr, Discipline::Vtc, Discipline::Usage]
    {
        let has_priorities = discipline != Discipline::Fifo;
        let name = if has_priorities {
            format!("auto, {} and bands", discipline.as_str())
        } else {
            "auto, fifo".into()
        };
        rows.push(row(cell, &name, &learned(discipline, has_priorities)));
    }
    let mut patient = learned(Discipline::Wfq, true);
    patient.policy.queue.ttl = Queue::default().ttl;
    rows.push(row(cell, "auto, wfq and bands, default ttl of 30 s", &patient));
    json!({
        "cell": cell.name(),
        "workload": cell.workload,
        "fleet": cell.fleet.name(),
        "load": cell.load,
        "capacity": cell.capacity,
        "policies": rows,
    })
}

fn row(cell: &Cell, name: &str, setup: &Setup) -> Value {
    Measured::run(cell, setup).figures(name, "")
}

/// No bound: every request goes to a server at once.
fn open(placement: Placement) -> Setup {
    let policy = Policy {
        gate: Gate::Open,
        scheduler: Scorers { stock: 1.0, queue: 0.0, kv_cache: 0.0, prefix: 0.0, lora: 0.0 },
        ..Policy::default()
    };
    Setup { policy, placement, has_priorities: false }
}

/// One limit of requests per second for every tenant, the best of several, before a balancer without a gate.
fn rate_limited(cell: &Cell) -> Value {
    let equal = cell.capacity / tenants::count() as f64;
    let runs = RATE_FACTORS.map(|factor| {
        let admitted = rate_limits::admitted(&cell.requests, tenants::count(), factor * equal);
        (factor, Measured::run_admitted(cell, &open(Placement::Engine), admitted))
    });
    let best =
        runs.into_iter().reduce(|best, next| if next.1.goodput() > best.1.goodput() { next } else { best });
    let (factor, measured) = best.expect("invariant: there is a factor");
    measured.figures("limit of requests/s per tenant", &format!("{:.2}/s", factor * equal))
}

/// The gate of the learned model.
fn learned(discipline: Discipline, has_priorities: bool) -> Setup {
    let mut policy = Policy { gate: Gate::Auto { initial: Decimal::whole(8) }, ..Policy::default() };
    policy.queue.ttl = WAIT;
    policy.flows.discipline = discipline;
    Setup { policy, placement: Placement::Engine, has_priorities }
}
