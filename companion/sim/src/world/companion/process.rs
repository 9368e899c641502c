//! The companion's process: start, end, suspension, clock jumps and shutdown.

use penstock_control::{Control, Event};

use super::super::World;
use super::super::event::SimEvent;
use super::super::time::{MILLI, Nanos, SECOND};
use super::Companion;

impl World {
    /// Starts a companion, unless one runs. `older`: with a term below that of an earlier companion.
    pub(in crate::world) fn start_companion(&mut self, older: bool) {
        if self.companion.control.is_some() {
            return;
        }
        self.companion = Companion {
            generation: self.companion.generation + 1,
            // A machine's clock continues across its processes.
            clock_offset: self.companion.clock_offset,
            timers: self.companion.timers,
            started_at: self.now + self.companion.clock_offset,
            ..Companion::default()
        };
        self.companion.term = if older { 1 } else { self.companion.generation + 1 };
        let settings = self.current_settings(self.companion.term);
        let now = self.companion_now();
        self.companion.control = Some(Control::new(settings, now));
        for root in self.roots.values_mut() {
            root.reset_companion_state();
        }
        let generation = self.companion.generation;
        self.note(|| format!("companion {generation} starts"));
        self.set_timer();
    }

    /// The companion's process ends; with `silently` its machine does.
    pub(in crate::world) fn kill_companion(&mut self, silently: bool) {
        if self.companion.control.take().is_none() {
            return;
        }
        let generation = self.companion.generation;
        self.note(|| format!("companion {generation} ends"));
        self.companion.vanished = silently;
        self.companion.frozen = false;
        self.companion.inbox.clear();
        self.drop_companion_streams(silently);
    }

    /// Suspends the companion's process for this long.
    pub(in crate::world) fn freeze_companion(&mut self, duration: Nanos) {
        if self.companion.control.is_some() && !self.companion.frozen {
            self.companion.frozen = true;
            self.event_queue.schedule(
                self.now + duration,
                SimEvent::CompanionThaws(self.companion.generation),
            );
        }
    }

    pub(in crate::world) fn thaw_companion(&mut self, generation: u64) {
        if generation != self.companion.generation || !self.companion.frozen {
            return;
        }
        self.companion.frozen = false;
        self.companion.inbox_scheduled = true;
        self.companion.timer = None;
        // After a freeze the inbox and the timer are ready at the same time: either may come first.
        if self.rng.percent(50) {
            self.event_queue
                .schedule(self.now, SimEvent::CompanionInbox(generation));
            self.set_timer();
        } else {
            self.set_timer();
            self.event_queue
                .schedule(self.now, SimEvent::CompanionInbox(generation));
        }
    }

    /// The companion's clock jumps.
    pub(in crate::world) fn jump_companion(&mut self, ahead: bool, distance: Nanos) {
        let companion = &mut self.companion;
        companion.clock_offset = if ahead {
            companion.clock_offset + distance
        } else {
            companion.clock_offset.saturating_sub(distance)
        };
        companion.timer = None;
        self.set_timer();
    }

    /// SIGTERM with shutdown mode `reject`.
    pub(in crate::world) fn drain_companion(&mut self) {
        if self.companion.control.is_some() && !self.companion.draining {
            self.companion.draining = true;
            self.deliver_to_companion(Event::Drain(true));
            self.schedule_exit(100 * MILLI);
        }
    }

    /// SIGTERM with shutdown mode `hand_over`.
    pub(in crate::world) fn hand_over_companion(&mut self) {
        if self.companion.control.is_some() && !self.companion.draining {
            self.companion.draining = true;
            self.companion.refuses_streams = true;
            self.deliver_to_companion(Event::HandOver);
            self.schedule_exit(200 * MILLI);
        }
    }

    fn schedule_exit(&mut self, wait: Nanos) {
        self.event_queue.schedule(
            self.now + wait,
            SimEvent::CompanionExit(self.companion.generation),
        );
    }

    /// A draining companion exits when nothing runs, and with a small probability before.
    pub(in crate::world) fn finish_companion(&mut self, generation: u64) {
        if generation != self.companion.generation || self.companion.control.is_none() {
            return;
        }
        let idle = self.companion.control.as_ref().is_some_and(Control::is_idle);
        if idle || self.companion.refuses_streams || self.rng.percent(5) {
            self.kill_companion(false);
            let downtime = self.rng.exponential(SECOND);
            self.event_queue
                .schedule(self.now + downtime, SimEvent::CompanionStarts);
        } else {
            self.schedule_exit(100 * MILLI);
        }
    }
}
