//! Where requests may go, as far as it differs: one lane per distinct set of eligible endpoints.
//!
//! A lane is open while one of its endpoints has room. Requests that may go anywhere share [`LaneId::ANY`], which
//! never closes here: with no room at all nothing is picked. An endpoint that fills up or gets room costs one
//! counter per distinct set that names it, however many requests wait under these.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::endpoints::Changed;
use crate::input::EndpointId;
use crate::slab::Slab;

/// A lane's number; given again when nothing holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneId(pub(super) u32);

impl LaneId {
    /// All endpoints of the pool.
    pub(crate) const ANY: Self = Self(0);
}

#[derive(Debug)]
struct Lane {
    /// Sorted, each once.
    eligible: Box<[EndpointId]>,
    with_room: usize,
    holders: usize,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Lane n is at n-1.
    lanes: Slab<Lane>,
    by_set: HashMap<Box<[EndpointId]>, LaneId>,
    by_endpoint: HashMap<EndpointId, Vec<LaneId>>,
}

impl Lanes {
    /// The lane of exactly these; `room` says which have room now.
    pub(super) fn hold(&mut self, eligible: Box<[EndpointId]>, room: impl Fn(EndpointId) -> bool) -> LaneId {
        let mut eligible = eligible;
        if !eligible.is_sorted_by(|a, b| a < b) {
            let mut sorted = eligible.into_vec();
            sorted.sort_unstable();
            sorted.dedup();
            eligible = sorted.into_boxed_slice();
        }
        if let Some(&lane) = self.by_set.get(&eligible) {
            self.lanes[lane.0 - 1].holders += 1;
            return lane;
        }
        let with_room = eligible.iter().filter(|&&id| room(id)).count();
        let lane = LaneId(
            self.lanes.insert(Lane {
                eligible: eligible.clone(),
                with_room,
                holders: 1,
            }) + 1,
        );
        for &id in &eligible {
            self.by_endpoint.entry(id).or_default().push(lane);
        }
        self.by_set.insert(eligible, lane);
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
        self.by_set.remove(&gone.eligible);
        for id in &gone.eligible {
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

    pub(super) fn eligible(&self, lane: LaneId) -> Option<&[EndpointId]> {
        (lane != LaneId::ANY).then(|| &*self.lanes[lane.0 - 1].eligible)
    }

    pub(super) fn is_open(&self, lane: LaneId) -> bool {
        lane == LaneId::ANY || self.lanes[lane.0 - 1].with_room > 0
    }

    /// The lanes that open or close by this.
    pub(super) fn room_changed(&mut self, change: Changed) -> Vec<LaneId> {
        let Some(lanes) = self.by_endpoint.get(&change.id) else {
            return Vec::new();
        };
        let mut turned = Vec::new();
        for &id in lanes {
            let lane = &mut self.lanes[id.0 - 1];
            if change.has_room {
                lane.with_room += 1;
            } else {
                lane.with_room -= 1;
            }
            if lane.with_room == usize::from(change.has_room) {
                turned.push(id);
            }
        }
        turned
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneId, &[EndpointId], usize, usize)> {
        let lanes = self.lanes.iter();
        lanes.map(|(number, lane)| (LaneId(number + 1), &*lane.eligible, lane.with_room, lane.holders))
    }
}
