//! One companion's part in the election.
//!
//! A candidate has one request to the store outstanding. After every input it decides which request comes next, from its role and
//! the latest view of the store; there is no plan that an unexpected answer could invalidate.

mod requests;
mod spreading;

use core::time::Duration;
use std::collections::VecDeque;

use penstock_engine::Instant;

use self::spreading::Spreading;
use crate::limits::{ANSWERS, ENVOYS_MAX, GRANTS, PICKERS_MAX, RENEWALS, RETRIES};
use crate::messages::{Answer, Holder, Input, Output, Report, Request, Role, RoleChange, RoleStatus, View};
use crate::record::{KnownEnvoy, Pickers, Record};

/// The settings of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where this companion listens for filters, as `IP:PORT`. No other companion has the same address.
    pub address: String,
    /// How long the lease is valid after a renewal.
    pub duration: Duration,
    /// The pool that the lease is for, where each pool has one: the pools spread over the companions. `None`: it is for all pools.
    pub pool: Option<String>,
}

/// One companion's part in the election.
#[derive(Clone, Debug)]
pub struct Candidate {
    settings: Settings,
    started: Instant,
    /// The wall clock at `started`, in ms since 1970.
    started_unix_ms: u64,
    /// The latest view, which includes the effects of this candidate's requests.
    view: Option<View>,
    /// `Some` while this companion leads.
    leading: Option<Leading>,
    outstanding: Option<Outstanding>,
    /// What to write when the lease, which this standby still holds, is released.
    release: Option<Record>,
    /// The control asked for a leader, and there has been no new one since.
    wanted: bool,
    /// Before this time the lease isn't acquired again.
    not_before: Option<Instant>,
    /// No request is sent before this time, because the last one failed.
    retry_at: Option<Instant>,
    /// The highest term seen.
    highest_term: u64,
    phase: Phase,
    spreading: Spreading,
    /// The leader and the term of the last [`RoleChange::StandBy`].
    reported: Option<(Option<String>, u64)>,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Resigning,
    Stopped,
}

#[derive(Clone, Debug)]
struct Leading {
    /// The term of [`RoleChange::Lead`]. Later terms of the same leadership are higher.
    first_term: u64,
    /// When the last successful acquisition or renewal was sent.
    renewed_at: Instant,
    /// What the store should have.
    record: Record,
    /// The leader's own endpoint picker. Only a leader that leaves names it to its successor: with a leader that dies, it is gone.
    own_picker: Vec<KnownEnvoy>,
    /// The control has reported its Envoys: it has taken over.
    is_complete: bool,
    unreachable_reported: bool,
}

#[derive(Clone, Debug)]
struct Outstanding {
    request: Request,
    sent_at: Instant,
}

impl Candidate {
    /// A standby that has seen nothing yet. `unix_ms`: the wall clock at `now`, in ms since 1970.
    #[must_use]
    pub fn new(settings: Settings, now: Instant, unix_ms: u64) -> Self {
        Self {
            settings,
            started: now,
            started_unix_ms: unix_ms,
            view: None,
            leading: None,
            outstanding: None,
            release: None,
            wanted: false,
            not_before: None,
            retry_at: None,
            highest_term: 0,
            phase: Phase::Running,
            spreading: Spreading::default(),
            reported: None,
            outputs: VecDeque::new(),
        }
    }

