//! Eligibility sets: the endpoints that requests may go to. Requests share a set if they have the same class threshold,
//! the same eligible endpoints, and the same endpoints at which their flow is at its limit.
//!
//! A set is open while one of its endpoints has room and isn't above the threshold. Requests that may go anywhere share
//! [`EligibilityId::ANY`], which never closes here: without any room the gate is closed. A changed endpoint costs one
//! check for each set that contains it, however many requests wait under that set. Flows are updated only when a set
//! opens or closes.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use hashbrown::HashMap;

use crate::endpoint::Endpoint;
use crate::endpoints::Endpoints;
use crate::ids::{EligibilityId, FlowId, Id, LeafId};
use crate::input::EndpointId;
use crate::limits::WATCHERS_MAX;
use crate::load::Threshold;
use crate::slab::Slab;

/// A class threshold as a hash key: the fraction by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ThresholdBits {
    tokens: Option<u64>,
    fraction: Option<u64>,
}

impl ThresholdBits {
    fn of(threshold: Threshold) -> Self {
        Self { tokens: threshold.tokens, fraction: threshold.fraction.map(f64::to_bits) }
    }

    fn threshold(self) -> Threshold {
        Threshold { tokens: self.tokens, fraction: self.fraction.map(f64::from_bits) }
    }
}

/// The definition of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Key {
    threshold: ThresholdBits,
    /// Sorted, each once; `None`: all of the pool.
    pub(super) eligible: Option<Box<[EndpointId]>>,
    /// Sorted, each once.
    pub(super) excluded: Box<[EndpointId]>,
}

impl Key {
    fn contains(&self, id: EndpointId) -> bool {
        let eligible = self.eligible.as_ref();
        eligible.is_none_or(|eligible| eligible.binary_search(&id).is_ok())
            && self.excluded.binary_search(&id).is_err()
    }

    /// All endpoints but `excluded`, which are sorted, without a threshold.
    pub(super) fn is_all_without(&self, excluded: &[EndpointId]) -> bool {
        *self == Self { excluded: excluded.into(), ..Self::default() }
    }

    fn allows(&self, endpoint: &Endpoint) -> bool {
        endpoint.has_room() && self.includes(endpoint)
    }

    /// Whether `endpoint` is one of the set and not too busy for it, whether it has room or not.
    fn includes(&self, endpoint: &Endpoint) -> bool {
        self.contains(endpoint.id) && !endpoint.is_above(self.threshold.threshold())
    }

