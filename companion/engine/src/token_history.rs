//! Statistics of served requests: tokens per byte of a model's prompts, and the length of answers.
//!
//! The engine uses them as estimates until the server counts: for order and charge only, and settled later. Both tables
//! are bounded and evict an entry that wasn't used for long (second chance). A flow without an entry is estimated by its
//! model.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::cost::TOKENS_MAX;
use crate::input::{Band, Prompt};
use crate::limits::{HISTORIES_MAX, MODELS_MAX, OUTPUTS_KEPT};

/// Tokens per byte of an unknown model.
const RATIO_DEFAULT: f64 = 0.25;
/// Bytes that the default ratio weighs, so that a few short prompts don't overturn it.
const RATIO_DEFAULT_BYTES: f64 = 1_024.0;
/// The factor on older prompts at each new one.
const RATIO_DECAY: f64 = 1.0 - 1.0 / 128.0;
/// Output tokens expected of an unknown flow and model.
const OUTPUT_DEFAULT: u64 = 256;

#[derive(Debug)]
pub(crate) struct TokenHistory {
    flows: Table<FlowHistory>,
    models: Table<ModelHistory>,
}

#[derive(Debug, Default)]
pub(crate) struct FlowHistory {
    outputs: Median,
    /// Settled cost, by band.
    pub(crate) served: [u64; 3],
}

#[derive(Debug)]
struct ModelHistory {
    tokens: f64,
    bytes: f64,
    outputs: Median,
}

/// One served request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) band: Band,
    pub(crate) cost: u64,
    /// `None`: the prompt's tokens were known at registration.
    pub(crate) prompt_bytes: Option<u64>,
    /// Tokens of the prompt, as the server counted.
    pub(crate) prompt: Option<u64>,
    /// Tokens of the answer, as the server counted.
    pub(crate) output: Option<u64>,
}

