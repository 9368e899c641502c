//! The task that owns the simulated server and drives it with the real clock.
//!
//! Handlers send commands to the task and receive tokens through one channel per job, so nothing is shared or locked.
//! When a client disconnects, its [`Ticket`] is dropped, which cancels the job. The channels are unbounded, but their
//! contents are limited: one command per connection and event, and the tokens of each job.

use std::collections::{BTreeMap, HashMap};

use penstock_engine::Instant;
use penstock_model_server::{Event, Job, JobId, JobProgress, Server, SubmitError};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::{mpsc, oneshot};

use super::clock::Clock;
use super::log::{Log, RequestInfo, Stats};
use super::metrics::Metrics;
use super::request::Length;
use super::{Pushback, Settings};

/// The handlers' connection to the driver.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    commands: mpsc::UnboundedSender<Command>,
}

/// The driver has ended because the server is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("this server is shutting down")]
pub(super) struct Stopped;

/// Why the server doesn't take a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// As many requests are in flight as the server takes.
    #[error("{} requests are in flight here, and this server takes no more: try again later", .0.requests_max)]
    Busy(Pushback),
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// A request to submit.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) info: RequestInfo,
    pub(super) input: u64,
    /// Prompt tokens that needn't be computed.
    pub(super) cached: u64,
    pub(super) length: Length,
}

/// An accepted job. Dropping the ticket before the job's end cancels the job.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Position in the order of arrival, from 0.
    pub(super) order: u64,
    /// Requests at this server right after this one's arrival, including this one.
    pub(super) in_flight: u64,
    updates: mpsc::UnboundedReceiver<JobUpdate>,
    commands: mpsc::UnboundedSender<Command>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobUpdate {
    Token,
    /// The job has ended.
    Done,
}

#[derive(Debug)]
enum Command {
    Submit(Arrival, oneshot::Sender<Result<Ticket, Refusal>>),
    Cancel(JobId),
    /// A request was rejected before it became a job.
    CountRefused,
    Stats(oneshot::Sender<Stats>),
    ServedByTenant(oneshot::Sender<BTreeMap<String, u64>>),
    Log(oneshot::Sender<Log>),
}

impl Handle {
    /// Submits a job. When this returns, the server has accepted or rejected it.
    pub(super) async fn submit(&self, arrival: Arrival) -> Result<Result<Ticket, Refusal>, Stopped> {
        self.call(|reply| Command::Submit(arrival, reply)).await
    }

    pub(super) fn count_refused(&self) {
        // After the driver's end nothing is counted.
        let _ = self.commands.send(Command::CountRefused);
    }

    pub(super) async fn stats(&self) -> Result<Stats, Stopped> {
        self.call(Command::Stats).await
    }

    pub(super) async fn served_by_tenant(&self) -> Result<BTreeMap<String, u64>, Stopped> {
        self.call(Command::ServedByTenant).await
    }

    pub(super) async fn log(&self) -> Result<Log, Stopped> {
        self.call(Command::Log).await
    }

    async fn call<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}

impl Ticket {
    /// The next update; `None` if the server ended before the job.
    pub(super) async fn next(&mut self) -> Option<JobUpdate> {
        let update = self.updates.recv().await;
        self.ended |= update == Some(JobUpdate::Done);
        update
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            // If the driver has ended, there is no job to cancel.
            let _ = self.commands.send(Command::Cancel(JobId(self.order)));
        }
    }
}

/// The driver's record of a job.
struct ActiveJob {
    updates: mpsc::UnboundedSender<JobUpdate>,
    arrived: Instant,
    last: Instant,
    reason: &'static str,
    tenant: String,
}

/// The simulated server and everything recorded about it.
pub(super) struct Driver {
    server: Server,
    clock: Clock,
    metrics: Metrics,
    log: Log,
    rng: ChaCha8Rng,
    /// Mean response length for [`Length::Natural`].
    output_tokens: u64,
    pushback: Option<Pushback>,
    next: u64,
    jobs: HashMap<JobId, ActiveJob>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Used to create tickets. Weak, so that the driver ends with the last handle and the last ticket.
    ticket_commands: mpsc::WeakUnboundedSender<Command>,
}