    /// The endpoints that take a request of this set now.
    pub(super) fn able(&self, endpoints: &Endpoints) -> BTreeSet<EndpointId> {
        let able = |endpoint: &&Endpoint| self.allows(endpoint);
        match &self.eligible {
            Some(eligible) => {
                let eligible = eligible.iter().filter_map(|&id| endpoints.get(id));
                eligible.filter(able).map(|endpoint| endpoint.id).collect()
            }
            None => endpoints.iter().filter(able).map(|endpoint| endpoint.id).collect(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct EligibilitySet {
    pub(super) key: Key,
    pub(super) able: BTreeSet<EndpointId>,
    pub(super) holders: usize,
    /// The flows whose heads wait under this set, by leaf.
    pub(super) heads: BTreeSet<(LeafId, FlowId)>,
    /// The flows that may have another head when this set opens or closes.
    pub(super) watchers: BTreeSet<(LeafId, FlowId)>,
}

#[derive(Debug)]
pub(super) struct EligibilitySets {
    /// The first is [`EligibilityId::ANY`], whose entry stays empty.
    sets: Slab<EligibilityId, EligibilitySet>,
    by_key: HashMap<Key, EligibilityId>,
    by_endpoint: HashMap<EndpointId, Vec<EligibilityId>>,
    /// The sets of all endpoints under some threshold or exclusion.
    of_all: Vec<EligibilityId>,
}

impl Default for EligibilitySets {
    fn default() -> Self {
        let mut sets = Slab::default();
        let any = sets.insert(EligibilitySet::default());
        debug_assert_eq!(any, EligibilityId::ANY, "invariant: the first set is that of all endpoints");
        Self { sets, by_key: HashMap::new(), by_endpoint: HashMap::new(), of_all: Vec::new() }
    }
}

impl EligibilitySets {
    /// Holds the set of exactly these, created if necessary; `eligible` is in any order.
    pub(super) fn hold(
        &mut self,
        threshold: Threshold,
        eligible: Option<Box<[EndpointId]>>,
        endpoints: &Endpoints,
    ) -> EligibilityId {
        let eligible = eligible.map(|eligible| {
            if eligible.is_sorted_by(|a, b| a < b) {
                return eligible;
            }
            let mut sorted = eligible.into_vec();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.into_boxed_slice()
        });
        let key = Key { threshold: ThresholdBits::of(threshold), eligible, excluded: Box::default() };
        self.hold_key(key, endpoints)
    }

    /// Holds the set `id` without `excluded` and what `id` excludes already.
    pub(super) fn hold_without(
        &mut self,
        id: EligibilityId,
        excluded: &[EndpointId],
        endpoints: &Endpoints,
    ) -> EligibilityId {
        let mut all = [&*self.sets[id].key.excluded, excluded].concat();
        all.sort_unstable();
        all.dedup();
        self.hold_excluding(id, &all, endpoints)
    }

    /// Holds the set that differs from `id` by excluding exactly `excluded`, which is sorted.
    pub(super) fn hold_excluding(
        &mut self,
        id: EligibilityId,
        excluded: &[EndpointId],
        endpoints: &Endpoints,
    ) -> EligibilityId {
        let key = Key { excluded: excluded.into(), ..self.sets[id].key.clone() };
        self.hold_key(key, endpoints)
    }

    /// Holds the set of the same endpoints as `id`, with the same exclusions, under another threshold. `id` stays held.
    pub(super) fn hold_under(
        &mut self,
        id: EligibilityId,
        threshold: Threshold,
        endpoints: &Endpoints,
    ) -> EligibilityId {
        let key = Key { threshold: ThresholdBits::of(threshold), ..self.sets[id].key.clone() };
        self.hold_key(key, endpoints)
    }

    fn hold_key(&mut self, key: Key, endpoints: &Endpoints) -> EligibilityId {
        if key == Key::default() {
            return EligibilityId::ANY;
        }
        if let Some(&id) = self.by_key.get(&key) {
            self.sets[id].holders += 1;
            return id;
        }
        let id = self.sets.insert(EligibilitySet {
            able: key.able(endpoints),
            key: key.clone(),
            holders: 1,
            heads: BTreeSet::new(),
            watchers: BTreeSet::new(),
        });
        match &key.eligible {
            Some(eligible) => {
                for &endpoint in eligible {
                    self.by_endpoint.entry(endpoint).or_default().push(id);
                }
            }
            None => self.of_all.push(id),
        }
        self.by_key.insert(key, id);
        id
    }

    /// Ends one hold. A set without holders is removed.
    pub(super) fn release(&mut self, id: EligibilityId) {
        if id == EligibilityId::ANY {
            return;
        }
        self.sets[id].holders -= 1;
        if self.sets[id].holders > 0 {
            return;
        }
        let removed = self.sets.remove(id);
        self.by_key.remove(&removed.key);
        let Some(eligible) = &removed.key.eligible else {
            self.of_all.retain(|&other| other != id);
            return;
        };
        for endpoint in eligible {
            let sets = self
                .by_endpoint
                .get_mut(endpoint)
                .expect("invariant: every set is listed under its endpoints");
            sets.retain(|&other| other != id);
            if sets.is_empty() {
                self.by_endpoint.remove(endpoint);
            }
        }
    }

    fn restricted(&self, id: EligibilityId) -> Option<&EligibilitySet> {
        (id != EligibilityId::ANY).then(|| &self.sets[id])
    }

    /// The endpoints of the set before exclusions; `None`: all.
    pub(super) fn eligible(&self, id: EligibilityId) -> Option<&[EndpointId]> {
        self.restricted(id)?.key.eligible.as_deref()
    }

    /// The endpoints that take a request of the set now; `None`: all with room.
    pub(super) fn able(&self, id: EligibilityId) -> Option<Vec<EndpointId>> {
        Some(self.restricted(id)?.able.iter().copied().collect())
    }

    pub(super) fn is_open(&self, id: EligibilityId) -> bool {
        self.restricted(id).is_none_or(|set| !set.able.is_empty())
    }

    /// Whether `endpoint` takes a request of the set now.
    pub(super) fn allows(&self, id: EligibilityId, endpoint: &Endpoint) -> bool {
        self.restricted(id).map_or_else(|| endpoint.has_room(), |set| set.key.allows(endpoint))
    }

    /// Whether a request of the set may go to `endpoint`, if that takes one.
    pub(super) fn includes(&self, id: EligibilityId, endpoint: &Endpoint) -> bool {
        self.restricted(id).is_none_or(|set| set.key.includes(endpoint))
    }

    /// The head of `flow` waits under this set.
    pub(super) fn add_head(&mut self, id: EligibilityId, leaf: LeafId, flow: FlowId) {
        if id != EligibilityId::ANY {
            self.sets[id].heads.insert((leaf, flow));
        }
    }

    /// The head of `flow` no longer waits under this set.
    pub(super) fn remove_head(&mut self, id: EligibilityId, leaf: LeafId, flow: FlowId) {
        if id != EligibilityId::ANY {
            self.sets[id].heads.remove(&(leaf, flow));
        }
    }

    /// Holds this set once more.
    pub(super) fn hold_again(&mut self, id: EligibilityId) {
        if id != EligibilityId::ANY {
            self.sets[id].holders += 1;
        }
    }

    /// One more flow may watch this set, or `flow` does.
    pub(super) fn may_watch(&self, id: EligibilityId, leaf: LeafId, flow: FlowId) -> bool {
        self.restricted(id)
            .is_none_or(|set| set.watchers.len() < WATCHERS_MAX || set.watchers.contains(&(leaf, flow)))
    }

    /// `flow` watches this set.
    pub(super) fn add_watcher(&mut self, id: EligibilityId, leaf: LeafId, flow: FlowId) {
        if id != EligibilityId::ANY {
            self.sets[id].watchers.insert((leaf, flow));
        }
    }

    /// `flow` no longer watches this set.
    pub(super) fn remove_watcher(&mut self, id: EligibilityId, leaf: LeafId, flow: FlowId) {
        if id != EligibilityId::ANY {
            self.sets[id].watchers.remove(&(leaf, flow));
        }
    }

    /// The flows that watch this set.
    pub(super) fn watchers(&self, id: EligibilityId) -> Vec<FlowId> {
        self.sets[id].watchers.iter().map(|&(_, flow)| flow).collect()
    }

    /// The leaves with heads under this set.
    pub(super) fn leaves(&self, id: EligibilityId) -> Vec<LeafId> {
        // From leaf to leaf: one may have 100,000 flows under the set.
        let heads = &self.sets[id].heads;
        let mut leaves = Vec::new();
        let mut next = heads.first();
        while let Some(&(leaf, _)) = next {
            leaves.push(leaf);
            let after = (Bound::Excluded((leaf, FlowId::MAX)), Bound::Unbounded);
            next = heads.range(after).next();
        }
        leaves
    }

    /// The flows of `leaf` with heads under this set.
    pub(super) fn flows(&self, id: EligibilityId, leaf: LeafId) -> Vec<FlowId> {
        let heads = &self.sets[id].heads;
        let of_leaf = heads.range((leaf, FlowId::MIN)..=(leaf, FlowId::MAX));
        of_leaf.map(|&(_, flow)| flow).collect()
    }

    /// Every request may go anywhere.
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// `id` is now as `endpoint`, or was removed. Returns the sets that open or close by that.
    pub(super) fn endpoint_changed(
        &mut self,
        id: EndpointId,
        endpoint: Option<&Endpoint>,
    ) -> Vec<EligibilityId> {
        let mut turned = Vec::new();
        let containing = self.by_endpoint.get(&id).into_iter().flatten();
        for &set_id in containing.chain(&self.of_all) {
            let set = &mut self.sets[set_id];
            let was_open = !set.able.is_empty();
            if endpoint.is_some_and(|endpoint| set.key.allows(endpoint)) {
                set.able.insert(id);
            } else {
                set.able.remove(&id);
            }
            if was_open == set.able.is_empty() {
                turned.push(set_id);
            }
        }
        turned
    }

    /// Every set but [`EligibilityId::ANY`].
    pub(super) fn iter(&self) -> impl Iterator<Item = (EligibilityId, &EligibilitySet)> {
        self.sets.iter().filter(|&(id, _)| id != EligibilityId::ANY)
    }
}
