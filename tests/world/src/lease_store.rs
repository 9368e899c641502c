//! The store of the leader's lease: one record, and a holder until the lease expires by the store's clock.
//!
//! The store refuses a request that names an outdated state. Requests, answers and views of the state take time, and can be
//! lost on the way. A restarted store has its data.

use penstock_election::{Answer, Holder, Record, Request, View};

use super::World;
use super::event::SimEvent;
use super::time::{MILLI, Nanos};

#[derive(Debug, Default)]
pub(super) struct LeaseStore {
    /// Generation of the companion that holds the lease.
    holder: Option<u64>,
    expires_at: Nanos,
    record: Option<Record>,
    version: u64,
    /// The store answers nothing.
    is_down: bool,
    /// The rate of the store's clock in thousandths of the world's.
    rate: u64,
}

impl LeaseStore {
    /// An empty store.
    pub(super) fn new(rate: u64) -> Self {
        Self { rate, ..Self::default() }
    }
}

/// A lost connection to the store is opened again after this time.
const RECONNECT: Nanos = 100 * MILLI;

impl World {
    /// Whether this process holds the lease.
    pub(super) fn holds_lease(&self, generation: u64) -> bool {
        self.lease_store.holder == Some(generation) && self.now < self.lease_store.expires_at
    }

    /// A companion sends a request to the store.
    pub(super) fn send_to_store(&mut self, index: usize, sequence: u64, request: Request) {
        let generation = self.companions[index].generation;
        let wait = self.delay();
        if self.lease_store.is_down || self.cuts.store[index].up_until > self.now {
            if self.rng.percent(50) {
                // The connection is refused.
                let event = SimEvent::StoreAnswers(generation, sequence, Answer::Failed);
                self.event_queue.schedule(self.now + wait, event);
            }
            return;
        }
        let event = SimEvent::AtStore(generation, sequence, request);
        self.event_queue.schedule(self.now + wait, event);
    }

    /// A companion's request arrives at the store.
    pub(super) fn handle_store_request(&mut self, generation: u64, sequence: u64, request: &Request) {
        if self.lease_store.is_down {
            return;
        }
        let is_done = self.carry_out_at_store(generation, request);
        let version = self.lease_store.version;
        self.note(|| format!("the store takes (done: {is_done}) from {generation}: {request:?}"));
        // An answer reaches the process that asked, if it still runs.
        let Some(index) = self.running_companion(generation) else {
            return;
        };
        if !is_done {
            self.send_view(index);
        }
        let answer = if is_done { Answer::Done { version } } else { Answer::Refused };
        if self.loses_store_message(index) {
            return;
        }
        let wait = self.delay();
        let event = SimEvent::StoreAnswers(generation, sequence, answer);
        self.event_queue.schedule(self.now + wait, event);
    }

    fn carry_out_at_store(&mut self, generation: u64, request: &Request) -> bool {
        self.expire_lease();
        let store = &mut self.lease_store;
        let is_holder = store.holder == Some(generation);
        let is_current = store.version == request.version();
        let (is_allowed, record, holder) = match request {
            Request::Acquire { record, .. } => {
                (is_current && store.holder.is_none(), Some(record), Some(generation))
            }
            Request::Renew { .. } => (is_holder, None, Some(generation)),
            Request::Write { record, .. } => (is_current && is_holder, Some(record), Some(generation)),
            Request::Release { record, .. } => (is_current && is_holder, Some(record), None),
        };
        if !is_allowed {
            return false;
        }
        store.holder = holder;
        if let Some(record) = record {
            let last = store.record.as_ref().map_or(0, |last| last.term);
            store.record = Some(record.clone());
            store.version += 1;
            if record.term < last {
                let term = record.term;
                self.fail(|| format!("the term in the store falls from {last} to {term}"));
            }
        }
        if let Request::Acquire { .. } | Request::Renew { .. } = request {
            let duration = self.scenario.lease * 1_000 / self.lease_store.rate;
            self.lease_store.expires_at = self.now + duration;
            self.event_queue.schedule(self.lease_store.expires_at, SimEvent::LeaseExpires);
        }
        if record.is_some() {
            self.send_views();
        }
        true
    }

    /// Frees the lease if it has expired.
    pub(super) fn expire_lease(&mut self) {
        let store = &mut self.lease_store;
        if store.is_down || store.holder.is_none() || self.now < store.expires_at {
            return;
        }
        store.holder = None;
        store.version += 1;
        self.note(|| "the lease expires".to_owned());
        self.send_views();
    }

    /// The store ends, and starts again with its data after this time.
    pub(super) fn restart_store(&mut self, downtime: Nanos) {
        if self.scenario.lease > 0 && !self.lease_store.is_down {
            self.lease_store.is_down = true;
            self.event_queue.schedule(self.now + downtime, SimEvent::StoreStarts);
        }
    }

    pub(super) fn start_store(&mut self) {
        if !core::mem::take(&mut self.lease_store.is_down) {
            return;
        }
        self.note(|| "the store starts".to_owned());
        // Some stores give every lease its full duration after a restart.
        if self.rng.percent(50) {
            let duration = self.scenario.lease * 1_000 / self.lease_store.rate;
            self.lease_store.expires_at = self.lease_store.expires_at.max(self.now + duration);
            self.event_queue.schedule(self.lease_store.expires_at, SimEvent::LeaseExpires);
        }
        self.expire_lease();
        self.send_views();
    }

    fn send_views(&mut self) {
        for index in 0..self.companions.len() {
            self.send_view(index);
        }
    }

    /// Sends the present state to a companion.
    pub(super) fn send_view(&mut self, index: usize) {
        let generation = self.companions[index].generation;
        if self.companions[index].control.is_none() {
            return;
        }
        if self.loses_store_message(index) {
            let wait = RECONNECT + self.delay();
            let event = SimEvent::StoreConnects(generation);
            return self.event_queue.schedule(self.now + wait, event);
        }
        let store = &self.lease_store;
        let holder = match store.holder {
            None => Holder::None,
            Some(holder) if holder == generation => Holder::Me,
            Some(_) => Holder::Other,
        };
        let view = View { holder, record: store.record.clone(), version: store.version };
        let wait = self.delay();
        self.event_queue.schedule(self.now + wait, SimEvent::StoreView(generation, view));
    }

    /// A companion's watch of the store is open again.
    pub(super) fn connect_to_store(&mut self, generation: u64) {
        if let Some(index) = self.running_companion(generation) {
            self.send_view(index);
        }
    }

    /// Whether a message from the store to a companion doesn't arrive.
    fn loses_store_message(&mut self, index: usize) -> bool {
        self.lease_store.is_down
            || self.cuts.store[index].down_until > self.now
            || !self.faults_over && self.rng.percent(1)
    }
}
