//! A companion's process: start, end, suspension, clock jumps and shutdown.

use penstock_control::{Control, Event};
use penstock_election::Input;

use super::super::World;
use super::super::envoy::Attachment;
use super::super::event::SimEvent;
use super::super::time::{KEEPALIVE, MILLI, Nanos, SECOND};
use super::Companion;
use super::election::Election;

impl World {
    /// Starts a companion, unless its process runs. `older`: with a term below that of an earlier one.
    pub(crate) fn start_companion(&mut self, index: usize, older: bool) {
        if self.companions[index].control.is_some() {
            return;
        }
        self.generations += 1;
        let generation = self.generations;
        self.tenures += 1;
        let rate = self.scenario.clock_rate(&mut self.rng);
        let last = &self.companions[index];
        let is_replicated = self.scenario.lease > 0;
        let term = match (is_replicated, older) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => generation + 1,
        };
        self.companions[index] = Companion {
            generation,
            tenure: self.tenures,
            term,
            rate,
            // A machine's clock continues across its processes.
            clock_offset: last.clock_offset,
            wall_clock_offset: last.wall_clock_offset,
            timers: last.timers,
            ..Companion::default()
        };
        let settings = self.current_settings(term);
        let now = self.companion_now(index);
        let lease = self.scenario.lease;
        // In a part of the worlds, the lease is that of the only pool, which prefers some companions.
        let pool = (self.scenario.seed % 3 == 1).then(|| format!("pool-{}", self.scenario.seed));
        let unix_ms = self.unix_ms();
        let companion = &mut self.companions[index];
        companion.started_at = now.as_nanos();
        let control = Control::new(settings, now);
        companion.control = Some(control);
        companion.election =
            is_replicated.then(|| Election::new(Self::companion_address(index), lease, pool, now, unix_ms));
        self.begin_accounts(index);
        for root in self.roots.values_mut() {
            root.attachments[index] = Attachment::default();
        }
        self.note(|| format!("companion {generation} starts"));
        self.set_timer(index);
        if is_replicated {
            self.send_view(index);
        }
    }

    /// A companion's process ends; with `silently` its machine does.
    pub(crate) fn kill_companion(&mut self, index: usize, silently: bool) {
        if self.companions[index].control.take().is_none() {
            return;
        }
        self.end_accounts(index);
        let companion = &mut self.companions[index];
        companion.vanished = silently;
        companion.frozen = false;
        companion.inbox.clear();
        let generation = companion.generation;
        self.note(|| format!("companion {generation} ends"));
        self.drop_companion_streams(index, silently);
    }

    /// Suspends a companion's process for this long.
    pub(crate) fn freeze_companion(&mut self, index: usize, duration: Nanos) {
        let companion = &mut self.companions[index];
        if companion.control.is_some() && !companion.frozen {
            companion.frozen = true;
            self.event_queue.schedule(self.now + duration, SimEvent::CompanionThaws(companion.generation));
            if companion.election.is_some() {
                let event = SimEvent::KeepalivesFail(companion.generation);
                self.event_queue.schedule(self.now + KEEPALIVE, event);
            }
        }
    }

    pub(crate) fn thaw_companion(&mut self, generation: u64) {
        let index = self.running_companion(generation);
        let Some(index) = index.filter(|index| self.companions[*index].frozen) else {
            return;
        };
        let companion = &mut self.companions[index];
        companion.frozen = false;
        companion.inbox_scheduled = true;
        companion.timer = None;
        if let Some(election) = &mut companion.election {
            election.forget_timer();
            if self.rng.percent(50) {
                self.set_candidate_timer(index);
            }
            self.event_queue.schedule(self.now, SimEvent::CandidateInbox(generation));
        }
        // After a freeze the inbox and the timer are ready at the same time: either may come first.
        if self.rng.percent(50) {
            self.event_queue.schedule(self.now, SimEvent::CompanionInbox(generation));
            self.set_timer(index);
        } else {
            self.set_timer(index);
            self.event_queue.schedule(self.now, SimEvent::CompanionInbox(generation));
        }
    }

    /// A companion's clock jumps.
    pub(crate) fn jump_companion(&mut self, index: usize, ahead: bool, distance: Nanos) {
        if !ahead {
            // Its pools read the clock before, all of them: the world's accounts count on from the latest time that any part of the
            // companion has read.
            let generation = self.companions[index].generation;
            let utc = self.utc(index);
            self.deliver_to_companion(index, Event::Utc(utc));
            self.process_inbox(generation);
        }
        let companion = &mut self.companions[index];
        companion.clock_offset = if ahead {
            companion.clock_offset + distance
        } else {
            companion.clock_offset.saturating_sub(distance)
        };
        companion.timer = None;
        self.set_timer(index);
    }

    /// SIGTERM with shutdown mode `reject`.
    pub(crate) fn drain_companion(&mut self, index: usize) {
        let companion = &mut self.companions[index];
        if companion.control.is_some() && !companion.draining {
            companion.draining = true;
            self.deliver_to_companion(index, Event::Drain(true));
            self.schedule_exit(index, 100 * MILLI);
        }
    }

    /// SIGTERM with shutdown mode `hand_over`.
    pub(crate) fn hand_over_companion(&mut self, index: usize) {
        let companion = &mut self.companions[index];
        // A frozen process takes no signals.
        let takes_signals = companion.election.is_none() || !companion.frozen;
        if companion.control.is_some() && !companion.draining && takes_signals {
            companion.draining = true;
            companion.refuses_streams = true;
            if companion.election.is_some() {
                self.elect(index, Input::Resign);
            } else {
                self.deliver_to_companion(index, Event::HandOver);
            }
            self.schedule_exit(index, 200 * MILLI);
        }
    }

    fn schedule_exit(&mut self, index: usize, wait: Nanos) {
        let generation = self.companions[index].generation;
        self.event_queue.schedule(self.now + wait, SimEvent::CompanionExit(generation));
    }

    /// A draining companion exits when nothing runs, and with a small probability before.
    pub(crate) fn finish_companion(&mut self, generation: u64) {
        let Some(index) = self.running_companion(generation) else {
            return;
        };
        let companion = &self.companions[index];
        let idle = companion.control.as_ref().is_some_and(Control::is_idle);
        let election = companion.election.as_ref().filter(|_| companion.refuses_streams);
        if election.is_some_and(|election| !election.candidate.is_done()) && !self.rng.percent(10) {
            // The lease isn't given back yet.
            self.schedule_exit(index, 100 * MILLI);
        } else if idle || companion.refuses_streams || self.rng.percent(5) {
            self.kill_companion(index, false);
            let downtime = self.rng.exponential(SECOND);
            self.event_queue.schedule(self.now + downtime, SimEvent::CompanionStarts(index));
        } else {
            self.schedule_exit(index, 100 * MILLI);
        }
    }
}
