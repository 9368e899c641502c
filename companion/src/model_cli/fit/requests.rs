//! Learning from a file of requests, as the gateway learns from those it sent.
//!
//! The gateway has to guess what runs beside a request and hasn't ended yet; a file says it.

use std::collections::BTreeMap;
use std::io::Write;

use penstock_model::learner::{Learner, State};
use penstock_model::ledger::{Decode, Observation, Served};
use penstock_model::{Parameters, Targets, Traffic};

use super::lines::Request;
use super::plot::Plot;
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
struct Ended {
    dispatched_ms: f64,
    /// When its first token came, or about when it would have; it decoded from then on.
    served: Served,
    /// The first token was seen.
    seen: bool,
    endpoint: u32,
}

/// Learns from all requests, and answers each line by what was done when its request was.
pub(super) fn learn(
    source: &mut Source<'_>,
    start: Start,
    plot: Option<&mut Plot>,
    out: &mut impl Write,
) -> Result<Summary, Error> {
    let requests = read(source)?;
    let decodes = decodes(&requests);
    let mut order: Vec<u32> = (0..).take(requests.len()).collect();
    order.sort_by(|a, b| done(&requests, *a).total_cmp(&done(&requests, *b)));

    let mut run = Run::new(start);
    let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
    let mut progress = Progress::new("learning", requests.len() as u64);
    for at in order {
        progress.advance(1);
        let at = at as usize;
        answers[at] = Some(run.take(&requests[at], decodes[at]));
    }
    drop(progress);
    run.fit(f64::INFINITY);
    for one in answers.iter().flatten() {
        answer(out, one)?;
    }
    if let (Some(plot), Some(parameters)) = (plot, run.parameters()) {
        for decode in decodes.iter().flatten() {
            plot.itl(decode.itl_ms, fitted_ms(&parameters, decode));
        }
    }
    Ok(run.summary())
}

fn done(requests: &[Ended], at: u32) -> f64 {
    requests[at as usize].served.last_ms
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
            let first_ms = request.first_ms.map(|ms| ms - zero_ms);
            Ok(Ended {
                dispatched_ms: request.dispatched_ms - zero_ms,
                served: Served {
                    first_ms: first_ms.unwrap_or(f64::NAN),
                    last_ms: request.done_ms - zero_ms,
                    input: request.input,
                    output: request.output,
                },
                seen: first_ms.is_some(),
                endpoint,
            })
        })?;
        let Some(request) = next else {
            break;
        };
        if request.seen {
            first_tokens.0 += request.served.first_ms - request.dispatched_ms;
            first_tokens.1 += 1.0;
        }
        requests.push(request);
    }
    let usual_ms = if first_tokens.1 > 0.0 {
        first_tokens.0 / first_tokens.1
    } else {
        0.0
    };
    for request in requests.iter_mut().filter(|it| !it.seen) {
        request.served.first_ms = (request.dispatched_ms + usual_ms).min(request.served.last_ms);
    }
    Ok(requests)
}

/// The load that each decoded under, beside all others of its endpoint.
fn decodes(requests: &[Ended]) -> Vec<Option<Decode>> {
    let mut by_endpoint: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, request) in requests.iter().enumerate() {
        // One that gave nothing, and that nobody saw begin, wasn't served.
        if request.seen || request.served.output > 0.0 {
            by_endpoint.entry(request.endpoint).or_default().push(at);
        }
    }
    let mut decodes = vec![None; requests.len()];
    let mut progress = Progress::new("overlapping", requests.len() as u64);
    for mut here in by_endpoint.into_values() {
        here.sort_by(|a, b| {
            let first = |at: usize| requests[at].served.first_ms;
            first(*a).total_cmp(&first(*b))
        });
        let mut running: Vec<usize> = Vec::new();
        for (place, &at) in here.iter().enumerate() {
            progress.advance(1);
            let request = &requests[at].served;
            running.retain(|&other| requests[other].served.last_ms > request.first_ms);
            if requests[at].seen {
                let later = here[place + 1..].iter().copied();
                let later = later.take_while(|&other| requests[other].served.first_ms <= request.last_ms);
                let others = running.iter().copied().chain(later);
                decodes[at] = Decode::beside(request, others.map(|other| &requests[other].served));
            }
            running.push(at);
        }
    }
    decodes
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
        }
    }

    /// One has ended.
    fn take(&mut self, request: &Ended, decode: Option<Decode>) -> Answer {
        let served = &request.served;
        self.requests += 1;
        let weight = 1.0 / (self.requests as f64).min(TRAFFIC_REQUESTS);
        self.traffic.input += weight * (served.input - self.traffic.input);
        self.traffic.output += weight * (served.output - self.traffic.output);
        self.learner.observe(&Observation {
            at_ms: served.last_ms,
            input: served.input,
            output: served.output,
            ttft_ms: if request.seen {
                served.first_ms - request.dispatched_ms
            } else {
                0.0
            },
            ttft_predicted_ms: None,
            decode,
        });
        self.new += 1;
        self.accepted += u64::from(decode.is_some());
        if self.state == State::NoTraffic {
            self.state = State::Learning;
            self.fitted_at_ms = served.last_ms;
        }
        if self.new >= WINDOW_REQUESTS || served.last_ms - self.fitted_at_ms >= WINDOW_MS {
            self.fit(served.last_ms);
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

    const fn parameters(&self) -> Option<Parameters> {
        self.parameters
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
