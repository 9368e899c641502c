//! The goodput of the gate `auto` compared with fixed watermarks, for alternating and for steady traffic.

use std::time::Duration;

use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Targets, Traffic, sizing};
use penstock_simulate::closed_loop::{
    Arrivals, Finished, GateBy, Mix, Phase, Record, Scenario, run as run_loop,
};
use serde_json::{Value, json};

use crate::combos::{hardware, parameters, server};
use penstock_studies::parallel;

const SERVERS: usize = 3;
const ITL_MS: f64 = 50.0;
/// Explicit targets must include this one. It is too high to matter.
const TTFT_MS: f64 = 10_000.0;
/// Offered load in every phase as a multiple of the servers' capacity within the target: above it,
const OFFERED: f64 = 1.2;
/// and far above it.
const OFFERED_HIGH: f64 = 2.0;
/// The highest share of responses over the target at which a watermark still counts as keeping the target.
const OVER_TARGET_MAX: f64 = 0.05;
const NOISE: f64 = 0.05;
const SEEDS: [u64; 2] = [1, 2];
/// Time for learning before anything is recorded.
const WARMUP: Duration = Duration::from_secs(480);
const DURATION: Duration = Duration::from_secs(480 + 960);

pub(crate) fn slo() -> SloPolicy {
    SloPolicy {
        explicit: Some(Targets { ttft_ms: Some(TTFT_MS), itl_ms: Some(ITL_MS) }),
        ..SloPolicy::default()
    }
}

/// Requests per second of this traffic that one server can serve within the target.
pub(crate) fn capacity(server: usize, traffic: &Traffic) -> f64 {
    let targets = slo().explicit.unwrap_or_default();
    sizing::size(&parameters(&hardware(server)), traffic, &targets, Some(256.0), 1.0).lambda_star
}

fn phase(mix: Mix, offered: f64, seconds: u64) -> Phase {
    Phase {
        rate: offered * SERVERS as f64 * capacity(1, &mix.mean()),
        mix,
        duration: Duration::from_secs(seconds),
    }
}

fn experiments() -> Vec<(&'static str, f64, Arrivals)> {
    let alternating = |offered, seconds| {
        let phases = [Mix::chat(), Mix::long()].map(|mix| phase(mix, offered, seconds));
        (offered, Arrivals::Poisson(phases.to_vec()))
    };
    let steady = |mix: Mix| (OFFERED, Arrivals::Poisson(vec![phase(mix, OFFERED, 1 << 30)]));
    let experiments = [
        ("chat, long: 30 s each", alternating(OFFERED, 30)),
        ("chat, long: 120 s each", alternating(OFFERED, 120)),
        ("chat, long: 30 s each", alternating(OFFERED_HIGH, 30)),
        ("chat, long: 120 s each", alternating(OFFERED_HIGH, 120)),
        ("chat", steady(Mix::chat())),
        ("long", steady(Mix::long())),
        ("mixed", steady(Mix::mixed())),
    ];
    experiments.into_iter().map(|(name, (offered, arrivals))| (name, offered, arrivals)).collect()
}

fn scenario(arrivals: &Arrivals, gate: GateBy, seed: u64) -> Scenario {
    let servers = vec![server(hardware(1), NOISE); SERVERS];
    let mut scenario = Scenario::new(servers, gate, arrivals.clone());
    (scenario.slo, scenario.seed) = (slo(), seed);
    (scenario.warmup, scenario.duration) = (WARMUP, Some(DURATION));
    scenario
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunResult {
    /// Output tokens per second of responses within the target.
    pub(crate) goodput: f64,
    /// Prompt and output tokens per second of responses within the target.
    pub(crate) all_tokens: f64,
    /// Responses per second within the target.
    pub(crate) requests: f64,
    /// Share of the responses over the target.
    pub(crate) over: f64,
    /// Mean time between tokens.
    pub(crate) itl_ms: f64,
}

impl RunResult {
    fn new(record: &Record) -> Self {
        let seconds = record.recorded.as_secs_f64();
        let within: Vec<&Finished> =
            record.finished.iter().filter(|finished| finished.itl_ms() <= ITL_MS).collect();
        let rate = |size: fn(&Finished) -> u64| {
            within.iter().map(|finished| size(finished)).sum::<u64>() as f64 / seconds
        };
        let count = record.finished.len().max(1) as f64;
        Self {
            goodput: rate(|finished| finished.output),
            all_tokens: rate(|finished| finished.input + finished.output),
            requests: rate(|_| 1),
            over: 1.0 - within.len() as f64 / count,
            itl_ms: record.finished.iter().map(Finished::itl_ms).sum::<f64>() / count,
        }
    }

    fn mean(results: &[Self]) -> Self {
        let mean = |field: fn(&Self) -> f64| results.iter().map(field).sum::<f64>() / results.len() as f64;
        Self {
            goodput: mean(|result| result.goodput),
            all_tokens: mean(|result| result.all_tokens),
            requests: mean(|result| result.requests),
            over: mean(|result| result.over),
            itl_ms: mean(|result| result.itl_ms),
        }
    }

    fn json(&self) -> Value {
        json!({
            "goodput_tokens_s": self.goodput,
            "goodput_with_prompts_tokens_s": self.all_tokens,
            "goodput_requests_s": self.requests,
            "over_slo": self.over,
            "itl_ms": self.itl_ms,
        })
    }
}

fn result(arrivals: &Arrivals, gate: GateBy) -> RunResult {
    let runs = SEEDS.map(|seed| {
        let record = run_loop(&scenario(arrivals, gate, seed)).expect("the hardware is valid");
        RunResult::new(&record)
    });
    RunResult::mean(&runs)
}

/// The first watermarks of a search, from far too low to far too high.
const COARSE: [f64; 13] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 18.0, 26.0, 36.0, 50.0, 70.0, 100.0];

