//! The measured load (C and M) of single requests, and the tracker under arbitrary input.

use penstock_model::Targets;
use penstock_model::closed_form::Traffic;
use penstock_model::learner::Learner;
use penstock_model::observation::{Completion, Decode, Observation};
use penstock_model::overlap_tracker::OverlapTracker;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn completion(first_ms: f64, last_ms: f64, output: f64) -> Completion {
    Completion {
        first_ms: Some(first_ms),
        last_ms: Some(last_ms),
        streamed: true,
        input: None,
        cached: None,
        output: Some(output),
    }
}

fn poll_all(tracker: &mut OverlapTracker) -> Vec<Observation> {
    std::iter::from_fn(|| tracker.poll_observation()).collect()
}

fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-6, "{value}, not {expected}");
}

#[test]
fn a_lone_request_counts_one_decode_and_its_own_tokens() {
    let mut tracker = OverlapTracker::default();
    tracker.record_dispatch(0.0, 1, 100.0, 20.0, 50.0, Some(30.0));
    tracker.record_completion(130.0, 1, &completion(30.0, 130.0, 11.0));
    let seen = poll_all(&mut tracker);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].ttft_ms, seen[0].ttft_predicted_ms), (30.0, Some(30.0)));
    let decode: Decode = seen[0].decode.expect("the request had eleven tokens");
    near(decode.itl_ms, 10.0);
    near(decode.batch, 1.0);
    near(decode.resident, 100.0 + 20.0 + 5.5);
}

#[test]
fn a_request_waits_for_a_later_one_and_counts_its_prompt_and_overlap() {
    let mut tracker = OverlapTracker::default();
    tracker.set_prompt_ms(0.0);
    tracker.record_dispatch(0.0, 1, 100.0, 0.0, 50.0, None);
    tracker.record_dispatch(40.0, 2, 60.0, 0.0, 50.0, None);
    tracker.record_completion(130.0, 1, &completion(30.0, 130.0, 11.0));
    assert!(poll_all(&mut tracker).is_empty(), "the first token of request 2 isn't known");
    tracker.record_completion(180.0, 2, &completion(80.0, 180.0, 11.0));
    let seen = poll_all(&mut tracker);
    let decode =
        seen.iter().find(|observation| observation.at_ms == 130.0).and_then(|observation| observation.decode);
    let decode = decode.expect("both have ended");
    // Half of its ten decodes overlapped the second request, which computed its prompt in one of them.
    near(decode.prompts, 6.0);
    near(decode.batch, 1.0 + 0.5 + 6.0);
    near(decode.resident, 105.5 + 60.0 / 10.0 + 0.5 * (60.0 + 2.5 + 0.5));
}

#[test]
fn a_prompt_computed_in_the_same_iteration_is_not_counted() {
    let mut tracker = OverlapTracker::default();
    tracker.record_dispatch(0.0, 1, 100.0, 0.0, 50.0, None);
    tracker.record_dispatch(0.0, 2, 60.0, 0.0, 50.0, None);
    tracker.record_completion(130.0, 1, &completion(30.0, 130.0, 11.0));
    tracker.record_completion(130.0, 2, &completion(30.0, 130.0, 11.0));
    for seen in poll_all(&mut tracker) {
        let decode = seen.decode.expect("the request decoded");
        near(decode.batch, 2.0);
        near(decode.prompts, 0.0);
    }
}

#[test]
fn every_sequence_of_a_neighbour_is_a_decode_and_its_prompt_counts_once() {
    let batch = |sequences: u64| {
        let mut tracker = OverlapTracker::default();
        tracker.record_dispatch(0.0, 1, 100.0, 0.0, 50.0, None);
        tracker.record_dispatch(0.0, 2, 60.0, 0.0, 50.0, None);
        tracker.set_sequences(2, sequences);
        tracker.record_completion(524.0, 1, &completion(34.0, 524.0, 50.0));
        tracker.record_completion(524.0, 2, &completion(34.0, 524.0, 50.0));
        let observations = poll_all(&mut tracker);
        let first = observations.iter().find(|observation| observation.input == 100.0).expect("observed");
        let decode = first.decode.expect("measured");
        (decode.batch, decode.resident)
    };
    let (one, four) = (batch(1), batch(4));
    near(one.0, 2.0);
    near(four.0, 5.0);
    // Each adds its own output, and none another prompt.
    near(four.1 - one.1, 3.0 * (one.1 - 60.0 - 125.0));
}

#[test]
fn completions_without_token_times_have_no_decode() {
    let mut tracker = OverlapTracker::default();
    let ends = [
        completion(30.0, 30.0, 1.0),
        Completion { output: None, ..completion(30.0, 90.0, 0.0) },
        Completion { streamed: false, ..completion(30.0, 90.0, 9.0) },
        Completion { first_ms: None, ..completion(30.0, 90.0, 9.0) },
    ];
    for (id, completion) in (0..).zip(ends) {
        tracker.record_dispatch(0.0, id, 10.0, 0.0, 9.0, Some(30.0));
        tracker.record_completion(100.0, id, &completion);
    }
    let seen = poll_all(&mut tracker);
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|observation| observation.decode.is_none()));
    // A prediction is only compared if the first token's time is known.
    assert_eq!(seen.iter().filter(|observation| observation.ttft_predicted_ms.is_some()).count(), 2);
}

