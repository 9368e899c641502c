//! One model server with iteration-level batching: who is in the batch, and how long each iteration takes.
//!
//! An iteration takes `alpha + beta * tokens processed + gamma * tokens resident in the KV cache`; a decode
//! processes one token, a prompt as many as the iteration's budget leaves. Between iterations the running jobs are
//! scheduled first, then the waiting ones in order of arrival; a job gets its first token at the end of the
//! iteration that finishes its prompt, and one more at the end of each that follows. When the cache is full the
//! youngest running job is preempted and computed again later.
//!
//! What it refuses to do: prefix caching, blocks (the cache is counted in tokens), sampling. The trade-off is that
//! it is exact in time however late it is asked: an iteration starts where the one before ended, or at the arrival
//! that ended the idleness, and never at the moment somebody looked.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_engine::Instant;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::limits::{BATCHED_TOKENS, COST_MS_MAX, KV_TOKENS_MAX, SEQS_MAX, WAITING_MAX};

/// What a server is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// Milliseconds that every iteration takes; above 0.
    pub alpha_ms: f64,
    /// Milliseconds per token processed in an iteration.
    pub beta_ms: f64,
    /// Milliseconds per token resident in the KV cache during an iteration.
    pub gamma_ms: f64,
    /// Sequences in one batch; at least 1.
    pub seqs_max: usize,
    /// Tokens that the KV cache holds; at least 1.
    pub kv_tokens: u64,
    /// Tokens processed in one iteration; at least `seqs_max`.
    pub batched_tokens: u64,
    /// Relative standard deviation of an iteration's duration; 0: none. From 0 to 1.
    pub noise: f64,
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            alpha_ms: 8.0,
            beta_ms: 0.05,
            gamma_ms: 0.0005,
            seqs_max: 256,
            kv_tokens: 262_144,
            batched_tokens: BATCHED_TOKENS,
            noise: 0.0,
        }
    }
}

/// A [`Hardware`] that can't be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum HardwareError {
    /// A cost is negative, no number, or too large.
    #[error("{name} is {value} ms; it must be a number from {least} to {COST_MS_MAX}")]
    Cost {
        /// Which.
        name: &'static str,
        /// As given.
        value: f64,
        /// In words: the least allowed.
        least: &'static str,
    },
    /// The batch has no place, or too many.
    #[error("max-num-seqs is {0}; it must be from 1 to {SEQS_MAX}")]
    Seqs(usize),
    /// The cache holds nothing, or too much.
    #[error("kv-tokens is {0}; it must be from 1 to {KV_TOKENS_MAX}")]
    Kv(u64),
    /// An iteration couldn't decode the whole batch.
    #[error(
        "an iteration of {batched} tokens is too small for {seqs} sequences; it needs at least one for each"
    )]
    Batched {
        /// Tokens of an iteration.
        batched: u64,
        /// Sequences of the batch.
        seqs: usize,
    },
    /// Noise outside its range.
    #[error("noise is {0}; it must be from 0 to 1")]
    Noise(f64),
}

impl Hardware {
    fn check(&self) -> Result<(), HardwareError> {
        let cost = |name, value: f64, least: &'static str, ok: bool| {
            if ok && value.is_finite() && value <= COST_MS_MAX {
                Ok(())
            } else {
                Err(HardwareError::Cost { name, value, least })
            }
        };
        cost("alpha", self.alpha_ms, "just above 0", self.alpha_ms > 0.0)?;
        cost("beta", self.beta_ms, "0", self.beta_ms >= 0.0)?;
        cost("gamma", self.gamma_ms, "0", self.gamma_ms >= 0.0)?;
        if !(1..=SEQS_MAX).contains(&self.seqs_max) {
            return Err(HardwareError::Seqs(self.seqs_max));
        }
        if !(1..=KV_TOKENS_MAX).contains(&self.kv_tokens) {
            return Err(HardwareError::Kv(self.kv_tokens));
        }
        if self.batched_tokens < self.seqs_max as u64 {
            return Err(HardwareError::Batched {
                batched: self.batched_tokens,
                seqs: self.seqs_max,
            });
        }
        if !(0.0..=1.0).contains(&self.noise) {
            return Err(HardwareError::Noise(self.noise));
        }
        Ok(())
    }
}

