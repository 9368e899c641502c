//! The models by number. A number is never given again, so the table has a limit: past it models share numbers,
//! by seeded hash.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::limits::{MODELS_NUMBERED_MAX, MODELS_SHARED};
use crate::rng;

#[derive(Debug)]
pub(super) struct Models {
    numbers: HashMap<Box<str>, u32>,
    /// By number.
    names: Vec<Box<str>>,
    /// Whose number was asked for last: mostly the same is asked for again.
    last: u32,
    seed: u64,
}

impl Models {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            numbers: HashMap::new(),
            names: Vec::new(),
            last: 0,
            seed,
        }
    }

    /// The name of a number; `None`: it is shared by several.
    pub(super) fn name(&self, number: u32) -> Option<&str> {
        self.names.get(number as usize).map(|name| &**name)
    }

    /// Of the model of this name.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        if self.name(self.last) == Some(name) {
            return self.last;
        }
        if let Some(&number) = self.numbers.get(name) {
            self.last = number;
            return number;
        }
        let next = self.numbers.len();
        if next >= MODELS_NUMBERED_MAX {
            let share = rng::hash(self.seed, name.as_bytes()) % MODELS_SHARED as u64;
            return (MODELS_NUMBERED_MAX as u64 + share) as u32;
        }
        self.numbers.insert(name.into(), next as u32);
        self.names.push(name.into());
        next as u32
    }
}
