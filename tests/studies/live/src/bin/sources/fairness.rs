//! How evenly tokens are distributed over users with different demand: the measure of Kthena's fairness scheduling, Jain's index.

use std::time::Duration;

use penstock_engine::policy::Discipline;
use penstock_model::slo::Policy as SloPolicy;
use penstock_simulate::closed_loop::{Arrivals, GateBy, Scenario, run as run_loop};
use serde_json::{Value, json};

use crate::closed_loops::{TARGETS, capacity, first_tokens, mix, servers, weighted_tokens};

const SERVERS: usize = 3;
const WARMUP: Duration = Duration::from_secs(480);
const RECORDED: Duration = Duration::from_secs(2_400);
/// Offered load as a multiple of the servers' capacity.
const OFFERED: f64 = 2.0;
/// The users; the first offers most.
const USERS: [&str; 16] =
    ["u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8", "u9", "u10", "u11", "u12", "u13", "u14", "u15", "u16"];
/// Mean tokens of a prompt and of an output.
const SIZES: (f64, f64) = (512.0, 128.0);

pub(crate) fn run() -> Value {
    // The demand of user n is proportional to 1/n.
    let weights: Vec<f64> = (1..=USERS.len()).map(|user| 1.0 / user as f64).collect();
    let sum: f64 = weights.iter().sum();
    let parts: Vec<_> = USERS
        .into_iter()
        .zip(&weights)
        .map(|(user, weight)| (weight / sum, user, SIZES.0, SIZES.1))
        .collect();
    let mixed = mix(&parts);
    let rate = OFFERED * SERVERS as f64 * capacity(&mixed);
    let offered: Vec<f64> = parts
        .iter()
        .map(|(share, ..)| share * rate * RECORDED.as_secs_f64() * (SIZES.0 + 2.0 * SIZES.1))
        .collect();
    let row = |discipline: Discipline| {
        let mut scenario =
            Scenario::new(servers(SERVERS), GateBy::Learned, Arrivals::steady(mixed.clone(), rate));
        scenario.slo = SloPolicy { explicit: Some(TARGETS), ..SloPolicy::default() };
        (scenario.warmup, scenario.duration) = (WARMUP, Some(WARMUP + RECORDED));
        scenario.policy.flows.discipline = discipline;
        let record = run_loop(&scenario).expect("the hardware is valid");
        let served: Vec<f64> = USERS.iter().map(|user| weighted_tokens(&record, user) as f64).collect();
        let fair = max_min(&offered, served.iter().sum());
        let relative: Vec<f64> = served.iter().zip(&fair).map(|(served, fair)| served / fair).collect();
        json!({
            "discipline": discipline.as_str(),
            "jain": jain(&relative),
            "least": relative.iter().copied().fold(f64::INFINITY, f64::min),
            "most": relative.iter().copied().fold(0.0, f64::max),
            "heaviest_share": served[0] / served.iter().sum::<f64>(),
            "lightest": first_tokens(&record, USERS.last().copied()),
            "heaviest": first_tokens(&record, USERS.first().copied()),
        })
    };
    let disciplines = [
        Discipline::Fifo,
        Discipline::RoundRobin,
        Discipline::Wfq,
        Discipline::Usage,
        Discipline::Vtc,
        Discipline::Drr,
    ];
    json!({
        "users": USERS.len(),
        "offered": OFFERED,
        "recorded_s": RECORDED.as_secs(),
        "rows": disciplines.map(row),
    })
}

/// The max-min fair parts of a capacity: a user that offers less than an equal part gets as much as it offers, and the rest is divided equally
/// among the remaining users.
fn max_min(offered: &[f64], capacity: f64) -> Vec<f64> {
    let mut ascending: Vec<usize> = (0..offered.len()).collect();
    ascending.sort_by(|&a, &b| offered[a].total_cmp(&offered[b]));
    let mut rest = capacity;
    let mut parts = vec![0.0; offered.len()];
    for (position, &user) in ascending.iter().enumerate() {
        let equal = rest / (offered.len() - position) as f64;
        parts[user] = offered[user].min(equal);
        rest -= parts[user];
    }
    parts
}

/// Jain's fairness index: 1 if all values are equal, 1/n if only one isn't zero (Jain, Chiu and Hawe, 1984).
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}