impl Driver {
    pub(super) fn new(server: Server, metrics: Metrics, settings: &Settings) -> (Self, Handle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let driver = Self {
            server,
            clock: Clock::start(),
            metrics,
            log: Log::default(),
            rng: ChaCha8Rng::seed_from_u64(settings.seed),
            output_tokens: settings.output_tokens,
            pushback: settings.pushback,
            next: 0,
            jobs: HashMap::new(),
            commands,
            ticket_commands: sender.downgrade(),
        };
        (driver, Handle { commands: sender })
    }

    /// Runs until the last handle and the last ticket are dropped.
    pub(super) async fn run(mut self) {
        loop {
            let due = self.server.poll_timeout().map(|time| self.clock.deadline(time));
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let command = tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => Some(command),
                    None => return,
                },
                () = wait => None,
            };
            let now = self.clock.now();
            self.server.handle_timeout(now);
            self.process_events();
            if let Some(command) = command {
                self.handle(now, command);
            }
            self.metrics.update(self.server.gauges(), self.server.totals());
        }
    }

    fn handle(&mut self, now: Instant, command: Command) {
        match command {
            Command::Submit(arrival, reply) => {
                // If the handler is gone, the dropped ticket cancels the job.
                let _ = reply.send(self.submit(now, arrival));
            }
            Command::Cancel(id) => {
                if self.server.cancel(id)
                    && let Some(job) = self.jobs.remove(&id)
                {
                    self.log.cancelled(now, id.0);
                    self.metrics.ended("abort", now.since(job.arrived));
                }
            }
            Command::CountRefused => self.log.count_refused(),
            Command::Stats(reply) => {
                let _ = reply.send(self.log.stats());
            }
            Command::ServedByTenant(reply) => {
                let _ = reply.send(self.log.served_by_tenant());
            }
            Command::Log(reply) => {
                let _ = reply.send(self.log.clone());
            }
        }
    }

    fn submit(&mut self, now: Instant, arrival: Arrival) -> Result<Ticket, Refusal> {
        let in_flight = u64::try_from(self.jobs.len()).unwrap_or(u64::MAX);
        if let Some(pushback) = self.pushback.filter(|pushback| in_flight >= pushback.requests_max) {
            self.log.count_refused();
            return Err(Refusal::Busy(pushback));
        }
        let (output, reason) = match arrival.length {
            Length::Nothing => (0, "stop"),
            Length::Exactly(tokens) => (tokens, "length"),
            Length::Natural => (self.draw_output_tokens(arrival.input), "stop"),
        };
        let (order, id) = (self.next, JobId(self.next));
        // The caller holds a handle while it waits for this reply, so the upgrade succeeds.
        let commands = self.ticket_commands.upgrade().ok_or(SubmitError::Full)?;
        if let Err(error) =
            self.server.submit(now, Job { id, input: arrival.input, cached: arrival.cached, output })
        {
            self.log.count_refused();
            return Err(error.into());
        }
        self.next += 1;
        let tenant = arrival.info.tenant.clone().unwrap_or_else(|| "anonymous".to_owned());
        let in_flight = self.log.arrived(now, order, arrival.info, arrival.input);
        let (sender, updates) = mpsc::unbounded_channel();
        self.jobs.insert(id, ActiveJob { updates: sender, arrived: now, last: now, reason, tenant });
        Ok(Ticket { order, in_flight, updates, commands, ended: false })
    }

    /// A random length between half the mean and one and a half of it, limited by the free part of the cache.
    fn draw_output_tokens(&mut self, input: u64) -> u64 {
        let mean = self.output_tokens;
        let drawn = self.rng.random_range(mean.div_ceil(2)..=mean + mean / 2);
        drawn.min(self.server.hardware().kv_tokens.saturating_sub(input)).max(1)
    }

    fn process_events(&mut self) {
        while let Some(Event { time, id, progress }) = self.server.poll_event() {
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            let update = match progress {
                JobProgress::First => {
                    self.metrics.first_token(time.since(job.arrived));
                    self.log.token(time, id.0);
                    JobUpdate::Token
                }
                JobProgress::Token => {
                    self.metrics.token(time.since(job.last));
                    self.log.token(time, id.0);
                    JobUpdate::Token
                }
                JobProgress::Done => {
                    self.metrics.ended(job.reason, time.since(job.arrived));
                    self.log.served(time, id.0, std::mem::take(&mut job.tenant));
                    JobUpdate::Done
                }
            };
            job.last = time;
            // If the client has disconnected, the job's cancellation is in the command queue.
            let _ = job.updates.send(update);
            if progress == JobProgress::Done {
                self.jobs.remove(&id);
            }
        }
    }
}
