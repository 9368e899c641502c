//! Where requests may go, as far as it differs: one lane per distinct threshold, set of eligible endpoints, and set
//! of those where their flow runs as much as it may.
//!
//! A lane is open while one of its endpoints has room and is below the threshold. Requests that may go anywhere
//! share [`LaneId::ANY`], which never closes here: with no room at all nothing is picked. An endpoint that changes
//! costs one look per lane that names it, however many requests wait in these; and what stands in a lane is told
//! only when the lane opens or closes.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::endpoint::Endpoint;
use crate::endpoints::Endpoints;
use crate::input::EndpointId;
use crate::load::Threshold;
use crate::slab::Slab;

/// A lane's number; given again when nothing holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneId(pub(super) u32);

impl LaneId {
    /// All endpoints of the pool.
    pub(crate) const ANY: Self = Self(0);
}

/// A class's threshold, as a lane is known by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Bits {
    tokens: Option<u64>,
    fraction: Option<u64>,
}

impl Bits {
    fn of(threshold: Threshold) -> Self {
        Self {
            tokens: threshold.tokens,
            fraction: threshold.fraction.map(f64::to_bits),
        }
    }

    fn threshold(self) -> Threshold {
        Threshold {
            tokens: self.tokens,
            fraction: self.fraction.map(f64::from_bits),
        }
    }
}

/// Which endpoints a lane is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Key {
    threshold: Bits,
    /// Sorted, each once; `None`: all of the pool.
    pub(super) eligible: Option<Box<[EndpointId]>>,
    /// Sorted, each once.
    pub(super) excluded: Box<[EndpointId]>,
}

impl Key {
    fn names(&self, id: EndpointId) -> bool {
        let eligible = self.eligible.as_ref();
        eligible.is_none_or(|eligible| eligible.binary_search(&id).is_ok())
            && self.excluded.binary_search(&id).is_err()
    }

    fn takes(&self, endpoint: &Endpoint) -> bool {
        endpoint.has_room() && self.names(endpoint.id) && endpoint.is_below(self.threshold.threshold())
    }

