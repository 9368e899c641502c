//! The task of the election: carries requests to the store, and feeds answers, views and reports into the candidate.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use penstock_election::{Answer, Candidate, Input, Output, Request, RoleChange, View};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::health::{Health, Operation};
use super::store::{LeaseStore, Outcome, StoreError};
use super::{RoleSink, Status};
use crate::base::clock::{Clock, sleep_until};
use crate::decisions::reports::Reporter;

/// The first pause before a failed watch connects again.
const RECONNECT_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// Views that wait for the candidate.
const VIEWS: usize = 16;

/// A command of the process.
#[derive(Debug)]
pub(super) enum Command {
    Resign,
    /// As `Resign`, for a companion whose picker follows the next leader: goes on to say who leads. The reply comes when the lease is given up.
    Leave(oneshot::Sender<()>),
    Stop,
    /// Another companion asks for the pool. The reply says whether it gets it.
    Yield {
        to: String,
        reply: oneshot::Sender<bool>,
    },
}

/// The answer to a request, the view that follows a refusal, and the time of a renewal.
type Answered = (Answer, Option<View>, Option<Duration>);

pub(super) struct Task<S, R> {
    store: Arc<S>,
    health: Arc<Health>,
    candidate: Candidate,
    duration: Duration,
    clock: Clock,
    sink: R,
    status: watch::Sender<Status>,
    /// For the log, where each pool has a leader of its own.
    pool: Option<String>,
    /// The request that the store works on. A new request replaces it, and its answer is dropped.
    request: Option<BoxFuture<'static, Answered>>,
    /// The reply to [`Command::Leave`] is due.
    leaving: Option<oneshot::Sender<()>>,
    /// Follows who leads after the lease is given up.
    goes_on: bool,
}

impl<S: LeaseStore, R: RoleSink> Task<S, R> {
    pub(super) fn new(
        store: S,
        candidate: Candidate,
        duration: Duration,
        clock: Clock,
        sink: R,
        status: watch::Sender<Status>,
    ) -> Self {
        Self {
            health: Arc::new(Health::new(store.place())),
            store: Arc::new(store),
            candidate,
            duration,
            clock,
            sink,
            status,
            pool: None,
            request: None,
            leaving: None,
            goes_on: false,
        }
    }

    /// The election is for the leader of this pool alone.
    pub(super) fn of_pool(self, pool: Option<String>) -> Self {
        Self { pool, ..self }
    }

    /// Runs until the companion has resigned or was stopped, or until the driver has ended. Takes no part before `begins`.
    pub(super) async fn run(
        mut self,
        reports: Reporter,
        mut commands: mpsc::Receiver<Command>,
        mut begins: watch::Receiver<bool>,
    ) {
        tokio::select! {
            // Fails when the companion is ending.
            _ = begins.wait_for(|begins| *begins) => {}
            command = commands.recv() => {
                let input = self.input_of(command);
                self.candidate.handle(self.clock.now(), input);
            }
        }
        let (sender, mut views) = mpsc::channel(VIEWS);
        let pause_max = self.duration.min(RECONNECT_MAX);
        let watching = watch_forever(self.store.clone(), self.health.clone(), sender, pause_max);
        let mut watching = pin!(watching);
        while self.carry_out().await && !self.is_over() {
            let due = self.candidate.poll_timeout();
            let due = due.and_then(|due| self.clock.runtime_instant(due));
            let inputs = tokio::select! {
                answered = pending_answer(&mut self.request) => self.answered(answered),
                Some(view) = views.recv() => vec![Input::Observed(view)],
                inputs = reports.take() => inputs,
                command = commands.recv() => vec![self.input_of(command)],
                () = sleep_until(due) => Vec::new(),
                // For the status.
                () = self.health.changed() => Vec::new(),
                () = &mut watching => return,
            };
            if inputs.is_empty() {
                self.candidate.handle_timeout(self.clock.now());
            }
            for input in inputs {
                self.candidate.handle(self.clock.now(), input);
            }
        }
    }

    /// Nothing is left to do.
    fn is_over(&mut self) -> bool {
        if !self.candidate.is_done() {
            return false;
        }
        if let Some(reply) = self.leaving.take() {
            // Fails when the caller no longer waits.
            let _ = reply.send(());
        }
        !self.goes_on
    }

