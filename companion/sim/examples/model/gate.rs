//! What the gate is worth: `auto` against every fixed watermark, for traffic that alternates and for steady traffic.

use std::time::Duration;

use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Targets, Traffic, sizing};
use penstock_sim::closed_loop::{Arrivals, Finished, GateBy, Mix, Phase, Record, Setting, fly};
use serde_json::{Value, json};

use crate::all;
use crate::combos::{hardware, parameters, server};

const SERVERS: usize = 3;
const ITL_MS: f64 = 50.0;
/// Both targets are given, or neither; this one is out of the way.
const TTFT_MS: f64 = 10_000.0;
/// What is offered, of what the servers can do within the target: more, in every phase,
const OFFERED: f64 = 1.2;
/// and much more.
const OFFERED_MUCH: f64 = 2.0;
/// The part of answers over the target at which a fixed watermark still counts as one that keeps it.
const KEEPS: f64 = 0.05;
const NOISE: f64 = 0.05;
const SEEDS: [u64; 2] = [1, 2];
/// The loop settles, and learns, for so long.
const SETTLES: Duration = Duration::from_secs(480);
const LASTS: Duration = Duration::from_secs(480 + 960);

pub(crate) fn slo() -> SloPolicy {
    SloPolicy {
        explicit: Some(Targets {
            ttft_ms: Some(TTFT_MS),
            itl_ms: Some(ITL_MS),
        }),
        ..SloPolicy::default()
    }
}

/// What one server does of this within the target.
pub(crate) fn capacity(at: usize, traffic: &Traffic) -> f64 {
    let targets = slo().explicit.unwrap_or_default();
    sizing::size(&parameters(&hardware(at)), traffic, &targets, Some(256.0), 1.0).lambda_star
}

fn phase(mix: Mix, offered: f64, seconds: u64) -> Phase {
    Phase {
        rate: offered * SERVERS as f64 * capacity(1, &mix.mean()),
        mix,
        lasts: Duration::from_secs(seconds),
    }
}

fn scenes() -> Vec<(&'static str, f64, Arrivals)> {
    let alternating = |offered, seconds| {
        let phases = [Mix::chat(), Mix::long()].map(|mix| phase(mix, offered, seconds));
        (offered, Arrivals::Poisson(phases.to_vec()))
    };
    let steady = |mix: Mix| (OFFERED, Arrivals::Poisson(vec![phase(mix, OFFERED, 1 << 30)]));
    let scenes = [
        ("chat, long: 30 s each", alternating(OFFERED, 30)),
        ("chat, long: 120 s each", alternating(OFFERED, 120)),
        ("chat, long: 30 s each", alternating(OFFERED_MUCH, 30)),
        ("chat, long: 120 s each", alternating(OFFERED_MUCH, 120)),
        ("chat", steady(Mix::chat())),
        ("long", steady(Mix::long())),
        ("mixed", steady(Mix::mixed())),
    ];
    scenes
        .into_iter()
        .map(|(name, (offered, arrivals))| (name, offered, arrivals))
        .collect()
}

fn setting(arrivals: &Arrivals, gate: GateBy, seed: u64) -> Setting {
    let servers = vec![server(hardware(1), NOISE); SERVERS];
    let mut setting = Setting::new(servers, gate, arrivals.clone(), usize::MAX);
    (setting.slo, setting.seed) = (slo(), seed);
    (setting.settles, setting.lasts) = (SETTLES, LASTS);
    setting
}

/// What a run was worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worth {
    /// Output tokens per second of answers within the target.
    pub(crate) goodput: f64,
    /// The same with prompt tokens.
    pub(crate) all_tokens: f64,
    /// Answers per second within the target.
    pub(crate) requests: f64,
    /// Part of all answers that was over it.
    pub(crate) over: f64,
    /// Mean time between tokens.
    pub(crate) itl_ms: f64,
}

