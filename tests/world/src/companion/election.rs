//! A companion's part in the election of the leader: a candidate, its requests to the store, and the changes of the role that it
//! reports to the control.

use core::time::Duration;
use std::collections::VecDeque;

use penstock_control::Event;
use penstock_election::{
    Answer, Candidate, Input, Output, Report, Request, Role, RoleChange, Settings, View,
};
use penstock_engine::Instant;

use super::super::World;
use super::super::event::SimEvent;
use super::super::time::{MILLI, Nanos};
use super::records::Batch;

/// The part of claims that are lost, in percent.
const CLAIMS_LOST: u64 = 20;
/// How long a claim is on its way at most.
const CLAIM_TRAVELS: Nanos = 20 * MILLI;

/// A companion's part in the election.
#[derive(Debug)]
pub(crate) struct Election {
    pub(crate) candidate: Candidate,
    /// Number of the last request.
    sequence: u64,
    /// What arrived from the store, while the process is frozen.
    inbox: VecDeque<FromStore>,
    /// Changes of the role in the control's inbox.
    changes: usize,
    /// A request that waits until the control has applied these changes.
    held: Option<Request>,
    timer: Option<(Nanos, u64)>,
    timers: u64,
    /// The control's last change says that the store can't be reached.
    pub(crate) is_store_unreachable: bool,
    /// The last leader had ended when the companion got the lease.
    is_last_leader_gone: bool,
    /// When the companion began to lead, by its clock.
    pub(crate) leads_since: Option<Instant>,
    /// It began to lead without some filters of the last leader.
    pub(crate) lacks_filters: bool,
}

#[derive(Debug)]
enum FromStore {
    Answer(u64, Answer),
    View(View),
}

impl Election {
    pub(super) fn new(
        address: String,
        lease: Nanos,
        pool: Option<String>,
        now: Instant,
        unix_ms: u64,
    ) -> Self {
        let settings = Settings { address, duration: Duration::from_nanos(lease), pool };
        Self {
            candidate: Candidate::new(settings, now, unix_ms),
            sequence: 0,
            inbox: VecDeque::new(),
            changes: 0,
            held: None,
            timer: None,
            timers: 0,
            is_store_unreachable: false,
            is_last_leader_gone: false,
            leads_since: None,
            lacks_filters: false,
        }
    }

    /// After a freeze, the timer is set again.
    pub(super) fn forget_timer(&mut self) {
        self.timer = None;
    }
}

impl World {
    pub(crate) fn handle_store_answer(&mut self, generation: u64, sequence: u64, answer: Answer) {
        self.receive_from_store(generation, FromStore::Answer(sequence, answer));
    }

    pub(crate) fn handle_store_view(&mut self, generation: u64, view: View) {
        self.receive_from_store(generation, FromStore::View(view));
    }

    fn receive_from_store(&mut self, generation: u64, message: FromStore) {
        let Some(index) = self.running_companion(generation) else {
            return;
        };
        let companion = &mut self.companions[index];
        let Some(election) = &mut companion.election else {
            return;
        };
        election.inbox.push_back(message);
        if !companion.frozen {
            self.process_election_inbox(generation);
        }
    }

    /// The candidate takes what has arrived from the store.
    pub(crate) fn process_election_inbox(&mut self, generation: u64) {
        let Some(index) = self.running_companion(generation) else {
            return;
        };
        if self.companions[index].frozen {
            return;
        }
        loop {
            let election = self.companions[index].election.as_mut();
            let Some(election) = election else { return };
            let Some(message) = election.inbox.pop_front() else {
                break;
            };
            match message {
                FromStore::Answer(sequence, answer) if sequence == election.sequence => {
                    self.elect(index, Input::Answered(answer));
                }
                FromStore::Answer(..) => {}
                FromStore::View(view) => self.elect(index, Input::Observed(view)),
            }
        }
        self.set_candidate_timer(index);
    }

    /// Hands an input to a companion's candidate, and carries out its outputs.
    pub(crate) fn elect(&mut self, index: usize, input: Input) {
        let now = self.companion_now(index);
        let generation = self.companions[index].generation;
        self.note(|| format!("candidate {generation}: {input:?}"));
        if let Some(election) = &mut self.companions[index].election {
            election.candidate.handle(now, input);
        }
        self.carry_out_election(index);
    }

    pub(crate) fn handle_candidate_timer(&mut self, generation: u64, number: u64) {
        let Some(index) = self.running_companion(generation) else {
            return;
        };
        let now = self.companion_now(index);
        let companion = &mut self.companions[index];
        let Some(election) = &mut companion.election else {
            return;
        };
        if companion.frozen || election.timer.is_none_or(|(_, current)| current != number) {
            return;
        }
        election.timer = None;
        election.candidate.handle_timeout(now);
        self.carry_out_election(index);
    }

    fn carry_out_election(&mut self, index: usize) {
        let generation = self.companions[index].generation;
        loop {
            let election = self.companions[index].election.as_mut();
            let Some(election) = election else { return };
            let Some(output) = election.candidate.poll_output() else {
                break;
            };
            match output {
                Output::Role(change) => {
                    election.changes += 1;
                    self.note(|| format!("candidate {generation} decides: {change:?}"));
                    self.deliver_to_companion(index, Event::Leadership(change));
                }
                // A later request replaces an earlier one that hasn't been sent.
                Output::Request(request) => election.held = Some(request),
                Output::Claim { leader } => self.send_claim(index, &leader),
            }
        }
        self.send_held_request(index);
        self.set_candidate_timer(index);
    }