/// Results of fixed watermarks: the coarse ones, then the ones between the neighbours of the best by output tokens and of
/// the best by all tokens, at most twelve each. Steps are whole numbers, or halves below 6.
fn search(arrivals: &Arrivals) -> Vec<(f64, RunResult)> {
    let results = |watermarks: &[f64]| {
        parallel::map(watermarks, |&watermark| (watermark, result(arrivals, GateBy::Watermark(watermark))))
    };
    let mut found = results(&COARSE);
    let mut finer: Vec<f64> = Vec::new();
    let criteria: [fn(&RunResult) -> f64; 2] = [|result| result.goodput, |result| result.all_tokens];
    for criterion in criteria {
        let (best, _) = best(&found, criterion);
        let position = COARSE.iter().position(|watermark| *watermark == best).unwrap_or(0);
        let (from, to) = (COARSE[position.saturating_sub(1)], COARSE[(position + 1).min(COARSE.len() - 1)]);
        let step = if to <= 6.0 { 0.5 } else { ((to - from) / 12.0).ceil() };
        let between = (1..).map(|number| from + f64::from(number) * step);
        finer.extend(between.take_while(|watermark| *watermark < to));
    }
    finer.retain(|watermark| !COARSE.contains(watermark));
    finer.sort_by(f64::total_cmp);
    finer.dedup();
    found.extend(results(&finer));
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found
}

/// The watermark with the highest value of the criterion, and its result.
fn best(results: &[(f64, RunResult)], criterion: fn(&RunResult) -> f64) -> (f64, RunResult) {
    let better = |a: &&(f64, RunResult), b: &&(f64, RunResult)| criterion(&a.1).total_cmp(&criterion(&b.1));
    *results.iter().max_by(better).expect("a search has results")
}

pub(crate) fn run() -> Value {
    let rows = experiments().into_iter().map(|(name, offered, arrivals)| {
        let fixed = search(&arrivals);
        let [learned, truth] = {
            let both = parallel::map(&[GateBy::Learned, GateBy::Truth], |gate| result(&arrivals, *gate));
            [both[0], both[1]]
        };
        let (watermark, by_output) = best(&fixed, |result| result.goodput);
        let (_, by_all) = best(&fixed, |result| result.all_tokens);
        let keeping: Vec<_> =
            fixed.iter().copied().filter(|(_, result)| result.over <= OVER_TARGET_MAX).collect();
        let (keeps, by_keeping) = best(&keeping, |result| result.goodput);
        let search = fixed.iter().map(|(watermark, result)| json!([watermark, result.goodput, result.over]));
        json!({
            "traffic": name,
            "offered": offered,
            "best_fixed_that_keeps": {"watermark": keeps, "worth": by_keeping.json()},
            "ratio_to_one_that_keeps": learned.goodput / by_keeping.goodput,
            "best_fixed": {"watermark": watermark, "worth": by_output.json()},
            "auto": learned.json(),
            "auto_with_true_parameters": truth.json(),
            "ratio": learned.goodput / by_output.goodput,
            "ratio_with_true_parameters": truth.goodput / by_output.goodput,
            "ratio_with_prompts": learned.all_tokens / by_all.all_tokens,
            "search": search.collect::<Vec<_>>(),
        })
    });
    json!({
        "servers": SERVERS,
        "itl_slo_ms": ITL_MS,
        "keeps": OVER_TARGET_MAX,
        "noise": NOISE,
        "seeds": SEEDS.len(),
        "scenes": rows.collect::<Vec<_>>(),
    })
}
