//! The requests that haven't ended: whose they are, how far they are, and under which name each side knows them.
//!
//! A filter's name of a request may change: one that no server took enters again, and is then another's. The name it
//! had is *moved*, as long as its filter may speak of it: it stands for the request that took its place.

use core::time::Duration;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_engine::{Instant, Outcome, RequestId};
use penstock_wire as wire;

use crate::constraints::Constraints;
use crate::event::Labels;
use crate::limits::{MOVED_MAX, TRAIL_MAX};
use crate::session::{Context, Epoch};

/// A request as its filter names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u64,
}

impl From<&wire::RequestKey> for Name {
    fn from(origin: &wire::RequestKey) -> Self {
        Self {
            epoch: Epoch::new(origin.epoch_hi, origin.epoch_lo),
            sequence: origin.sequence,
        }
    }
}

/// One request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    /// Index of its pool.
    pub(crate) pool: usize,
    pub(crate) labels: Arc<Labels>,
    pub(crate) arrived: Instant,
    /// Where it may go, as its client said; `None`: it said nothing.
    pub(crate) constraints: Option<Box<Constraints>>,
    /// The engine knows that it may not go everywhere.
    pub(crate) confined: bool,
    /// Its body asks for the target model already.
    pub(crate) rewritten: bool,
    pub(crate) stage: Stage,
    /// How it was let go the first time, which is its outcome whatever comes after; `None`: it has none yet.
    pub(crate) admitted: Option<Outcome>,
    /// How often it was queued again.
    pub(crate) requeues: u32,
    /// The names it had before.
    pub(crate) trail: Vec<Name>,
}

/// How far a request is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// In the engine's queue.
    Waiting,
    /// In stock.
    Granted {
        /// As it was said, to say it again if it was lost: [`Entry::whole`].
        grant: Box<wire::Grant>,
        /// Since when.
        at: Instant,
        /// So many endpoints at the head of the list are known to have failed it.
        failed: usize,
        /// Of its way nothing is to be learnt any more: it is known to have gone elsewhere, or another companion granted
        /// it, whose list isn't known.
        misrouted: bool,
    },
}

/// All root contexts and their requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) contexts: HashMap<Epoch, Context>,
    entries: HashMap<RequestId, Entry>,
    moved: HashMap<Epoch, HashMap<u64, RequestId>>,
    named: u64,
    /// Whose the request in stock was that ended last: its engine has yet to say what it cost.
    settling: Option<(RequestId, Arc<Labels>)>,
}

impl Requests {
    /// A name that no engine has seen.
    pub(crate) fn name(&mut self) -> RequestId {
        self.named += 1;
        RequestId(self.named)
    }

    pub(crate) fn insert(&mut self, id: RequestId, entry: Entry) {
        if let Some(context) = self.contexts.get_mut(&entry.name.epoch) {
            context.requests.insert(entry.name.sequence, id);
        }
        self.entries.insert(id, entry);
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// A filter's request that hasn't ended.
    pub(crate) fn find(&self, name: Name) -> Option<RequestId> {
        self.contexts
            .get(&name.epoch)?
            .requests
            .get(&name.sequence)
            .copied()
    }

    /// Forgets a request that has ended, and remembers that it has: its filter may yet speak of it.
    pub(crate) fn close(&mut self, id: RequestId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if !entry.waits() {
            self.settling = Some((id, entry.labels.clone()));
        }
        if let Some(context) = self.contexts.get_mut(&entry.name.epoch) {
            context.requests.remove(&entry.name.sequence);
            context.counted.insert(entry.name.sequence);
        }
        // Whoever has no session any more won't speak of them; if it comes back, what they stood for has ended.
        for before in &entry.trail {
            if !self.contexts.contains_key(&before.epoch) {
                self.forget(*before);
            }
        }
        Some(entry)
    }

    /// Whose the request was that has just been closed, now that its engine says what it cost.
    pub(crate) fn settled(&mut self, id: RequestId) -> Option<Arc<Labels>> {
        let (_, labels) = self.settling.take_if(|(settling, _)| *settling == id)?;
        Some(labels)
    }

    /// `true`: this request of a filter has no outcome yet, as far as is remembered. From now on it has.
    pub(crate) fn count(&mut self, name: Name) -> bool {
        self.contexts
            .get_mut(&name.epoch)
            .is_none_or(|context| context.counted.insert(name.sequence))
    }

    /// It has ended here, as far as is remembered.
    pub(crate) fn has_ended(&self, name: Name) -> bool {
        self.contexts
            .get(&name.epoch)
            .is_some_and(|context| context.counted.contains(name.sequence))
    }

    /// A request goes by another name from now on; the one it had is moved.
    pub(crate) fn rename(&mut self, id: RequestId, to: Name) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let from = core::mem::replace(&mut entry.name, to);
        if let Some(context) = self.contexts.get_mut(&from.epoch) {
            context.requests.remove(&from.sequence);
            context.absent.retain(|absent| *absent != id);
        }
        if let Some(context) = self.contexts.get_mut(&to.epoch) {
            context.requests.insert(to.sequence, id);
        }
        self.forget(to);
        self.link(from, id);
    }