impl Default for ModelHistory {
    fn default() -> Self {
        let bytes = RATIO_DEFAULT_BYTES;
        Self {
            tokens: RATIO_DEFAULT * bytes,
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
                    .map_or(RATIO_DEFAULT, |model| model.tokens / model.bytes);
                (libm::ceil(bytes as f64 * ratio) as u64).min(TOKENS_MAX)
            }
        }
    }

    /// Prompts of at most so many bytes have fewer than `tokens` tokens, whatever their model.
    pub(crate) fn bytes_below(&self, tokens: u64) -> u64 {
        let known = self
            .models
            .entries
            .iter()
            .map(|entry| entry.value.tokens / entry.value.bytes);
        let ratio = known.fold(RATIO_DEFAULT, f64::max);
        (tokens.saturating_sub(1) as f64 / ratio) as u64
    }

    /// The median of the flow's last answers, else of the model's, else [`OUTPUT_DEFAULT`].
    pub(crate) fn output_tokens(&self, flow: &str, model: &str) -> u64 {
        let flow_median = self.flows.get(flow).and_then(|flow| flow.outputs.value());
        let model_median = || self.models.get(model).and_then(|model| model.outputs.value());
        flow_median.or_else(model_median).unwrap_or(OUTPUT_DEFAULT)
    }

    /// Records a served request of `flow` to `model`.
    pub(crate) fn served(&mut self, flow: &str, model: &str, served: &Served) {
        let prompt = served.prompt.zip(served.prompt_bytes.filter(|&bytes| bytes > 0));
        if prompt.is_some() || served.output.is_some() {
            let model = self.models.entry(model);
            if let Some((tokens, bytes)) = prompt {
                model.tokens = model.tokens * RATIO_DECAY + tokens.min(TOKENS_MAX) as f64;
                model.bytes = model.bytes * RATIO_DECAY + bytes as f64;
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

    /// Every flow with an entry.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (&str, &FlowHistory)> {
        self.flows
            .entries
            .iter()
            .map(|entry| (&*entry.name, &entry.value))
    }

    pub(crate) fn flow(&self, name: &str) -> Option<&FlowHistory> {
        self.flows.get(name)
    }
}

/// The median of the last [`OUTPUTS_KEPT`] values: a ring, and the same values sorted.
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

    /// Of an even number of values: the mean of the middle two, rounded down.
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
    /// The next candidate for eviction.
    hand: usize,
    max: usize,
    /// Successive lookups mostly ask for the same name, so the last entry is tried first.
    repeats: bool,
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
        let position = self
            .last_entry(name)
            .or_else(|| self.search(name, self.hash(name)))?;
        Some(&self.entries[position].value)
    }

    fn entry(&mut self, name: &str) -> &mut V {
        let position = self.last_entry(name).unwrap_or_else(|| {
            let hash = self.hash(name);
            let found = self.search(name, hash);
            found.unwrap_or_else(|| self.add(name, hash))
        });
        self.last = position;
        let entry = &mut self.entries[position];
        entry.used = true;
        &mut entry.value
    }

    /// The position of the entry that was used last, if that is the one of `name`.
    fn last_entry(&self, name: &str) -> Option<usize> {
        let last = self.entries.get(self.last).filter(|_| self.repeats);
        let same = last.is_some_and(|entry| &*entry.name == name);
        same.then_some(self.last)
    }

    fn search(&self, name: &str, hash: u64) -> Option<usize> {
        let found = self
            .index
            .find(hash, |&position| &*self.entries[position as usize].name == name)?;
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
        let position = if self.entries.len() < self.max {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            self.evict_for(entry)
        };
        let number = u32::try_from(position).expect("invariant: tables have limits far below 2^32");
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hash, number, |&other| {
            hash_of(hasher, &entries[other as usize].name)
        });
        position
    }

    /// Puts `entry` in the place of one that wasn't used since the hand last passed it.
    fn evict_for(&mut self, entry: Entry<V>) -> usize {
        while core::mem::take(&mut self.entries[self.hand].used) {
            self.hand = (self.hand + 1) % self.max;
        }
        let position = self.hand;
        self.hand = (self.hand + 1) % self.max;
        let old = hash_of(&self.hasher, &self.entries[position].name);
        if let Ok(found) = self.index.find_entry(old, |&other| other as usize == position) {
            found.remove();
        }
        self.entries[position] = entry;
        position
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
        prompt_bytes: None,
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
    fn expected_outputs_fall_back_from_flow_to_model_to_a_constant() {
        let mut learned = TokenHistory::new();
        assert_eq!(learned.output_tokens("f", "m"), 256);
        answered(&mut learned, "g", "m", 10);
        answered(&mut learned, "g", "m", 21);
        assert_eq!(learned.output_tokens("f", "m"), 15);
        answered(&mut learned, "f", "other", 7);
        assert_eq!(learned.output_tokens("f", "m"), 7);
    }

    #[test]
    fn no_prompt_below_the_length_has_as_many_tokens_whatever_its_model() {
        let mut learned = TokenHistory::new();
        assert_eq!(learned.bytes_below(256), 1_020, "four bytes a token");
        for (model, bytes) in [("dense", 2_000), ("sparse", 9_000)] {
            let served = Served {
                prompt_bytes: Some(bytes),
                prompt: Some(1_000),
                ..NOTHING
            };
            for _ in 0..50 {
                learned.served("f", model, &served);
            }
        }
        let longest = learned.bytes_below(256);
        assert!((510..600).contains(&longest), "{longest}");
        for model in ["dense", "sparse", "unknown"] {
            assert!(
                learned.prompt_tokens(model, Prompt::Bytes(longest)) < 256,
                "{model}"
            );
        }
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
    fn a_median_is_that_of_the_kept_values() {
        let mut median = Median::default();
        let mut random = 1_u32;
        for _ in 0..1_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            median.push(u64::from(random >> 26));
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
                prompt_bytes: Some(1_000),
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
    fn a_full_table_evicts_an_unused_entry() {
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
