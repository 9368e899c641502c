//! The health of one endpoint: a state machine that facts about attempts drive.
//!
//! ```text
//!                 answers fail, and others succeed at the same kind of request
//!            ┌───────────────────────────────────────────────────► FAILING
//!            │                                                      │    ▲
//!         HEALTHY ◄──────────── a request is served ─── PROBING ◄───┘    │ the request fails
//!            │                                            ▲  │ └─────────┘
//!            │                                            │  └─────┐
//!            └───────────────────────────────────────► DOWN ◄──────┘ the connection fails
//!                 connections fail
//! ```
//!
//! - *Down*: two different requests couldn't be sent within [`WINDOW`]. Each time the endpoint stays down longer, until a request is
//!   served there. A failed health check also shows as down; it belongs to discovery, and [`crate::endpoint`] joins both.
//! - *Failing*: the server answers, but its answers fail. A failure counts by how surprising it is: [`kinds`] compares it with the
//!   answers of other endpoints to the same kind of request, and with earlier ones of this endpoint. A request that fails everywhere is
//!   the fault of its client and surprises no endpoint.
//! - *Probing*: the pause is over. The endpoint takes one request at a time, whose end decides.
//!
//! The machine has no clock and visits no other endpoint. [`crate::endpoints`] keeps the rules over all of them: the last ready endpoint
//! leaves for no failure, and when the rest begins to fail too, the failing ones come back.

pub(crate) mod ejected;
pub(crate) mod kinds;
mod run;
#[cfg(test)]
mod tests;
mod window;

use core::fmt;
use core::time::Duration;

use self::kinds::Comparison;
use self::run::Run;
use self::window::Window;
use crate::input::{AnswerResult, EndpointAnswer, Fault, RequestId};
use crate::policy::{Failing, OutlierEjection};
use crate::time::Instant;

/// Failed connections further apart don't count together.
const WINDOW: Duration = Duration::from_secs(10);
/// How surprising each failure of a row must be on average, in natural logarithms: as one that happens once in sixteen requests
/// elsewhere.
const SURPRISE_MIN: f64 = 2.8;
/// Where failures reach clients, so many other answers come between two probes: then less than a tenth of the requests fail.
const ANSWERS_BETWEEN_PROBES: u64 = 12;
/// The pause between probes doubles at most so often, while the endpoint fails again after each probe that it served.
const RELAPSES_MAX: u32 = 4;

/// The state of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealthState {
    /// It takes requests up to its bound.
    Healthy,
    /// Its answers fail. It takes no request until its next probe.
    Failing,
    /// It can't be reached, or its health check fails. It takes no request.
    Down,
    /// It takes one request at a time, and the end of that request decides.
    Probing,
}

impl HealthState {
    /// The states, in the order of the page.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Failing, Self::Down, Self::Probing];

    /// The name in status and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Failing => "failing",
            Self::Down => "down",
            Self::Probing => "probing",
        }
    }
}

/// Why an endpoint is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthReason {
    /// Nothing speaks against it.
    Serves,
    /// Its health check fails.
    HealthCheck,
    /// Requests couldn't be sent there.
    Connections,
    /// So many different requests in a row failed there, the last one in this way.
    InARow {
        /// Requests.
        count: u32,
        /// The last failure.
        fault: Fault,
    },
    /// So many of the last answers failed, the last one in this way.
    Share {
        /// Failures.
        failed: u32,
        /// Answers.
        answers: u32,
        /// The last failure.
        fault: Fault,
    },
    /// For a whole window it has refused every request, this way, while others served.
    Refusals {
        /// The HTTP status.
        status: u16,
    },
    /// The request that probed it failed in this way, or one soon after.
    Probe {
        /// The failure.
        fault: Fault,
    },
    /// All endpoints of the pool failed alike, so none of them is kept away.
    AllAlike,
}

