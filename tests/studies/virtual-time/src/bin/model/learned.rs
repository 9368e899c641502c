//! Learning behind its own gate: errors of lambda* and n* from the learned parameters, compared with a Kalman filter over
//! windows of the same runs.

use penstock_model::learner::State;
use penstock_model::{Parameters, Traffic};
use penstock_simulate::closed_loop::{
    Arrivals, Change, GateBy, Mix, Record, Sample, Scenario, run as run_loop,
};
use serde_json::{Value, json};

use crate::combos::{HARDWARE, hardware, inferred_size, mixes, parameters, server};
use crate::kalman::Filter;
use penstock_studies::parallel;

const SERVERS: usize = 2;
/// Offered load as a multiple of the servers' capacity. Above 1, so that the gate determines the load.
const OFFERED: f64 = 1.2;
const NOISES: [f64; 2] = [0.05, 0.10];
const SEEDS: [u64; 3] = [1, 2, 3];
const EARLY: usize = 200;
const LATE: usize = 3_000;
const LONG: usize = 100_000;

/// One combination of hardware, traffic, noise and seed.
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

    fn scenario(&self, served: usize) -> Scenario {
        let (truth, traffic) = self.truth();
        let rate = OFFERED * SERVERS as f64 * inferred_size(&truth, &traffic).lambda_star;
        let arrivals = Arrivals::steady(mixes()[self.mix].clone(), rate);
        let servers = vec![server(hardware(self.hardware), self.noise); SERVERS];
        let mut scenario = Scenario::new(servers, GateBy::Learned, arrivals).until_served(served);
        scenario.seed = self.seed;
        scenario
    }
}

/// Relative errors.
#[derive(Clone, Copy, Debug)]
struct Errors {
    n_star: f64,
    lambda_star: f64,
}

/// Errors of n* and lambda* that follow from the found parameters; `None` without parameters.
fn errors(found: Option<Parameters>, truth: &Parameters, traffic: &Traffic) -> Option<Errors> {
    let (found, truth) = (inferred_size(&found?, traffic), inferred_size(truth, traffic));
    Some(Errors {
        n_star: found.n_star? / truth.n_star? - 1.0,
        lambda_star: found.lambda_star / truth.lambda_star - 1.0,
    })
}

fn worst(errors: &Errors) -> f64 {
    errors.n_star.abs().max(errors.lambda_star.abs())
}

/// The parameters that the autopilot uses at a sample.
fn used_parameters(sample: &Sample) -> Option<Parameters> {
    sample.status.variants.first().and_then(|variant| variant.parameters)
}

fn state(sample: &Sample) -> State {
    sample.status.variants.first().map_or(State::NoTraffic, |variant| variant.state)
}

/// The Kalman filter's parameters at each sample.
fn kalman_parameters(record: &Record) -> Vec<Option<Parameters>> {
    let mut filter = Filter::default();
    record.samples.iter().map(|sample| filter.step(&sample.observed)).collect()
}

/// The errors at one sample of a run.
#[derive(Clone, Copy, Debug)]
struct Moment {
    served: usize,
    /// Errors of the autopilot, which keeps a reservoir of requests.
    reservoir: Option<Errors>,
    /// Error of the exported n*.
    exported: Option<f64>,
    kalman: Option<Errors>,
    converged: bool,
}

fn moment(combo: &Combo, record: &Record, kalman: &[Option<Parameters>], served: usize) -> Option<Moment> {
    let (truth, traffic) = combo.truth();
    let index = record.samples.iter().position(|sample| sample.served >= served)?;
    let sample = &record.samples[index];
    let exported = sample.status.variants.first().and_then(|variant| variant.n_star);
    let n_star = inferred_size(&truth, &traffic).n_star?;
    Some(Moment {
        served: sample.served,
        reservoir: errors(used_parameters(sample), &truth, &traffic),
        exported: exported.map(|found| found / n_star - 1.0),
        kalman: errors(kalman[index], &truth, &traffic),
        converged: state(sample) == State::Converged,
    })
}

/// Median and worst error over all seeds; `missing` counts the runs without a value.
fn over_seeds(moments: &[Moment], error: impl Fn(&Moment) -> Option<f64>) -> Value {
    let mut found: Vec<f64> = moments.iter().filter_map(error).map(f64::abs).collect();
    found.sort_by(f64::total_cmp);
    json!({
        "median": found.get(found.len() / 2),
        "worst": found.last(),
        "missing": moments.len() - found.len(),
    })
}

