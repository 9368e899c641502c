//! The requests that haven't ended: whose they are, how far they are, and under which name each side knows them.

use core::time::Duration;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_engine::{Instant, RequestId};
use penstock_wire as wire;

use crate::event::Labels;
use crate::session::{Context, Epoch};

/// One request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u64,
    /// Index of its pool.
    pub(crate) pool: usize,
    pub(crate) labels: Arc<Labels>,
    pub(crate) arrived: Instant,
    pub(crate) stage: Stage,
}

/// How far a request is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// In the engine's queue.
    Waiting,
    /// In stock.
    Granted {
        /// As it was said, to say it again if it was lost.
        grant: Box<wire::Grant>,
        /// Since when.
        at: Instant,
    },
}

/// All root contexts and their requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) contexts: HashMap<Epoch, Context>,
    entries: HashMap<RequestId, Entry>,
    named: u64,
}

impl Requests {
    /// A name that no engine has seen.
    pub(crate) fn name(&mut self) -> RequestId {
        self.named += 1;
        RequestId(self.named)
    }

    pub(crate) fn insert(&mut self, id: RequestId, entry: Entry) {
        if let Some(context) = self.contexts.get_mut(&entry.epoch) {
            context.requests.insert(entry.sequence, id);
        }
        self.entries.insert(id, entry);
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// The name of a filter's request.
    pub(crate) fn find(&self, epoch: Epoch, sequence: u64) -> Option<RequestId> {
        self.contexts.get(&epoch)?.requests.get(&sequence).copied()
    }

    /// Forgets a request that has ended.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if let Some(context) = self.contexts.get_mut(&entry.epoch) {
            context.requests.remove(&entry.sequence);
        }
        Some(entry)
    }

    /// Forgets a request that ended here, and of whose end its filter may yet speak: remembers that it is counted.
    pub(crate) fn close(&mut self, id: RequestId) -> Option<Entry> {
        let entry = self.remove(id)?;
        self.count(entry.epoch, entry.sequence);
        Some(entry)
    }

    /// `true`: this request of a filter isn't counted yet, as far as it is remembered. From now on it is.
    pub(crate) fn count(&mut self, epoch: Epoch, sequence: u64) -> bool {
        self.contexts
            .get_mut(&epoch)
            .is_none_or(|context| context.counted.insert(sequence))
    }

    /// The requests of a root context, in the order they were named.
    pub(crate) fn of(&self, epoch: Epoch) -> Vec<RequestId> {
        let Some(context) = self.contexts.get(&epoch) else {
            return Vec::new();
        };
        let mut ids: Vec<RequestId> = context.requests.values().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// All that haven't ended, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RequestId, &Entry)> {
        self.entries.iter()
    }

    /// How many haven't ended.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Entry {
    /// From its arrival to `after_us` behind its grant; `None` while it waits.
    pub(crate) fn since_arrival(&self, after_us: u64) -> Option<Duration> {
        match &self.stage {
            Stage::Waiting => None,
            Stage::Granted { at, .. } => Some(
                at.since(self.arrived)
                    .saturating_add(Duration::from_micros(after_us)),
            ),
        }
    }
}
