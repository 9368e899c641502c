//! The fairness identities, over all bands, classes and models, and the order in which their requests are displaced.
//!
//! An identity exists while it has a flow. Clients choose the names, so the table is bounded: past the limit new
//! identities share [`OVERFLOW_FLOWS`], by seeded hash. Identities that the policy names don't count against the limit, and
//! never share: other clients must not be able to take an account away from them.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::displacements::Displacements;
use super::queued::Waiting;
use super::tallies::Tally;
use crate::audit::{AuditError, check};
use crate::band::TreeBand;
use crate::hashed_name::{HashedName, NameHasher};
use crate::ids::{FlowId, IdentityId, LeafId};
use crate::indexed_heap::IndexedHeap;
use crate::input::{Band, EndpointId};
use crate::limits::OVERFLOW_FLOWS;
use crate::policy::{Flows as Policy, Over};
use crate::rng;
use crate::slab::Slab;

/// The identity of requests without one.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// The order of displacement: the displacement that took from the identity last, then its age.
pub(super) type DisplacementTurn = (u64, u64);

/// An identity's part of one band.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InBand {
    pub(crate) waiting: Waiting,
    flows: u32,
    turn: DisplacementTurn,
    /// The identity is among the victims of the band.
    is_victim: bool,
}

impl InBand {
    pub(super) const fn turn(&self) -> DisplacementTurn {
        self.turn
    }
}

/// The fields that every request uses come first, in few cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Identity {
    pub(crate) name: Arc<str>,
    name_hash: u64,
    /// The policy names it.
    is_named: bool,
    pub(crate) weight: f64,
    pub(crate) in_flight: u64,
    /// The identity's own limit on waiting requests in a band, instead of the queue's.
    pub(crate) capacity: Option<u64>,
    /// The identity's budget, as an index into the policy's list.
    pub(crate) budget: Option<usize>,
    /// The identity's budget has no room, and holds it.
    pub(crate) held: bool,
    /// The identity's flows by leaf, sorted. Most identities have one.
    pub(super) flows: SmallVec<[(LeafId, FlowId); 2]>,
    pub(crate) bands: [InBand; TreeBand::COUNT],
    /// `in_flight` by endpoint, sorted; maintained only while that is limited.
    pub(super) in_flight_at: Vec<(EndpointId, u64)>,
    /// The identity's usage by model, under [`crate::policy::Discipline::Usage`].
    pub(super) tally: Tally,
}

impl Identity {
    pub(crate) fn is_anonymous(&self) -> bool {
        &*self.name == ANONYMOUS
    }

    /// What waits of it, and is shown in `band`.
    pub(crate) fn waiting_shown(&self, band: Band) -> Waiting {
        let shown = TreeBand::shown_as(band).iter();
        shown.fold(Waiting::default(), |sum, &band| sum.plus(self.bands[band as usize].waiting))
    }

    pub(crate) fn hashed_name(&self) -> HashedName<'_> {
        HashedName { text: &self.name, hash: self.name_hash }
    }

    pub(super) fn flow(&self, leaf: LeafId) -> Option<FlowId> {
        let found = self.flows.binary_search_by_key(&leaf, |&(leaf, _)| leaf);
        Some(self.flows[found.ok()?].1)
    }

    /// The endpoints where it runs `limit` requests or more.
    pub(super) fn full_at(&self, limit: u64) -> impl Iterator<Item = EndpointId> {
        let full = self.in_flight_at.iter().filter(move |&&(_, count)| count >= limit);
        full.map(|&(id, _)| id)
    }

    /// Counts a request that starts at `endpoint`. Returns how many of this identity run there then.
    pub(super) fn count_started_at(&mut self, endpoint: EndpointId) -> u64 {
        let found = self.in_flight_at.binary_search_by_key(&endpoint, |&(id, _)| id);
        let position = found.unwrap_or_else(|position| {
            self.in_flight_at.insert(position, (endpoint, 0));
            position
        });
        self.in_flight_at[position].1 += 1;
        self.in_flight_at[position].1
    }

    /// Counts a request that ends at `endpoint`. Returns how many of this identity ran there until then.
    pub(super) fn count_ended_at(&mut self, endpoint: EndpointId) -> Option<u64> {
        let found = self.in_flight_at.binary_search_by_key(&endpoint, |&(id, _)| id);
        let position = found.ok()?;
        let before = self.in_flight_at[position].1;
        self.in_flight_at[position].1 -= 1;
        if before == 1 {
            self.in_flight_at.remove(position);
        }
        Some(before)
    }
}

