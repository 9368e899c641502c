//! The policy classes: which one a request is of, and what waits in each.
//!
//! A class is of one model's set, and is named over all of them; one ring holds them all in their order. A pool
//! without classes has one that has no name and limits nothing.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::input::ClassKey;
use crate::load::Threshold;
use crate::policy::{Class, ClassSet, Order};

use super::Queued;

/// Tokens that a visit grants a class that nobody configured, beside others that somebody did.
const QUANTUM: u64 = 1_024;

#[derive(Debug)]
pub(crate) struct ClassNode {
    /// As configured; `None`: the one of a set that has none.
    pub(crate) policy: Option<Class>,
    pub(crate) threshold: Threshold,
    pub(crate) waiting: Waiting,
}

/// What waits in a class, over all bands and models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) requests: u64,
    pub(crate) prompt: u64,
    /// Of the prompt.
    pub(crate) cached: u64,
}

impl Waiting {
    pub(super) const fn add(&mut self, request: &Queued) {
        self.requests += 1;
        self.prompt += request.prompt;
        self.cached += request.cached;
    }

    pub(super) const fn take(&mut self, request: &Queued) {
        self.requests -= 1;
        self.prompt -= request.prompt;
        self.cached -= request.cached;
    }
}

impl ClassNode {
    fn new(policy: Option<Class>) -> Self {
        Self {
            threshold: policy.as_ref().map(Threshold::of).unwrap_or_default(),
            policy,
            waiting: Waiting::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.policy.as_ref().map_or("", |class| &class.name)
    }

    pub(crate) fn quantum(&self) -> u64 {
        self.policy.as_ref().map_or(QUANTUM, |class| class.quantum)
    }

    pub(crate) fn order(&self, pool: Order) -> Order {
        self.policy.as_ref().and_then(|class| class.order).unwrap_or(pool)
    }

    /// Whether [`Self::has_room`] can say no.
    pub(crate) fn is_limited(&self) -> bool {
        self.policy.as_ref().is_some_and(|class| {
            class.requests_per_endpoint.is_some()
                || class.prompt_tokens_per_endpoint.is_some()
                || class.cached_tokens_per_endpoint.is_some()
        })
    }

    /// Whether one more may wait, where `endpoints` could take it.
    pub(crate) fn has_room(&self, endpoints: u64) -> bool {
        let Some(class) = &self.policy else {
            return true;
        };
        let below = |waiting: u64, limit: Option<u64>| {
            limit.is_none_or(|limit| waiting < limit.saturating_mul(endpoints))
        };
        below(self.waiting.requests, class.requests_per_endpoint)
            && below(self.waiting.prompt, class.prompt_tokens_per_endpoint)
            && below(self.waiting.cached, class.cached_tokens_per_endpoint)
    }
}

/// By bucket; without one, in any that no other names.
#[derive(Debug, Default)]
struct Family {
    buckets: BTreeMap<Box<str>, u32>,
    rest: Option<u32>,
}

#[derive(Debug)]
struct Set {
    first: u32,
    default_family: Box<str>,
    families: BTreeMap<Box<str>, Family>,
    names: BTreeMap<Box<str>, u32>,
    /// By what they begin at.
    buckets: Vec<(u64, Box<str>)>,
}

impl Set {
    fn in_family(&self, family: &str, bucket: Option<&str>) -> Option<u32> {
        let family = self.families.get(family)?;
        bucket
            .and_then(|bucket| family.buckets.get(bucket).copied())
            .or(family.rest)
    }

    fn classify(&self, key: &ClassKey, uncached: u64) -> u32 {
        if self.families.is_empty() {
            // As nobody configured it.
            return self.first;
        }
        let family = match key {
            ClassKey::Named(name) => {
                if let Some(&class) = self.names.get(name) {
                    return class;
                }
                ""
            }
            ClassKey::Family(family) => family,
        };
        let past = self.buckets.partition_point(|&(min, _)| min <= uncached);
        let bucket = past.checked_sub(1).map(|at| &*self.buckets[at].1);
        self.in_family(family, bucket)
            .or_else(|| self.in_family(&self.default_family, bucket))
            .unwrap_or(self.first)
    }
}

#[derive(Debug)]
pub(crate) struct Classes {
    all: Vec<ClassNode>,
    sets: Vec<Set>,
}

impl Classes {
    pub(super) fn new(policy: &[ClassSet]) -> Self {
        let mut classes = Self {
            all: Vec::new(),
            sets: Vec::new(),
        };
        for set in policy {
            classes.add(set);
        }
        if classes.sets.is_empty() {
            classes.add(&ClassSet::default());
        }
        classes
    }

    fn add(&mut self, policy: &ClassSet) {
        let first = self.all.len() as u32;
        let mut buckets: Vec<(u64, Box<str>)> = policy
            .buckets
            .iter()
            .map(|bucket| (bucket.min_tokens, bucket.name.clone()))
            .collect();
        buckets.sort_by_key(|&(min, _)| min);
        let first_family = policy.classes.first().map(|class| class.family.clone());
        let mut set = Set {
            first,
            default_family: policy.default_family.clone().or(first_family).unwrap_or_default(),
            families: BTreeMap::new(),
            names: BTreeMap::new(),
            buckets,
        };
        for (number, class) in (first..).zip(&policy.classes) {
            set.names.entry(class.name.clone()).or_insert(number);
            let family = set.families.entry(class.family.clone()).or_default();
            match &class.bucket {
                Some(bucket) => {
                    family.buckets.entry(bucket.clone()).or_insert(number);
                }
                None => family.rest = family.rest.or(Some(number)),
            }
            self.all.push(ClassNode::new(Some(class.clone())));
        }
        if policy.classes.is_empty() {
            self.all.push(ClassNode::new(None));
        }
        self.sets.push(set);
    }

    /// The class of a request of the model of `set` that has so many prompt tokens, not cached.
    pub(crate) fn classify(&self, set: u16, key: &ClassKey, uncached: u64) -> u32 {
        let set = self.sets.get(usize::from(set)).unwrap_or(&self.sets[0]);
        set.classify(key, uncached)
    }

    /// There is more than the one without a name.
    pub(crate) fn are_configured(&self) -> bool {
        self.all.iter().any(|class| class.policy.is_some())
    }

    /// At least 1.
    pub(super) const fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, class: u32) -> &ClassNode {
        &self.all[class as usize]
    }

    pub(super) fn get_mut(&mut self, class: u32) -> &mut ClassNode {
        &mut self.all[class as usize]
    }

    /// In the order of the ring.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &ClassNode)> {
        (0..).zip(&self.all)
    }

    pub(super) fn by_name(&self, name: &str) -> Option<u32> {
        let found = |set: &Set| set.names.get(name).copied();
        self.sets.iter().find_map(found)
    }

    /// The first of this name; of none: the one that nobody configured.
    pub(super) fn named(&self, name: &str) -> Option<u32> {
        let mut classes = self.iter();
        classes
            .find(|(_, class)| class.name() == name)
            .map(|(number, _)| number)
    }

    /// The one of the same name as `other`.
    pub(super) fn like(&self, other: &ClassNode) -> Option<u32> {
        self.named(other.name())
    }

    /// Whether these are the same classes in the same ring, whatever else is said of them.
    pub(super) fn same_ring(&self, other: &Self) -> bool {
        self.all
            .iter()
            .map(ClassNode::name)
            .eq(other.all.iter().map(ClassNode::name))
    }
}