impl Worth {
    fn of(record: &Record) -> Self {
        let seconds = record.recorded.as_secs_f64();
        let within: Vec<&Finished> = record
            .finished
            .iter()
            .filter(|it| it.itl_ms() <= ITL_MS)
            .collect();
        let sum = |of: fn(&Finished) -> u64| within.iter().map(|it| of(it)).sum::<u64>() as f64 / seconds;
        let count = record.finished.len().max(1) as f64;
        Self {
            goodput: sum(|it| it.output),
            all_tokens: sum(|it| it.input + it.output),
            requests: sum(|_| 1),
            over: 1.0 - within.len() as f64 / count,
            itl_ms: record.finished.iter().map(Finished::itl_ms).sum::<f64>() / count,
        }
    }

    fn mean(all: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        Self {
            goodput: mean(|it| it.goodput),
            all_tokens: mean(|it| it.all_tokens),
            requests: mean(|it| it.requests),
            over: mean(|it| it.over),
            itl_ms: mean(|it| it.itl_ms),
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

fn worth(arrivals: &Arrivals, gate: GateBy) -> Worth {
    let runs = SEEDS.map(|seed| Worth::of(&fly(&setting(arrivals, gate, seed)).expect("it can be")));
    Worth::mean(&runs)
}

/// Where the search begins: from far too low to far too high.
const COARSE: [f64; 13] = [
    1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 18.0, 26.0, 36.0, 50.0, 70.0, 100.0,
];

/// Every fixed watermark that was tried: the coarse ones, then all between the neighbours of the best by output and of
/// the best by all tokens, at most a dozen each; whole numbers, halves below 6.
fn search(arrivals: &Arrivals) -> Vec<(f64, Worth)> {
    let tried = |watermarks: &[f64]| {
        all(watermarks, |&watermark| {
            (watermark, worth(arrivals, GateBy::Watermark(watermark)))
        })
    };
    let mut found = tried(&COARSE);
    let mut finer: Vec<f64> = Vec::new();
    for of in [(|it: &Worth| it.goodput) as fn(&Worth) -> f64, |it| it.all_tokens] {
        let best = best(&found, of).0;
        let at = COARSE.iter().position(|it| *it == best).unwrap_or(0);
        let (from, to) = (
            COARSE[at.saturating_sub(1)],
            COARSE[(at + 1).min(COARSE.len() - 1)],
        );
        let step = if to <= 6.0 {
            0.5
        } else {
            ((to - from) / 12.0).ceil()
        };
        let between = (1..).map(|number| from + f64::from(number) * step);
        finer.extend(between.take_while(|it| *it < to));
    }
    finer.retain(|it| !COARSE.contains(it));
    finer.sort_by(f64::total_cmp);
    finer.dedup();
    found.extend(tried(&finer));
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found
}

fn best(of: &[(f64, Worth)], by: fn(&Worth) -> f64) -> (f64, Worth) {
    let better = |a: &&(f64, Worth), b: &&(f64, Worth)| by(&a.1).total_cmp(&by(&b.1));
    *of.iter().max_by(better).expect("something was tried")
}

pub(crate) fn run() -> Value {
    let rows = scenes().into_iter().map(|(name, offered, arrivals)| {
        let fixed = search(&arrivals);
        let [learned, truth] = {
            let both = all(&[GateBy::Learned, GateBy::Truth], |gate| worth(&arrivals, *gate));
            [both[0], both[1]]
        };
        let (watermark, by_output) = best(&fixed, |it| it.goodput);
        let (_, by_all) = best(&fixed, |it| it.all_tokens);
        let keeping: Vec<_> = fixed.iter().copied().filter(|(_, it)| it.over <= KEEPS).collect();
        let (keeps, by_keeping) = best(&keeping, |it| it.goodput);
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
            "search": fixed.iter().map(|(at, it)| json!([at, it.goodput, it.over])).collect::<Vec<_>>(),
        })
    });
    json!({
        "servers": SERVERS,
        "itl_slo_ms": ITL_MS,
        "keeps": KEEPS,
        "noise": NOISE,
        "seeds": SEEDS.len(),
        "scenes": rows.collect::<Vec<_>>(),
    })
}
