//! Learned behind its own gate: lambda* and n* of what was learned beside the truth, and the Kalman filter over windows
//! beside it in the same runs.

use penstock_model::learner::State;
use penstock_model::{Parameters, Traffic};
use penstock_sim::closed_loop::{Arrivals, Change, GateBy, Mix, Record, Sample, Setting, fly};
use serde_json::{Value, json};

use crate::all;
use crate::combos::{HARDWARE, hardware, inferred_size, mixes, parameters, server};
use crate::kalman::Filter;

const SERVERS: usize = 2;
/// What is offered, of what the servers can do: more, so that the gate sets the load.
const OFFERED: f64 = 1.2;
const NOISES: [f64; 2] = [0.05, 0.10];
const SEEDS: [u64; 3] = [1, 2, 3];
const EARLY: usize = 200;
const LATE: usize = 3_000;
const LONG: usize = 100_000;

/// One combination.
#[derive(Clone, Copy, Debug)]
struct Combo {
    hardware: usize,
    mix: usize,
    noise: f64,
    seed: u64,
}

impl Combo {
    fn truth(&self) -> (Parameters, Traffic) {
        (parameters(&hardware(self.hardware)), mixes()[self.mix].mean())
    }

    fn setting(&self, served: usize) -> Setting {
        let (truth, traffic) = self.truth();
        let rate = OFFERED * SERVERS as f64 * inferred_size(&truth, &traffic).lambda_star;
        let arrivals = Arrivals::steady(mixes()[self.mix].clone(), rate);
        let servers = vec![server(hardware(self.hardware), self.noise); SERVERS];
        let mut setting = Setting::new(servers, GateBy::Learned, arrivals, served);
        setting.seed = self.seed;
        setting
    }
}

/// Relative errors of n* and lambda*; `None`: there are no parameters.
#[derive(Clone, Copy, Debug)]
struct Off {
    n_star: f64,
    lambda_star: f64,
}

fn off(found: Option<Parameters>, truth: &Parameters, traffic: &Traffic) -> Option<Off> {
    let (found, truth) = (inferred_size(&found?, traffic), inferred_size(truth, traffic));
    Some(Off {
        n_star: found.n_star? / truth.n_star? - 1.0,
        lambda_star: found.lambda_star / truth.lambda_star - 1.0,
    })
}

fn worst(off: &Off) -> f64 {
    off.n_star.abs().max(off.lambda_star.abs())
}

/// What the autopilot acts on at a sample.
fn acts_on(sample: &Sample) -> Option<Parameters> {
    sample.status.variants.first().and_then(|it| it.parameters)
}

fn state(sample: &Sample) -> State {
    sample
        .status
        .variants
        .first()
        .map_or(State::NoTraffic, |it| it.state)
}

/// What the filter says at each sample.
fn filtered(record: &Record) -> Vec<Option<Parameters>> {
    let mut filter = Filter::default();
    record
        .samples
        .iter()
        .map(|sample| filter.step(&sample.observed))
        .collect()
}

/// The errors at one moment of a run.
#[derive(Clone, Copy, Debug)]
struct Moment {
    served: usize,
    reservoir: Option<Off>,
    exported: Option<f64>,
    kalman: Option<Off>,
    converged: bool,
}

fn moment(combo: &Combo, record: &Record, kalman: &[Option<Parameters>], served: usize) -> Option<Moment> {
    let (truth, traffic) = combo.truth();
    let at = record.samples.iter().position(|it| it.served >= served)?;
    let sample = &record.samples[at];
    let exported = sample.status.variants.first().and_then(|it| it.n_star);
    let n_star = inferred_size(&truth, &traffic).n_star?;
    Some(Moment {
        served: sample.served,
        reservoir: off(acts_on(sample), &truth, &traffic),
        exported: exported.map(|it| it / n_star - 1.0),
        kalman: off(kalman[at], &truth, &traffic),
        converged: state(sample) == State::Converged,
    })
}

