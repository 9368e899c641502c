//! A small simulation in virtual time: servers that batch by iteration, clients, a gate that predicts with the
//! learned parameters, and the learner, which observes the same times as a gateway would.

use std::collections::{BTreeMap, VecDeque};

use penstock_model::closed_form::Traffic;
use penstock_model::learner::{Fit, Learner, State};
use penstock_model::observation::Completion;
use penstock_model::overlap_tracker::OverlapTracker;
use penstock_model::{Parameters, Targets};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The requests that clients send, with log-normal sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) name: &'static str,
    /// Mean prompt tokens, mean output tokens and share of each part; the shares add up to 1.
    pub(crate) parts: &'static [(f64, f64, f64)],
    /// Standard deviation of the logarithm of a size.
    pub(crate) spread: f64,
}

pub(crate) const CHAT: Mix = Mix { name: "chat", parts: &[(512.0, 128.0, 1.0)], spread: 0.6 };
pub(crate) const EVEN: Mix = Mix { name: "even", parts: &[(512.0, 128.0, 1.0)], spread: 0.0 };
pub(crate) const LONG: Mix = Mix { name: "long", parts: &[(8_000.0, 150.0, 1.0)], spread: 0.4 };
pub(crate) const CODE: Mix = Mix { name: "code", parts: &[(2_000.0, 300.0, 1.0)], spread: 0.8 };
pub(crate) const MIXED: Mix = Mix {
    name: "mixed",
    parts: &[(512.0, 128.0, 0.6), (8_000.0, 150.0, 0.1), (2_000.0, 300.0, 0.3)],
    spread: 0.6,
};

impl Mix {
    pub(crate) fn traffic(&self) -> Traffic {
        let mean = |size: fn(&(f64, f64, f64)) -> f64| {
            self.parts.iter().map(|part| size(part) * part.2).sum::<f64>()
        };
        Traffic { rate: 0.0, input: mean(|p| p.0), output: mean(|p| p.1) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) truth: Parameters,
    pub(crate) mix: Mix,
    /// Standard deviation of a request's relative decoding speed.
    pub(crate) noise: f64,
    /// Endpoints of the one variant.
    pub(crate) endpoints: usize,
    /// Offered load, as a part of the capacity within the targets.
    pub(crate) load: f64,
    /// Endpoints are probed in turn.
    pub(crate) probes: bool,
    pub(crate) seed: u64,
    /// Requests in flight at an endpoint before anything is learned.
    pub(crate) initial: usize,
    /// Constant number of requests in flight at each endpoint, instead of Poisson arrivals.
    pub(crate) constant: Option<usize>,
    /// Part of the requests with a time between tokens five times as long.
    pub(crate) outliers: f64,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    id: u64,
    input: f64,
    output: u64,
    estimate: f64,
    /// Output tokens an iteration.
    pace: f64,
}

#[derive(Debug, Default)]
struct Endpoint {
    tracker: OverlapTracker,
    waiting: VecDeque<Job>,
    /// Each with its output tokens so far and its fraction of the next one.
    running: Vec<(Job, u64, f64)>,
    ends_ms: Option<f64>,
    /// The endpoint runs at half its budget.
    probing: bool,
}

impl Endpoint {
    fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.waiting.iter().chain(self.running.iter().map(|(job, _, _)| job))
    }

    fn begin(&mut self, now_ms: f64, truth: &Parameters) {
        let mut budget = 8_192.0 - self.running.len() as f64;
        let mut tokens = self.running.len() as f64;
        while let Some(job) = self.waiting.front() {
            if self.running.len() >= 1_024 || job.input.min(8_000.0) > budget {
                break;
            }
            budget -= job.input.min(8_000.0);
            tokens += job.input;
            let job = self.waiting.pop_front().expect("the queue is not empty");
            self.running.push((job, 0, 0.5));
        }
        let resident: f64 = self.running.iter().map(|(job, out, _)| job.input + *out as f64).sum();
        self.ends_ms = (!self.running.is_empty())
            .then_some(now_ms + truth.alpha_ms + truth.beta_ms * tokens + truth.gamma_ms * resident);
    }
}

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) learner: Learner,
    pub(crate) last_fit: Option<Fit>,
    pub(crate) now_ms: f64,
    pub(crate) served: u64,
    /// States after each window.
    pub(crate) states: Vec<State>,
    rng: ChaCha8Rng,
    endpoints: Vec<Endpoint>,
    queue: VecDeque<Job>,
    times: BTreeMap<u64, (f64, f64)>,
    next_id: u64,
    arrival_ms: f64,
    window: u64,
    mean_output: f64,
    mean_input: f64,
}