fn summary(moments: &[Moment]) -> Value {
    json!({
        "requests_per_endpoint": moments.iter().map(|moment| moment.served / SERVERS).max(),
        "converged": moments.iter().filter(|moment| moment.converged).count(),
        "runs": moments.len(),
        "n_star": over_seeds(moments, |moment| moment.reservoir.map(|errors| errors.n_star)),
        "lambda_star": over_seeds(moments, |moment| moment.reservoir.map(|errors| errors.lambda_star)),
        "exported_n_star": over_seeds(moments, |moment| moment.exported),
        "kalman_n_star": over_seeds(moments, |moment| moment.kalman.map(|errors| errors.n_star)),
        "kalman_lambda_star": over_seeds(moments, |moment| moment.kalman.map(|errors| errors.lambda_star)),
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
    let rows = parallel::map(&rows, |&(hardware, mix, noise)| {
        let runs = SEEDS.map(|seed| {
            let combo = Combo { hardware, mix, noise, seed };
            let record = run_loop(&combo.scenario(SERVERS * LATE * 11 / 10)).expect("the hardware is valid");
            let kalman = kalman_parameters(&record);
            [EARLY, LATE].map(|served| moment(&combo, &record, &kalman, SERVERS * served))
        });
        let moments = |index: usize| -> Vec<Moment> { runs.iter().filter_map(|run| run[index]).collect() };
        let combo = Combo { hardware, mix, noise, seed: 0 };
        let (truth, traffic) = combo.truth();
        let size = inferred_size(&truth, &traffic);
        json!({
            "hardware": HARDWARE[hardware].0,
            "traffic": mixes()[mix].name,
            "noise": noise,
            "n_star": size.n_star,
            "lambda_star": size.lambda_star,
            "early": summary(&moments(0)),
            "late": summary(&moments(1)),
        })
    });
    Value::Array(rows)
}

/// Smallest and largest n* of these samples, as a multiple of the true n*.
fn range(samples: &[Sample], kalman: &[Option<Parameters>], combo: &Combo) -> Value {
    let (truth, traffic) = combo.truth();
    let ratios = |found: &mut dyn Iterator<Item = Option<Parameters>>| -> Value {
        let all: Vec<f64> = found
            .filter_map(|parameters| errors(parameters, &truth, &traffic))
            .map(|errors| 1.0 + errors.n_star)
            .collect();
        json!({
            "least": all.iter().copied().reduce(f64::min),
            "most": all.iter().copied().reduce(f64::max),
            "last": all.last(),
        })
    };
    json!({
        "reservoir": ratios(&mut samples.iter().map(used_parameters)),
        "kalman": ratios(&mut kalman.iter().copied()),
    })
}

fn long() -> Value {
    let mut combos = Vec::new();
    for hardware in 0..HARDWARE.len() {
        for mix in 0..mixes().len() {
            combos.push(Combo { hardware, mix, noise: 0.10, seed: 1 });
        }
    }
    Value::Array(parallel::map(&combos, |combo| {
        let record = run_loop(&combo.scenario(LONG)).expect("the hardware is valid");
        let kalman = kalman_parameters(&record);
        let settled = record.samples.iter().position(|sample| sample.served >= SERVERS * LATE).unwrap_or(0);
        let states = record.samples[settled..].iter().map(state);
        let converged = states.clone().filter(|state| *state == State::Converged).count();
        let (truth, traffic) = combo.truth();
        let points = record.samples.iter().zip(&kalman).step_by(record.samples.len().div_ceil(200));
        let points = points.map(|(sample, filter)| {
            let n = |found| errors(found, &truth, &traffic).map(|errors| 1.0 + errors.n_star);
            json!([sample.served, n(used_parameters(sample)), n(*filter)])
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

/// Requests after the change of alpha until n* and lambda* were within 10 % of the new truth and stayed there for ten
/// windows.
fn relearned(
    samples: &[Sample],
    found: &[Option<Parameters>],
    from: usize,
    truth: &Parameters,
    traffic: &Traffic,
) -> Option<usize> {
    let good: Vec<bool> = found
        .iter()
        .map(|parameters| errors(*parameters, truth, traffic).is_some_and(|errors| worst(&errors) < 0.10))
        .collect();
    let stays = |index: usize| good[index..].iter().take(10).all(|good| *good);
    let index = (0..good.len()).find(|&index| samples[index].served > from && stays(index))?;
    Some(samples[index].served - from)
}

fn doubled() -> Value {
    let mut combos = Vec::new();
    for mix in 0..mixes().len() {
        for noise in NOISES {
            combos.push((mix, noise));
        }
    }
    Value::Array(parallel::map(&combos, |&(mix, noise)| {
        let runs = SEEDS.map(|seed| {
            let combo = Combo { hardware: 1, mix, noise, seed };
            // With one server, the endpoint's requests are the variant's requests.
            let mut scenario = combo.scenario(LATE * 2 + 1_000);
            scenario.servers.truncate(1);
            scenario.change = Some(Change::Alpha { served: LATE, times: 2.0 });
            let record = run_loop(&scenario).expect("the hardware is valid");
            let kalman = kalman_parameters(&record);
            let (mut truth, traffic) = combo.truth();
            truth.alpha_ms *= 2.0;
            let own: Vec<_> = record.samples.iter().map(used_parameters).collect();
            [own, kalman].map(|found| relearned(&record.samples, &found, LATE, &truth, &traffic))
        });
        let over_seeds = |index: usize| -> Value {
            let mut all: Vec<usize> = runs.iter().filter_map(|run| run[index]).collect();
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
            "reservoir": over_seeds(0),
            "kalman": over_seeds(1),
        })
    }))
}

/// A single operating point: requests of one size from a constant number of clients, without probing.
fn constant() -> Value {
    Value::Array(parallel::map(&NOISES, |&noise| {
        let arrivals = Arrivals::Closed { clients: 8, mix: Mix::chat().uniform() };
        let servers = vec![server(hardware(1), noise)];
        let scenario = Scenario::new(servers, GateBy::Unlimited, arrivals).until_served(LATE * 2);
        let record = run_loop(&scenario).expect("the hardware is valid");
        let states: Vec<State> = record.samples.iter().map(state).collect();
        let share = |state: State| {
            let count = states.iter().filter(|other| **other == state).count();
            count as f64 / states.len().max(1) as f64
        };
        let shares = State::ALL.map(|state| (state.as_str().to_string(), json!(share(state))));
        json!({
            "noise": noise,
            "windows": states.len(),
            "states": Value::Object(shares.into_iter().collect()),
            "last": states.last().map(|state| state.as_str()),
            "numbers_exported": record.samples.iter().filter(|sample| used_parameters(sample).is_some()).count(),
        })
    }))
}