/// Median and worst of errors over seeds; `missing`: runs that had no number.
fn over(moments: &[Moment], of: impl Fn(&Moment) -> Option<f64>) -> Value {
    let mut found: Vec<f64> = moments.iter().filter_map(of).map(f64::abs).collect();
    found.sort_by(f64::total_cmp);
    json!({
        "median": found.get(found.len() / 2),
        "worst": found.last(),
        "missing": moments.len() - found.len(),
    })
}

fn summary(moments: &[Moment]) -> Value {
    json!({
        "requests_per_endpoint": moments.iter().map(|it| it.served / SERVERS).max(),
        "converged": moments.iter().filter(|it| it.converged).count(),
        "runs": moments.len(),
        "n_star": over(moments, |it| it.reservoir.map(|off| off.n_star)),
        "lambda_star": over(moments, |it| it.reservoir.map(|off| off.lambda_star)),
        "exported_n_star": over(moments, |it| it.exported),
        "kalman_n_star": over(moments, |it| it.kalman.map(|off| off.n_star)),
        "kalman_lambda_star": over(moments, |it| it.kalman.map(|off| off.lambda_star)),
    })
}

pub(crate) fn run() -> Value {
    json!({
        "servers": SERVERS,
        "offered": OFFERED,
        "seeds": SEEDS.len(),
        "combinations": combinations(),
        "long": long(),
        "doubled": doubled(),
        "constant": constant(),
    })
}

fn combinations() -> Value {
    let mut rows = Vec::new();
    for hardware in 0..HARDWARE.len() {
        for mix in 0..mixes().len() {
            rows.extend(NOISES.map(|noise| (hardware, mix, noise)));
        }
    }
    let rows = all(&rows, |&(hardware, mix, noise)| {
        let runs = SEEDS.map(|seed| {
            let combo = Combo {
                hardware,
                mix,
                noise,
                seed,
            };
            let record = fly(&combo.setting(SERVERS * LATE * 11 / 10)).expect("it can be");
            let kalman = filtered(&record);
            [EARLY, LATE].map(|served| moment(&combo, &record, &kalman, SERVERS * served))
        });
        let at = |which: usize| -> Vec<Moment> { runs.iter().filter_map(|run| run[which]).collect() };
        let combo = Combo {
            hardware,
            mix,
            noise,
            seed: 0,
        };
        let (truth, traffic) = combo.truth();
        let size = inferred_size(&truth, &traffic);
        json!({
            "hardware": HARDWARE[hardware].0,
            "traffic": mixes()[mix].name,
            "noise": noise,
            "n_star": size.n_star,
            "lambda_star": size.lambda_star,
            "early": summary(&at(0)),
            "late": summary(&at(1)),
        })
    });
    Value::Array(rows)
}

/// Least and most of n* as it was acted on once it had settled, of the true one.
fn range(samples: &[Sample], kalman: &[Option<Parameters>], combo: &Combo) -> Value {
    let (truth, traffic) = combo.truth();
    let ratios = |found: &mut dyn Iterator<Item = Option<Parameters>>| -> Value {
        let all: Vec<f64> = found
            .filter_map(|it| off(it, &truth, &traffic))
            .map(|off| 1.0 + off.n_star)
            .collect();
        json!({
            "least": all.iter().copied().reduce(f64::min),
            "most": all.iter().copied().reduce(f64::max),
            "last": all.last(),
        })
    };
    json!({
        "reservoir": ratios(&mut samples.iter().map(acts_on)),
        "kalman": ratios(&mut kalman.iter().copied()),
    })
}

