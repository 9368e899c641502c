//! Learning from a file of requests with the gateway's learner.
//!
//! A gateway has to estimate the running requests that overlap an ended one. A file contains all of them.

use std::io::Write;

use penstock_model::learner::{Learner, State};
use penstock_model::observation::{Decode, Observation};
use penstock_model::{Parameters, Targets, Traffic};

use super::overlaps::Overlaps;
use super::plot::{Plot, Thinned};
use super::recording::{self, Ended};
use super::{Answer, Error, Learned, Source, Start, Summary, print};
use crate::progress::Progress;

/// Time between two fits: the gateway's window, in the file's time.
const WINDOW_MS: f64 = 10_000.0;
/// A fit also follows after this number of requests, so that short files get results as well.
const WINDOW_REQUESTS: u64 = 16;
/// Number of recent requests in the mean sizes of prompts and outputs.
const TRAFFIC_REQUESTS: f64 = 1_000.0;

/// Learns from all requests. Prints a result for each line, with the state at the end of the line's request.
pub(super) fn learn(
    source: &mut Source<'_>,
    start: Start,
    plot: Option<&mut Plot>,
    out: &mut impl Write,
) -> Result<Summary, Error> {
    let requests = recording::read(source)?;
    let mut learning = Learning::new(start);
    let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
    let mut decodes: Option<Thinned<Decode>> = plot.is_some().then(Thinned::default);
    let mut progress = Progress::new("learning", requests.len() as u64);
    let mut overlaps = Overlaps::new(&requests);
    while let Some((index, decode)) = overlaps.next(|| learning.prompt_ms()) {
        progress.advance(1);
        answers[index] = Some(learning.observe(&requests[index], decode));
        if let (Some(decodes), Some(decode)) = (&mut decodes, decode) {
            decodes.push(decode);
        }
    }
    drop(progress);
    learning.fit(f64::INFINITY);
    for answer in &answers {
        print(out, &answer.expect("invariant: every request has ended"))?;
    }
    if let (Some(plot), Some(decodes), Some(parameters)) = (plot, decodes, learning.parameters) {
        for decode in decodes.kept {
            plot.itl(decode.itl_ms, fitted_ms(&parameters, &decode));
        }
    }
    Ok(learning.summary())
}

fn fitted_ms(parameters: &Parameters, decode: &Decode) -> f64 {
    parameters.alpha_ms + parameters.beta_ms * decode.batch + parameters.gamma_ms * decode.resident
}

/// The state of learning while requests end.
struct Learning {
    learner: Learner,
    /// The parameters of the last fit that found some, or the initial ones.
    parameters: Option<Parameters>,
    condition: Option<f64>,
    state: State,
    traffic: Traffic,
    requests: u64,
    /// Requests since the last fit.
    unfitted: u64,
    fitted_at_ms: f64,
    accepted: u64,
    first_tokens: Slope,
}

impl Learning {
    fn new(start: Start) -> Self {
        let kept = match start {
            Start::Given(parameters) => Some(parameters),
            Start::Bootstrap | Start::Defaults => None,
        };
        Self {
            learner: Learner::new(kept.map(|parameters| (parameters, 1.0))),
            parameters: kept,
            condition: None,
            state: State::NoTraffic,
            traffic: Traffic::default(),
            requests: 0,
            unfitted: 0,
            fitted_at_ms: f64::NEG_INFINITY,
            accepted: 0,
            first_tokens: Slope::default(),
        }
    }

    fn observe(&mut self, request: &Ended, decode: Option<Decode>) -> Answer {
        self.requests += 1;
        let weight = 1.0 / (self.requests as f64).min(TRAFFIC_REQUESTS);
        self.traffic.input += weight * (request.input - self.traffic.input);
        self.traffic.output += weight * (request.output - self.traffic.output);
        self.learner.observe(&Observation {
            at_ms: request.last_ms,
            input: request.input,
            output: request.output,
            ttft_ms: request.ttft_ms(),
            ttft_predicted_ms: None,
            decode,
        });
        if request.first_known {
            self.first_tokens.add(request.input, request.ttft_ms());
        }
        self.unfitted += 1;
        self.accepted += u64::from(decode.is_some());
        if self.state == State::NoTraffic {
            self.state = State::Learning;
            self.fitted_at_ms = request.last_ms;
        }
        if self.unfitted >= WINDOW_REQUESTS || request.last_ms - self.fitted_at_ms >= WINDOW_MS {
            self.fit(request.last_ms);
        }
        Answer { learned: self.learned(), nis: None, accepted: decode.is_some(), condition: self.condition }
    }

    fn fit(&mut self, now_ms: f64) {
        if self.unfitted == 0 {
            return;
        }
        (self.unfitted, self.fitted_at_ms) = (0, now_ms);
        let fit = self.learner.fit(now_ms, &self.traffic, &Targets::default());
        self.state = self.learner.state();
        self.condition = fit.map(|fit| fit.condition);
        self.parameters = fit.map(|fit| fit.parameters).or(self.learner.parameters()).or(self.parameters);
    }

    /// The time that a prompt token adds to an iteration, as far as it is learned.
    fn prompt_ms(&self) -> f64 {
        self.learner.prompt_ms().unwrap_or_else(|| self.first_tokens.value())
    }

    fn learned(&self) -> Learned {
        Learned::new(self.parameters, self.state)
    }

    fn summary(&self) -> Summary {
        Summary {
            learned: self.learned(),
            accepted: self.accepted,
            rejected: 0,
            undefined: self.requests - self.accepted,
            restarts: 0,
        }
    }
}

/// The increase of the time to the first token per prompt token, by least squares.
#[derive(Debug, Default)]
struct Slope {
    count: f64,
    mean: (f64, f64),
    /// Sums of squares and of products of the deviations from the means.
    squares: f64,
    products: f64,
}

impl Slope {
    fn add(&mut self, input: f64, ttft_ms: f64) {
        self.count += 1.0;
        let before = input - self.mean.0;
        self.mean.0 += before / self.count;
        self.mean.1 += (ttft_ms - self.mean.1) / self.count;
        self.squares += before * (input - self.mean.0);
        self.products += before * (ttft_ms - self.mean.1);
    }

    /// In milliseconds per token; at least 0, and 0 if it is undetermined.
    fn value(&self) -> f64 {
        let slope = self.products / self.squares;
        if slope.is_finite() { slope.max(0.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_is_that_of_the_fitted_line() {
        let mut slope = Slope::default();
        assert_eq!(slope.value(), 0.0);
        for input in [512.0, 512.0] {
            slope.add(input, 40.0);
        }
        assert_eq!(slope.value(), 0.0, "a single size determines no slope");
        for input in [100.0, 900.0, 4_000.0] {
            slope.add(input, 40.0 + (input - 512.0) * 0.05);
        }
        assert!((slope.value() - 0.05).abs() < 1e-9, "{}", slope.value());
    }
}