impl fmt::Display for HealthReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serves => formatter.write_str("it serves"),
            Self::HealthCheck => formatter.write_str("its health check fails"),
            Self::Connections => formatter.write_str("requests couldn't be sent there"),
            Self::InARow { count, fault } => {
                write!(
                    formatter,
                    "{count} requests in a row failed there, the last one {fault}, and others serve such requests"
                )
            }
            Self::Share { failed, answers, fault } => {
                write!(
                    formatter,
                    "{failed} of its last {answers} answers failed, the last one {fault}, and others serve such requests"
                )
            }
            Self::Refusals { status } => {
                write!(
                    formatter,
                    "it has refused every request for long, with status {status}, and others serve such requests"
                )
            }
            Self::Probe { fault } => {
                write!(formatter, "a request failed {fault} when it was probed, or soon after")
            }
            Self::AllAlike => {
                formatter.write_str("every endpoint of the pool failed alike, so none is kept away")
            }
        }
    }
}

/// What made an endpoint leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Connections,
    Answers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Healthy,
    /// Takes nothing until then, and until the pool has had so many answers.
    Out {
        cause: Cause,
        until: Instant,
        answers: u64,
    },
    /// No longer out, and nothing was served there since.
    Probing {
        cause: Cause,
    },
}

/// The connections that failed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Connections {
    /// The request that failed last, and when.
    last: Option<(RequestId, Instant)>,
    /// When another request last failed.
    other: Option<Instant>,
}

/// The requests that an endpoint failed or refused since it last served one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    None,
    One(RequestId),
    Several,
}

/// Requests that the server has refused by itself since it last served one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusals {
    since: Instant,
    last: RequestId,
    /// Different requests, as far as they are told apart from the last.
    count: u32,
}

/// Why an endpoint should leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: HealthReason,
    /// Clients don't notice its failures, because the requests go elsewhere.
    pub(crate) is_hidden: bool,
}

