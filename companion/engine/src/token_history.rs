//! What the engine learns from what was served: tokens per byte of a model's prompts, and how long answers get.
//!
//! Estimates only order and charge; they are settled by the truth. Both tables are bounded, and who wasn't used
//! for longest goes first, approximately (second chance): a flow that is forgotten is estimated by its model.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::cost::TOKENS_MAX;
use crate::input::{Band, Prompt};
use crate::limits::{HISTORIES_MAX, MODELS_MAX, OUTPUTS_KEPT};

/// Tokens per byte before anything is known.
const RATIO_AT_FIRST: f64 = 0.25;
/// Bytes that the first ratio weighs: the first short prompts don't overturn it.
const RATIO_AT_FIRST_BYTES: f64 = 1_024.0;
/// What remains of older prompts with each new one.
const RATIO_KEEP: f64 = 1.0 - 1.0 / 128.0;
/// Output tokens expected while nothing is known.
const OUTPUT_AT_FIRST: u64 = 256;

#[derive(Debug)]
pub(crate) struct TokenHistory {
    flows: Table<Flow>,
    models: Table<Model>,
}

#[derive(Debug, Default)]
pub(crate) struct Flow {
    outputs: Median,
    /// Settled cost, by band.
    pub(crate) served: [u64; 3],
}

#[derive(Debug)]
struct Model {
    tokens: f64,
    bytes: f64,
    outputs: Median,
}

/// What one request came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) band: Band,
    pub(crate) cost: u64,
    /// 0 where the prompt came counted.
    pub(crate) prompt_bytes: u64,
    /// Tokens, as the server counts,
    pub(crate) prompt: Option<u64>,
    /// and those of the answer.
    pub(crate) output: Option<u64>,
}

impl Default for Model {
    fn default() -> Self {
        let bytes = RATIO_AT_FIRST_BYTES;
        Self {
            tokens: RATIO_AT_FIRST * bytes,
            bytes,
            outputs: Median::default(),
        }
    }
}

impl TokenHistory {
    pub(crate) fn new() -> Self {
        Self {
            flows: Table::new(HISTORIES_MAX, false),
            models: Table::new(MODELS_MAX, true),
        }
    }

    pub(crate) fn prompt_tokens(&self, model: &str, prompt: Prompt) -> u64 {
        match prompt {
            Prompt::Tokens(tokens) => tokens.0.min(TOKENS_MAX),
            Prompt::Bytes(bytes) => {
                let ratio = self
                    .models
                    .get(model)
                    .map_or(RATIO_AT_FIRST, |model| model.tokens / model.bytes);
                (libm::ceil(bytes as f64 * ratio) as u64).min(TOKENS_MAX)
            }
        }
    }

    /// The median of the flow's last answers, else of the model's, else a constant.
    pub(crate) fn output_tokens(&self, flow: &str, model: &str) -> u64 {
        let of_flow = self.flows.get(flow).and_then(|flow| flow.outputs.value());
        let of_model = || self.models.get(model).and_then(|model| model.outputs.value());
        of_flow.or_else(of_model).unwrap_or(OUTPUT_AT_FIRST)
    }

    /// A request of `flow` to `model` was served.
    pub(crate) fn served(&mut self, flow: &str, model: &str, served: &Served) {
        let prompt = served.prompt.filter(|_| served.prompt_bytes > 0);
        if prompt.is_some() || served.output.is_some() {
            let model = self.models.entry(model);
            if let Some(tokens) = prompt {
                model.tokens = model.tokens * RATIO_KEEP + tokens.min(TOKENS_MAX) as f64;
                model.bytes = model.bytes * RATIO_KEEP + served.prompt_bytes as f64;
            }
            if let Some(tokens) = served.output {
                model.outputs.push(tokens);
            }
        }
        let flow = self.flows.entry(flow);
        if let Some(tokens) = served.output {
            flow.outputs.push(tokens);
        }
        let sum = &mut flow.served[served.band as usize];
        *sum = sum.saturating_add(served.cost);
    }

