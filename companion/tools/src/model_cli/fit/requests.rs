//! Learning from a file of requests, as the gateway learns from those it sent.
//!
//! The gateway has to guess what runs beside a request and hasn't ended yet; a file says it.

use std::collections::BTreeMap;
use std::io::Write;

use penstock_model::learner::{Learner, State};
use penstock_model::observation::{Decode, Observation};
use penstock_model::{Parameters, Targets, Traffic};

use super::lines::Request;
use super::overlaps::Overlaps;
use super::plot::{Plot, Thinned};
use super::{Answer, Error, Known, Source, Start, Summary, answer};
use crate::model_cli::progress::Progress;

/// Between two fits: the gateway's window, in the time of the file,
const WINDOW_MS: f64 = 10_000.0;
/// or so many requests, so that a short file is answered as well as a long one.
const WINDOW_REQUESTS: u64 = 16;
/// Requests that the mean of prompts and answers looks back on.
const TRAFFIC_REQUESTS: f64 = 1_000.0;
/// Requests in a file.
const REQUESTS_MAX: usize = 1 << 26;

/// One that ended.
pub(super) struct Ended {
    pub(super) dispatched_ms: f64,
    /// When its first token came, or about when it would have; it decoded from then on.
    pub(super) first_ms: f64,
    /// Between these; both are `first_ms` where it was seen.
    pub(super) first_least_ms: f64,
    pub(super) first_most_ms: f64,
    /// The first token was seen.
    pub(super) seen: bool,
    pub(super) last_ms: f64,
    pub(super) input: f64,
    pub(super) output: f64,
    pub(super) endpoint: u32,
}

impl Ended {
    fn ttft_ms(&self) -> f64 {
        if self.seen {
            self.first_ms - self.dispatched_ms
        } else {
            0.0
        }
    }
}

/// Learns from all requests, and answers each line by what was done when its request was.
pub(super) fn learn(
    source: &mut Source<'_>,
    start: Start,
    plot: Option<&mut Plot>,
    out: &mut impl Write,
) -> Result<Summary, Error> {
    let requests = read(source)?;
    let mut run = Run::new(start);
    let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
    let mut decodes: Option<Thinned<Decode>> = plot.is_some().then(Thinned::default);
    let mut progress = Progress::new("learning", requests.len() as u64);
    let mut overlaps = Overlaps::new(&requests);
    while let Some((at, decode)) = overlaps.next(|| run.prompt_ms()) {
        progress.advance(1);
        answers[at] = Some(run.take(&requests[at], decode));
        if let (Some(decodes), Some(decode)) = (&mut decodes, decode) {
            decodes.take(decode);
        }
    }
    drop(progress);
    run.fit(f64::INFINITY);
    for one in &answers {
        answer(out, &one.expect("invariant: every request has ended"))?;
    }
    if let (Some(plot), Some(decodes), Some(parameters)) = (plot, decodes, run.parameters) {
        for decode in decodes.kept {
            plot.itl(decode.itl_ms, fitted_ms(&parameters, &decode));
        }
    }
    Ok(run.summary())
}

fn fitted_ms(parameters: &Parameters, decode: &Decode) -> f64 {
    parameters.alpha_ms + parameters.beta_ms * decode.batch + parameters.gamma_ms * decode.resident
}

