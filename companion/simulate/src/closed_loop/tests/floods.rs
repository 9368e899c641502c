//! Floods of several times the capacity, on servers of several laws, of which nothing is known at the start.

use std::sync::Arc;

use penstock_autopilot::{GateSource, GateStatus};
use penstock_engine::input::Band;
use penstock_engine::policy::ExtraPlaces;

use super::*;

/// A server's law, in milliseconds, and the sequences that it computes at a time.
#[derive(Clone, Copy, Debug)]
struct Law {
    alpha_ms: f64,
    beta_ms: f64,
    gamma_ms: f64,
    seqs_max: usize,
}

const fn law(alpha_ms: f64, beta_ms: f64, gamma_ms: f64, seqs_max: usize) -> Law {
    Law { alpha_ms, beta_ms, gamma_ms, seqs_max }
}

const LAWS: [Law; 4] = [
    law(78.0, 0.0, 0.0, 96),
    law(30.0, 0.02, 0.002, 16),
    law(20.0, 0.5, 0.01, 64),
    law(200.0, 0.1, 0.02, 64),
];

fn hardware(law: Law) -> Hardware {
    Hardware {
        alpha_ms: law.alpha_ms,
        beta_ms: law.beta_ms,
        gamma_ms: law.gamma_ms,
        seqs_max: law.seqs_max,
        ..Hardware::default()
    }
}

fn mix(spread: f64) -> Mix {
    Mix {
        name: "flood",
        parts: vec![(1.0, RequestKind { name: "flood", input: 200.0, output: 96.0, spread })],
    }
}

#[derive(Debug)]
struct Flood {
    /// Tokens in each ten seconds, of requests that ended.
    tokens: Vec<f64>,
    /// At the end of each ten seconds, requests at the server.
    in_flight: Vec<usize>,
    gate: GateStatus,
}

impl Flood {
    fn run(scenario: &Scenario) -> Self {
        let record = run(scenario).unwrap();
        let mut tokens = vec![0.0; record.samples.len()];
        for finished in &record.finished {
            let (first, last) = (finished.first.as_secs_f64(), finished.last.as_secs_f64());
            let each = (last - first) / finished.output as f64;
            for token in 0..finished.output {
                let slot = ((first + each * token as f64) / 10.0) as usize;
                if let Some(slot) = tokens.get_mut(slot) {
                    *slot += 1.0;
                }
            }
        }
        let gate = record.samples.last().and_then(|sample| sample.status.gate.clone());
        Self {
            tokens,
            in_flight: record.samples.iter().map(|sample| sample.in_flight[0]).collect(),
            gate: gate.unwrap_or(GateStatus { source: GateSource::Exploring, reason: String::new() }),
        }
    }

    /// Tokens from the 20th second to the 100th. All requests that ran then have ended.
    fn sum(&self) -> f64 {
        self.tokens[2..10].iter().sum()
    }
}

/// What is seen of a server besides the ends of its answers.
#[derive(Clone, Copy, Debug)]
struct Seen {
    streams: bool,
    metrics: bool,
}

/// Three times as many clients as the server computes at a time, each of which asks again at once.
fn scenario(law: Law, gate: GateBy, (noise, spread): (f64, f64), seen: Seen) -> Scenario {
    let servers =
        vec![ServerSpec { hardware: Hardware { noise, ..hardware(law) }, ..servers(1, 0.0)[0].clone() }];
    let arrivals = Arrivals::Closed { clients: 3 * law.seqs_max, mix: mix(spread) };
    let mut scenario = Scenario::new(servers, gate, arrivals);
    scenario.max_batch = Some(256);
    (scenario.policy.queue.total_capacity, scenario.policy.queue.flow_capacity) = (1_000, 1_000);
    scenario.policy.queue.ttl = Duration::from_secs(600);
    scenario.duration = Some(Duration::from_secs(200));
    (scenario.is_streamed, scenario.has_metrics) = (seen.streams, seen.metrics);
    scenario
}

#[test]
fn a_gate_of_which_nothing_is_known_costs_no_throughput_and_lets_nothing_wait_inside() {
    for law in LAWS {
        for noise in [(0.0, 0.0), (0.15, 0.5)] {
            for (streams, metrics) in [(true, false), (true, true), (false, true)] {
                let seen = Seen { streams, metrics };
                let open = Flood::run(&scenario(law, GateBy::Unlimited, noise, seen));
                let auto = Flood::run(&scenario(law, GateBy::Learned, noise, seen));
                let part = auto.sum() / open.sum();
                let case = format!("{law:?} {noise:?} {seen:?}: {part} {auto:?}");
                assert!(part > 0.97, "{case}");
                let usual = auto.sum() / 8.0;
                // A generation's prompts take seconds in which few tokens come.
                assert!(auto.tokens[2..10].iter().all(|tokens| *tokens > 0.7 * usual), "{case}");
                // An eighth more is tried now and then.
                let most = law.seqs_max + law.seqs_max.div_ceil(8);
                assert!(auto.in_flight[8..].iter().all(|requests| *requests <= most), "{case}");
                assert!(
                    auto.in_flight[8..].iter().all(|requests| 10 * requests > 9 * law.seqs_max),
                    "{case}"
                );
                assert_eq!(auto.gate.source, GateSource::Measured, "{case}");
            }
        }
    }
}

