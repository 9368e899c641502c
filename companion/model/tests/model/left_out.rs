//! Two rules of the queueing model of llm-d's Workload Variant Autoscaler that this model doesn't have, and the numbers for which it
//! doesn't: bounds around the bootstrap's parameters, and a limit on the server's queue.

use penstock_model::bootstrap::bootstrap;
use penstock_model::learner::State;
use penstock_model::sizing::size;
use penstock_model::window_estimator::WindowEstimator;
use penstock_model::workload::Observed;
use penstock_model::{Parameters, Targets, Traffic};

const TRUTH: Parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.000_5 };

/// 512 prompt tokens, 128 output tokens. A server of these parameters takes at most 14.5 requests per second of it.
const fn chat(rate: f64) -> Traffic {
    Traffic { rate, input: 512.0, output: 128.0 }
}

/// A window in which this server shows exactly the times of the model.
fn window(traffic: Traffic) -> Observed {
    let steady = TRUTH.solve(&traffic).steady.expect("the load is stable");
    Observed { traffic, ttft_ms: steady.ttft_ms, itl_ms: steady.itl_ms, busy: 1 }
}

/// The bootstrap takes a loaded iteration for an idle one, and gives what is left to gamma. So already at a tenth and at a third of a
/// server's capacity its gamma is three and four times the true one. An estimator that may not leave a tight range around it never
/// finds the truth.
#[test]
fn the_truth_is_far_from_the_bootstrap_and_the_estimator_reaches_it() {
    for (rate, times) in [(1.0, 2.9), (5.0, 4.2)] {
        let first = window(chat(rate));
        let found = bootstrap(&first).expect("it is positive and stable");
        assert!((found.gamma_ms / TRUTH.gamma_ms - times).abs() < 0.1, "{found:?}");
        let mut estimator = WindowEstimator::new(None);
        estimator.observe(&first);
        for index in 0..60_u32 {
            // The load changes from window to window, and so do the sizes of requests.
            let traffic = Traffic {
                rate: 0.5 + 0.4 * f64::from(index * 7 % 9),
                input: 256.0 + f64::from(index * 11 % 7) * 128.0,
                output: 64.0 + f64::from(index * 5 % 6) * 32.0,
            };
            estimator.observe(&window(traffic));
        }
        let learned = estimator.parameters().expect("it has observed windows");
        assert_eq!(estimator.state(), State::Converged);
        let ratios = [
            learned.alpha_ms / TRUTH.alpha_ms,
            learned.beta_ms / TRUTH.beta_ms,
            learned.gamma_ms / TRUTH.gamma_ms,
        ];
        assert!(ratios.iter().all(|ratio| (ratio - 1.0).abs() < 0.05), "{ratios:?}");
    }
}

/// Mean times of a server whose own queue holds at most `queue` requests, as a chain of births and deaths.
struct Chain {
    ttft_ms: f64,
    itl_ms: f64,
}

fn chain(traffic: &Traffic, max_batch: u32, queue: u32) -> Chain {
    let iteration_ms = |n: f64| TRUTH.alpha_ms + n * TRUTH.delta_ms(traffic);
    let iterations = traffic.output + 1.0;
    let per_ms = traffic.rate / 1_000.0;
    let in_service = |present: u32| f64::from(present.min(max_batch));
    let mut logarithms = vec![0.0_f64];
    for present in 1..=max_batch + queue {
        let n = in_service(present);
        let served_per_ms = n / (iterations * iteration_ms(n));
        let last = logarithms[logarithms.len() - 1];
        logarithms.push(last + (per_ms / served_per_ms).ln());
    }
    let greatest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logarithms.iter().map(|log| (log - greatest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mean = |value: &dyn Fn(u32) -> f64| {
        let weighted = (0..).zip(&weights).map(|(present, weight)| value(present) * weight);
        weighted.sum::<f64>() / total
    };
    let blocked = weights[weights.len() - 1] / total;
    let waiting = mean(&|present| f64::from(present.saturating_sub(max_batch)));
    let running_ms = iteration_ms(mean(&in_service));
    Chain {
        ttft_ms: waiting / (per_ms * (1.0 - blocked)) + running_ms + TRUTH.own_prefill_ms(traffic),
        itl_ms: running_ms + TRUTH.own_decode_ms(traffic),
    }
}

/// The greatest rate at which such a server meets the targets.
fn greatest_rate(traffic: &Traffic, targets: &Targets, max_batch: u32, queue: u32) -> f64 {
    let (mut low, mut high) = (1e-6, 20.0);
    for _ in 0..60 {
        let rate = f64::midpoint(low, high);
        let found = chain(&Traffic { rate, ..*traffic }, max_batch, queue);
        let meets = |found: f64, target: Option<f64>| target.is_none_or(|target| found <= target);
        if meets(found.ttft_ms, targets.ttft_ms) && meets(found.itl_ms, targets.itl_ms) {
            low = rate;
        } else {
            high = rate;
        }
    }
    low
}

/// The limit keeps a chain of states finite. It changes lambda* by less than half a per cent, even where the batch is the limit and
/// requests do wait inside the server; and the closed forms have no chain.
#[test]
fn a_limit_of_the_server_s_queue_hardly_changes_lambda_star() {
    let targets = Targets { ttft_ms: Some(2_000.0), itl_ms: Some(50.0) };
    for (traffic, max_batch, within) in [(chat(0.0), 256, 0.02), (chat(0.0), 32, 0.04)] {
        let [limited, unlimited] =
            [100, 3_000].map(|queue| greatest_rate(&traffic, &targets, max_batch, queue));
        assert!((limited / unlimited - 1.0).abs() < 0.005, "{limited} {unlimited}");
        let closed = size(&TRUTH, &traffic, &targets, Some(f64::from(max_batch)), 1.0).lambda_star;
        assert!((closed / unlimited - 1.0).abs() < within, "{closed} {unlimited}");
    }
}