/// The whole file. Moments are counted from the first dispatch on, where numbers are finest.
fn read(source: &mut Source<'_>) -> Result<Vec<Ended>, Error> {
    let mut requests: Vec<Ended> = Vec::new();
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let mut zero_ms = None;
    let mut first_tokens = (0.0, 0.0);
    loop {
        let full = requests.len() >= REQUESTS_MAX;
        let next = source.next(|line| {
            if full {
                return Err(format!("a file has up to {REQUESTS_MAX} requests"));
            }
            let request = Request::read(line)?;
            let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let endpoint = match names.get(&*request.endpoint) {
                Some(endpoint) => *endpoint,
                None => *names.entry(request.endpoint.into_owned()).or_insert(count),
            };
            let zero_ms = *zero_ms.get_or_insert(request.dispatched_ms);
            let seen = request.first_ms.is_some();
            let first_ms = request.first_ms.map_or(f64::NAN, |ms| ms - zero_ms);
            Ok(Ended {
                dispatched_ms: request.dispatched_ms - zero_ms,
                first_ms,
                first_least_ms: first_ms,
                first_most_ms: first_ms,
                seen,
                last_ms: request.done_ms - zero_ms,
                input: request.input,
                output: request.output,
                endpoint,
            })
        })?;
        let Some(request) = next else {
            break;
        };
        if request.seen {
            first_tokens.0 += request.ttft_ms();
            first_tokens.1 += 1.0;
        }
        requests.push(request);
    }
    let usual_ms = if first_tokens.1 > 0.0 {
        first_tokens.0 / first_tokens.1
    } else {
        0.0
    };
    guess(&mut requests, usual_ms);
    Ok(requests)
}

/// When the first tokens came that nobody saw: servers take requests in the order they come, so between those of the
/// ones sent before and after, and about as long after the dispatch as others.
fn guess(requests: &mut [Ended], usual_ms: f64) {
    let mut order: Vec<u32> = (0..).take(requests.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&requests[*a as usize], &requests[*b as usize]);
        a.endpoint
            .cmp(&b.endpoint)
            .then(a.dispatched_ms.total_cmp(&b.dispatched_ms))
    });
    let (mut endpoint, mut least_ms) = (None, f64::NEG_INFINITY);
    for request in order.iter().map(|at| *at as usize) {
        let request = &mut requests[request];
        if endpoint.replace(request.endpoint) != Some(request.endpoint) {
            least_ms = f64::NEG_INFINITY;
        }
        if request.seen {
            least_ms = least_ms.max(request.first_ms);
        } else {
            request.first_least_ms = least_ms.max(request.dispatched_ms).min(request.last_ms);
        }
    }
    let (mut endpoint, mut most_ms) = (None, f64::INFINITY);
    for request in order.iter().rev().map(|at| *at as usize) {
        let request = &mut requests[request];
        if endpoint.replace(request.endpoint) != Some(request.endpoint) {
            most_ms = f64::INFINITY;
        }
        if request.seen {
            most_ms = most_ms.min(request.first_ms);
        } else {
            let most_ms = most_ms
                .min(request.dispatched_ms + 2.0 * usual_ms)
                .min(request.last_ms);
            request.first_most_ms = most_ms.max(request.first_least_ms);
            let usual_ms = request.dispatched_ms + usual_ms;
            request.first_ms = usual_ms.clamp(request.first_least_ms, request.first_most_ms);
        }
    }
}

/// What is learned as requests end.
struct Run {
    learner: Learner,
    /// Of the last fit that said any, or those it began with.
    parameters: Option<Parameters>,
    condition: Option<f64>,
    state: State,
    traffic: Traffic,
    requests: u64,
    /// Since the last fit.
    new: u64,
    fitted_at_ms: f64,
    accepted: u64,
    first_tokens: Slope,
}

