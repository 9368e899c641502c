//! The cost of metrics: nanoseconds of the observer for each request, with one model and endpoint and with many.
//!
//!     bash tests/studies/run observer

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_control::{Completed, Decided, Door, Labels, Observation, RequestNews};
use penstock_engine::Outcome;
use penstock_engine::input::Band;
use penstock_server::{Metrics, Observer};

const REQUESTS: usize = 300_000;
const ROUNDS: usize = 7;

fn main() {
    println!("models endpoints ns/request");
    for (models, endpoints) in [(1, 1), (8, 8), (100, 64)] {
        let labels: Vec<Arc<Labels>> = (0..models).map(|number| Arc::new(labels(number))).collect();
        let addresses: Vec<String> = (0..endpoints).map(|number| format!("10.0.0.{number}:8000")).collect();
        let metrics = Arc::new(Metrics::new().expect("distinct names"));
        let mut observer = Observer::new(metrics, 1_000);
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            // Made before the measurement, because the control makes observations, not the observer.
            let observations: Vec<[Observation; 3]> = (0..REQUESTS)
                .map(|number| request(&labels[number % models], &addresses[number % endpoints]))
                .collect();
            let started = Instant::now();
            for observation in observations.into_iter().flatten() {
                observer.observe(penstock_engine::Instant::ZERO, observation);
            }
            best = best.min(started.elapsed());
        }
        let each = best.as_nanos() / REQUESTS as u128;
        println!("{models:6} {endpoints:9} {each:10}");
    }
}

fn labels(number: usize) -> Labels {
    let model = format!("meta-llama/Llama-3.1-{number}B-Instruct");
    Labels {
        tokens: None,
        pool: "chat".into(),
        model: model.as_str().into(),
        flow: "acme".into(),
        private: false,
        band: Band::Default,
        request_id: "8e7b2c9e-3f0c-4a43-9a6e-1a2b3c4d5e6f".into(),
        class: Box::default(),
        traceparent: Box::default(),
    }
}

/// The observations of a request that waits, is dispatched and is answered.
fn request(labels: &Arc<Labels>, endpoint: &str) -> [Observation; 3] {
    [
        Observation::Request(labels.clone(), RequestNews::Arrived(Door::Filter)),
        Observation::Request(
            labels.clone(),
            RequestNews::Decided(Decided {
                outcome: Outcome::Dispatched,
                code: None,
                waited: Duration::from_millis(120),
                endpoint: endpoint.into(),
                was_queued: true,
                extra: false,
                prefill: None,
            }),
        ),
        Observation::Request(
            labels.clone(),
            RequestNews::Completed(Completed {
                outcome: Outcome::Dispatched,
                waited: Duration::from_millis(120),
                endpoint: endpoint.into(),
                status: 200,
                ttft: Some(Duration::from_millis(300)),
                first_token: Some(Duration::from_millis(300)),
                itl: Some(Duration::from_millis(20)),
                duration: Duration::from_secs(4),
                prompt_tokens: Some(700),
                output_tokens: Some(180),
                requeues: 0,
                extra: false,
            }),
        ),
    ]
}
