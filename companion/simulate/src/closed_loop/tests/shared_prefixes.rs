//! Prompts that begin alike, at servers that cache prefixes, that don't, and that don't say.

use penstock_autopilot::Kept;

use super::*;

/// 4,000 prompt tokens, 60 output tokens: prompts make most of the work.
fn rag() -> Mix {
    Mix {
        name: "rag",
        parts: vec![(1.0, RequestKind { name: "rag", input: 4_000.0, output: 60.0, spread: 0.2 })],
    }
}

/// Where an overloaded server settles.
#[derive(Debug)]
struct Outcome {
    /// Mean requests in flight.
    in_flight: f64,
    /// Mean time between tokens.
    itl_ms: f64,
    /// Served requests per second.
    rate: f64,
}

fn outcome(shared_prefix: Option<SharedPrefix>) -> Outcome {
    let mut scenario = Scenario::new(servers(1, 0.05), GateBy::Learned, Arrivals::steady(rag(), 20.0));
    scenario.slo = explicit();
    scenario.shared_prefix = shared_prefix;
    scenario.kept =
        vec![("default".into(), Kept { parameters: parameters(&Hardware::default()), ttft_bias: 1.0 })];
    (scenario.warmup, scenario.duration) = (Duration::from_secs(300), Some(Duration::from_secs(900)));
    let record = run(&scenario).unwrap();
    let settled = || record.samples.iter().filter(|sample| sample.time > scenario.warmup);
    Outcome {
        in_flight: mean(settled().map(|sample| sample.in_flight[0] as f64)),
        itl_ms: mean(record.finished.iter().map(Finished::itl_ms)),
        rate: record.finished.len() as f64 / record.recorded.as_secs_f64(),
    }
}

fn shared(part: f64, is_cached: bool, is_reported: bool) -> Option<SharedPrefix> {
    Some(SharedPrefix { part, is_cached, is_reported })
}

/// n* for a mean request of which this part is cached.
fn n_star(cached_part: f64) -> f64 {
    let parameters = parameters(&Hardware::default());
    let mean = rag().mean();
    let (computed, output) = (mean.input * (1.0 - cached_part), mean.output);
    let each_ms =
        parameters.beta_ms * (1.0 + computed / output) + parameters.gamma_ms * (mean.input + output / 2.0);
    (ITL_MS - parameters.alpha_ms) / each_ms
}

#[test]
fn a_server_without_a_prefix_cache_runs_no_more_than_n_star_of_equal_prompts() {
    let different = outcome(None);
    for part in [1.0, 0.7] {
        let equal = outcome(shared(part, false, false));
        assert!(equal.itl_ms < ITL_MS, "{equal:?}");
        assert!(equal.in_flight < n_star(0.0), "{equal:?} of {}", n_star(0.0));
        assert!(equal.rate > 0.9 * different.rate, "{equal:?} {different:?}");
    }
}

#[test]
fn a_server_that_reports_its_cached_tokens_runs_more_because_of_them() {
    let without = outcome(None);
    for part in [1.0, 0.7] {
        let cached = outcome(shared(part, true, true));
        assert!(cached.itl_ms < ITL_MS, "{cached:?}");
        // The index knows prefixes only at a few lengths, so it predicts less than the server has.
        assert!(cached.in_flight < n_star(part), "{cached:?} of {}", n_star(part));
        assert!(cached.rate > 1.5 * without.rate, "{cached:?} {without:?}");
    }
}

/// Such a server seems to compute its prompts fast: the model learns lower costs of prompt tokens instead of cached ones.
#[test]
fn a_server_that_caches_and_reports_nothing_meets_the_targets_and_loses_little() {
    let (reported, silent) = (outcome(shared(0.7, true, true)), outcome(shared(0.7, true, false)));
    assert!(silent.itl_ms < ITL_MS, "{silent:?}");
    assert!(silent.rate > 0.8 * reported.rate, "{silent:?} {reported:?}");
}