/// A job, as the server's owner names it. Never used twice in the life of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// One request's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// Tokens of the prompt; 0 counts as 1.
    pub input: u64,
    /// Tokens to produce; 0: the job is done when its prompt is (an embedding).
    pub output: u64,
}

/// Why a job isn't taken. It never becomes part of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It could never run, not even alone.
    #[error(
        "a prompt of {input} tokens and an answer of {output} don't fit a KV cache of {kv_tokens} tokens"
    )]
    TooLong {
        /// Its prompt.
        input: u64,
        /// Its answer.
        output: u64,
        /// What the server has.
        kv_tokens: u64,
    },
    /// [`WAITING_MAX`] jobs wait.
    #[error("{WAITING_MAX} requests wait at this server already")]
    Full,
}

/// What happened to a job at the end of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its prompt is done and its first token out.
    First,
    /// One more token is out.
    Token,
    /// Nothing more comes; follows the last token at the same instant.
    Done,
}

/// Something a client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The end of the iteration, never later than the `now` it was asked with.
    pub at: Instant,
    /// Whose.
    pub id: JobId,
    /// What.
    pub kind: Kind,
}

/// The server at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Jobs in the batch.
    pub running: usize,
    /// Jobs that wait for a place in it.
    pub waiting: usize,
    /// Tokens in the KV cache.
    pub kv_tokens: u64,
}

/// The server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Jobs that were taken.
    pub submitted: u64,
    /// Jobs that got all their tokens.
    pub done: u64,
    /// Jobs that were taken back.
    pub cancelled: u64,
    /// Times a job lost its place in the batch to an older one.
    pub preemptions: u64,
    /// Tokens of finished prompts, each prompt once.
    pub prompt_tokens: u64,
    /// Tokens produced.
    pub output_tokens: u64,
    /// Iterations finished.
    pub iterations: u64,
}

/// A job inside the server. `computed` tokens of `input + generated` are in the cache; a token comes out whenever
/// both are equal, so prompts, decodes and recomputation after a preemption are one rule.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    id: JobId,
    arrived: Instant,
    input: u64,
    output: u64,
    generated: u64,
    computed: u64,
    /// Tokens being processed in the iteration under way; 0: passed over in it.
    chunk: u64,
    /// Tokens that it decodes in an iteration, on the average.
    pace: f64,
    /// What that leaves over from iteration to iteration.
    credit: f64,
    /// Of `chunk`, tokens that are decoded beyond the one that is due.
    extra: u64,
}

impl Sequence {
    fn missing(&self) -> u64 {
        self.input + self.generated - self.computed
    }

    fn decodes(&self) -> bool {
        self.generated > 0 && self.missing() == 1
    }

    /// Tokens that it decodes in the next iteration, at its own pace.
    fn due(&self) -> u64 {
        let left = self.output - self.generated;
        ((self.credit + self.pace).floor() as u64).min(left)
    }
}

/// Where the server stands between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is nothing to do.
    Idle,
    /// The next iteration starts here: the arrival that ended the idleness. Jobs of the same instant share it.
    Starts(Instant),
    /// An iteration is under way and ends here.
    Runs(Instant),
}

/// A simulated model server. Its owner calls [`Server::handle_timeout`] when [`Server::poll_timeout`] is due and
/// takes what happened from [`Server::poll_event`]; being late costs nothing but lateness.
#[derive(Clone, Debug)]
pub struct Server {
    hardware: Hardware,
    request_noise: f64,
    rng: ChaCha8Rng,
    phase: Phase,
    /// In order of admission: the last is the youngest.
    running: Vec<Sequence>,
    /// In order of arrival, preempted ones first.
    waiting: VecDeque<Sequence>,
    kv_tokens: u64,
    events: VecDeque<Event>,
    totals: Totals,
}