    fn input_of(&mut self, command: Option<Command>) -> Input {
        match command {
            Some(Command::Resign) => Input::Resign,
            Some(Command::Leave(reply)) => {
                self.leaving = Some(reply);
                self.goes_on = true;
                Input::Leave
            }
            // Without an owner, the companion is ending.
            Some(Command::Stop) | None => {
                self.goes_on = false;
                Input::Stop
            }
            Some(Command::Yield { to, reply }) => {
                // Fails when the other companion no longer waits.
                let _ = reply.send(self.candidate.yields_to(self.clock.now(), &to));
                Input::Yield { to }
            }
        }
    }

    /// Carries out all outputs. Returns whether the driver still runs.
    async fn carry_out(&mut self) -> bool {
        while let Some(output) = self.candidate.poll_output() {
            match output {
                Output::Role(change) => {
                    log(self.pool.as_deref(), &change, self.status.borrow().role.is_leader());
                    if self.sink.apply(change).await.is_err() {
                        return false;
                    }
                }
                Output::Request(request) => {
                    if self.request.is_some() {
                        let late = StoreError("no answer in time".into());
                        self.health.failed(Operation::Request, &late);
                    }
                    let (store, health) = (self.store.clone(), self.health.clone());
                    self.request = Some(execute(store, health, request).boxed());
                }
                // Without the store, this companion couldn't take the lease that the leader leaves.
                Output::Claim { leader } if self.health.is_up() => self.sink.claim(leader),
                Output::Claim { .. } => {}
            }
        }
        self.status.send_replace(Status { role: self.candidate.status(), store_up: self.health.is_up() });
        true
    }

    fn answered(&mut self, (answer, view, renewal): Answered) -> Vec<Input> {
        if let Some(took) = renewal {
            self.sink.renewed(took);
        }
        let view = view.map(Input::Observed);
        view.into_iter().chain([Input::Answered(answer)]).collect()
    }
}

async fn pending_answer(request: &mut Option<BoxFuture<'static, Answered>>) -> Answered {
    let Some(future) = request else {
        return std::future::pending().await;
    };
    let answered = future.await;
    *request = None;
    answered
}

/// Has the store carry out a request. It may take forever: the candidate gives up in time, and its next request replaces this
/// one.
async fn execute<S: LeaseStore>(store: Arc<S>, health: Arc<Health>, request: Request) -> Answered {
    let started = Instant::now();
    match store.execute(&request).await {
        Ok(Outcome::Done { version }) => {
            health.succeeded(Operation::Request);
            let is_renewal = matches!(request, Request::Renew { .. });
            let renewal = is_renewal.then(|| started.elapsed());
            (Answer::Done { version }, None, renewal)
        }
        Ok(Outcome::Refused) => {
            health.succeeded(Operation::Request);
            // The watch may have sent this state already, or send it much later.
            (Answer::Refused, store.observe().await.ok(), None)
        }
        Err(why) => {
            health.failed(Operation::Request, &why);
            (Answer::Failed, None, None)
        }
    }
}

/// Watches the store, and connects again when the connection fails. Returns when the task has ended.
async fn watch_forever<S: LeaseStore>(
    store: Arc<S>,
    health: Arc<Health>,
    views: mpsc::Sender<View>,
    pause_max: Duration,
) {
    let mut pause = RECONNECT_FIRST;
    loop {
        let (sender, mut seen) = mpsc::channel(1);
        let mut watching = pin!(store.watch(&sender));
        let why = loop {
            tokio::select! {
                biased;
                Some(view) = seen.recv() => {
                    health.succeeded(Operation::Watch);
                    pause = RECONNECT_FIRST;
                    if views.send(view).await.is_err() {
                        return;
                    }
                }
                why = &mut watching => break why,
            }
        };
        health.failed(Operation::Watch, &why);
        tokio::time::sleep(pause.min(pause_max)).await;
        pause = (pause * 2).min(pause_max);
    }
}

fn log(pool: Option<&str>, change: &RoleChange, was_leader: bool) {
    match change {
        RoleChange::Lead { term, known, pickers, .. } => {
            let (envoys, pickers) = (known.len(), pickers.len());
            tracing::info!(pool, term, envoys, pickers, "this companion leads");
        }
        RoleChange::StandBy { leader, term } => {
            let leader = leader.as_deref().unwrap_or("none known");
            if was_leader {
                tracing::info!(pool, term, leader, "this companion no longer leads");
            } else {
                tracing::info!(pool, term, leader, "this companion is a standby");
            }
        }
        RoleChange::Renewed { .. } | RoleChange::StoreUnreachable { .. } => {}
    }
}