    /// Takes an input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Observed(view) => self.observe(view),
            Input::Answered(answer) => self.take_answer(now, answer),
            Input::Reported(Report::Wanted) => self.wanted = true,
            Input::Reported(Report::Superseded { term }) => self.superseded(term),
            Input::Reported(Report::Unfollowed { term }) => self.unfollowed(now, term),
            Input::Reported(Report::Known { term, envoys, pickers }) => self.known(term, envoys, pickers),
            Input::Yield { to } => self.yield_to(now, &to),
            Input::Resign => self.resign(),
            Input::Leave => {
                if let Some(Leading { record, own_picker, .. }) = &mut self.leading {
                    record.pickers.append(own_picker);
                }
                self.resign();
            }
            Input::Stop => {
                self.step_down(None, 0);
                self.phase = Phase::Stopped;
                self.outstanding = None;
            }
        }
        self.update_spreading(now);
        self.send_next(now);
    }

    /// The next output; `None`: everything was returned.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Candidate::handle_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if let Some(outstanding) = &self.outstanding {
            return Some(outstanding.sent_at.after(self.answer_max()));
        }
        // A time that has passed had its effect already.
        let renewal = self.leading.as_ref().map(|leading| self.renewal_due(leading));
        let renewal = renewal.filter(|_| self.holder() == Some(Holder::Me));
        let waits = |view: &View| view.holder == Holder::None && (self.wanted || self.is_vacant(view));
        let waits = self.leading.is_none() && self.view.as_ref().is_some_and(waits);
        let acquisition = self.not_before.max(self.spreading.hesitates_until);
        let acquisition = acquisition.filter(|_| waits);
        let due = renewal.into_iter().chain(acquisition).min();
        let due = match (self.retry_at, due) {
            (Some(retry), Some(due)) => Some(retry.max(due)),
            (retry, due) => retry.or(due),
        };
        let due = due.into_iter().chain(self.claims_at()).min();
        due.filter(|_| self.phase != Phase::Stopped)
    }

    /// The time of [`Candidate::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let answer_max = self.answer_max();
        if let Some(outstanding) = &self.outstanding
            && now >= outstanding.sent_at.after(answer_max)
        {
            // After a suspension of the process the answer may lie unread, and says nothing about the store: ask again.
            let was_suspended = now >= outstanding.sent_at.after(answer_max.saturating_mul(2));
            self.outstanding = None;
            if !was_suspended {
                self.report_unreachable();
            }
        }
        if self.retry_at.is_some_and(|retry| retry <= now) {
            self.retry_at = None;
        }
        if self.not_before.is_some_and(|not_before| not_before <= now) {
            self.not_before = None;
        }
        if (self.spreading.hesitates_until).is_some_and(|until| until <= now) {
            self.spreading.hesitates_until = None;
        }
        self.update_spreading(now);
        self.claim_if_due(now);
        self.update_spreading(now);
        self.send_next(now);
    }

    /// The state for display.
    #[must_use]
    pub fn status(&self) -> RoleStatus {
        match &self.leading {
            Some(leading) => RoleStatus {
                role: Role::Leader,
                term: leading.record.term,
                leader: Some(self.settings.address.clone()),
            },
            None => RoleStatus {
                role: Role::Standby,
                term: self.highest_term,
                leader: self.reported.as_ref().and_then(|(leader, _)| leader.clone()),
            },
        }
    }

    /// After [`Input::Resign`] or [`Input::Stop`]: nothing is left to do. It stays false while the store can't be reached to
    /// release the lease.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self.phase {
            Phase::Running => false,
            Phase::Resigning => self.outstanding.is_none() && self.holder() != Some(Holder::Me),
            Phase::Stopped => true,
        }
    }

    fn observe(&mut self, view: View) {
        // A watch may deliver changes that are older than the last answer.
        if self.view.as_ref().is_some_and(|seen| seen.version > view.version) {
            return;
        }
        let last_leader = self.view.as_ref().and_then(leader_and_term);
        if view.holder == Holder::Other && leader_and_term(&view) != last_leader {
            self.wanted = false;
        }
        self.highest_term = self.highest_term.max(term(&view));
        self.retry_at = None;
        if view.holder != Holder::Me && !self.is_acquiring() {
            self.release = None;
        }
        if let Some(leading) = self.leading.as_mut().filter(|_| view.holder == Holder::Me) {
            // An acquisition succeeded whose answer was lost.
            leading.record.term = leading.record.term.max(term(&view));
        }
        let is_replaced = self.leading.as_ref().is_some_and(|leading| self.replaces(&view, leading));
        self.view = Some(view);
        if is_replaced {
            self.step_down(self.known_leader(), self.highest_term);
        } else if self.leading.is_none() {
            self.stand_by(self.known_leader(), self.highest_term);
        }
    }

    /// Another companion has become the leader, and not only tried to.
    fn replaces(&self, view: &View, leading: &Leading) -> bool {
        let record = view.record.as_ref();
        match view.holder {
            Holder::Me => false,
            Holder::Other => {
                record.is_none_or(|record| record.taking_over_from.as_ref() != Some(&self.settings.address))
            }
            // Without a higher term the lease expired while the store was away. With this companion's address, another one
            // took the lease and gave it back.
            Holder::None => record.is_some_and(|record| {
                record.term > leading.record.term && record.leader != self.settings.address
            }),
        }
    }

    fn take_answer(&mut self, now: Instant, answer: Answer) {
        let Some(Outstanding { request, sent_at }) = self.outstanding.take() else {
            return;
        };
        match answer {
            Answer::Done { version } => self.succeeded(now, request, sent_at, version),
            // The next decision waits for the view, unless a later one than that of the request has come before the answer.
            Answer::Refused if self.version() > request.version() => {}
            Answer::Refused => self.retry_at = Some(now.after(self.answer_max())),
            Answer::Failed => {
                self.retry_at = Some(now.after(self.settings.duration / RETRIES));
                self.report_unreachable();
            }
        }
    }

    fn succeeded(&mut self, now: Instant, request: Request, sent_at: Instant, version: u64) {
        self.retry_at = None;
        let extends_lease = matches!(request, Request::Acquire { .. } | Request::Renew { .. });
        let (holder, record) = match request {
            Request::Renew { .. } => (Holder::Me, self.view.as_ref().and_then(|view| view.record.clone())),
            Request::Acquire { record, .. } | Request::Write { record, .. } => (Holder::Me, Some(record)),
            Request::Release { record, .. } => (Holder::None, Some(record)),
        };
        let is_newer = self.view.as_ref().is_none_or(|view| view.version <= version);
        if is_newer {
            self.view = Some(View { holder, record, version });
        }
        if self.holder() != Some(Holder::Me) {
            self.release = None;
            self.stand_by(self.known_leader(), self.highest_term);
        } else if extends_lease {
            self.confirm(now, sent_at);
        }
    }

    /// The lease is held, by a request that was sent at `sent_at`.
    fn confirm(&mut self, now: Instant, sent_at: Instant) {
        let grants_until = self.grants_until(sent_at);
        let record = self.view.as_ref().and_then(|view| view.record.clone());
        self.highest_term = self.highest_term.max(record.as_ref().map_or(0, |record| record.term));
        let can_lead = self.release.is_none() && self.can_acquire(now);
        match (&mut self.leading, record) {
            (Some(leading), record) => {
                // A reacquisition has raised the term.
                leading.record.term = record.map_or(leading.record.term, |record| record.term);
                leading.renewed_at = sent_at;
                leading.unreachable_reported = false;
                let term = leading.record.term;
                self.role(RoleChange::Renewed { term, grants_until });
            }
            (None, Some(record)) if can_lead && record.leader == self.settings.address => {
                self.wanted = false;
                self.reported = None;
                self.role(RoleChange::Lead {
                    term: record.term,
                    known: record.envoys.clone(),
                    pickers: record.pickers.clone(),
                    is_last_leader_gone: record.taking_over_from.is_none(),
                    grants_until,
                });
                self.leading = Some(Leading {
                    first_term: record.term,
                    renewed_at: sent_at,
                    record,
                    own_picker: Vec::new(),
                    is_complete: false,
                    unreachable_reported: false,
                });
            }
            (None, _) => {}
        }
    }

    fn superseded(&mut self, named: u64) {
        self.highest_term = self.highest_term.max(named);
        let is_higher = |leading: &Leading| named > leading.record.term;
        if self.leading.as_ref().is_some_and(is_higher) {
            let other = self.view.as_ref().filter(|view| view.holder == Holder::Other);
            let leader = other.and_then(leader_and_term).map(|(leader, _)| leader.to_owned());
            self.step_down(leader, self.highest_term);
        }
    }

    fn unfollowed(&mut self, now: Instant, term: u64) {
        let leading = self.leading.as_ref();
        if let Some(leading) = leading.filter(|leading| term >= leading.first_term) {
            let last = leading.record.taking_over_from.clone();
            self.wanted = false;
            self.not_before = Some(now.after(self.settings.duration));
            self.step_down(last, self.highest_term);
        }
    }

    fn known(&mut self, term: u64, mut envoys: Vec<KnownEnvoy>, mut pickers: Pickers) {
        if let Some(leading) = &mut self.leading
            && term >= leading.first_term
        {
            envoys.truncate(ENVOYS_MAX);
            pickers.earlier.truncate(PICKERS_MAX);
            leading.record.envoys = envoys;
            leading.record.pickers = pickers.earlier;
            leading.own_picker = pickers.own;
            leading.record.taking_over_from = None;
            leading.is_complete = true;
        }
    }

    /// Gives the lease up for good.
    fn resign(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Resigning;
            self.step_down(None, 0);
        }
    }

    /// Stops leading, if it leads. The lease, if held, is released after the control has stopped granting.
    fn step_down(&mut self, leader: Option<String>, term: u64) {
        let Some(leading) = self.leading.take() else {
            return;
        };
        self.highest_term = self.highest_term.max(leading.record.term).max(term);
        let holds = self.holder() == Some(Holder::Me) || self.is_acquiring();
        self.release = holds.then(|| leading.record.given_up(self.highest_term));
        self.stand_by(leader, self.highest_term);
    }

    fn stand_by(&mut self, leader: Option<String>, term: u64) {
        let report = (leader, term);
        if self.reported.as_ref() != Some(&report) {
            self.reported = Some(report.clone());
            let (leader, term) = report;
            self.role(RoleChange::StandBy { leader, term });
        }
    }

    /// Reports a failed request of a leader, unless another companion could take over without the leader's filters.
    fn report_unreachable(&mut self) {
        if let Some(recorded) = self.binding_record()
            && let Some(leading) = &mut self.leading
            && !std::mem::replace(&mut leading.unreachable_reported, true)
        {
            self.role(RoleChange::StoreUnreachable { recorded });
        }
    }

    /// The leader's Envoys, if the record in the store names exactly them. Then no other companion leads before a filter has left this one: it
    /// waits for all that the record names, or for some of them long enough. A filter that the record names and that never came here, or one
    /// that came since, would not be missed.
    fn binding_record(&self) -> Option<Vec<KnownEnvoy>> {
        let mut stored = self.view.as_ref()?.record.as_ref()?.envoys.clone();
        let leading = self.leading.as_ref().filter(|leading| leading.is_complete)?;
        let mut present = leading.record.envoys.clone();
        stored.sort_unstable();
        present.sort_unstable();
        (!present.is_empty() && present == stored).then_some(present)
    }

    /// Where filters find the leader, other than here.
    fn known_leader(&self) -> Option<String> {
        let (leader, _) = self.view.as_ref().and_then(leader_and_term)?;
        (leader != self.settings.address).then(|| leader.to_owned())
    }

    fn grants_until(&self, sent_at: Instant) -> Instant {
        let (part, whole) = GRANTS;
        sent_at.after(self.settings.duration.saturating_mul(part) / whole)
    }

    fn renewal_due(&self, leading: &Leading) -> Instant {
        leading.renewed_at.after(self.settings.duration / RENEWALS)
    }

    fn answer_max(&self) -> Duration {
        self.settings.duration / ANSWERS
    }

    fn is_acquiring(&self) -> bool {
        let request = self.outstanding.as_ref().map(|outstanding| &outstanding.request);
        matches!(request, Some(Request::Acquire { .. }))
    }

    fn holder(&self) -> Option<Holder> {
        self.view.as_ref().map(|view| view.holder)
    }

    fn version(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.version)
    }

    fn role(&mut self, change: RoleChange) {
        self.outputs.push_back(Output::Role(change));
    }
}

impl Request {
    /// The version of the state that the request needs.
    #[must_use]
    pub const fn version(&self) -> u64 {
        let (Self::Acquire { version, .. }
        | Self::Renew { version }
        | Self::Write { version, .. }
        | Self::Release { version, .. }) = self;
        *version
    }
}

fn term(view: &View) -> u64 {
    view.record.as_ref().map_or(0, |record| record.term)
}

/// The leader that the record names, which may be in charge even if its lease has expired, and its term.
fn leader_and_term(view: &View) -> Option<(&str, u64)> {
    let record = view.record.as_ref()?;
    let is_named = !record.released && !record.leader.is_empty();
    is_named.then_some((record.leader.as_str(), record.term))
}