impl Server {
    /// An idle server. Two with the same hardware and seed do the same.
    ///
    /// # Errors
    /// A value of `hardware` is out of its range.
    pub fn new(hardware: Hardware, seed: u64) -> Result<Self, HardwareError> {
        hardware.check()?;
        Ok(Self {
            hardware,
            request_noise: 0.0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            phase: Phase::Idle,
            running: Vec::new(),
            waiting: VecDeque::new(),
            kv_tokens: 0,
            events: VecDeque::new(),
            totals: Totals::default(),
        })
    }

    /// From now on jobs decode at a pace of their own, as they do where some tokens are guessed: a few in one iteration, or
    /// none in another. A job's time between tokens is that of the iterations times a log-normal factor of mean 1 and
    /// this relative standard deviation; 0: none.
    #[must_use]
    pub fn with_request_noise(mut self, sigma: f64) -> Self {
        self.request_noise = sigma;
        self
    }

    /// The server is another one from the next iteration on; what it holds, it keeps.
    ///
    /// # Errors
    /// A value of `hardware` is out of its range; nothing has changed.
    pub fn become_hardware(&mut self, hardware: Hardware) -> Result<(), HardwareError> {
        hardware.check()?;
        self.hardware = hardware;
        Ok(())
    }

    /// A job arrives. It takes part from the first iteration that starts at `now` or later.
    ///
    /// # Errors
    /// The job can't be taken; nothing has changed.
    pub fn submit(&mut self, now: Instant, job: Job) -> Result<(), Refused> {
        let (input, kv_tokens) = (job.input.max(1), self.hardware.kv_tokens);
        if input.saturating_add(job.output) > kv_tokens {
            return Err(Refused::TooLong {
                input,
                output: job.output,
                kv_tokens,
            });
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(Refused::Full);
        }
        let (id, output) = (job.id, job.output);
        // Half a token of credit: what is rounded at the end of a job is right on the average.
        let (pace, credit) = if self.request_noise > 0.0 {
            (1.0 / self.factor(self.request_noise), 0.5)
        } else {
            (1.0, 0.0)
        };
        self.waiting.push_back(Sequence {
            id,
            arrived: now,
            input,
            output,
            generated: 0,
            computed: 0,
            chunk: 0,
            pace,
            credit,
            extra: 0,
        });
        self.totals.submitted += 1;
        if self.phase == Phase::Idle {
            self.phase = Phase::Starts(now);
        }
        Ok(())
    }

    /// A client has gone: its job leaves at once, its place in the cache too. The iteration under way takes as long
    /// as it was going to. `false`: there is no such job any more.
    pub fn cancel(&mut self, id: JobId) -> bool {
        let known = if let Some(at) = self.running.iter().position(|s| s.id == id) {
            let gone = self.running.remove(at);
            self.kv_tokens -= gone.computed + gone.chunk;
            true
        } else if let Some(at) = self.waiting.iter().position(|s| s.id == id) {
            self.waiting.remove(at);
            true
        } else {
            false
        };
        self.totals.cancelled += u64::from(known);
        known
    }

