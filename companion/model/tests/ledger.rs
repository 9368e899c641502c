//! C and M of single requests, and a ledger that takes whatever comes.

use penstock_model::Targets;
use penstock_model::closed_form::Traffic;
use penstock_model::learner::Learner;
use penstock_model::ledger::{Decode, End, Ledger, Observation};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn end(first_ms: f64, last_ms: f64, output: f64) -> End {
    End {
        first_ms: Some(first_ms),
        last_ms: Some(last_ms),
        streamed: true,
        input: None,
        cached: None,
        output: Some(output),
    }
}

fn all(ledger: &mut Ledger) -> Vec<Observation> {
    std::iter::from_fn(|| ledger.poll()).collect()
}

fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-6, "{value}, not {expected}");
}

#[test]
fn alone_it_is_one_decode_and_its_own_tokens() {
    let mut ledger = Ledger::default();
    ledger.dispatched(0.0, 1, 100.0, 20.0, 50.0, Some(30.0));
    ledger.ended(130.0, 1, &end(30.0, 130.0, 11.0));
    let seen = all(&mut ledger);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].ttft_ms, seen[0].ttft_predicted_ms), (30.0, Some(30.0)));
    let decode: Decode = seen[0].decode.expect("it had eleven tokens");
    near(decode.itl_ms, 10.0);
    near(decode.batch, 1.0);
    near(decode.resident, 100.0 + 20.0 + 5.5);
}

#[test]
fn it_waits_for_one_that_came_later_and_counts_its_prompt_and_its_part() {
    let mut ledger = Ledger::default();
    ledger.learned(0.0);
    ledger.dispatched(0.0, 1, 100.0, 0.0, 50.0, None);
    ledger.dispatched(40.0, 2, 60.0, 0.0, 50.0, None);
    ledger.ended(130.0, 1, &end(30.0, 130.0, 11.0));
    assert!(all(&mut ledger).is_empty(), "the other's first token isn't known");
    ledger.ended(180.0, 2, &end(80.0, 180.0, 11.0));
    let seen = all(&mut ledger);
    let decode = seen.iter().find(|it| it.at_ms == 130.0).and_then(|it| it.decode);
    let decode = decode.expect("both have ended");
    // Half of its ten decodes were beside the other's, whose prompt was computed in one of them.
    near(decode.prompts, 6.0);
    near(decode.batch, 1.0 + 0.5 + 6.0);
    near(decode.resident, 105.5 + 60.0 / 10.0 + 0.5 * (60.0 + 2.5 + 0.5));
}

#[test]
fn one_that_computed_its_prompt_in_the_same_iteration_adds_no_prompt() {
    let mut ledger = Ledger::default();
    ledger.dispatched(0.0, 1, 100.0, 0.0, 50.0, None);
    ledger.dispatched(0.0, 2, 60.0, 0.0, 50.0, None);
    ledger.ended(130.0, 1, &end(30.0, 130.0, 11.0));
    ledger.ended(130.0, 2, &end(30.0, 130.0, 11.0));
    for seen in all(&mut ledger) {
        let decode = seen.decode.expect("it decoded");
        near(decode.batch, 2.0);
        near(decode.prompts, 0.0);
    }
}

#[test]
fn what_says_nothing_of_decoding_has_no_decode() {
    let mut ledger = Ledger::default();
    let ends = [
        end(30.0, 30.0, 1.0),
        End {
            output: None,
            ..end(30.0, 90.0, 0.0)
        },
        End {
            streamed: false,
            ..end(30.0, 90.0, 9.0)
        },
        End {
            first_ms: None,
            ..end(30.0, 90.0, 9.0)
        },
    ];
    for (id, end) in (0..).zip(ends) {
        ledger.dispatched(0.0, id, 10.0, 0.0, 9.0, Some(30.0));
        ledger.ended(100.0, id, &end);
    }
    let seen = all(&mut ledger);
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|it| it.decode.is_none()));
    // Where the first token isn't known, the prediction of it isn't judged.
    assert_eq!(seen.iter().filter(|it| it.ttft_predicted_ms.is_some()).count(), 2);
}