    /// Every flow that was served and isn't forgotten.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (&str, &Flow)> {
        self.flows
            .entries
            .iter()
            .map(|entry| (&*entry.name, &entry.value))
    }

    pub(crate) fn flow(&self, name: &str) -> Option<&Flow> {
        self.flows.get(name)
    }
}

/// The median of the last [`OUTPUTS_KEPT`]: a ring, and the same sorted.
#[derive(Debug, Default)]
struct Median {
    ring: Vec<u32>,
    oldest: usize,
    sorted: Vec<u32>,
}

impl Median {
    fn push(&mut self, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        let below = |sorted: &[u32], value| sorted.partition_point(|&other| other < value);
        let to = below(&self.sorted, value);
        if self.ring.len() < OUTPUTS_KEPT {
            self.ring.push(value);
            self.sorted.insert(to, value);
            return;
        }
        let old = core::mem::replace(&mut self.ring[self.oldest], value);
        self.oldest = (self.oldest + 1) % OUTPUTS_KEPT;
        let from = below(&self.sorted, old);
        if from < to {
            self.sorted.copy_within(from + 1..to, from);
            self.sorted[to - 1] = value;
        } else {
            self.sorted.copy_within(to..from, to + 1);
            self.sorted[to] = value;
        }
    }

    /// Of an even number: halfway between the two in the middle, rounded down.
    fn value(&self) -> Option<u64> {
        let count = self.sorted.len();
        let upper = u64::from(*self.sorted.get(count / 2)?);
        let lower = u64::from(self.sorted[(count - 1) / 2]);
        Some((lower + upper) / 2)
    }
}

/// A bounded table by name.
#[derive(Debug)]
struct Table<V> {
    entries: Vec<Entry<V>>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    hand: usize,
    max: usize,
    /// Mostly the same is asked for again,
    repeats: bool,
    /// and this is who was asked for last.
    last: usize,
}

#[derive(Debug)]
struct Entry<V> {
    name: Box<str>,
    value: V,
    used: bool,
}

impl<V: Default> Table<V> {
    fn new(max: usize, repeats: bool) -> Self {
        let (entries, index) = (Vec::new(), HashTable::new());
        Self {
            entries,
            index,
            hasher: DefaultHashBuilder::default(),
            hand: 0,
            max,
            repeats,
            last: 0,
        }
    }

    fn get(&self, name: &str) -> Option<&V> {
        let at = self.find(name).or_else(|| self.search(name, self.hash(name)))?;
        Some(&self.entries[at].value)
    }

    fn entry(&mut self, name: &str) -> &mut V {
        let at = self.find(name).unwrap_or_else(|| {
            let hash = self.hash(name);
            let found = self.search(name, hash);
            found.unwrap_or_else(|| self.add(name, hash))
        });
        self.last = at;
        let entry = &mut self.entries[at];
        entry.used = true;
        &mut entry.value
    }

    /// Where it is, if it was asked for last.
    fn find(&self, name: &str) -> Option<usize> {
        let last = self.entries.get(self.last).filter(|_| self.repeats);
        let same = last.is_some_and(|entry| &*entry.name == name);
        same.then_some(self.last)
    }

    fn search(&self, name: &str, hash: u64) -> Option<usize> {
        let found = self
            .index
            .find(hash, |&at| &*self.entries[at as usize].name == name)?;
        Some(*found as usize)
    }

    fn hash(&self, name: &str) -> u64 {
        hash_of(&self.hasher, name)
    }