    /// A companion asks the leader to leave the lease's pool to it. There is no partition between companions, but each message may be
    /// lost.
    fn send_claim(&mut self, index: usize, leader: &str) {
        let is_leader = |other: &usize| Self::companion_address(*other) == leader;
        let Some(other) = (0..self.companions.len()).find(is_leader) else {
            return;
        };
        if self.rng.percent(CLAIMS_LOST) {
            return;
        }
        let generation = self.companions[other].generation;
        let delay = self.rng.below(CLAIM_TRAVELS);
        self.event_queue
            .schedule(self.now + delay, SimEvent::Claim(generation, Self::companion_address(index)));
    }

    /// Another companion's claim arrives.
    pub(crate) fn handle_claim(&mut self, generation: u64, from: String) {
        if let Some(index) = self.running_companion(generation)
            && !self.companions[index].frozen
        {
            self.elect(index, Input::Yield { to: from });
        }
    }

    fn send_held_request(&mut self, index: usize) {
        let election = self.companions[index].election.as_mut();
        let Some(election) = election.filter(|election| election.changes == 0) else {
            return;
        };
        if let Some(request) = election.held.take() {
            election.sequence += 1;
            let sequence = election.sequence;
            self.send_to_store(index, sequence, request);
        }
    }

    pub(super) fn set_candidate_timer(&mut self, index: usize) {
        let companion = &self.companions[index];
        let due = companion.election.as_ref().and_then(|election| election.candidate.poll_timeout());
        let Some(due) = due.filter(|_| !companion.frozen) else {
            return;
        };
        let time = companion.world_time(due).max(self.now);
        let companion = &mut self.companions[index];
        let generation = companion.generation;
        let Some(election) = &mut companion.election else {
            return;
        };
        if election.timer.is_some_and(|(current, _)| current <= time) {
            return;
        }
        election.timers += 1;
        election.timer = Some((time, election.timers));
        let event = SimEvent::CandidateTimer(generation, election.timers);
        self.event_queue.schedule(time, event);
    }

    /// A companion's control handles a change of its role.
    pub(super) fn change_leadership(&mut self, index: usize, change: RoleChange, batch: &mut Batch) {
        // What came before belongs to the role before.
        self.note_leader(index, false);
        self.apply_outputs(index);
        self.record_batch(index, core::mem::take(batch));
        let now = self.companion_now(index);
        let had_role = self.is_in_charge(index);
        let companion = &mut self.companions[index];
        if let Some(election) = &mut companion.election {
            election.changes -= 1;
            match &change {
                RoleChange::Lead { is_last_leader_gone, .. } => {
                    election.is_store_unreachable = false;
                    election.is_last_leader_gone = *is_last_leader_gone;
                    *self.summary.takeovers.entry("lease taken").or_default() += 1;
                }
                RoleChange::Renewed { .. } => election.is_store_unreachable = false,
                RoleChange::StoreUnreachable { .. } => {
                    election.is_store_unreachable = true;
                    *self.summary.takeovers.entry("leader without the store").or_default() += 1;
                }
                RoleChange::StandBy { .. } => {}
            }
        }
        if let Some(control) = &mut companion.control {
            control.handle(now, Event::Leadership(change));
        }
        self.note_unclear_batch(index);
        self.follow_costs(index, None);
        if had_role && !self.is_in_charge(index) {
            self.take_outputs(index);
            self.end_tenure(index);
        }
        self.note_leader(index, false);
        self.apply_outputs(index);
        self.send_held_request(index);
    }

    pub(crate) fn is_in_charge(&self, index: usize) -> bool {
        let control = self.companions[index].control.as_ref();
        control.is_some_and(|control| control.role().role == Role::Leader)
    }

    /// Notes that a companion has begun to lead, if it has. `by_timer`: after a wait for filters that didn't come.
    pub(super) fn note_leader(&mut self, index: usize, by_timer: bool) {
        if !self.is_in_charge(index) {
            return;
        }
        let now = self.companion_now(index);
        let generation = self.companions[index].generation;
        let Some(election) = &mut self.companions[index].election else {
            return;
        };
        if election.leads_since.is_some() {
            return;
        }
        election.leads_since = Some(now);
        election.lacks_filters = by_timer;
        let name = match (election.is_last_leader_gone, by_timer) {
            (true, _) => "leader after a leader that had ended",
            (false, false) => "leader that all filters asked",
            (false, true) => "leader that some filters didn't ask",
        };
        *self.summary.takeovers.entry(name).or_default() += 1;
        self.note(|| format!("companion {generation} leads"));
    }

    /// A report of a companion's control to its candidate.
    pub(super) fn report_to_election(&mut self, index: usize, report: Report) {
        if let Report::Unfollowed { .. } = report {
            *self.summary.takeovers.entry("lease given back").or_default() += 1;
        }
        self.elect(index, report.into());
    }

    /// Reports the Envoys of a leader to its candidate, if they have changed.
    pub(super) fn report_known_envoys(&mut self, index: usize) {
        let companion = &mut self.companions[index];
        let (Some(control), true) = (&mut companion.control, companion.election.is_some()) else {
            return;
        };
        if let Some(known) = control.take_known_envoys() {
            self.exempt_unknown_requests(index);
            self.elect(index, known.into());
        }
    }

    /// The wall clock in ms since 1970.
    pub(super) const fn unix_ms(&self) -> u64 {
        self.now / MILLI
    }
}
