//! One simulated model server with iteration-level batching.
//!
//! An iteration takes `alpha + beta * tokens processed + gamma * tokens resident in the KV cache`. A decode processes
//! one token, a prompt as many as the iteration's token budget leaves. Between iterations the server schedules the
//! running jobs first, then the waiting jobs in order of arrival. A job gets its first token at the end of the iteration
//! that finishes its prompt, and one more token at the end of each later iteration. If the cache is full, the youngest
//! running job is preempted and later computed again.
//!
//! A job may bring prompt tokens that the server has in its prefix cache: they are resident from its admission, once for each job, and
//! aren't computed. Which prompts share a prefix is the owner's business.
//!
//! Not simulated: cache blocks (the cache is counted in tokens) and sampling. Times don't depend on when
//! the server's owner calls it: an iteration starts at the end of the previous one, or at the arrival that ended an idle
//! period.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_engine::Instant;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::hardware::{Hardware, HardwareError};
use crate::limits::WAITING_MAX;

/// A job's id, chosen by the server's owner and never used twice at the same server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// One request's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The job's id.
    pub id: JobId,
    /// Tokens of the prompt; 0 counts as 1.
    pub input: u64,
    /// The part of `input` in the prefix cache. The last token is always computed.
    pub cached: u64,
    /// Tokens to produce; 0: the job is done when its prompt is (an embedding).
    pub output: u64,
}

/// Why a server rejects a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The job doesn't fit into the cache, even alone.
    #[error(
        "a prompt of {input} tokens and an answer of {output} tokens don't fit into a KV cache of {kv_tokens} tokens"
    )]
    TooLong {
        /// Prompt tokens.
        input: u64,
        /// Output tokens.
        output: u64,
        /// Size of the server's cache.
        kv_tokens: u64,
    },
    /// [`WAITING_MAX`] jobs already wait.
    #[error("{WAITING_MAX} requests already wait at this server")]
    Full,
}

/// A job's progress at the end of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobProgress {
    /// The prompt is processed and the first token produced.
    First,
    /// One more token is produced.
    Token,
    /// The job has ended; follows the last token at the same instant.
    Done,
}

/// The progress of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The end of the iteration; never later than the `now` of the call that processed it.
    pub time: Instant,
    /// The job.
    pub id: JobId,
    /// The job's progress.
    pub progress: JobProgress,
}

/// A server's current state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Jobs in the batch.
    pub running: usize,
    /// Jobs that wait for a place in the batch.
    pub waiting: usize,
    /// Tokens in the KV cache.
    pub kv_tokens: u64,
}

/// Counters since a server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Jobs that were accepted.
    pub submitted: u64,
    /// Jobs that got all their tokens.
    pub done: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Preemptions of a job in favour of an older one.
    pub preemptions: u64,
    /// Tokens of finished prompts; a prompt counts once, even if it is computed again.
    pub prompt_tokens: u64,
    /// Tokens produced.
    pub output_tokens: u64,
    /// Iterations finished.
    pub iterations: u64,
    /// The duration of all iterations that have begun.
    pub busy: Duration,
}

/// An accepted job. `computed` tokens of `input + generated` are in the cache. The job produces a token whenever both
/// are equal, so the same rule covers prompts, decodes and recomputation after a preemption.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    id: JobId,
    arrived: Instant,
    input: u64,
    output: u64,
    generated: u64,
    computed: u64,
    /// Tokens that the current iteration processes; 0 if it skips this job.
    chunk: u64,
    /// Mean number of tokens that this job decodes in an iteration.
    pace: f64,
    /// The fraction of a token that is carried over to the next iteration.
    credit: f64,
    /// Decoded tokens of `chunk` beyond the first.
    extra: u64,
}

impl Sequence {
    fn missing(&self) -> u64 {
        self.input + self.generated - self.computed
    }

    fn decodes(&self) -> bool {
        self.generated > 0 && self.missing() == 1
    }

    /// Tokens to decode in the next iteration, at this job's pace.
    fn next_decodes(&self) -> u64 {
        let left = self.output - self.generated;
        ((self.credit + self.pace).floor() as u64).min(left)
    }
}

/// The server's phase between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no work.
    Idle,
    /// The next iteration starts at this time, the arrival that ended an idle period. Jobs that arrive at the same
    /// instant take part.
    Starts(Instant),
    /// The current iteration ends at this time.
    Runs(Instant),
}

