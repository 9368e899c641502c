//! A companion's process: a control with an inbox, a timer, a clock and a generation number.
//!
//! It works as the real driver does: it takes the events in its inbox, sometimes several at once, and then applies the
//! control's outputs. Each start is a new generation: a new control. Without other companions, a new generation has a higher
//! term; with others, the election gives the term.
//!
//! A tenure is the time from the start, or from the end of the last tenure, to the time when the companion steps down.

mod election;
mod outputs;
mod process;
mod records;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use penstock_control::{Control, Event};
use penstock_engine::Instant;
use penstock_wire::limits::SESSION_GRACE;

use self::election::Election;
use self::records::Batch;
use super::budgets::Accounts;
use super::envoy::Attachment;
use super::event::SimEvent;
use super::hello_groups::HelloGroups;
use super::time::Nanos;
use super::{START, World};

/// Events of one batch. More are left for the next batch.
const BATCH_MAX: usize = 256;

/// Observations of one tenure about one pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolCounts {
    pub(super) arrived: u64,
    pub(super) left: u64,
    pub(super) requeued: u64,
}

#[derive(Debug, Default)]
pub(super) struct Companion {
    /// `None` while no process runs.
    pub(super) control: Option<Control>,
    /// The companion's part in the election of the leader; `None`: there are no other companions.
    pub(super) election: Option<Election>,
    /// Number of the process among the processes of all companions, from 1; 0: none has run here.
    pub(super) generation: u64,
    /// Number of its tenure among the tenures of all companions, from 1.
    pub(super) tenure: u64,
    /// The term with which a companion without others starts. Rises with each generation, except for an older companion by
    /// fault.
    pub(super) term: u64,
    /// The machine is gone: connections aren't even refused.
    pub(super) vanished: bool,
    /// New streams are refused.
    pub(super) refuses_streams: bool,
    pub(super) frozen: bool,
    pub(super) draining: bool,
    pub(super) counts: BTreeMap<String, PoolCounts>,
    inbox: VecDeque<Event>,
    inbox_scheduled: bool,
    timer: Option<(Nanos, u64)>,
    timers: u64,
    /// By root context, existing or not, the stream of its session.
    session_streams: BTreeMap<u64, u64>,
    /// The Hellos that this process has received as leader.
    hello_groups: HelloGroups,
    /// The streams whose Hello one of several companions has accepted.
    greeted: BTreeSet<u64>,
    /// It has begun to dispatch in this tenure.
    pub(super) dispatches: bool,
    /// The most sessions at a time.
    pub(super) sessions_max: usize,
    /// Start of the process by the companion's clock.
    pub(super) started_at: Nanos,
    /// How far the companion's clock was ahead of the world's at the world's start, plus later jumps.
    pub(super) clock_offset: Nanos,
    /// The rate of the companion's clock in thousandths of the world's; 0: none has run here.
    rate: u64,
    batches: u64,
    /// How far the wall clock is ahead of the world's UTC, in seconds.
    pub(super) wall_clock_offset: i64,
    pub(super) accounts: Accounts,
    /// Root contexts of which a stream has ended in the present batch.
    pub(super) roots_closed_in_batch: Vec<u64>,
}

impl Companion {
    /// The companion's clock at this time of the world.
    fn local_time(&self, now: Nanos) -> Instant {
        Instant::from_nanos(START + (now - START) * self.rate / 1_000 + self.clock_offset)
    }

    /// The time of the world at which the companion's clock shows this time.
    fn world_time(&self, local: Instant) -> Nanos {
        let passed = local.as_nanos().saturating_sub(self.clock_offset).saturating_sub(START);
        START + (passed * 1_000).div_ceil(self.rate)
    }
}

impl World {
    /// A companion's clock.
    pub(super) fn companion_now(&self, index: usize) -> Instant {
        self.companions[index].local_time(self.now)
    }

    /// Where a companion listens for filters.
    pub(super) fn companion_address(index: usize) -> String {
        format!("10.1.0.{index}:9190")
    }

    /// The index of the companion whose process of this generation runs.
    pub(super) fn running_companion(&self, generation: u64) -> Option<usize> {
        self.companions
            .iter()
            .position(|companion| companion.generation == generation && companion.control.is_some())
    }

    /// Puts an event into the inboxes of all companions.
    pub(super) fn deliver_to_all(&mut self, event: &Event) {
        for index in 0..self.companions.len() {
            self.deliver_to_companion(index, event.clone());
        }
    }

    /// Puts an event into a companion's inbox.
    pub(super) fn deliver_to_companion(&mut self, index: usize, event: Event) {
        let companion = &mut self.companions[index];
        if companion.control.is_none() {
            return;
        }
        companion.inbox.push_back(event);
        if !companion.inbox_scheduled && !companion.frozen {
            companion.inbox_scheduled = true;
            let wait = self.rng.below(self.scenario.batch + 1);
            self.event_queue.schedule(self.now + wait, SimEvent::CompanionInbox(companion.generation));
        }
    }

