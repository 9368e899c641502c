//! The flows: who they are, what each has waiting and running, and whose turn it is to be preempted.
//!
//! A flow is here while something of it waits or runs, or while virtual time hasn't reached its finish; then it
//! is forgotten, as a new one would start no earlier. Identities are the clients' words, so the table has a
//! limit: past it new ones share [`OVERFLOW_FLOWS`] flows, by seeded hash.

use alloc::boxed::Box;
use alloc::format;
use core::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::heap::{Heaps, Root};
use crate::input::Band;
use crate::limits::{FLOWS_MAX, OVERFLOW_FLOWS};
use crate::policy::Flows as Policy;
use crate::rng;
use crate::slab::Slab;

use super::Waiting;
use super::node::ChildId;
use super::order::Queue;
use super::tags::Tags;

/// The flow of those who say nothing of themselves.
const ANONYMOUS: &str = "anonymous";

/// Where in the tree a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) band: Band,
    pub(crate) class: usize,
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) name: Box<str>,
    pub(crate) path: Path,
    pub(super) child: ChildId,
    pub(crate) weight: f64,
    /// Its own limit of what may wait, if it has one.
    pub(crate) capacity: Option<u64>,
    pub(crate) waiting: Waiting,
    pub(crate) in_flight: u64,
    pub(super) queue: Queue,
    /// The preemption that took from it last, then its age: the order of preemption.
    turn: (u64, u64),
    among_victims: bool,
}

impl Flow {
    pub(super) const fn turn(&self) -> (u64, u64) {
        self.turn
    }
}

#[derive(Debug)]
pub(super) struct Flows {
    flows: Slab<Flow>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    seed: u64,
    born: u64,
    turns: Heaps<(u64, u64)>,
    victims: [Root; 3],
}

impl Flows {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            flows: Slab::default(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            seed,
            born: 0,
            turns: Heaps::default(),
            victims: Default::default(),
        }
    }

    pub(super) fn get(&self, flow: u32) -> &Flow {
        &self.flows[flow]
    }

    pub(super) fn get_mut(&mut self, flow: u32) -> &mut Flow {
        &mut self.flows[flow]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Flow)> {
        self.flows.iter()
    }

    pub(super) fn get_or_add(&mut self, name: Box<str>, path: Path, tags: &mut Tags, policy: &Policy) -> u32 {
        let name = if name.is_empty() { ANONYMOUS.into() } else { name };
        if let Some(flow) = self.find(&name, path) {
            return flow;
        }
        if self.flows.len() < FLOWS_MAX {
            return self.add(name, path, tags, policy);
        }
        let share = rng::hash(self.seed, name.as_bytes()) % OVERFLOW_FLOWS as u64;
        let shared = format!("overflow-{share}").into_boxed_str();
        match self.find(&shared, path) {
            Some(flow) => flow,
            None => self.add(shared, path, tags, policy),
        }
    }

    fn find(&self, name: &str, path: Path) -> Option<u32> {
        let hash = self.hash(name, path);
        let same = |&flow: &u32| self.flows[flow].path == path && &*self.flows[flow].name == name;
        self.index.find(hash, same).copied()
    }

    fn add(&mut self, name: Box<str>, path: Path, tags: &mut Tags, policy: &Policy) -> u32 {
        let hash = self.hash(&name, path);
        self.born += 1;
        let weight = policy.weight_of(&name);
        let capacity = policy.capacities.get(&name).copied();
        let flow = self.flows.insert(Flow {
            name,
            path,
            child: ChildId::MAX,
            weight,
            capacity,
            waiting: Waiting::default(),
            in_flight: 0,
            queue: Queue::default(),
            turn: (0, self.born),
            among_victims: false,
        });
        self.flows[flow].child = tags.add(flow, weight);
        let (flows, hasher) = (&self.flows, &self.hasher);
        self.index.insert_unique(hash, flow, |&other| {
            hash_of(hasher, &flows[other].name, flows[other].path)
        });
        flow
    }

    /// Nothing of `flow` waits or runs.
    pub(super) fn remove(&mut self, flow: u32) {
        let hash = self.hash(&self.flows[flow].name, self.flows[flow].path);
        if let Ok(found) = self.index.find_entry(hash, |&other| other == flow) {
            found.remove();
        }
        self.flows.remove(flow);
    }

    fn hash(&self, name: &str, path: Path) -> u64 {
        hash_of(&self.hasher, name, path)
    }

    /// Something of `flow` waits.
    pub(super) fn joined_victims(&mut self, flow: u32) {
        let node = &mut self.flows[flow];
        if !node.among_victims && node.path.band != Band::Critical {
            node.among_victims = true;
            self.turns
                .insert(&mut self.victims[node.path.band as usize], flow, node.turn);
        }
    }

    /// Something of `flow` waits no more.
    pub(super) fn left_victims(&mut self, flow: u32) {
        let node = &mut self.flows[flow];
        if node.among_victims && node.waiting.requests == 0 {
            node.among_victims = false;
            self.turns
                .remove(&mut self.victims[node.path.band as usize], flow);
        }
    }

    pub(super) fn victim(&self, band: Band) -> Option<u32> {
        self.victims[band as usize].least()
    }

    /// Moves `flow` behind all others of its band.
    pub(super) fn preempted(&mut self, flow: u32, preemption: u64) {
        let node = &mut self.flows[flow];
        node.turn.0 = preemption;
        if node.among_victims {
            let victims = &mut self.victims[node.path.band as usize];
            self.turns.remove(victims, flow);
            self.turns.insert(victims, flow, node.turn);
        }
    }

    /// Weights and capacities anew; every flow.
    pub(super) fn apply(&mut self, policy: &Policy) {
        for (_, flow) in self.flows.iter_mut() {
            flow.weight = policy.weight_of(&flow.name);
            flow.capacity = policy.capacities.get(&flow.name).copied();
        }
    }
}

fn hash_of(hasher: &DefaultHashBuilder, name: &str, path: Path) -> u64 {
    hasher.hash_one((name, path.band, path.class))
}
