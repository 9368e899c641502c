//! A companion's process: a control with an inbox, a timer, a clock and a generation number.
//!
//! It works as the real driver does: it takes the events in its inbox, sometimes several at once, and then applies the
//! control's outputs. Each start is a new generation: a new control with a higher term.

mod outputs;
mod process;
mod records;

use std::collections::{BTreeMap, VecDeque};

use penstock_control::{Control, Event};
use penstock_engine::Instant;
use penstock_wire::limits::SESSION_GRACE;

use super::World;
use super::event::SimEvent;
use super::time::Nanos;
use records::Batch;

/// Events of one batch. More are left for the next batch.
const BATCH_MAX: usize = 256;

/// Observations of one generation about one pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolCounts {
    pub(super) arrived: u64,
    pub(super) left: u64,
    pub(super) requeued: u64,
}

/// A companion.
#[derive(Debug, Default)]
pub(super) struct Companion {
    /// `None` while no process runs.
    pub(super) control: Option<Control>,
    /// Number of the process among the processes of all companions, from 1; 0: none has run here.
    pub(super) generation: u64,
    /// The term that the companion announces. Rises with each generation, except for an older companion by fault.
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
    /// The most sessions at a time.
    pub(super) sessions_max: usize,
    /// Start of the process by the companion's clock.
    pub(super) started_at: Nanos,
    /// How far the companion's clock is ahead of the world's.
    pub(super) clock_offset: Nanos,
    batches: u64,
}

impl World {
    /// A companion's clock.
    pub(super) fn companion_now(&self, index: usize) -> Instant {
        Instant::from_nanos(self.now + self.companions[index].clock_offset)
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
            self.event_queue
                .schedule(self.now + wait, SimEvent::CompanionInbox(companion.generation));
        }
    }

    pub(super) fn process_inbox(&mut self, generation: u64) {
        let index = self.running_companion(generation);
        let Some(index) = index.filter(|index| !self.companions[*index].frozen) else {
            return;
        };
        self.companions[index].inbox_scheduled = false;
        let mut batch = Batch::default();
        for _ in 0..BATCH_MAX {
            let Some(event) = self.companions[index].inbox.pop_front() else {
                break;
            };
            self.handle_companion_event(index, event, &mut batch);
        }
        self.apply_outputs(index);
        self.record_batch(index, batch);
        let companion = &mut self.companions[index];
        if !companion.inbox.is_empty() && !companion.inbox_scheduled {
            companion.inbox_scheduled = true;
            self.event_queue
                .schedule(self.now, SimEvent::CompanionInbox(generation));
        }
    }

    fn handle_companion_event(&mut self, index: usize, event: Event, batch: &mut Batch) {
        let now = self.companion_now(index);
        let generation = self.companions[index].generation;
        self.note(|| format!("companion {generation} processes {}", summarized(&event)));
        let mut bye = None;
        match &event {
            Event::Frame(conn, frame) => {
                if let Some(root) = self.stream_roots.get(&conn.0).copied() {
                    bye = self.record_frame(index, root, *conn, frame, batch);
                }
            }
            Event::Closed(conn) => batch.closed.push(*conn),
            _ => {}
        }
        if let Some(control) = &mut self.companions[index].control {
            control.handle(now, event);
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
        if let Some(control) = &mut self.companions[index].control {
            control.handle_timeout(now);
        }
        let lost: Vec<u64> = self
            .roots
            .iter()
            .filter(|(_, root)| {
                let orphaned_since = root.attachments[index].orphaned_since;
                orphaned_since.is_some_and(|since| since.after(SESSION_GRACE) <= now)
            })
            .map(|(id, _)| *id)
            .collect();
        self.apply_outputs(index);
        for id in lost {
            if let Some(root) = self.roots.get_mut(&id) {
                root.attachments[index].orphaned_since = None;
            }
            self.release(index, id);
        }
    }

    fn set_timer(&mut self, index: usize) {
        let companion = &mut self.companions[index];
        let Some(deadline) = companion.control.as_ref().and_then(Control::poll_timeout) else {
            return;
        };
        let time = deadline
            .as_nanos()
            .saturating_sub(companion.clock_offset)
            .max(self.now);
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