impl Run {
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
            new: 0,
            fitted_at_ms: f64::NEG_INFINITY,
            accepted: 0,
            first_tokens: Slope::default(),
        }
    }

    /// One has ended.
    fn take(&mut self, request: &Ended, decode: Option<Decode>) -> Answer {
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
        if request.seen {
            self.first_tokens.saw(request.input, request.ttft_ms());
        }
        self.new += 1;
        self.accepted += u64::from(decode.is_some());
        if self.state == State::NoTraffic {
            self.state = State::Learning;
            self.fitted_at_ms = request.last_ms;
        }
        if self.new >= WINDOW_REQUESTS || request.last_ms - self.fitted_at_ms >= WINDOW_MS {
            self.fit(request.last_ms);
        }
        Answer {
            known: self.known(),
            nis: None,
            accepted: decode.is_some(),
            condition: self.condition,
        }
    }

    fn fit(&mut self, now_ms: f64) {
        if self.new == 0 {
            return;
        }
        (self.new, self.fitted_at_ms) = (0, now_ms);
        let fit = self.learner.fit(now_ms, &self.traffic, &Targets::default());
        self.state = self.learner.state();
        self.condition = fit.map(|it| it.condition);
        self.parameters = fit
            .map(|it| it.parameters)
            .or(self.learner.parameters())
            .or(self.parameters);
    }

    /// What a prompt token adds to an iteration, as far as that is known by now.
    fn prompt_ms(&self) -> f64 {
        self.learner
            .prompt_ms()
            .unwrap_or_else(|| self.first_tokens.value())
    }

    fn known(&self) -> Known {
        Known::new(self.parameters, self.state)
    }

    fn summary(&self) -> Summary {
        Summary {
            known: self.known(),
            accepted: self.accepted,
            rejected: 0,
            undefined: self.requests - self.accepted,
            restarts: 0,
        }
    }
}

/// By how much longer prompts have later first tokens, by least squares.
#[derive(Debug, Default)]
struct Slope {
    count: f64,
    mean: (f64, f64),
    /// Sums of squares and of products, about the means.
    squares: f64,
    products: f64,
}

impl Slope {
    fn saw(&mut self, input: f64, ttft_ms: f64) {
        self.count += 1.0;
        let before = input - self.mean.0;
        self.mean.0 += before / self.count;
        self.mean.1 += (ttft_ms - self.mean.1) / self.count;
        self.squares += before * (input - self.mean.0);
        self.products += before * (ttft_ms - self.mean.1);
    }

    /// In milliseconds a token; 0 while nothing can be said, and at least.
    fn value(&self) -> f64 {
        let slope = self.products / self.squares;
        if slope.is_finite() { slope.max(0.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_token_that_nobody_saw_came_between_its_neighbours() {
        let request = |dispatched_ms: f64, first_ms: Option<f64>, endpoint: u32| Ended {
            dispatched_ms,
            first_ms: first_ms.unwrap_or(f64::NAN),
            first_least_ms: f64::NAN,
            first_most_ms: f64::NAN,
            seen: first_ms.is_some(),
            last_ms: 1_000.0,
            input: 1.0,
            output: 9.0,
            endpoint,
        };
        let mut requests = [
            request(20.0, Some(60.0), 0),
            request(0.0, Some(30.0), 0),
            request(10.0, None, 0),
            request(10.0, None, 1),
            request(30.0, None, 0),
            request(995.0, None, 1),
        ];
        guess(&mut requests, 100.0);
        let guessed = |at: usize| {
            let it = &requests[at];
            (it.first_least_ms, it.first_ms, it.first_most_ms)
        };
        assert_eq!(guessed(2), (30.0, 60.0, 60.0));
        assert_eq!(guessed(3), (10.0, 110.0, 210.0), "alone at its endpoint");
        assert_eq!(guessed(4), (60.0, 130.0, 230.0));
        assert_eq!(guessed(5), (995.0, 1_000.0, 1_000.0), "not after its last");
    }

    #[test]
    fn the_slope_is_that_of_a_line() {
        let mut slope = Slope::default();
        assert_eq!(slope.value(), 0.0);
        for input in [512.0, 512.0] {
            slope.saw(input, 40.0);
        }
        assert_eq!(slope.value(), 0.0, "one size tells nothing");
        for input in [100.0, 900.0, 4_000.0] {
            slope.saw(input, 40.0 + (input - 512.0) * 0.05);
        }
        assert!((slope.value() - 0.05).abs() < 1e-9, "{}", slope.value());
    }
}