/// The health of one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    state: State,
    since: Instant,
    reason: HealthReason,
    connections: Connections,
    failed: Failed,
    /// How often the endpoint was marked down since a request was served there.
    times: u32,
    run: Run,
    window: Window,
    refusals: Option<Refusals>,
    /// Answers after a probe during which one more failure is enough.
    trial: u32,
    /// How often the endpoint failed again in its trial.
    relapses: u32,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Healthy,
            since: Instant::ZERO,
            reason: HealthReason::Serves,
            connections: Connections::default(),
            failed: Failed::None,
            times: 0,
            run: Run::default(),
            window: Window::default(),
            refusals: None,
            trial: 0,
            relapses: 0,
        }
    }

    /// The state, without health checks.
    pub(crate) const fn state(&self) -> HealthState {
        match self.state {
            State::Healthy => HealthState::Healthy,
            State::Out { cause: Cause::Answers, .. } => HealthState::Failing,
            State::Out { cause: Cause::Connections, .. } => HealthState::Down,
            State::Probing { .. } => HealthState::Probing,
        }
    }

    pub(crate) const fn reason(&self) -> HealthReason {
        self.reason
    }

    /// The time of the last change of the state.
    pub(crate) const fn since(&self) -> Instant {
        self.since
    }

    pub(crate) const fn is_healthy(&self) -> bool {
        matches!(self.state, State::Healthy)
    }

    /// The endpoint takes no request.
    pub(crate) const fn is_out(&self) -> bool {
        matches!(self.state, State::Out { .. })
    }

    /// Its answers failed, and no request has shown that this is over.
    pub(crate) const fn has_failing_answers(&self) -> bool {
        matches!(
            self.state,
            State::Out { cause: Cause::Answers, .. } | State::Probing { cause: Cause::Answers }
        )
    }

    /// Takes one request at a time, whatever its slow start allows.
    pub(crate) const fn is_single(&self) -> bool {
        matches!(self.state, State::Probing { cause: Cause::Answers })
    }

    /// The endpoint has failed or refused another request than `request` since it last served one.
    pub(crate) fn has_failed_others(&self, request: RequestId) -> bool {
        match self.failed {
            Failed::None => false,
            Failed::One(failed) => failed != request,
            Failed::Several => true,
        }
    }

    /// When the endpoint may be probed, and after how many answers of the pool; `None`: it isn't out.
    pub(crate) const fn probe_at(&self) -> Option<(Instant, u64)> {
        match self.state {
            State::Out { until, answers, .. } => Some((until, answers)),
            State::Healthy | State::Probing { .. } => None,
        }
    }

    /// Different requests in a row that failed here, whatever became of them elsewhere.
    pub(crate) fn failures_in_a_row(&self) -> u32 {
        self.run.count()
    }

    /// Records that `request` couldn't be sent. Returns whether that suffices to mark the endpoint down by [`Self::mark_down`].
    pub(crate) fn connection_failed(&mut self, now: Instant, request: RequestId) -> bool {
        self.note_failed(request);
        match self.state {
            State::Healthy => {
                let connections = &mut self.connections;
                let previous = connections.last.replace((request, now));
                if let Some((_, failed)) = previous.filter(|&(previous, _)| previous != request) {
                    connections.other = Some(failed);
                }
                connections.other.is_some_and(|failed| now.since(failed) <= WINDOW)
            }
            State::Out { .. } => false,
            State::Probing { .. } => true,
        }
    }

    /// Records that the endpoint failed `request`, or refused it, by itself, which never marks it down.
    pub(crate) fn note_failed(&mut self, request: RequestId) {
        self.failed = if self.has_failed_others(request) { Failed::Several } else { Failed::One(request) };
    }

    /// Marks the endpoint down from `now` on. Returns until when.
    pub(crate) fn mark_down(&mut self, now: Instant, policy: OutlierEjection) -> Instant {
        let factor = 1_u32.checked_shl(self.times).unwrap_or(u32::MAX);
        let until = now.after(policy.first.saturating_mul(factor).min(policy.max));
        self.times = self.times.saturating_add(1);
        let out = State::Out { cause: Cause::Connections, until, answers: 0 };
        self.enter(now, out, HealthReason::Connections);
        until
    }

    /// The endpoint's answers fail: it takes no request for a pause. `answers`: those of the pool so far.
    pub(crate) fn mark_failing(&mut self, now: Instant, verdict: Verdict, policy: &Failing, answers: u64) {
        if self.trial > 0 {
            self.relapses = (self.relapses + 1).min(RELAPSES_MAX);
        } else if self.is_healthy() {
            self.relapses = 0;
        }
        let pause = policy.probe_every.saturating_mul(1 << self.relapses);
        let least = if verdict.is_hidden { 0 } else { ANSWERS_BETWEEN_PROBES };
        let until = now.after(pause);
        let out = State::Out { cause: Cause::Answers, until, answers: answers.saturating_add(least) };
        self.enter(now, out, verdict.reason);
    }

    /// Ends the pause, if there is one: the endpoint is probed.
    pub(crate) fn probe(&mut self, now: Instant) {
        if let State::Out { cause, .. } = self.state {
            let reason = self.reason;
            self.enter(now, State::Probing { cause }, reason);
        }
    }

    /// A server processed a request of the endpoint.
    pub(crate) fn served(&mut self, now: Instant) {
        self.times = 0;
        self.failed = Failed::None;
        if let State::Probing { cause: Cause::Connections } = self.state {
            self.enter(now, State::Healthy, HealthReason::Serves);
        }
    }

    /// All endpoints fail alike: this one is kept away no longer.
    pub(crate) fn pardon(&mut self, now: Instant) {
        self.enter(now, State::Healthy, HealthReason::AllAlike);
    }

    fn enter(&mut self, now: Instant, state: State, reason: HealthReason) {
        self.state = state;
        self.reason = reason;
        self.since = now;
        self.connections = Connections::default();
        self.run = Run::default();
        self.window = Window::default();
        self.refusals = None;
        self.trial = 0;
    }

    /// Records that a request was served, if the endpoint is healthy and nothing has failed lately; otherwise returns `false`.
    pub(crate) fn served_as_usual(&mut self, now: Instant, policy: &Failing) -> bool {
        let is_usual =
            self.is_healthy() && self.run.count() == 0 && self.trial == 0 && self.refusals.is_none();
        if is_usual {
            self.window.served(now, policy.window);
        }
        is_usual
    }

    /// Records an answer. Returns why the endpoint should leave, if it should.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        answer: &EndpointAnswer,
        policy: &Failing,
        comparison: &Comparison<'_>,
    ) -> Option<Verdict> {
        // An answer to a request that was sent before the last change shows nothing about the new state.
        if now.before(answer.sent_ago) < self.since {
            return None;
        }
        match (self.state, answer.result) {
            (State::Out { .. }, _) | (_, AnswerResult::Begun | AnswerResult::Left) => None,
            (state, AnswerResult::Served) => {
                self.served_answer(now, state, policy);
                None
            }
            (state, AnswerResult::Failed(fault)) => {
                self.failed_answer(now, state, answer, fault, policy, comparison)
            }
            (state, AnswerResult::Rejected(status)) => {
                self.failed_answer(now, state, answer, Fault::Status(status), policy, comparison)
            }
            (_, AnswerResult::Refused(status)) => {
                self.refused_answer(now, answer, status, policy, comparison)
            }
        }
    }

    fn served_answer(&mut self, now: Instant, state: State, policy: &Failing) {
        self.run = Run::default();
        self.refusals = None;
        self.window.served(now, policy.window);
        match state {
            State::Probing { cause: Cause::Answers } => {
                self.enter(now, State::Healthy, HealthReason::Serves);
                self.trial = policy.consecutive;
            }
            State::Probing { cause: Cause::Connections } | State::Out { .. } => {}
            State::Healthy => {
                if self.trial == 1 {
                    self.relapses = 0;
                }
                self.trial = self.trial.saturating_sub(1);
            }
        }
    }

    fn failed_answer(
        &mut self,
        now: Instant,
        state: State,
        answer: &EndpointAnswer,
        fault: Fault,
        policy: &Failing,
        comparison: &Comparison<'_>,
    ) -> Option<Verdict> {
        let is_servers = matches!(answer.result, AnswerResult::Failed(_));
        if is_servers {
            self.note_failed(answer.request);
        }
        let is_new = self.run.push(answer.request, answer.kind, is_servers);
        let verdict = |reason| Some(Verdict { reason, is_hidden: answer.is_hidden });
        let (count, sum) = self.run.surprise(comparison);
        if matches!(state, State::Probing { cause: Cause::Answers }) || self.trial > 0 {
            // A flow that no other endpoint has answered yet may send nothing but bad requests: two such flows are needed.
            let is_known = comparison.surprise_of_flow(answer.kind, is_servers).is_some();
            let is_enough = sum >= SURPRISE_MIN && (is_known || count > 1);
            return if is_enough { verdict(HealthReason::Probe { fault }) } else { None };
        }
        if !is_new {
            return None;
        }
        let needed = f64::from(policy.consecutive) * SURPRISE_MIN;
        if count >= policy.consecutive && sum >= needed {
            return verdict(HealthReason::InARow { count, fault });
        }
        let surprise = comparison.surprise_elsewhere(answer.kind, is_servers, self.window.flows());
        if is_servers && surprise > 0.0 {
            self.window.failed(now, policy.window, answer.kind.flow, libm::exp(-surprise));
            let (failed, answers) = self.window.counts();
            if failed >= policy.consecutive && self.window.stands_out(policy.ratio, needed) {
                return verdict(HealthReason::Share { failed, answers, fault });
            }
        }
        None
    }

    /// Overload passes. An endpoint that has served nothing for a whole window, beside others that serve, isn't overloaded.
    fn refused_answer(
        &mut self,
        now: Instant,
        answer: &EndpointAnswer,
        status: u16,
        policy: &Failing,
        comparison: &Comparison<'_>,
    ) -> Option<Verdict> {
        let refusals = self.refusals.get_or_insert(Refusals { since: now, last: answer.request, count: 1 });
        if refusals.last != answer.request {
            refusals.last = answer.request;
            refusals.count = refusals.count.saturating_add(1);
        }
        let is_long = now.since(refusals.since) >= policy.window && refusals.count >= policy.consecutive;
        let is_single = self.is_single();
        let others_serve = (is_long || is_single) && comparison.surprise(answer.kind, true, &[]) > 0.0;
        let reason = if is_single {
            HealthReason::Probe { fault: Fault::Status(status) }
        } else {
            HealthReason::Refusals { status }
        };
        others_serve.then_some(Verdict { reason, is_hidden: answer.is_hidden })
    }

    /// Different requests in a row failed here though this endpoint served their kind before.
    pub(crate) fn fails_what_it_served(&self, policy: &Failing, comparison: &Comparison<'_>) -> bool {
        self.run.count() >= policy.consecutive && self.run.served_before(comparison) >= policy.consecutive
    }
}
