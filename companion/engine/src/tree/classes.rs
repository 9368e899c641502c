//! The policy classes: the class of a request, and the requests that wait in each.
//!
//! A class belongs to one model's class set. Names are unique over all sets, and one ring holds all classes in their
//! order. A pool without configured classes has one class, without a name and without limits.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::queued::Queued;
use crate::ids::{ClassId, Id};
use crate::input::ClassKey;
use crate::load::Threshold;
use crate::policy::{Class, ClassSet, Order};

/// Tokens that a visit grants to the class of a set without classes, beside configured classes of other sets.
const QUANTUM: u64 = 1_024;

#[derive(Debug)]
pub(crate) struct ClassNode {
    /// `None`: the class of a set without configured classes.
    pub(crate) policy: Option<Class>,
    pub(crate) threshold: Threshold,
    pub(crate) waiting: ClassWaiting,
}

/// The waiting requests of a class, over all bands and models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassWaiting {
    pub(crate) requests: u64,
    /// Prompt tokens.
    pub(crate) prompt: u64,
    /// The cached part of the prompts.
    pub(crate) cached: u64,
}

impl ClassWaiting {
    pub(super) const fn add(&mut self, request: &Queued) {
        self.requests += 1;
        self.prompt += request.prompt;
        self.cached += request.cached;
    }

    pub(super) const fn subtract(&mut self, request: &Queued) {
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
            waiting: ClassWaiting::default(),
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

    /// The class has a limit on its waiting requests.
    pub(crate) fn is_limited(&self) -> bool {
        self.policy.as_ref().is_some_and(|class| {
            class.requests_per_endpoint.is_some()
                || class.prompt_tokens_per_endpoint.is_some()
                || class.cached_tokens_per_endpoint.is_some()
        })
    }

    /// Whether one more request may wait in a pool of this many endpoints.
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

#[derive(Debug, Default)]
struct Family {
    by_bucket: BTreeMap<Box<str>, ClassId>,
    /// The class for every other bucket.
    rest: Option<ClassId>,
}

#[derive(Debug)]
struct Set {
    first: ClassId,
    default_family: Box<str>,
    families: BTreeMap<Box<str>, Family>,
    names: BTreeMap<Box<str>, ClassId>,
    /// By their least tokens.
    buckets: Vec<(u64, Box<str>)>,
}

impl Set {
    fn in_family(&self, family: &str, bucket: Option<&str>) -> Option<ClassId> {
        let family = self.families.get(family)?;
        bucket.and_then(|bucket| family.by_bucket.get(bucket).copied()).or(family.rest)
    }

    fn classify(&self, key: &ClassKey, uncached: u64) -> ClassId {
        if self.families.is_empty() {
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
        let bucket = past.checked_sub(1).map(|index| &*self.buckets[index].1);
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
        let mut classes = Self { all: Vec::new(), sets: Vec::new() };
        for set in policy {
            classes.add(set);
        }
        if classes.sets.is_empty() {
            classes.add(&ClassSet::default());
        }
        classes
    }

    fn add(&mut self, policy: &ClassSet) {
        let first = self.all.len();
        let mut buckets: Vec<(u64, Box<str>)> =
            policy.buckets.iter().map(|bucket| (bucket.min_tokens, bucket.name.clone())).collect();
        buckets.sort_by_key(|&(min, _)| min);
        let first_family = policy.classes.first().map(|class| class.family.clone());
        let mut set = Set {
            first: ClassId::from_index(first),
            default_family: policy.default_family.clone().or(first_family).unwrap_or_default(),
            families: BTreeMap::new(),
            names: BTreeMap::new(),
            buckets,
        };
        for (index, class) in (first..).zip(&policy.classes) {
            let id = ClassId::from_index(index);
            set.names.entry(class.name.clone()).or_insert(id);
            let family = set.families.entry(class.family.clone()).or_default();
            match &class.bucket {
                Some(bucket) => {
                    family.by_bucket.entry(bucket.clone()).or_insert(id);
                }
                None => family.rest = family.rest.or(Some(id)),
            }
            self.all.push(ClassNode::new(Some(class.clone())));
        }
        if policy.classes.is_empty() {
            self.all.push(ClassNode::new(None));
        }
        self.sets.push(set);
    }

    /// The class of a request with this class set, class key, and number of uncached prompt tokens.
    pub(crate) fn classify(&self, set: u16, key: &ClassKey, uncached: u64) -> ClassId {
        let set = self.sets.get(usize::from(set)).unwrap_or(&self.sets[0]);
        set.classify(key, uncached)
    }

    pub(crate) fn are_configured(&self) -> bool {
        self.all.iter().any(|class| class.policy.is_some())
    }

    /// At least 1.
    pub(super) const fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, class: ClassId) -> &ClassNode {
        &self.all[class.index()]
    }

    pub(super) fn get_mut(&mut self, class: ClassId) -> &mut ClassNode {
        &mut self.all[class.index()]
    }

    /// All classes, in the order of the ring.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClassId, &ClassNode)> {
        let classes = self.all.iter().enumerate();
        classes.map(|(index, class)| (ClassId::from_index(index), class))
    }

    /// The configured class of this name.
    pub(super) fn configured(&self, name: &str) -> Option<ClassId> {
        let found = |set: &Set| set.names.get(name).copied();
        self.sets.iter().find_map(found)
    }

    /// The first class of this name; of the empty name: the one that isn't configured.
    pub(super) fn by_name(&self, name: &str) -> Option<ClassId> {
        let mut classes = self.iter();
        classes.find(|(_, class)| class.name() == name).map(|(id, _)| id)
    }

    /// Whether `other` has the same classes in the same ring, whatever their attributes.
    pub(super) fn same_ring(&self, other: &Self) -> bool {
        self.all.iter().map(ClassNode::name).eq(other.all.iter().map(ClassNode::name))
    }
}