#[test]
fn a_request_that_never_ends_does_not_block_others() {
    let mut tracker = OverlapTracker::default();
    tracker.record_dispatch(0.0, 0, 10.0, 0.0, 9.0, None);
    let mut seen = 0;
    for id in 1..20_000_u64 {
        let now_ms = id as f64 * 10.0;
        tracker.record_dispatch(now_ms, id, 10.0, 0.0, 9.0, None);
        tracker.record_completion(now_ms + 9.0, id, &completion(now_ms + 1.0, now_ms + 9.0, 9.0));
        seen += poll_all(&mut tracker).iter().filter(|observation| observation.decode.is_some()).count();
    }
    assert!(seen > 19_900, "{seen}");
    assert_eq!(tracker.running(), 1);
    // It overlapped more requests than are kept, so its decode can't be measured.
    tracker.record_completion(200_001.0, 0, &completion(1.0, 200_001.0, 20_000.0));
    let last = poll_all(&mut tracker).pop().expect("request 0 has ended");
    assert_eq!((last.at_ms, last.decode), (200_001.0, None));
}

/// Values that no real server reports.
const EXTREME_VALUES: [f64; 8] =
    [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, 1e-300, f64::MIN_POSITIVE];

/// Random input, of which a part is extreme.
struct Generator {
    rng: ChaCha8Rng,
    extreme_part: f64,
}

impl Generator {
    /// Up to `usual`, or an extreme value.
    fn value(&mut self, usual: f64) -> f64 {
        if self.is_extreme() {
            EXTREME_VALUES[self.rng.random_range(0..EXTREME_VALUES.len())]
        } else {
            usual * self.rng.random::<f64>()
        }
    }

    fn is_extreme(&mut self) -> bool {
        self.rng.random::<f64>() < self.extreme_part
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random::<f64>() < probability
    }

    /// Changes the tracker in one of the ways that a server's requests do.
    fn change(&mut self, tracker: &mut OverlapTracker, now_ms: f64) {
        let at_ms = if self.is_extreme() { self.value(1.0) } else { now_ms };
        let id = self.rng.random_range(0..24);
        match self.rng.random_range(0..8) {
            0..3 => {
                let predicted = Some(self.value(50.0));
                let (input, cached) = (self.value(900.0), self.value(90.0));
                tracker.record_dispatch(at_ms, id, input, cached, self.value(200.0), predicted);
            }
            3..6 => {
                let first_ms = Some(now_ms - self.value(400.0));
                let completion = Completion {
                    first_ms,
                    last_ms: self.chance(0.9).then(|| now_ms - self.value(30.0)),
                    streamed: self.chance(0.9),
                    input: Some(self.value(900.0)),
                    cached: None,
                    output: Some(self.value(200.0)),
                };
                tracker.record_completion(at_ms, id, &completion);
            }
            6 => tracker.record_drop(at_ms, id),
            _ => tracker.set_prompt_ms(self.value(0.1)),
        }
    }

    /// Fits, and checks that the fit is of finite numbers.
    fn fit(&mut self, learner: &mut Learner, now_ms: f64) {
        let traffic = Traffic { rate: self.value(9.0), input: self.value(900.0), output: self.value(200.0) };
        let targets = Targets {
            ttft_ms: self.chance(0.5).then(|| self.value(900.0)),
            itl_ms: self.chance(0.5).then(|| self.value(50.0)),
        };
        if let Some(fit) = learner.fit(now_ms, &traffic, &targets) {
            let p = fit.parameters;
            assert!(p.alpha_ms > 0.0 && p.alpha_ms.is_finite());
            assert!(p.beta_ms >= 0.0 && p.gamma_ms >= 0.0 && (p.beta_ms + p.gamma_ms).is_finite());
            assert!(!fit.n_star_half_width.is_nan() && !fit.condition.is_nan());
        }
        assert!(learner.ttft_bias() > 0.0 && learner.ttft_bias().is_finite());
    }
}

#[test]
fn arbitrary_input_breaks_neither_tracker_nor_learner() {
    for seed in 0..40 {
        let mut generator =
            Generator { rng: ChaCha8Rng::seed_from_u64(seed), extreme_part: seed as f64 / 200.0 };
        let (mut tracker, mut learner) = (OverlapTracker::default(), Learner::new(None));
        let mut now_ms = 0.0;
        for step in 0..2_000 {
            let step_ms = generator.value(20.0).clamp(-50.0, 1e4);
            now_ms += if step_ms.is_nan() { 0.0 } else { step_ms };
            generator.change(&mut tracker, now_ms);
            while let Some(observation) = tracker.poll_observation() {
                let decode = observation.decode.map(|decode| [decode.itl_ms, decode.batch, decode.resident]);
                let is_sound = |value: &f64| value.is_finite() && *value > 0.0;
                assert!(decode.is_none_or(|decode| decode.iter().all(is_sound)));
                learner.observe(&observation);
            }
            if step % 100 == 99 {
                generator.fit(&mut learner, now_ms);
            }
            assert!(tracker.running() <= 24);
        }
    }
}
