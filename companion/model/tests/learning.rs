//! Parameters learned behind the gate that they set, against the truth.

mod world;

use penstock_model::Parameters;
use penstock_model::ledger::Observation;
use world::{CHAT, CODE, LONG, MIXED, Settings, World, sizing};

pub(crate) fn saw(world: &World, seen: &Observation, (itl_ms, batch, resident): (f64, f64, f64)) {
    if let (Ok(_), Some(d)) = (std::env::var("DUMP"), seen.decode) {
        let p = world.settings.truth;
        let [cc, cm, mm] = d.uneven;
        let t = p.alpha_ms + p.beta_ms * (d.batch - d.prompts) + p.gamma_ms * d.resident;
        let mut d = d;
        d.resident -= (p.beta_ms * cm + p.gamma_ms * mm) / t;
        d.batch -= (p.beta_ms * cc + p.gamma_ms * cm) / t;
        println!(
            "OBS {} {} {} {} {} {itl_ms} {batch} {resident}",
            world.served, d.itl_ms, d.batch, d.resident, seen.output
        );
    }
}

const fn hardware(alpha_ms: f64, beta_ms: f64, gamma_ms: f64) -> Parameters {
    Parameters {
        alpha_ms,
        beta_ms,
        gamma_ms,
    }
}

pub(crate) const HARDWARE: [(&str, Parameters); 3] = [
    ("mid", hardware(8.0, 0.05, 0.0005)),
    ("fast", hardware(5.0, 0.02, 0.0001)),
    ("slow", hardware(25.0, 0.12, 0.0008)),
];

pub(crate) fn settings(truth: Parameters) -> Settings {
    Settings {
        truth,
        mix: CHAT,
        noise: 0.05,
        endpoints: 3,
        load: 0.9,
        probes: true,
        seed: 1,
        initial: 8,
        constant: None,
    }
}

#[test]
#[ignore = "a table, for a look"]
fn table() {
    let load: f64 = std::env::var("LOAD").map_or(0.9, |l| l.parse().expect("a number"));
    let seeds: u64 = std::env::var("SEEDS").map_or(1, |l| l.parse().expect("a number"));
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, truth) in HARDWARE {
        for mix in [CHAT, LONG, CODE, MIXED] {
            if !format!("{name} {}", mix.name).contains(&only) {
                continue;
            }
            for noise in
                std::env::var("NOISE").map_or(vec![0.05, 0.1], |n| vec![n.parse().expect("a number")])
            {
                for seed in 1..=seeds {
                    let mut world = World::new(Settings {
                        mix,
                        noise,
                        load,
                        seed,
                        ..settings(truth)
                    });
                    let (n, l) = sizing(&truth, &mix.traffic());
                    print!("{name:5} {:6} {noise:.2} n*={n:6.1} l*={l:6.2}", mix.name);
                    for upto in [200, 1_000, 3_000] {
                        let most = upto * world.settings.endpoints as u64;
                        world.serve(most - world.served);
                        let fit = world.last_fit;
                        let state = world.learner.state();
                        if let Some(fit) = fit {
                            let p = fit.parameters;
                            let (fn_, fl) = sizing(&p, &mix.traffic());
                            print!(
                                " | {:5} n{:+6.1}% l{:+6.1}% hw{:5.1}% c{:5.0} a{:+6.1}% b{:+6.1}% g{:+6.1}%",
                                &state.as_str()[..5],
                                100.0 * (fn_ / n - 1.0),
                                100.0 * (fl / l - 1.0),
                                100.0 * fit.n_star_half_width,
                                fit.condition,
                                100.0 * (p.alpha_ms / truth.alpha_ms - 1.0),
                                100.0 * (p.beta_ms / truth.beta_ms - 1.0),
                                100.0 * (p.gamma_ms / truth.gamma_ms - 1.0),
                            );
                        } else {
                            print!(" | {:12}", state.as_str());
                        }
                    }
                    println!(
                        " t={:.0}s bias {:.2}",
                        world.now_ms / 1e3,
                        world.learner.ttft_bias()
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "a table, for a look"]
fn doubled() {
    let seeds: u64 = std::env::var("SEEDS").map_or(2, |l| l.parse().expect("a number"));
    let load: f64 = std::env::var("LOAD").map_or(0.9, |l| l.parse().expect("a number"));
    let factor: f64 = std::env::var("FACTOR").map_or(2.0, |l| l.parse().expect("a number"));
    for (name, truth) in HARDWARE {
        for mix in [CHAT, LONG, CODE, MIXED] {
            for noise in [0.05, 0.1] {
                for seed in 1..=seeds {
                    let mut world = World::new(Settings {
                        mix,
                        noise,
                        load,
                        seed,
                        ..settings(truth)
                    });
                    world.serve(2_000 * 3);
                    let before = world.learner.parameters();
                    world.settings.truth.alpha_ms *= factor;
                    let (n, l) = sizing(&world.settings.truth, &mix.traffic());
                    let a = world.settings.truth.alpha_ms;
                    let error = |p: Option<Parameters>| {
                        p.map_or((9.0, 9.0, 9.0), |p| {
                            let (fn_, fl) = sizing(&p, &mix.traffic());
                            (fn_ / n - 1.0, fl / l - 1.0, p.alpha_ms / a - 1.0)
                        })
                    };
                    let b = error(before);
                    print!("{name:5} {:6} {noise:.2} before n{:+5.0}%", mix.name, b.0 * 100.0);
                    let (mut served, mut dropped) = (0, None);
                    let mut ok = None;
                    while served < 9_000 {
                        world.serve(30);
                        served += 30;
                        let e = error(world.learner.parameters());
                        if dropped.is_none() && world.last_fit.is_none_or(|f| f.observations < 200) {
                            dropped = Some(served);
                        }
                        let good = e.0.abs() < 0.15
                            && e.2.abs() < 0.15
                            && world.learner.state() == penstock_model::learner::State::Converged;
                        if good && ok.is_none() {
                            ok = Some(served);
                        }
                        if [300, 1_500, 3_000, 4_500, 9_000].contains(&served) {
                            print!(
                                " | {served} {} n{:+.0}% a{:+.0}%",
                                &world.learner.state().as_str()[..5],
                                e.0 * 100.0,
                                e.2 * 100.0
                            );
                        }
                    }
                    println!(" dropped {dropped:?} relearned {ok:?}");
                }
            }
        }
    }
}
