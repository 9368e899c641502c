//! Ids for model names. An id is never reused, so the table is bounded: past the limit models share ids, by seeded hash.

use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::ids::{Id, ModelId};
use crate::limits::{MODELS_NUMBERED_MAX, MODELS_SHARED};
use crate::rng;

#[derive(Debug)]
pub(super) struct ModelIds {
    ids: HashMap<Arc<str>, ModelId>,
    names: Vec<Arc<str>>,
    /// Successive lookups mostly ask for the same name.
    last: Option<ModelId>,
    seed: u64,
}

impl ModelIds {
    pub(super) fn new(seed: u64) -> Self {
        Self { ids: HashMap::new(), names: Vec::new(), last: None, seed }
    }

    /// The name of `id`; `None` if several models share it.
    pub(super) fn name(&self, id: ModelId) -> Option<&Arc<str>> {
        self.names.get(id.index())
    }

    pub(super) fn id_or_insert(&mut self, name: &str) -> ModelId {
        if let Some(last) = self.last.filter(|&last| self.name(last).is_some_and(|last| **last == *name)) {
            return last;
        }
        if let Some(&id) = self.ids.get(name) {
            self.last = Some(id);
            return id;
        }
        let next = self.ids.len();
        if next >= MODELS_NUMBERED_MAX {
            let share = rng::hash(self.seed, name.as_bytes()) % MODELS_SHARED as u64;
            return ModelId::from_index(MODELS_NUMBERED_MAX + share as usize);
        }
        let id = ModelId::from_index(next);
        let name: Arc<str> = name.into();
        self.ids.insert(name.clone(), id);
        self.names.push(name);
        id
    }
}