    /// Those of its endpoints that take one now.
    pub(super) fn able(&self, endpoints: &Endpoints) -> BTreeSet<EndpointId> {
        let able = |endpoint: &&Endpoint| self.takes(endpoint);
        match &self.eligible {
            Some(eligible) => {
                let named = eligible.iter().filter_map(|&id| endpoints.get(id));
                named.filter(able).map(|endpoint| endpoint.id).collect()
            }
            None => endpoints
                .iter()
                .filter(able)
                .map(|endpoint| endpoint.id)
                .collect(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) key: Key,
    pub(super) able: BTreeSet<EndpointId>,
    pub(super) holders: usize,
    /// Flows whose next request stands in it, by leaf and flow.
    pub(super) standing: BTreeSet<(u32, u32)>,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Lane n is at n-1.
    lanes: Slab<Lane>,
    by_key: HashMap<Key, LaneId>,
    by_endpoint: HashMap<EndpointId, Vec<LaneId>>,
    /// Those that name all.
    of_all: Vec<LaneId>,
}

impl Lanes {
    /// The lane of exactly these; `eligible` is in any order.
    pub(super) fn hold(
        &mut self,
        threshold: Threshold,
        eligible: Option<Box<[EndpointId]>>,
        endpoints: &Endpoints,
    ) -> LaneId {
        if threshold.is_none() && eligible.is_none() {
            return LaneId::ANY;
        }
        let eligible = eligible.map(|eligible| {
            if eligible.is_sorted_by(|a, b| a < b) {
                return eligible;
            }
            let mut sorted = eligible.into_vec();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.into_boxed_slice()
        });
        let key = Key {
            threshold: Bits::of(threshold),
            eligible,
            excluded: Box::default(),
        };
        self.hold_key(key, endpoints)
    }

    /// The lane of those of `lane` without `excluded`, which is sorted and not empty.
    pub(super) fn without(&mut self, lane: LaneId, excluded: &[EndpointId], endpoints: &Endpoints) -> LaneId {
        let base = self.get(lane).map(|lane| lane.key.clone()).unwrap_or_default();
        let key = Key {
            excluded: excluded.into(),
            ..base
        };
        self.hold_key(key, endpoints)
    }

    /// The lane of the same endpoints under another threshold. `lane` is still held.
    pub(super) fn under(&mut self, lane: LaneId, threshold: Threshold, endpoints: &Endpoints) -> LaneId {
        let eligible = self.get(lane).and_then(|lane| lane.key.eligible.clone());
        self.hold(threshold, eligible, endpoints)
    }

    fn hold_key(&mut self, key: Key, endpoints: &Endpoints) -> LaneId {
        if let Some(&lane) = self.by_key.get(&key) {
            self.lanes[lane.0 - 1].holders += 1;
            return lane;
        }
        let lane = LaneId(
            self.lanes.insert(Lane {
                able: key.able(endpoints),
                key: key.clone(),
                holders: 1,
                standing: BTreeSet::new(),
            }) + 1,
        );
        match &key.eligible {
            Some(eligible) => {
                for &id in eligible {
                    self.by_endpoint.entry(id).or_default().push(lane);
                }
            }
            None => self.of_all.push(lane),
        }
        self.by_key.insert(key, lane);
        lane
    }

    pub(super) fn release(&mut self, lane: LaneId) {
        if lane == LaneId::ANY {
            return;
        }
        self.lanes[lane.0 - 1].holders -= 1;
        if self.lanes[lane.0 - 1].holders > 0 {
            return;
        }
        let gone = self.lanes.remove(lane.0 - 1);
        self.by_key.remove(&gone.key);
        let Some(eligible) = &gone.key.eligible else {
            self.of_all.retain(|&other| other != lane);
            return;
        };
        for id in eligible {
            let lanes = self
                .by_endpoint
                .get_mut(id)
                .expect("invariant: every lane is under its endpoints");
            lanes.retain(|&other| other != lane);
            if lanes.is_empty() {
                self.by_endpoint.remove(id);
            }
        }
    }

    fn get(&self, lane: LaneId) -> Option<&Lane> {
        (lane != LaneId::ANY).then(|| &self.lanes[lane.0 - 1])
    }

    /// The endpoints that the requests of `lane` may go to; `None`: all.
    pub(super) fn eligible(&self, lane: LaneId) -> Option<&[EndpointId]> {
        self.get(lane)?.key.eligible.as_deref()
    }

    /// Those of its endpoints that take one now; `None`: all that have room.
    pub(super) fn able(&self, lane: LaneId) -> Option<Vec<EndpointId>> {
        Some(self.get(lane)?.able.iter().copied().collect())
    }

    pub(super) fn is_open(&self, lane: LaneId) -> bool {
        self.get(lane).is_none_or(|lane| !lane.able.is_empty())
    }

    /// Whether `endpoint` takes one of `lane` now.
    pub(super) fn takes(&self, lane: LaneId, endpoint: &Endpoint) -> bool {
        self.get(lane)
            .map_or_else(|| endpoint.has_room(), |lane| lane.key.takes(endpoint))
    }

    /// The next request of `flow` stands in `lane` from now on.
    pub(super) fn stand(&mut self, lane: LaneId, leaf: u32, flow: u32) {
        if lane != LaneId::ANY {
            self.lanes[lane.0 - 1].standing.insert((leaf, flow));
        }
    }

    /// It doesn't any more.
    pub(super) fn leave(&mut self, lane: LaneId, leaf: u32, flow: u32) {
        if lane != LaneId::ANY {
            self.lanes[lane.0 - 1].standing.remove(&(leaf, flow));
        }
    }

    /// The leaves that have something in `lane`.
    pub(super) fn leaves(&self, lane: LaneId) -> Vec<u32> {
        let mut leaves = Vec::new();
        let standing = &self.lanes[lane.0 - 1].standing;
        let mut from = Some(0);
        while let Some(&(leaf, _)) = from.and_then(|from| standing.range((from, 0)..).next()) {
            leaves.push(leaf);
            from = leaf.checked_add(1);
        }
        leaves
    }

    /// The flows of `leaf` that stand in `lane`.
    pub(super) fn flows(&self, lane: LaneId, leaf: u32) -> Vec<u32> {
        let standing = &self.lanes[lane.0 - 1].standing;
        let of_leaf = standing.range((leaf, 0)..=(leaf, u32::MAX));
        of_leaf.map(|&(_, flow)| flow).collect()
    }

    /// Everybody is in [`LaneId::ANY`].
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// `id` is as `endpoint` says now, or gone: the lanes that open or close by this.
    pub(super) fn refresh(&mut self, id: EndpointId, endpoint: Option<&Endpoint>) -> Vec<LaneId> {
        let mut turned = Vec::new();
        let named = self.by_endpoint.get(&id).into_iter().flatten();
        for &lane in named.chain(&self.of_all) {
            let node = &mut self.lanes[lane.0 - 1];
            let was_open = !node.able.is_empty();
            if endpoint.is_some_and(|endpoint| node.key.takes(endpoint)) {
                node.able.insert(id);
            } else {
                node.able.remove(&id);
            }
            if was_open == node.able.is_empty() {
                turned.push(lane);
            }
        }
        turned
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneId, &Lane)> {
        let lanes = self.lanes.iter();
        lanes.map(|(number, lane)| (LaneId(number + 1), lane))
    }
}