/// A simulated model server. The owner calls [`Server::handle_timeout`] when [`Server::poll_timeout`] is due, then
/// [`Server::poll_event`] until it returns `None`. A late call changes no event's time.
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
    /// An idle server. Servers with the same hardware and seed behave the same.
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

    /// From now on each job decodes at a pace of its own, as with speculative decoding: several tokens in one iteration,
    /// none in another. A job's time between tokens is the iteration time multiplied by a log-normal factor with mean 1
    /// and the relative standard deviation `sigma`; 0 for none.
    #[must_use]
    pub fn with_request_noise(mut self, sigma: f64) -> Self {
        self.request_noise = sigma;
        self
    }

    /// Changes the hardware from the next iteration on. Accepted jobs stay.
    ///
    /// # Errors
    /// A value of `hardware` is out of its range; nothing has changed.
    pub fn set_hardware(&mut self, hardware: Hardware) -> Result<(), HardwareError> {
        hardware.check()?;
        self.hardware = hardware;
        Ok(())
    }

    /// Accepts a job. It takes part from the first iteration that starts at `now` or later.
    ///
    /// # Errors
    /// The server rejects the job; nothing has changed.
    pub fn submit(&mut self, now: Instant, job: Job) -> Result<(), SubmitError> {
        let (input, kv_tokens) = (job.input.max(1), self.hardware.kv_tokens);
        if input.saturating_add(job.output) > kv_tokens {
            return Err(SubmitError::TooLong { input, output: job.output, kv_tokens });
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(SubmitError::Full);
        }
        let (id, output) = (job.id, job.output);
        // Half a token of credit makes the rounding at a job's end unbiased.
        let (pace, credit) =
            if self.request_noise > 0.0 { (1.0 / self.factor(self.request_noise), 0.5) } else { (1.0, 0.0) };
        self.waiting.push_back(Sequence {
            id,
            arrived: now,
            input,
            output,
            generated: 0,
            computed: job.cached.min(input - 1),
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

    /// Cancels a job and frees its place in the cache at once. The current iteration keeps its duration. Returns `false`
    /// if the job has already ended.
    pub fn cancel(&mut self, id: JobId) -> bool {
        let found = if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            let cancelled = self.running.remove(index);
            self.kv_tokens -= cancelled.computed + cancelled.chunk;
            true
        } else if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(index);
            true
        } else {
            false
        };
        self.totals.cancelled += u64::from(found);
        found
    }

    /// The time of the next change without further input; `None` if the server is idle.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle => None,
            Phase::Starts(time) | Phase::Runs(time) => Some(time),
        }
    }

    /// Processes every iteration that is due by `now`, each at its own time.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= now) {
            if self.phase == Phase::Runs(due) {
                self.finish_iteration(due);
            }
            self.start_iteration(due);
        }
    }

    /// The next event, in order of time.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The current state.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges { running: self.running.len(), waiting: self.waiting.len(), kv_tokens: self.kv_tokens }
    }

    /// Counters since the start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The current hardware.
    #[must_use]
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    fn finish_iteration(&mut self, time: Instant) {
        self.totals.iterations += 1;
        let (events, totals, kv_tokens) = (&mut self.events, &mut self.totals, &mut self.kv_tokens);
        self.running.retain_mut(|sequence| {
            sequence.computed += std::mem::take(&mut sequence.chunk);
            for _ in 0..std::mem::take(&mut sequence.extra) {
                events.push_back(Event { time, id: sequence.id, progress: JobProgress::Token });
                sequence.generated += 1;
                totals.output_tokens += 1;
            }
            if sequence.missing() > 0 {
                return true;
            }
            if sequence.generated == 0 {
                totals.prompt_tokens += sequence.input;
            }
            if sequence.output > 0 {
                let progress = if sequence.generated == 0 { JobProgress::First } else { JobProgress::Token };
                events.push_back(Event { time, id: sequence.id, progress });
                sequence.generated += 1;
                totals.output_tokens += 1;
            }
            if sequence.generated < sequence.output {
                return true;
            }
            events.push_back(Event { time, id: sequence.id, progress: JobProgress::Done });
            totals.done += 1;
            *kv_tokens -= sequence.computed;
            false
        });
    }

    fn start_iteration(&mut self, start: Instant) {
        let mut budget = self.hardware.batched_tokens;
        let preempted = self.schedule_running(&mut budget);
        if !preempted {
            self.admit(start, &mut budget);
        }
        if self.running.is_empty() {
            // A job that waits now arrives later: the first waiting job always fits into an empty cache.
            self.phase =
                self.waiting.front().map_or(Phase::Idle, |next| Phase::Starts(next.arrived.max(start)));
            return;
        }
        let processed = self.hardware.batched_tokens - budget;
        let duration = self.duration(processed);
        self.totals.busy += duration;
        self.phase = Phase::Runs(start.after(duration));
    }

    /// Assigns tokens of the iteration to running jobs, oldest first. Returns whether a job was preempted.
    fn schedule_running(&mut self, budget: &mut u64) -> bool {
        let mut preempted = false;
        let mut next = 0;
        while next < self.running.len() {
            let sequence = &self.running[next];
            let decodes = sequence.decodes();
            let wanted = if decodes { sequence.next_decodes() } else { sequence.missing() };
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

    /// Moves waiting jobs into the batch in order, as long as the next one fits.
    fn admit(&mut self, start: Instant, budget: &mut u64) {
        while *budget > 0 && self.running.len() < self.hardware.seqs_max {
            let fits = |next: &Sequence| {
                let resident = next.computed + next.missing();
                next.arrived <= start && self.kv_tokens + resident <= self.hardware.kv_tokens
            };
            if !self.waiting.front().is_some_and(fits) {
                return;
            }
            if let Some(mut next) = self.waiting.pop_front() {
                next.chunk = next.missing().min(*budget);
                self.kv_tokens += next.computed + next.chunk;
                *budget -= next.chunk;
                self.running.push(next);
            }
        }
    }

    /// Duration of an iteration that processes this many tokens with the current cache; at least 1 ns, so that time
    /// always advances.
    fn duration(&mut self, processed: u64) -> Duration {
        let hardware = &self.hardware;
        let ms = hardware.alpha_ms
            + hardware.beta_ms * processed as f64
            + hardware.gamma_ms * self.kv_tokens as f64;
        let nanos = ms * 1e6 * self.noise();
        Duration::from_nanos((nanos.round() as u64).max(1))
    }

    fn noise(&mut self) -> f64 {
        match self.hardware.noise {
            0.0 => 1.0,
            sigma => self.factor(sigma),
        }
    }

    /// A log-normal factor. Its mean is 1, so that noise doesn't change the server's capacity.
    fn factor(&mut self, sigma: f64) -> f64 {
        // Box-Muller transform; 1 - u is never zero.
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        (sigma * normal - sigma * sigma / 2.0).exp()
    }
}

#[cfg(test)]
mod tests;
