//! Partitions of the network: between a companion and the store, and between a companion and an Envoy, in both directions or
//! in one.
//!
//! What is sent to an Envoy or a companion meanwhile arrives late, unless the connection's keepalive notices the partition
//! first. What is sent to the store or by it is lost.

use super::World;
use super::event::SimEvent;
use super::time::{KEEPALIVE, Nanos};

/// A partition between two places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    /// Nothing arrives at the store, or at the companion, before this time.
    pub(super) up_until: Nanos,
    /// Nothing arrives at the companion, or at the Envoy, before this time.
    pub(super) down_until: Nanos,
}

/// All partitions.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// By companion: its connection to the store.
    pub(super) store: Vec<Cut>,
    /// By companion and Envoy.
    pub(super) envoys: Vec<Vec<Cut>>,
}

impl Cut {
    /// The time until which no new connection can be opened.
    pub(super) fn until(self) -> Nanos {
        self.up_until.max(self.down_until)
    }

    fn extend(&mut self, up_until: Option<Nanos>, down_until: Option<Nanos>) {
        self.up_until = self.up_until.max(up_until.unwrap_or_default());
        self.down_until = self.down_until.max(down_until.unwrap_or_default());
    }
}

impl Cuts {
    pub(super) fn new(companions: usize, envoys: usize) -> Self {
        Self {
            store: vec![Cut::default(); companions],
            envoys: vec![vec![Cut::default(); envoys]; companions],
        }
    }
}

impl World {
    /// Draws which directions a partition of this length has.
    fn directions(&mut self, duration: Nanos) -> (Option<Nanos>, Option<Nanos>) {
        let until = Some(self.now + duration);
        self.rng.choose(&[(until, until), (until, until), (until, None), (None, until)])
    }

    /// Separates a companion from the store.
    pub(super) fn cut_store(&mut self, index: usize, duration: Nanos) {
        let (up, down) = self.directions(duration);
        self.cuts.store[index].extend(up, down);
        let cut = self.cuts.store[index];
        let generation = self.companions[index].generation;
        self.note(|| format!("companion {generation} is cut off from the store: {cut:?}"));
        if down.is_some() {
            let wait = duration + self.delay();
            self.event_queue.schedule(self.now + wait, SimEvent::StoreConnects(generation));
        }
    }

    /// Separates a companion from an Envoy.
    pub(super) fn cut_envoy(&mut self, index: usize, envoy: usize, duration: Nanos) {
        let (up, down) = self.directions(duration);
        self.cuts.envoys[index][envoy].extend(up, down);
        let cut = self.cuts.envoys[index][envoy];
        let generation = self.companions[index].generation;
        self.note(|| format!("companion {generation} is cut off from envoy {envoy}: {cut:?}"));
        let ids: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.companion == index && stream.envoy == envoy)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.hold_stream(id, cut);
            if duration > KEEPALIVE {
                self.event_queue.schedule(self.now + KEEPALIVE, SimEvent::KeepaliveFails(id));
            }
        }
    }

    /// An Envoy gives up the connection of a stream, because the companion's end doesn't answer.
    pub(super) fn fail_keepalive(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let up_until = self.cuts.envoys[stream.companion][stream.envoy].up_until;
        let delay = self.delay();
        // The reset is lost if nothing reaches the companion; it may find the connection closed later.
        let notices_after = match up_until.checked_sub(self.now) {
            None | Some(0) => Some(delay),
            Some(rest) => self.rng.percent(50).then_some(rest + delay),
        };
        self.break_stream(id, Some(0), notices_after);
    }

    pub(super) fn end_partitions(&mut self) {
        self.cuts = Cuts::new(self.companions.len(), self.envoys.len());
        for index in 0..self.companions.len() {
            if self.scenario.lease > 0 {
                self.send_view(index);
            }
        }
    }
}