#[derive(Debug)]
pub(super) struct Identities {
    all: Slab<IdentityId, Identity>,
    /// The identities that the policy doesn't name.
    unnamed: usize,
    index: HashTable<IdentityId>,
    hasher: NameHasher,
    seed: u64,
    /// Numbers identities by age, band by band.
    born: u64,
    /// By band: the identities with waiting requests. Empty for the critical band, which is never displaced.
    victims: [IndexedHeap<IdentityId, DisplacementTurn>; TreeBand::COUNT],
    /// By band: the last displacements of identities without a flow there.
    displaced: [Displacements; TreeBand::COUNT],
}

impl Identities {
    pub(super) fn new(hasher: NameHasher, seed: u64) -> Self {
        Self {
            all: Slab::default(),
            unnamed: 0,
            index: HashTable::new(),
            hasher,
            seed,
            born: 0,
            victims: Default::default(),
            displaced: Default::default(),
        }
    }

    pub(super) fn get(&self, identity: IdentityId) -> &Identity {
        &self.all[identity]
    }

    pub(super) fn get_mut(&mut self, identity: IdentityId) -> &mut Identity {
        &mut self.all[identity]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IdentityId, &Identity)> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (IdentityId, &mut Identity)> {
        self.all.iter_mut()
    }

    /// The identity of this name; or the one that it shares, with the name. An identity without a flow is removed by
    /// [`Self::flow_removed`].
    pub(super) fn get_or_insert(
        &mut self,
        name: Arc<str>,
        policy: &Policy,
    ) -> (IdentityId, Option<Arc<str>>) {
        let name = if name.is_empty() { ANONYMOUS.into() } else { name };
        let hashed = self.hasher.hashed(&name);
        if let Some(identity) = self.find(hashed) {
            return (identity, None);
        }
        let hash = hashed.hash;
        if self.has_room(&name, policy) {
            return (self.insert(name, hash, policy), None);
        }
        // These identities may exceed the limit: there are only [`OVERFLOW_FLOWS`] of them.
        let shared: Arc<str> = self.shared_name(&name).into();
        let hashed = self.hasher.hashed(&shared);
        let identity = match self.find(hashed) {
            Some(identity) => identity,
            None => {
                let hash = hashed.hash;
                self.insert(shared, hash, policy)
            }
        };
        (identity, Some(name))
    }