#[test]
fn one_that_never_ends_holds_nothing_up() {
    let mut ledger = Ledger::default();
    ledger.dispatched(0.0, 0, 10.0, 0.0, 9.0, None);
    let mut seen = 0;
    for id in 1..20_000_u64 {
        let at = id as f64 * 10.0;
        ledger.dispatched(at, id, 10.0, 0.0, 9.0, None);
        ledger.ended(at + 9.0, id, &end(at + 1.0, at + 9.0, 9.0));
        seen += all(&mut ledger).iter().filter(|it| it.decode.is_some()).count();
    }
    assert!(seen > 19_900, "{seen}");
    assert_eq!(ledger.running(), 1);
    // Itself overlapped more than is kept: it is known to have ended, and no more.
    ledger.ended(200_001.0, 0, &end(1.0, 200_001.0, 20_000.0));
    let last = all(&mut ledger).pop().expect("it has ended");
    assert_eq!((last.at_ms, last.decode), (200_001.0, None));
}

#[test]
fn nothing_that_comes_breaks_it_or_the_learner() {
    let strange = [
        0.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e300,
        1e-300,
        f64::MIN_POSITIVE,
    ];
    for seed in 0..40 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut ledger, mut learner) = (Ledger::default(), Learner::new(None));
        let mut now_ms = 0.0;
        let odd = seed as f64 / 200.0;
        let any = |usual: f64, rng: &mut ChaCha8Rng| {
            if rng.random::<f64>() < odd {
                strange[rng.random_range(0..strange.len())]
            } else {
                usual * rng.random::<f64>()
            }
        };
        for step in 0..2_000 {
            let step_ms = any(20.0, &mut rng).clamp(-50.0, 1e4);
            now_ms += if step_ms.is_nan() { 0.0 } else { step_ms };
            let at_ms = if rng.random::<f64>() < odd {
                any(1.0, &mut rng)
            } else {
                now_ms
            };
            let id = rng.random_range(0..24);
            match rng.random_range(0..8) {
                0..3 => {
                    let predicted = Some(any(50.0, &mut rng));
                    let (input, cached) = (any(900.0, &mut rng), any(90.0, &mut rng));
                    ledger.dispatched(at_ms, id, input, cached, any(200.0, &mut rng), predicted);
                }
                3..6 => {
                    let first_ms = Some(now_ms - any(400.0, &mut rng));
                    let end = End {
                        first_ms,
                        last_ms: (rng.random::<f64>() < 0.9).then(|| now_ms - any(30.0, &mut rng)),
                        streamed: rng.random::<f64>() < 0.9,
                        input: Some(any(900.0, &mut rng)),
                        cached: None,
                        output: Some(any(200.0, &mut rng)),
                    };
                    ledger.ended(at_ms, id, &end);
                }
                6 => ledger.dropped(at_ms, id),
                _ => ledger.learned(any(0.1, &mut rng)),
            }
            while let Some(seen) = ledger.poll() {
                let decode = seen.decode.map(|it| [it.itl_ms, it.batch, it.resident]);
                assert!(decode.is_none_or(|it| it.iter().all(|value| value.is_finite() && *value > 0.0)));
                learner.observe(&seen);
            }
            if step % 100 == 99 {
                let traffic = Traffic {
                    rate: any(9.0, &mut rng),
                    input: any(900.0, &mut rng),
                    output: any(200.0, &mut rng),
                };
                let targets = Targets {
                    ttft_ms: (rng.random::<f64>() < 0.5).then(|| any(900.0, &mut rng)),
                    itl_ms: (rng.random::<f64>() < 0.5).then(|| any(50.0, &mut rng)),
                };
                if let Some(fit) = learner.fit(now_ms, &traffic, &targets) {
                    let p = fit.parameters;
                    assert!(p.alpha_ms > 0.0 && p.alpha_ms.is_finite());
                    assert!(p.beta_ms >= 0.0 && p.gamma_ms >= 0.0 && (p.beta_ms + p.gamma_ms).is_finite());
                    assert!(!fit.n_star_half_width.is_nan() && !fit.condition.is_nan());
                }
                assert!(learner.ttft_bias() > 0.0 && learner.ttft_bias().is_finite());
            }
            assert!(ledger.running() <= 24);
        }
    }
}