/// (n*, lambda*) for targets at three times alpha.
pub(crate) fn sizing(p: &Parameters, traffic: &Traffic) -> (f64, f64) {
    let n = 2.0 * p.alpha_ms / p.delta_ms(traffic);
    (n, 1_000.0 * n / ((traffic.output + 1.0) * p.iteration_ms(traffic, n)))
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            learner: Learner::new(None),
            last_fit: None,
            now_ms: 0.0,
            served: 0,
            states: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(settings.seed),
            endpoints: (0..settings.endpoints).map(|_| Endpoint::default()).collect(),
            queue: VecDeque::new(),
            times: BTreeMap::new(),
            next_id: 0,
            arrival_ms: 0.0,
            window: 0,
            mean_output: settings.mix.traffic().output,
            mean_input: settings.mix.traffic().input,
        }
    }

    fn normal(&mut self) -> f64 {
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    fn size(&mut self, mean: f64) -> f64 {
        let s = self.settings.mix.spread;
        (mean * (s * self.normal() - s * s / 2.0).exp()).round().clamp(1.0, 16_000.0)
    }

    fn arrive(&mut self) {
        let mut roll: f64 = self.rng.random();
        let parts = self.settings.mix.parts;
        let part = parts
            .iter()
            .find(|part| {
                roll -= part.2;
                roll < 0.0
            })
            .unwrap_or(&parts[0]);
        let input = self.size(part.0);
        let output = self.size(part.1) as u64;
        let estimate = (input * (1.0 + 0.05 * self.normal())).max(1.0);
        let noise = self.settings.noise;
        let pace = 1.0 / (noise * self.normal() - noise * noise / 2.0).exp();
        self.queue.push_back(Job { pace, id: self.next_id, input, output, estimate });
        self.next_id += 1;
    }

    fn fits(&self, endpoint: &Endpoint, job: &Job) -> Option<f64> {
        let count = endpoint.jobs().count();
        if let Some(constant) = self.settings.constant {
            return (count < constant).then_some(count as f64);
        }
        let Some(p) = self.learner.parameters() else {
            let most = if endpoint.probing { self.settings.initial / 2 } else { self.settings.initial };
            return (count < most).then_some(count as f64);
        };
        let o = self.mean_output.max(1.0);
        let prompts: f64 = endpoint.jobs().map(|j| j.estimate).sum::<f64>() + job.estimate;
        let c = count as f64 + 1.0;
        let iteration = p.alpha_ms + p.beta_ms * (c + prompts / o) + p.gamma_ms * (prompts + c * o / 2.0);
        let slo = 3.0 * p.alpha_ms + p.beta_ms + p.gamma_ms * (self.mean_input + o / 2.0);
        let budget = 0.9 * slo * if endpoint.probing { 0.5 } else { 1.0 };
        (count == 0 || (iteration <= budget && c <= 256.0)).then_some(iteration)
    }

    fn dispatch(&mut self) {
        while let Some(job) = self.queue.front().copied() {
            let best = (0..self.endpoints.len())
                .filter_map(|index| Some((index, self.fits(&self.endpoints[index], &job)?)))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let Some((index, _)) = best else { return };
            self.queue.pop_front();
            let predicted = self.learner.parameters().map(|p| {
                let endpoint = &self.endpoints[index];
                let c = endpoint.running.len() as f64;
                let m: f64 = endpoint.jobs().map(|j| j.estimate + self.mean_output / 2.0).sum();
                let prompts_per_decode: f64 =
                    endpoint.jobs().map(|j| j.estimate).sum::<f64>() / self.mean_output;
                p.alpha_ms
                    + p.beta_ms * (c + prompts_per_decode)
                    + p.gamma_ms * m
                    + (p.beta_ms + p.gamma_ms) * job.estimate
            });
            let (now, expected) = (self.now_ms, self.mean_output);
            let endpoint = &mut self.endpoints[index];
            endpoint.tracker.record_dispatch(now, job.id, job.estimate, 0.0, expected, predicted);
            endpoint.waiting.push_back(job);
            self.times.insert(job.id, (now, 0.0));
            if endpoint.ends_ms.is_none() {
                endpoint.begin(now, &self.settings.truth);
            }
        }
    }

    fn iterate(&mut self, index: usize) {
        let now = self.now_ms;
        let mut done = Vec::new();
        let times = &mut self.times;
        self.endpoints[index].running.retain_mut(|(job, out, credit)| {
            if *out == 0 {
                *out = 1;
                times.get_mut(&job.id).expect("dispatched").1 = now;
            } else {
                *credit += job.pace;
                *out += credit.floor() as u64;
                *credit = credit.fract();
            }
            if *out >= job.output {
                done.push(*job);
            }
            *out < job.output
        });
        for job in done {
            self.served += 1;
            let (dispatched, first) = self.times.remove(&job.id).expect("dispatched");
            self.mean_output += 0.01 * (job.output as f64 - self.mean_output);
            self.mean_input += 0.01 * (job.input - self.mean_input);
            let end = Completion {
                first_ms: Some(first.max(dispatched)),
                last_ms: Some(now),
                streamed: true,
                input: Some(job.input),
                cached: None,
                output: Some(job.output as f64),
            };
            self.endpoints[index].tracker.record_completion(now, job.id, &end);
            while let Some(mut observation) = self.endpoints[index].tracker.poll_observation() {
                let roll: f64 = self.rng.random();
                if let Some(decode) = observation.decode.as_mut().filter(|_| roll < self.settings.outliers) {
                    decode.itl_ms *= 5.0;
                }
                self.learner.observe(&observation);
            }
        }
        let truth = self.settings.truth;
        self.endpoints[index].begin(now, &truth);
        self.dispatch();
    }

    /// Runs until `requests` more were served.
    pub(crate) fn serve(&mut self, requests: u64) {
        let until = self.served + requests;
        let capacity = sizing(&self.settings.truth, &self.settings.mix.traffic()).1;
        let rate = self.settings.load * capacity * self.settings.endpoints as f64 / 1_000.0;
        while self.served < until {
            if let Some(constant) = self.settings.constant {
                while self.queue.len() < constant {
                    self.arrive();
                }
                self.dispatch();
            }
            let iteration = (0..self.endpoints.len())
                .filter_map(|index| Some((index, self.endpoints[index].ends_ms?)))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let window_ms = (self.window + 1) as f64 * 10_000.0;
            let arrival_ms = if self.settings.constant.is_some() || self.queue.len() > 500 {
                f64::INFINITY
            } else {
                self.arrival_ms
            };
            let iteration_ms = iteration.map_or(f64::INFINITY, |(_, ends_ms)| ends_ms);
            if window_ms <= arrival_ms && window_ms <= iteration_ms {
                self.now_ms = window_ms;
                self.end_window();
            } else if arrival_ms <= iteration_ms {
                self.now_ms = arrival_ms.max(self.now_ms);
                self.arrive();
                let u: f64 = self.rng.random();
                self.arrival_ms = self.now_ms - (1.0 - u).ln() / rate;
                self.dispatch();
            } else if let Some((index, ends_ms)) = iteration {
                self.now_ms = ends_ms;
                self.iterate(index);
            }
        }
    }

    fn end_window(&mut self) {
        self.window += 1;
        let traffic = Traffic { rate: 1.0, input: self.mean_input, output: self.mean_output };
        self.last_fit = self.learner.fit(self.now_ms, &traffic, &Targets::default());
        self.states.push(self.learner.state());
        if let Some(ms) = self.learner.prompt_ms() {
            self.endpoints.iter_mut().for_each(|endpoint| endpoint.tracker.set_prompt_ms(ms));
        }
        let sure = matches!(self.learner.state(), State::Converged | State::Infeasible);
        let every = if sure { 10 } else { 2 };
        let life_ms = self.mean_output * 2.5 * self.settings.truth.alpha_ms;
        let turn = self.window / ((2.0 * life_ms / 10_000.0).round() as u64).max(1);
        let count = self.endpoints.len() as u64;
        for (index, endpoint) in self.endpoints.iter_mut().enumerate() {
            endpoint.probing =
                self.settings.probes && turn % every == every / 2 && (turn / every) % count == index as u64;
        }
        self.dispatch();
    }
}
