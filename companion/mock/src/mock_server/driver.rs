//! The task that owns the simulated server and drives it by the real clock.
//!
//! Handlers send commands and read tokens from a channel of their own; nothing is shared and nothing locked. A
//! client that leaves drops its [`Ticket`], and that takes its job back. Channels have no bound of their own: there
//! is one command per connection and event, and a job's tokens are limited by its length.

use std::collections::{BTreeMap, HashMap};

use penstock_engine::Instant;
use penstock_model_server::{Event, Job, JobId, Kind, Refused, Server};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::{mpsc, oneshot};

use super::ask::Length;
use super::clock::Clock;
use super::log::{Log, Seen, Stats};
use super::metrics::Metrics;

/// What handlers hold: the way to the driver.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    commands: mpsc::UnboundedSender<Command>,
}

/// The driver has ended: the server is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("this server is shutting down")]
pub(super) struct Stopped;

/// A request that wants to be served.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) seen: Seen,
    pub(super) input: u64,
    pub(super) length: Length,
}

/// A job that was taken. Dropped before its end, it is cancelled.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Its place in the order of arrival, from 0.
    pub(super) order: u64,
    /// Requests at this server when it arrived, itself included.
    pub(super) in_flight: u64,
    pieces: mpsc::UnboundedReceiver<Piece>,
    commands: mpsc::UnboundedSender<Command>,
    ended: bool,
}

/// What a job gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Token,
    /// The last.
    Done,
}

#[derive(Debug)]
enum Command {
    Submit(Arrival, oneshot::Sender<Result<Ticket, Refused>>),
    Cancel(JobId),
    /// A request was refused before it came here.
    Refused,
    Stats(oneshot::Sender<Stats>),
    ServedByTenant(oneshot::Sender<BTreeMap<String, u64>>),
    Log(oneshot::Sender<Log>),
}

impl Handle {
    /// The job is at the server when this returns.
    pub(super) async fn submit(&self, arrival: Arrival) -> Result<Result<Ticket, Refused>, Stopped> {
        self.ask(|reply| Command::Submit(arrival, reply)).await
    }

    pub(super) fn refused(&self) {
        // A driver that has ended counts nothing any more.
        let _ = self.commands.send(Command::Refused);
    }

    pub(super) async fn stats(&self) -> Result<Stats, Stopped> {
        self.ask(Command::Stats).await
    }

    pub(super) async fn served_by_tenant(&self) -> Result<BTreeMap<String, u64>, Stopped> {
        self.ask(Command::ServedByTenant).await
    }

    pub(super) async fn log(&self) -> Result<Log, Stopped> {
        self.ask(Command::Log).await
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}

impl Ticket {
    /// The next piece, as it comes; `None`: the server ended before the job.
    pub(super) async fn next(&mut self) -> Option<Piece> {
        let piece = self.pieces.recv().await;
        self.ended |= piece == Some(Piece::Done);
        piece
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            // A driver that has ended has no job to cancel.
            let _ = self.commands.send(Command::Cancel(JobId(self.order)));
        }
    }
}

/// What the driver remembers of a job.
struct Open {
    pieces: mpsc::UnboundedSender<Piece>,
    arrived: Instant,
    last: Instant,
    reason: &'static str,
    tenant: String,
}

/// The server and all that is known of it; one task owns it.
pub(super) struct Driver {
    server: Server,
    clock: Clock,
    metrics: Metrics,
    log: Log,
    rng: ChaCha8Rng,
    /// Mean of [`Length::Natural`].
    output_tokens: u64,
    next: u64,
    open: HashMap<JobId, Open>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// For tickets only.
    back: mpsc::WeakUnboundedSender<Command>,
}

impl Driver {
    pub(super) fn new(server: Server, metrics: Metrics, output_tokens: u64, seed: u64) -> (Self, Handle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let driver = Self {
            server,
            clock: Clock::start(),
            metrics,
            log: Log::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            output_tokens,
            next: 0,
            open: HashMap::new(),
            commands,
            back: sender.downgrade(),
        };
        (driver, Handle { commands: sender })
    }

    /// Runs until the last handle and the last ticket are gone.
    pub(super) async fn run(mut self) {
        loop {
            let due = self.server.poll_timeout().map(|at| self.clock.deadline(at));
            let wait = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
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
            self.deliver();
            if let Some(command) = command {
                self.handle(now, command);
            }
            self.metrics.follow(self.server.gauges(), self.server.totals());
        }
    }

    fn handle(&mut self, now: Instant, command: Command) {
        match command {
            Command::Submit(arrival, reply) => {
                // Dropped by a handler that is gone, the ticket cancels itself.
                let _ = reply.send(self.submit(now, arrival));
            }
            Command::Cancel(id) => {
                if self.server.cancel(id)
                    && let Some(open) = self.open.remove(&id)
                {
                    self.log.cancelled(now, id.0);
                    self.metrics.ended("abort", now.since(open.arrived));
                }
            }
            Command::Refused => self.log.refused(),
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

    fn submit(&mut self, now: Instant, arrival: Arrival) -> Result<Ticket, Refused> {
        let (output, reason) = match arrival.length {
            Length::Nothing => (0, "stop"),
            Length::Exactly(tokens) => (tokens, "length"),
            Length::Natural => (self.natural(arrival.input), "stop"),
        };
        let (order, id) = (self.next, JobId(self.next));
        // The caller asks through a sender; as long as it waits for this answer there is one.
        let commands = self.back.upgrade().ok_or(Refused::Full)?;
        if let Err(refused) = self.server.submit(
            now,
            Job {
                id,
                input: arrival.input,
                output,
            },
        ) {
            self.log.refused();
            return Err(refused);
        }
        self.next += 1;
        let tenant = arrival
            .seen
            .tenant
            .clone()
            .unwrap_or_else(|| "anonymous".to_owned());
        let in_flight = self.log.arrived(now, order, arrival.seen, arrival.input);
        let (sender, pieces) = mpsc::unbounded_channel();
        self.open.insert(
            id,
            Open {
                pieces: sender,
                arrived: now,
                last: now,
                reason,
                tenant,
            },
        );
        Ok(Ticket {
            order,
            in_flight,
            pieces,
            commands,
            ended: false,
        })
    }

    /// From half the mean to one and a half of it, as far as the cache has room.
    fn natural(&mut self, input: u64) -> u64 {
        let mean = self.output_tokens;
        let drawn = self.rng.random_range(mean.div_ceil(2)..=mean + mean / 2);
        drawn
            .min(self.server.hardware().kv_tokens.saturating_sub(input))
            .max(1)
    }

    fn deliver(&mut self) {
        while let Some(Event { at, id, kind }) = self.server.poll_event() {
            let Some(open) = self.open.get_mut(&id) else {
                continue;
            };
            let piece = match kind {
                Kind::First => {
                    self.metrics.first_token(at.since(open.arrived));
                    self.log.token(at, id.0);
                    Piece::Token
                }
                Kind::Token => {
                    self.metrics.token(at.since(open.last));
                    self.log.token(at, id.0);
                    Piece::Token
                }
                Kind::Done => {
                    self.metrics.ended(open.reason, at.since(open.arrived));
                    self.log.served(at, id.0, std::mem::take(&mut open.tenant));
                    Piece::Done
                }
            };
            open.last = at;
            // A client that is gone has its cancellation on the way.
            let _ = open.pieces.send(piece);
            if kind == Kind::Done {
                self.open.remove(&id);
            }
        }
    }
}
