//! The fairness identities: who they are, over all bands, classes and models, and whose turn it is to be preempted.
//!
//! An identity is here while it has a flow anywhere in the tree. Identities are the clients' words, so the table has
//! a limit: past it new ones share [`OVERFLOW_FLOWS`], by seeded hash.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::input::{Band, EndpointId};
use crate::limits::OVERFLOW_FLOWS;
use crate::pairing_heap::{PairingHeaps, Root};
use crate::policy::Flows as Policy;
use crate::rng;
use crate::slab::Slab;

use super::Waiting;

/// The flow of those who say nothing of themselves.
pub(super) const ANONYMOUS: &str = "anonymous";

/// What an identity has in one band.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InBand {
    pub(crate) waiting: Waiting,
    flows: u32,
    /// The preemption that took from it last, then its age: the order of preemption.
    turn: (u64, u64),
    among_victims: bool,
}

impl InBand {
    pub(super) const fn turn(&self) -> (u64, u64) {
        self.turn
    }
}

#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: Box<str>,
    pub(crate) weight: f64,
    /// Its own limit of what may wait in a band, if it has one.
    pub(crate) capacity: Option<u64>,
    pub(crate) in_flight: u64,
    /// The same by endpoint, sorted; kept while that is limited.
    pub(super) in_flight_at: Vec<(EndpointId, u64)>,
    pub(crate) bands: [InBand; 3],
    /// Its flows by leaf, sorted.
    pub(super) flows: Vec<(u32, u32)>,
}

impl Identity {
    /// It is the one of those who say nothing of themselves.
    pub(crate) fn is_anonymous(&self) -> bool {
        &*self.name == ANONYMOUS
    }

    pub(super) fn flow(&self, leaf: u32) -> Option<u32> {
        let at = self.flows.binary_search_by_key(&leaf, |&(leaf, _)| leaf).ok()?;
        Some(self.flows[at].1)
    }

    /// Where it runs `most` or more.
    pub(super) fn full_at(&self, most: u64) -> impl Iterator<Item = EndpointId> {
        let full = self.in_flight_at.iter().filter(move |&&(_, count)| count >= most);
        full.map(|&(id, _)| id)
    }
}

#[derive(Debug)]
pub(super) struct Identities {
    all: Slab<Identity>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    seed: u64,
    born: u64,
    turns: [PairingHeaps<(u64, u64)>; 3],
    victims: [Root; 3],
}

impl Identities {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            all: Slab::default(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            seed,
            born: 0,
            turns: Default::default(),
            victims: Default::default(),
        }
    }

    pub(super) fn get(&self, identity: u32) -> &Identity {
        &self.all[identity]
    }

    pub(super) fn get_mut(&mut self, identity: u32) -> &mut Identity {
        &mut self.all[identity]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Identity)> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Identity)> {
        self.all.iter_mut()
    }

    /// The identity of this name, or the one that it shares. One without a flow is removed by [`Self::left`].
    pub(super) fn get_or_add(&mut self, name: Box<str>, policy: &Policy) -> u32 {
        let name = if name.is_empty() { ANONYMOUS.into() } else { name };
        if let Some(identity) = self.find(&name) {
            return identity;
        }
        if self.all.len() < policy.identities_max {
            return self.add(name, policy);
        }
        let share = rng::hash(self.seed, name.as_bytes()) % OVERFLOW_FLOWS as u64;
        let shared = format!("overflow-{share}").into_boxed_str();
        match self.find(&shared) {
            Some(identity) => identity,
            None => self.add(shared, policy),
        }
    }

    fn find(&self, name: &str) -> Option<u32> {
        let same = |&identity: &u32| &*self.all[identity].name == name;
        self.index.find(self.hasher.hash_one(name), same).copied()
    }

    fn add(&mut self, name: Box<str>, policy: &Policy) -> u32 {
        let hash = self.hasher.hash_one(&*name);
        let identity = self.all.insert(Identity {
            weight: policy.weight_of(&name),
            capacity: policy.capacities.get(&name).copied(),
            name,
            in_flight: 0,
            in_flight_at: Vec::new(),
            bands: [InBand::default(); 3],
            flows: Vec::new(),
        });
        let (all, hasher) = (&self.all, &self.hasher);
        self.index
            .insert_unique(hash, identity, |&other| hasher.hash_one(&*all[other].name));
        identity
    }

    /// `flow` of `identity` is at `leaf`, in `band`.
    pub(super) fn joined(&mut self, identity: u32, band: Band, leaf: u32, flow: u32) {
        let node = &mut self.all[identity];
        let at = node.flows.partition_point(|&(other, _)| other < leaf);
        node.flows.insert(at, (leaf, flow));
        let there = &mut node.bands[band as usize];
        if there.flows == 0 {
            self.born += 1;
            there.turn = (0, self.born);
        }
        there.flows += 1;
    }

    /// It is no more. Without a flow an identity is forgotten.
    pub(super) fn left(&mut self, identity: u32, band: Band, leaf: u32) {
        let node = &mut self.all[identity];
        node.flows.retain(|&(other, _)| other != leaf);
        node.bands[band as usize].flows -= 1;
        if node.flows.is_empty() {
            let hash = self.hasher.hash_one(&*node.name);
            if let Ok(found) = self.index.find_entry(hash, |&other| other == identity) {
                found.remove();
            }
            self.all.remove(identity);
        }
    }

    /// What waits of `identity` in `band` has changed.
    pub(super) fn waiting_changed(&mut self, identity: u32, band: Band) {
        let there = &mut self.all[identity].bands[band as usize];
        let waits = there.waiting.requests > 0 && band != Band::Critical;
        if waits == there.among_victims {
            return;
        }
        there.among_victims = waits;
        let (turns, victims) = (&mut self.turns[band as usize], &mut self.victims[band as usize]);
        if waits {
            turns.insert(victims, identity, there.turn);
        } else {
            turns.remove(victims, identity);
        }
    }

    /// Who is preempted next in `band`.
    pub(super) const fn victim(&self, band: Band) -> Option<u32> {
        self.victims[band as usize].least()
    }

    /// Moves `identity` behind all others of `band`.
    pub(super) fn preempted(&mut self, identity: u32, band: Band, preemption: u64) {
        let there = &mut self.all[identity].bands[band as usize];
        there.turn.0 = preemption;
        if there.among_victims {
            let (turns, victims) = (&mut self.turns[band as usize], &mut self.victims[band as usize]);
            turns.remove(victims, identity);
            turns.insert(victims, identity, there.turn);
        }
    }
}