    /// The name of the identity that [`Self::get_or_insert`] would return.
    pub(super) fn account<'a>(&self, name: &'a str, policy: &Policy) -> Cow<'a, str> {
        if self.named(name).is_some() || self.has_room(name, policy) {
            name.into()
        } else {
            self.shared_name(name).into()
        }
    }

    /// Whether a new identity of this name gets state of its own.
    fn has_room(&self, name: &str, policy: &Policy) -> bool {
        self.unnamed < policy.identities_max || policy.names(name)
    }

    /// The name of the identity that `name` shares with others.
    fn shared_name(&self, name: &str) -> String {
        let share = rng::hash(self.seed, name.as_bytes()) % OVERFLOW_FLOWS as u64;
        format!("overflow-{share}")
    }

    /// The identity of this name.
    pub(super) fn named(&self, name: &str) -> Option<IdentityId> {
        self.find(self.hasher.hashed(name))
    }

    fn find(&self, name: HashedName<'_>) -> Option<IdentityId> {
        let same = |&identity: &IdentityId| &*self.all[identity].name == name.text;
        self.index.find(name.hash, same).copied()
    }

    /// Applies the policy to every identity.
    pub(super) fn reconfigure(&mut self, policy: &Policy) {
        self.unnamed = 0;
        for (_, identity) in self.all.iter_mut() {
            identity.is_named = policy.names(&identity.name);
            self.unnamed += usize::from(!identity.is_named);
            identity.weight = policy.weight_of(&identity.name);
            identity.capacity = policy.capacities.get(&*identity.name).copied();
            identity.budget = policy.budget_of(&identity.name);
            let budget = identity.budget.and_then(|index| policy.budgets.get(index));
            identity.held &= budget.is_some_and(|budget| budget.over == Over::Hold && !budget.shadow);
            // `Tree::transfer_running` counts again what runs, if the new policy limits it.
            identity.in_flight_at.clear();
        }
    }

    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let unnamed = self.all.iter().filter(|(_, identity)| !identity.is_named);
        check("identities that the policy doesn't name are counted", unnamed.count() == self.unnamed)
    }

    fn insert(&mut self, name: Arc<str>, name_hash: u64, policy: &Policy) -> IdentityId {
        let is_named = policy.names(&name);
        self.unnamed += usize::from(!is_named);
        let identity = self.all.insert(Identity {
            weight: policy.weight_of(&name),
            capacity: policy.capacities.get(&*name).copied(),
            budget: policy.budget_of(&name),
            held: false,
            name,
            name_hash,
            is_named,
            in_flight: 0,
            in_flight_at: Vec::new(),
            bands: [InBand::default(); TreeBand::COUNT],
            tally: Tally::default(),
            flows: SmallVec::new(),
        });
        let all = &self.all;
        self.index.insert_unique(name_hash, identity, |&other| all[other].name_hash);
        identity
    }

    /// `identity` has a new flow.
    pub(super) fn flow_added(&mut self, identity: IdentityId, band: TreeBand, leaf: LeafId, flow: FlowId) {
        let node = &mut self.all[identity];
        let position = node.flows.partition_point(|&(other, _)| other < leaf);
        node.flows.insert(position, (leaf, flow));
        let in_band = &mut node.bands[band as usize];
        if in_band.flows == 0 {
            self.born += 1;
            in_band.turn = (self.displaced[band as usize].recall(&node.name), self.born);
        }
        in_band.flows += 1;
    }

    /// A flow of `identity` was removed. Without a flow the identity is removed, too.
    pub(super) fn flow_removed(&mut self, identity: IdentityId, band: TreeBand, leaf: LeafId) {
        let node = &mut self.all[identity];
        node.flows.retain(|&mut (other, _)| other != leaf);
        let in_band = &mut node.bands[band as usize];
        in_band.flows -= 1;
        let displacement = in_band.turn.0;
        if in_band.flows == 0 && displacement > 0 {
            self.displaced[band as usize].remember(&node.name, displacement);
        }
        if node.flows.is_empty() {
            if let Ok(found) = self.index.find_entry(node.name_hash, |&other| other == identity) {
                found.remove();
            }
            self.unnamed -= usize::from(!self.all[identity].is_named);
            self.all.discard(identity);
        }
    }

    /// The waiting requests of `identity` in `band` changed.
    pub(super) fn waiting_changed(&mut self, identity: IdentityId, band: TreeBand) {
        if band == TreeBand::Critical {
            return;
        }
        let in_band = &mut self.all[identity].bands[band as usize];
        let is_victim = in_band.waiting.requests > 0;
        if is_victim == in_band.is_victim {
            return;
        }
        in_band.is_victim = is_victim;
        let victims = &mut self.victims[band as usize];
        if is_victim {
            victims.set(identity, in_band.turn);
        } else {
            victims.remove(identity);
        }
    }

    /// The identity that loses a request at the next displacement in `band`: the least recently displaced one.
    pub(super) fn victim(&self, band: TreeBand) -> Option<IdentityId> {
        self.victims[band as usize].least().map(|(identity, _)| identity)
    }

    /// Puts `identity` behind all others of `band`.
    pub(super) fn displaced(&mut self, identity: IdentityId, band: TreeBand, displacement: u64) {
        let in_band = &mut self.all[identity].bands[band as usize];
        in_band.turn.0 = displacement;
        if in_band.is_victim {
            self.victims[band as usize].set(identity, in_band.turn);
        }
    }
}