/// Nothing but the ends of answers is seen, so each level takes as long as its requests.
#[test]
fn without_streams_and_metrics_the_bound_is_found_by_throughput_in_minutes() {
    let seen = Seen { streams: false, metrics: false };
    for law in LAWS {
        let mut scenario = scenario(law, GateBy::Learned, (0.0, 0.0), seen);
        scenario.duration = Some(Duration::from_secs(400));
        let auto = Flood::run(&scenario);
        scenario.gate = GateBy::Unlimited;
        let open = Flood::run(&scenario);
        let late = |flood: &Flood| flood.tokens[22..32].iter().sum::<f64>();
        assert!(late(&auto) > 0.9 * late(&open), "{law:?}: {} {auto:?}", late(&auto) / late(&open));
    }
}

/// A flood that waits from the start, of requests of one size, which are granted together and end together; and a tenant with one short
/// request at a time. Returns the time to its first token that 99 of 100 of its requests meet, as a part of the flood's service time, and
/// the tokens of the flood.
fn behind_a_flood(law: Law, gate: GateBy, extra: ExtraPlaces, service_s: f64) -> ([f64; 3], f64) {
    let planned = |at: Duration, tenant, output| Planned { at, tenant, input: 200, output };
    let flood = (0..40 * law.seqs_max).map(|_| planned(Duration::ZERO, 0, 96));
    // From the first half minute on, in which a bound is found, at all phases of the flood.
    let every = Duration::from_secs_f64(0.37 * service_s);
    let small = (0..300).map(|number| planned(Duration::from_secs(30) + every * number, 1, 8));
    let tenant = |name: &str| Tenant { name: name.into(), flow: name.into(), band: Band::Default };
    let arrivals = Arrivals::Listed {
        requests: flood.chain(small).collect(),
        tenants: Arc::new([tenant("flood"), tenant("small")]),
    };
    let servers = vec![ServerSpec { hardware: hardware(law), ..servers(1, 0.0)[0].clone() }];
    let mut scenario = Scenario::new(servers, gate, arrivals);
    scenario.max_batch = Some(256);
    scenario.policy.extra_for_idle_flows = extra;
    (scenario.policy.queue.total_capacity, scenario.policy.queue.flow_capacity) = (100_000, 100_000);
    scenario.policy.queue.ttl = Duration::from_secs(100_000);
    let record = run(&scenario).unwrap();
    let of = |kind: &'static str| record.finished.iter().filter(move |finished| *finished.kind == *kind);
    let end = 30.0 + 0.37 * service_s * 100.0;
    let tokens = of("flood").filter(|finished| (30.0..end).contains(&finished.last.as_secs_f64()));
    let mut waits: Vec<f64> = of("small")
        .filter(|finished| finished.arrived.as_secs_f64() < end)
        .map(|finished| (finished.first - finished.arrived).as_secs_f64() / service_s)
        .collect();
    waits.sort_by(f64::total_cmp);
    let at = |percent: usize| waits[waits.len() * percent / 100];
    ([50, 90, 99].map(at), tokens.map(|finished| finished.output as f64).sum())
}

#[test]
fn a_tenant_with_nothing_running_need_not_wait_for_a_flood_to_end_together() {
    let tenth = ExtraPlaces::Part(Decimal::from_billionths(Decimal::ONE / 10));
    // With the third law a prompt takes 100 ms, so it waits inside the server for those of the flood.
    let most = [0.3, 0.3, 0.5, 0.3];
    for ((law, service_s), most) in LAWS.into_iter().zip([7.5, 3.0, 10.0, 40.0]).zip(most) {
        for gate in [GateBy::Watermark(law.seqs_max as f64 * 2.0 / 3.0), GateBy::Learned] {
            let (waits, tokens) = behind_a_flood(law, gate, tenth, service_s);
            let (before, tokens_before) = behind_a_flood(law, gate, ExtraPlaces::NONE, service_s);
            let part = tokens / tokens_before;
            let case = format!("{law:?} {gate:?}: {waits:.3?} instead of {before:.3?}, tokens {part:.3}");
            println!("{case}");
            assert!(part > 0.97, "{case}");
            let [median, most_of_ten, most_of_hundred] = waits;
            match gate {
                GateBy::Learned if law.seqs_max < 50 => assert_eq!(waits, before, "{case}"),
                // A test of the bound takes the place that is left free, once a minute.
                GateBy::Learned => assert!(median < 0.3 && most_of_ten <= before[1], "{case}"),
                _ => assert!(most_of_hundred < most && median < 0.05, "{case}"),
            }
        }
    }
}