fn long() -> Value {
    let mut combos = Vec::new();
    for hardware in 0..HARDWARE.len() {
        for mix in 0..mixes().len() {
            combos.push(Combo {
                hardware,
                mix,
                noise: 0.10,
                seed: 1,
            });
        }
    }
    Value::Array(all(&combos, |combo| {
        let record = fly(&combo.setting(LONG)).expect("it can be");
        let kalman = filtered(&record);
        let settled = record
            .samples
            .iter()
            .position(|it| it.served >= SERVERS * LATE)
            .unwrap_or(0);
        let states = record.samples[settled..].iter().map(state);
        let converged = states.clone().filter(|it| *it == State::Converged).count();
        let (truth, traffic) = combo.truth();
        let points = record
            .samples
            .iter()
            .zip(&kalman)
            .step_by(record.samples.len().div_ceil(200));
        let points = points.map(|(sample, filter)| {
            let n = |found| off(found, &truth, &traffic).map(|off| 1.0 + off.n_star);
            json!([sample.served, n(acts_on(sample)), n(*filter)])
        });
        json!({
            "hardware": HARDWARE[combo.hardware].0,
            "traffic": mixes()[combo.mix].name,
            "noise": combo.noise,
            "requests": record.served,
            "windows_converged": converged as f64 / states.count().max(1) as f64,
            "n_star": range(&record.samples[settled..], &kalman[settled..], combo),
            "points": points.collect::<Vec<_>>(),
        })
    }))
}

/// Requests, after alpha doubled, until n* and lambda* were within a tenth of the new truth and stayed for ten windows.
fn relearned(
    samples: &[Sample],
    found: &[Option<Parameters>],
    from: usize,
    truth: &Parameters,
    traffic: &Traffic,
) -> Option<usize> {
    let good: Vec<bool> = found
        .iter()
        .map(|it| off(*it, truth, traffic).is_some_and(|off| worst(&off) < 0.10))
        .collect();
    let at =
        (0..good.len()).find(|&at| samples[at].served > from && good[at..].iter().take(10).all(|it| *it))?;
    Some(samples[at].served - from)
}

fn doubled() -> Value {
    let mut combos = Vec::new();
    for mix in 0..mixes().len() {
        for noise in NOISES {
            combos.push((mix, noise));
        }
    }
    Value::Array(all(&combos, |&(mix, noise)| {
        let runs = SEEDS.map(|seed| {
            let combo = Combo {
                hardware: 1,
                mix,
                noise,
                seed,
            };
            // One server: requests of the endpoint are those of the variant.
            let mut setting = combo.setting(LATE * 2 + 1_000);
            setting.servers.truncate(1);
            setting.change = Some(Change::Alpha {
                served: LATE,
                times: 2.0,
            });
            let record = fly(&setting).expect("it can be");
            let kalman = filtered(&record);
            let (mut truth, traffic) = combo.truth();
            truth.alpha_ms *= 2.0;
            let own: Vec<_> = record.samples.iter().map(acts_on).collect();
            [own, kalman].map(|found| relearned(&record.samples, &found, LATE, &truth, &traffic))
        });
        let of = |which: usize| -> Value {
            let mut all: Vec<usize> = runs.iter().filter_map(|run| run[which]).collect();
            all.sort_unstable();
            json!({
                "median": all.get(all.len() / 2),
                "worst": all.last(),
                "never": runs.len() - all.len(),
            })
        };
        json!({
            "traffic": mixes()[mix].name,
            "noise": noise,
            "reservoir": of(0),
            "kalman": of(1),
        })
    }))
}

/// One operating point: requests that are all alike, from clients that are always as many, and nobody probes.
fn constant() -> Value {
    Value::Array(all(&NOISES, |&noise| {
        let arrivals = Arrivals::Closed {
            clients: 8,
            mix: Mix::chat().uniform(),
        };
        let servers = vec![server(hardware(1), noise)];
        let setting = Setting::new(servers, GateBy::Nobody, arrivals, LATE * 2);
        let record = fly(&setting).expect("it can be");
        let states: Vec<State> = record.samples.iter().map(state).collect();
        let part =
            |of: State| states.iter().filter(|it| **it == of).count() as f64 / states.len().max(1) as f64;
        let parts = State::ALL.map(|it| (it.as_str().to_string(), json!(part(it))));
        json!({
            "noise": noise,
            "windows": states.len(),
            "states": Value::Object(parts.into_iter().collect()),
            "last": states.last().map(|it| it.as_str()),
            "numbers_exported": record.samples.iter().filter(|it| acts_on(it).is_some()).count(),
        })
    }))
}