    pub(super) fn process_inbox(&mut self, generation: u64) {
        let index = self.running_companion(generation);
        let Some(index) = index.filter(|index| !self.companions[*index].frozen) else {
            return;
        };
        self.companions[index].inbox_scheduled = false;
        self.begin_batch(index);
        let mut batch = Batch::default();
        for _ in 0..BATCH_MAX {
            let Some(event) = self.companions[index].inbox.pop_front() else {
                break;
            };
            self.handle_companion_event(index, event, &mut batch);
        }
        self.note_leader(index, false);
        self.apply_outputs(index);
        self.record_batch(index, batch);
        self.check_turns(index);
        self.report_known_envoys(index);
        let companion = &mut self.companions[index];
        if !companion.inbox.is_empty() && !companion.inbox_scheduled {
            companion.inbox_scheduled = true;
            self.event_queue.schedule(self.now, SimEvent::CompanionInbox(generation));
        }
    }

    fn handle_companion_event(&mut self, index: usize, event: Event, batch: &mut Batch) {
        let now = self.companion_now(index);
        let generation = self.companions[index].generation;
        self.note(|| format!("companion {generation} processes {}", summarized(&event)));
        let mut bye = None;
        let event = match event {
            Event::Leadership(change) => return self.change_leadership(index, change, batch),
            event => event,
        };
        match &event {
            Event::Frame(conn, frame) => {
                if let Some(root) = self.stream_roots.get(&conn.0).copied() {
                    bye = self.record_frame(index, root, *conn, frame, batch);
                }
            }
            Event::Closed(conn) => {
                batch.closed.push(*conn);
                let root = self.stream_roots.get(&conn.0);
                self.companions[index].roots_closed_in_batch.extend(root);
                self.note_unclear_batch(index);
            }
            _ => {}
        }
        let utc = match &event {
            Event::Utc(utc) => Some(*utc),
            _ => None,
        };
        let is_hand_over = matches!(event, Event::HandOver);
        if let Some(control) = &mut self.companions[index].control {
            control.handle(now, event);
        }
        self.follow_costs(index, utc);
        if is_hand_over {
            self.close_companion_accounts(index);
        }
        if let Some(root) = bye {
            self.release(index, root);
            self.check_released(index, root);
        }
    }

    pub(super) fn handle_companion_timer(&mut self, generation: u64, number: u64) {
        let Some(index) = self.running_companion(generation) else {
            return;
        };
        let companion = &mut self.companions[index];
        if companion.timer.is_none_or(|(_, current)| current != number) {
            return;
        }
        companion.timer = None;
        if companion.frozen {
            return;
        }
        let now = self.companion_now(index);
        self.begin_batch(index);
        if let Some(control) = &mut self.companions[index].control {
            control.handle_timeout(now);
        }
        self.follow_costs(index, None);
        let lost: Vec<u64> = self
            .roots
            .iter()
            .filter(|(_, root)| {
                let orphaned_since = root.attachments[index].orphaned_since;
                orphaned_since.is_some_and(|since| since.after(SESSION_GRACE) <= now)
            })
            .map(|(id, _)| *id)
            .collect();
        self.note_leader(index, true);
        // First, because the outputs grant what these sessions gave up, and their requests may run on.
        for id in lost {
            // A leader whose lease has lapsed keeps its sessions until it knows whether it goes on.
            if self.has_session(index, id) {
                continue;
            }
            if let Some(root) = self.roots.get_mut(&id) {
                root.attachments[index].orphaned_since = None;
            }
            self.release(index, id);
        }
        self.apply_outputs(index);
        self.check_turns(index);
        self.report_known_envoys(index);
    }

    /// A companion has stepped down, and knows nothing of its sessions and requests any more.
    fn end_tenure(&mut self, index: usize) {
        self.tenures += 1;
        let companion = &mut self.companions[index];
        companion.tenure = self.tenures;
        companion.counts.clear();
        companion.session_streams.clear();
        companion.greeted.clear();
        companion.sessions_max = 0;
        companion.dispatches = false;
        if let Some(election) = &mut companion.election {
            election.leads_since = None;
        }
        let generation = companion.generation;
        for root in self.roots.values_mut() {
            root.attachments[index] = Attachment::default();
        }
        *self.summary.takeovers.entry("leader stepped down").or_default() += 1;
        self.note(|| format!("companion {generation} steps down"));
    }

    fn set_timer(&mut self, index: usize) {
        let companion = &mut self.companions[index];
        let Some(deadline) = companion.control.as_ref().and_then(Control::poll_timeout) else {
            return;
        };
        let time = companion.world_time(deadline).max(self.now);
        if companion.timer.is_some_and(|(current, _)| current <= time) {
            return;
        }
        companion.timers += 1;
        companion.timer = Some((time, companion.timers));
        let event = SimEvent::CompanionTimer(companion.generation, companion.timers);
        self.event_queue.schedule(time, event);
    }
}

/// The event in one line of a trace.
fn summarized(event: &Event) -> String {
    match event {
        Event::Frame(conn, frame) => format!("on {}: {:?}", conn.0, frame.event),
        other => format!("{other:?}"),
    }
}