    /// When something happens next without further input; `None`: never.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle => None,
            Phase::Starts(at) | Phase::Runs(at) => Some(at),
        }
    }

    /// Everything that is due by `now` happens, each at its own time.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= now) {
            if self.phase == Phase::Runs(due) {
                self.finish_iteration(due);
            }
            self.start_iteration(due);
        }
    }

    /// What happened next, in order of time.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The server at this moment.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_tokens: self.kv_tokens,
        }
    }

    /// The server since its start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What it is made of.
    #[must_use]
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    fn finish_iteration(&mut self, at: Instant) {
        self.totals.iterations += 1;
        let (events, totals, kv_tokens) = (&mut self.events, &mut self.totals, &mut self.kv_tokens);
        self.running.retain_mut(|s| {
            s.computed += std::mem::take(&mut s.chunk);
            for _ in 0..std::mem::take(&mut s.extra) {
                events.push_back(Event {
                    at,
                    id: s.id,
                    kind: Kind::Token,
                });
                s.generated += 1;
                totals.output_tokens += 1;
            }
            if s.missing() > 0 {
                return true;
            }
            if s.generated == 0 {
                totals.prompt_tokens += s.input;
            }
            if s.output > 0 {
                let kind = if s.generated == 0 {
                    Kind::First
                } else {
                    Kind::Token
                };
                events.push_back(Event { at, id: s.id, kind });
                s.generated += 1;
                totals.output_tokens += 1;
            }
            if s.generated < s.output {
                return true;
            }
            events.push_back(Event {
                at,
                id: s.id,
                kind: Kind::Done,
            });
            totals.done += 1;
            *kv_tokens -= s.computed;
            false
        });
    }

    fn start_iteration(&mut self, at: Instant) {
        let mut budget = self.hardware.batched_tokens;
        let preempted = self.schedule_running(&mut budget);
        if !preempted {
            self.admit(at, &mut budget);
        }
        if self.running.is_empty() {
            // Only a job that arrives later can be waiting now: with an empty cache the first always fits.
            self.phase = self
                .waiting
                .front()
                .map_or(Phase::Idle, |next| Phase::Starts(next.arrived.max(at)));
            return;
        }
        let processed = self.hardware.batched_tokens - budget;
        let duration = self.duration(processed);
        self.phase = Phase::Runs(at.after(duration));
    }

    /// Gives each running job its share of the iteration, the oldest first; `true` if one had to be preempted.
    fn schedule_running(&mut self, budget: &mut u64) -> bool {
        let mut preempted = false;
        let mut next = 0;
        while next < self.running.len() {
            let sequence = &self.running[next];
            let decodes = sequence.decodes();
            let wanted = if decodes {
                sequence.due()
            } else {
                sequence.missing()
            };
            let chunk = wanted.min(*budget);
            if self.kv_tokens + chunk <= self.hardware.kv_tokens {
                let sequence = &mut self.running[next];
                if decodes {
                    sequence.credit += sequence.pace - chunk as f64;
                    sequence.extra = chunk.saturating_sub(1);
                }
                sequence.chunk = chunk;
                self.kv_tokens += chunk;
                *budget -= chunk;
                next += 1;
            } else if let Some(mut youngest) = self.running.pop() {
                self.kv_tokens -= youngest.computed;
                youngest.computed = 0;
                self.waiting.push_front(youngest);
                self.totals.preemptions += 1;
                preempted = true;
            }
        }
        preempted
    }

    /// Takes waiting jobs in order, as long as the next one fits.
    fn admit(&mut self, at: Instant, budget: &mut u64) {
        while *budget > 0 && self.running.len() < self.hardware.seqs_max {
            let fits =
                |s: &Sequence| s.arrived <= at && self.kv_tokens + s.missing() <= self.hardware.kv_tokens;
            if !self.waiting.front().is_some_and(fits) {
                return;
            }
            if let Some(mut next) = self.waiting.pop_front() {
                next.chunk = next.missing().min(*budget);
                self.kv_tokens += next.chunk;
                *budget -= next.chunk;
                self.running.push(next);
            }
        }
    }

    /// Of an iteration that processes so many tokens with the cache as it is; at least 1 ns, so that time goes on.
    fn duration(&mut self, processed: u64) -> Duration {
        let h = &self.hardware;
        let ms = h.alpha_ms + h.beta_ms * processed as f64 + h.gamma_ms * self.kv_tokens as f64;
        let nanos = ms * 1e6 * self.noise();
        Duration::from_nanos((nanos.round() as u64).max(1))
    }

    fn noise(&mut self) -> f64 {
        match self.hardware.noise {
            0.0 => 1.0,
            sigma => self.factor(sigma),
        }
    }

    /// A log-normal factor with mean 1, so that noise doesn't change what a server can do.
    fn factor(&mut self, sigma: f64) -> f64 {
        // Box-Muller; 1 - u keeps the logarithm off zero.
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        (sigma * normal - sigma * sigma / 2.0).exp()
    }
}

#[cfg(test)]
mod tests;