    fn add(&mut self, name: &str, hash: u64) -> usize {
        let entry = Entry {
            name: name.into(),
            value: V::default(),
            used: true,
        };
        let at = if self.entries.len() < self.max {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            while core::mem::take(&mut self.entries[self.hand].used) {
                self.hand = (self.hand + 1) % self.max;
            }
            let at = self.hand;
            self.hand = (self.hand + 1) % self.max;
            let old = hash_of(&self.hasher, &self.entries[at].name);
            if let Ok(found) = self.index.find_entry(old, |&other| other as usize == at) {
                found.remove();
            }
            self.entries[at] = entry;
            at
        };
        let number = u32::try_from(at).expect("invariant: tables have limits far below 2^32");
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hash, number, |&other| {
            hash_of(hasher, &entries[other as usize].name)
        });
        at
    }
}

fn hash_of(hasher: &DefaultHashBuilder, name: &str) -> u64 {
    core::hash::BuildHasher::hash_one(hasher, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;
    use alloc::format;

    const NOTHING: Served = Served {
        band: Band::Default,
        cost: 0,
        prompt_bytes: 0,
        prompt: None,
        output: None,
    };

    fn answered(learned: &mut TokenHistory, flow: &str, model: &str, tokens: u64) {
        let served = Served {
            output: Some(tokens),
            ..NOTHING
        };
        learned.served(flow, model, &served);
    }

    #[test]
    fn outputs_fall_back_from_flow_to_model_to_a_constant() {
        let mut learned = TokenHistory::new();
        assert_eq!(learned.output_tokens("f", "m"), 256);
        answered(&mut learned, "g", "m", 10);
        answered(&mut learned, "g", "m", 21);
        assert_eq!(learned.output_tokens("f", "m"), 15);
        answered(&mut learned, "f", "other", 7);
        assert_eq!(learned.output_tokens("f", "m"), 7);
    }

    #[test]
    fn only_the_last_outputs_count() {
        let mut median = Median::default();
        for value in [1_000; OUTPUTS_KEPT].into_iter().chain([5; 65]) {
            median.push(value);
        }
        assert_eq!(median.value(), Some(5));
        assert_eq!(
            (median.ring.len(), median.sorted.len()),
            (OUTPUTS_KEPT, OUTPUTS_KEPT)
        );
    }

    #[test]
    fn a_median_is_that_of_what_it_keeps() {
        let mut median = Median::default();
        let mut lot = 1_u32;
        for _ in 0..1_000 {
            lot = lot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            median.push(u64::from(lot >> 26));
            let mut kept = median.ring.clone();
            kept.sort_unstable();
            assert_eq!(kept, median.sorted);
        }
    }

    #[test]
    fn the_ratio_is_learned_per_model() {
        let mut learned = TokenHistory::new();
        assert_eq!(learned.prompt_tokens("m", Prompt::Bytes(4_001)), 1_001);
        for _ in 0..2_000 {
            let prompt = Served {
                prompt_bytes: 1_000,
                prompt: Some(500),
                ..NOTHING
            };
            learned.served("f", "m", &prompt);
        }
        assert_eq!(learned.prompt_tokens("m", Prompt::Bytes(4_000)), 2_000);
        assert_eq!(learned.prompt_tokens("n", Prompt::Bytes(4_000)), 1_000);
        assert_eq!(learned.prompt_tokens("m", Prompt::Tokens(Tokens(9))), 9);
    }

    #[test]
    fn a_full_table_forgets_who_was_not_used() {
        a_full_table(Table::<u64>::new(4, false));
        a_full_table(Table::<u64>::new(4, true));
    }

    fn a_full_table(mut table: Table<u64>) {
        for name in ["a", "b", "c", "d"] {
            *table.entry(name) = 1;
        }
        *table.entry("e") = 1;
        assert!(table.get("a").is_none());
        *table.entry("b") = 2;
        *table.entry("f") = 1;
        assert_eq!((table.get("b"), table.get("c")), (Some(&2), None));
        for number in 0..100 {
            table.entry(&format!("{number}"));
            assert!(table.entries.len() == 4 && table.index.len() == 4);
        }
    }
}