    /// A name stands for this request, which took its place.
    pub(crate) fn link(&mut self, name: Name, id: RequestId) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let moved = self.moved.entry(name.epoch).or_default();
        if entry.trail.len() < TRAIL_MAX && moved.len() < MOVED_MAX {
            entry.trail.push(name);
            moved.insert(name.sequence, id);
        }
        if moved.is_empty() {
            self.moved.remove(&name.epoch);
        }
    }

    /// What a name stands for that is moved; that may have ended.
    pub(crate) fn moved(&self, name: Name) -> Option<RequestId> {
        self.moved.get(&name.epoch)?.get(&name.sequence).copied()
    }

    /// A name that is moved won't be spoken of any more. `true`: it was.
    pub(crate) fn forget(&mut self, name: Name) -> bool {
        let Some(moved) = self.moved.get_mut(&name.epoch) else {
            return false;
        };
        let id = moved.remove(&name.sequence);
        if moved.is_empty() {
            self.moved.remove(&name.epoch);
        }
        if let Some(entry) = id.and_then(|id| self.entries.get_mut(&id)) {
            entry.trail.retain(|before| *before != name);
        }
        id.is_some()
    }

    /// Forgets the moved names of a root context that `keep` doesn't want.
    pub(crate) fn forget_moved(&mut self, epoch: Epoch, keep: impl Fn(&Self, u64, RequestId) -> bool) {
        let Some(moved) = self.moved.get(&epoch) else {
            return;
        };
        let gone: Vec<u64> = moved
            .iter()
            .filter(|(sequence, id)| !keep(self, **sequence, **id))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in gone {
            self.forget(Name { epoch, sequence });
        }
    }

    /// How many names of a root context are moved.
    pub(crate) fn moved_of(&self, epoch: Epoch) -> usize {
        self.moved.get(&epoch).map_or(0, HashMap::len)
    }

    /// All names that are moved, and what they stand for.
    pub(crate) fn all_moved(&self) -> impl Iterator<Item = (Name, RequestId)> + '_ {
        self.moved.iter().flat_map(|(&epoch, names)| {
            names
                .iter()
                .map(move |(&sequence, &id)| (Name { epoch, sequence }, id))
        })
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

    /// Those of a root context that wait, in the order they were named.
    pub(crate) fn waiting_of(&self, epoch: Epoch) -> Vec<RequestId> {
        let mut ids = self.of(epoch);
        ids.retain(|id| self.get(*id).is_some_and(Entry::waits));
        ids
    }

    /// The pool that was at `n` is at `places[n]`.
    pub(crate) fn move_pools(&mut self, places: &[usize]) {
        for entry in self.entries.values_mut() {
            entry.pool = places[entry.pool];
        }
    }

    /// All of them, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (RequestId, &Entry)> {
        self.entries.iter().map(|(&id, entry)| (id, entry))
    }

    /// How many haven't ended.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Stage {
    /// In stock, by the grant of another companion.
    pub(crate) fn adopted(mut grant: Box<wire::Grant>, pool: &str, at: Instant) -> Self {
        grant.pool = pool.to_owned();
        // What failed it before isn't known, nor when.
        let failed = grant.endpoints.len();
        Self::Granted {
            grant,
            at,
            failed,
            misrouted: true,
        }
    }
}

impl Entry {
    /// It is in the engine's queue.
    pub(crate) const fn waits(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// A grant as its filter is told it, of one that is kept without its pool's name and its outcome.
    pub(crate) fn whole(&self, kept: &wire::Grant) -> wire::Grant {
        let mut grant = kept.clone();
        if grant.pool.is_empty() {
            grant.pool = self.labels.pool.to_string();
        }
        if grant.outcome.is_empty() {
            grant.outcome = self.admitted.unwrap_or(Outcome::Dispatched).as_str().to_owned();
        }
        grant
    }

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
