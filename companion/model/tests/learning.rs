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
    let load: f64 = std::env::var("LOAD").map_or(0.9, |l| l.parse().unwrap());
    let seeds: u64 = std::env::var("SEEDS").map_or(1, |l| l.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, truth) in HARDWARE {
        for mix in [CHAT, LONG, CODE, MIXED] {
            if !format!("{name} {}", mix.name).contains(&only) {
                continue;
            }
            for noise in std::env::var("NOISE").map_or(vec![0.05, 0.1], |n| vec![n.parse().unwrap()]) {
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
