//! Previous keys of requeued requests.
//!
//! A request that no endpoint took enters its Envoy again and gets another key. Its previous key stays an *alias* as long
//! as a filter may still send messages about it. A message under an alias never changes the request.

use hashbrown::HashMap;
use penstock_engine::RequestId;

use crate::ids::{Epoch, RequestKey};
use crate::limits::{ALIASES_MAX, PREVIOUS_KEYS_MAX};

/// All aliases, by key and by request.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    by_epoch: HashMap<Epoch, HashMap<u64, RequestId>>,
    /// Of requests that haven't ended and have any, the oldest first.
    of_request: HashMap<RequestId, Vec<RequestKey>>,
}

impl Aliases {
    /// The request that an alias stands for. The request may have ended.
    pub(crate) fn get(&self, key: RequestKey) -> Option<RequestId> {
        self.by_epoch.get(&key.epoch)?.get(&key.sequence).copied()
    }

    pub(crate) fn contains(&self, key: RequestKey) -> bool {
        self.get(key).is_some()
    }

    /// The request with this alias hasn't ended.
    pub(crate) fn is_open(&self, id: RequestId) -> bool {
        self.of_request.contains_key(&id)
    }

    /// Makes a key an alias of a request that hasn't ended. Does nothing at the limits of the request and its root context.
    pub(crate) fn insert(&mut self, key: RequestKey, id: RequestId) {
        let keys = self.by_epoch.entry(key.epoch).or_default();
        let previous = self.of_request.entry(id).or_default();
        if previous.len() < PREVIOUS_KEYS_MAX && keys.len() < ALIASES_MAX {
            previous.push(key);
            keys.insert(key.sequence, id);
        }
        self.remove_if_empty(key.epoch, id);
    }

    /// Forgets an alias. `true` if the key was one.
    pub(crate) fn remove(&mut self, key: RequestKey) -> bool {
        let Some(keys) = self.by_epoch.get_mut(&key.epoch) else {
            return false;
        };
        let Some(id) = keys.remove(&key.sequence) else {
            return false;
        };
        if let Some(previous) = self.of_request.get_mut(&id) {
            previous.retain(|other| *other != key);
        }
        self.remove_if_empty(key.epoch, id);
        true
    }

    /// Makes the aliases of one request those of another that hasn't ended. `None` forgets them.
    pub(crate) fn transfer(&mut self, from: RequestId, to: Option<RequestId>) {
        for key in self.of_request.get(&from).cloned().unwrap_or_default() {
            self.remove(key);
            if let Some(to) = to {
                self.insert(key, to);
            }
        }
    }

    /// A request has ended. Its aliases stay where `has_context` is true: that filter may still send messages under them.
    pub(crate) fn end_request(&mut self, id: RequestId, has_context: impl Fn(Epoch) -> bool) {
        for key in self.of_request.remove(&id).unwrap_or_default() {
            if !has_context(key.epoch) {
                self.remove(key);
            }
        }
    }

    /// Forgets the aliases of a root context for which `keep` is false.
    pub(crate) fn retain(&mut self, epoch: Epoch, keep: impl Fn(&Self, u64, RequestId) -> bool) {
        let Some(keys) = self.by_epoch.get(&epoch) else {
            return;
        };
        let forgotten: Vec<u64> = keys
            .iter()
            .filter(|(sequence, id)| !keep(self, **sequence, **id))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in forgotten {
            self.remove(RequestKey { epoch, sequence });
        }
    }

    /// How many aliases a root context has.
    pub(crate) fn count(&self, epoch: Epoch) -> usize {
        self.by_epoch.get(&epoch).map_or(0, HashMap::len)
    }

    /// All aliases with their requests, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestKey, RequestId)> + '_ {
        self.by_epoch.iter().flat_map(|(&epoch, keys)| {
            keys.iter().map(move |(&sequence, &id)| (RequestKey { epoch, sequence }, id))
        })
    }

    /// Requests that haven't ended, with their previous keys.
    pub(crate) fn open_requests(&self) -> impl Iterator<Item = (RequestId, &[RequestKey])> + '_ {
        self.of_request.iter().map(|(&id, keys)| (id, keys.as_slice()))
    }

    fn remove_if_empty(&mut self, epoch: Epoch, id: RequestId) {
        if self.by_epoch.get(&epoch).is_some_and(HashMap::is_empty) {
            self.by_epoch.remove(&epoch);
        }
        if self.of_request.get(&id).is_some_and(Vec::is_empty) {
            self.of_request.remove(&id);
        }
    }
}
