//! Prefill apart from decoding, in virtual time: `bash tests/studies/run disaggregation`.
//!
//! Four simulated servers, once all alike and once two for prompts and two that answer, with the same bounds, at two parts of the rate that
//! four whole servers serve. Prints who computed prompts, the most requests at a server of each role, and the time to first tokens with the
//! wait in the queue.

use std::time::Duration;

use penstock_engine::input::Role;
use penstock_engine::units::Decimal;
use penstock_model_server::Hardware;
use penstock_simulate::closed_loop::{Arrivals, GateBy, Mix, Record, RequestKind, Scenario, ServerSpec, run};

const SERVERS: usize = 4;
const BOUND: f64 = 16.0;
const MIN_UNCACHED: u64 = 1_000;
const SERVED: usize = 20_000;

fn servers(roles: [Role; SERVERS]) -> Vec<ServerSpec> {
    let server = |role| ServerSpec {
        variant: "default".into(),
        hardware: Hardware::default(),
        weight: Decimal::whole(1),
        request_noise: 0.05,
        role,
    };
    roles.into_iter().map(server).collect()
}

/// Half of the requests have long prompts.
fn mix() -> Mix {
    let kind = |name, input, output| RequestKind { name, input, output, spread: 0.5 };
    Mix { name: "half", parts: vec![(0.5, kind("long", 4_000.0, 150.0)), (0.5, kind("chat", 300.0, 150.0))] }
}

fn record(roles: [Role; SERVERS], arrivals: Arrivals) -> Record {
    let mut scenario = Scenario::new(servers(roles), GateBy::Watermark(BOUND), arrivals);
    scenario.policy.min_uncached_tokens = Some(MIN_UNCACHED);
    run(&scenario.until_served(SERVED)).expect("valid hardware")
}

fn percentile(record: &Record, kind: &str, part: f64) -> f64 {
    let of_kind = record.finished.iter().filter(|finished| &*finished.kind == kind);
    let mut times: Vec<Duration> = of_kind.map(|finished| finished.first - finished.arrived).collect();
    times.sort_unstable();
    let index = ((times.len() as f64 * part) as usize).min(times.len() - 1);
    times[index].as_secs_f64()
}

fn itl_ms(record: &Record) -> f64 {
    let sum: f64 = record.finished.iter().map(|finished| finished.itl_ms()).sum();
    sum / record.finished.len() as f64
}

fn print(name: &str, part: f64, roles: [Role; SERVERS], record: &Record) {
    let long = record.finished.iter().filter(|finished| &*finished.kind == "long").count();
    let elsewhere = record.prefilled_elsewhere as f64 / long as f64;
    let peak = |role: Role| {
        let of_role = roles.iter().zip(&record.peaks).filter(|(other, _)| **other == role);
        of_role.map(|(_, peak)| *peak).max().unwrap_or(0)
    };
    let rate = record.served as f64 / record.duration.as_secs_f64();
    println!(
        "{name:>9} {part:>5.1} {rate:>11.2} {:>9.0} % {:>9} {:>9} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>8.1}",
        100.0 * elsewhere,
        peak(Role::Prefill),
        peak(Role::Decode).max(peak(Role::Both)),
        percentile(record, "long", 0.5),
        percentile(record, "long", 0.99),
        percentile(record, "chat", 0.5),
        percentile(record, "chat", 0.99),
        itl_ms(record),
    );
}

fn main() {
    let whole = [Role::Both; SERVERS];
    let apart = [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode];
    let clients = (SERVERS as f64 * BOUND) as usize;
    let full = record(whole, Arrivals::Closed { clients, mix: mix() });
    let capacity = full.served as f64 / full.duration.as_secs_f64();
    println!(
        "four whole servers at their bounds serve {capacity:.2} requests/s; bound {BOUND} of each server"
    );
    println!(
        "  servers  load  requests/s  elsewhere  prefill    decode   long p50  long p99  chat p50  chat p99   itl ms"
    );
    for part in [0.7, 1.5] {
        for (name, roles) in [("alike", whole), ("apart", apart)] {
            let record = record(roles, Arrivals::steady(mix(), part * capacity));
            print(name, part, roles, &record);
        }
    }
}
