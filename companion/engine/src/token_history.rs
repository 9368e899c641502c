//! Statistics of served requests: tokens per byte of a model's prompts, and the length of answers.
//!
//! The engine uses them as estimates until the server counts: for order and charge only, and settled later. Both tables
//! are bounded and evict an entry that wasn't used for long (second chance). A flow without an entry is estimated by its
//! model.

mod median;
mod table;

use self::median::Median;
use self::table::Table;
use crate::cost::TOKENS_MAX;
use crate::hashed_name::{HashedName, NameHasher};
use crate::input::{Band, Prompt};
use crate::limits::{HISTORIES_MAX, MODELS_MAX};

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
    hasher: NameHasher,
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
    /// Tokens of the answer, as the server counted: of one sequence.
    pub(crate) output: Option<u64>,
}

impl Default for ModelHistory {
    fn default() -> Self {
        let bytes = RATIO_DEFAULT_BYTES;
        Self { tokens: RATIO_DEFAULT * bytes, bytes, outputs: Median::default() }
    }
}

impl TokenHistory {
    /// `hasher` gives the hashes of the flows' names.
    pub(crate) fn new(hasher: NameHasher) -> Self {
        Self { flows: Table::new(HISTORIES_MAX), models: Table::new(MODELS_MAX), hasher }
    }

    /// A flow's name with its hash.
    pub(crate) fn hashed<'a>(&self, flow: &'a str) -> HashedName<'a> {
        self.hasher.hashed(flow)
    }

    pub(crate) fn prompt_tokens(&self, model: &str, prompt: Prompt) -> u64 {
        match prompt {
            Prompt::Tokens(tokens) => tokens.0.min(TOKENS_MAX),
            Prompt::Bytes(bytes) => {
                let ratio = self.model(model).map_or(RATIO_DEFAULT, |model| model.tokens / model.bytes);
                (libm::ceil(bytes as f64 * ratio) as u64).min(TOKENS_MAX)
            }
        }
    }

    /// Prompts of at most so many bytes have fewer than `tokens` tokens, whatever their model.
    pub(crate) fn bytes_below(&self, tokens: u64) -> u64 {
        let known = self.models.iter().map(|(_, model)| model.tokens / model.bytes);
        let ratio = known.fold(RATIO_DEFAULT, f64::max);
        (tokens.saturating_sub(1) as f64 / ratio) as u64
    }

    /// The output of one sequence: the median of the flow's last answers, else of the model's, else [`OUTPUT_DEFAULT`].
    pub(crate) fn output_tokens(&self, flow: HashedName<'_>, model: &str) -> u64 {
        let flow_median = self.flows.get(flow).and_then(|flow| flow.outputs.value());
        let model_median = || self.model(model).and_then(|model| model.outputs.value());
        flow_median.or_else(model_median).unwrap_or(OUTPUT_DEFAULT)
    }

    /// Records a served request of `flow` to `model`.
    pub(crate) fn served(&mut self, flow: HashedName<'_>, model: &str, served: &Served) {
        let prompt = served.prompt.zip(served.prompt_bytes.filter(|&bytes| bytes > 0));
        if prompt.is_some() || served.output.is_some() {
            let model = self.model_mut(model);
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
        self.flows.iter()
    }

    pub(crate) fn flow(&self, name: HashedName<'_>) -> Option<&FlowHistory> {
        self.flows.get(name)
    }

    /// Successive requests are mostly for the same model, so the entry that was used last is tried before any hashing.
    fn model(&self, name: &str) -> Option<&ModelHistory> {
        let last = self.models.last_used(name);
        last.or_else(|| self.models.get(self.hasher.hashed(name)))
    }

    fn model_mut(&mut self, name: &str) -> &mut ModelHistory {
        if self.models.last_used(name).is_some() {
            return self.models.last_mut();
        }
        self.models.entry(self.hasher.hashed(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;

    const NOTHING: Served =
        Served { band: Band::Default, cost: 0, prompt_bytes: None, prompt: None, output: None };

    fn serve(learned: &mut TokenHistory, flow: &str, model: &str, served: &Served) {
        let hasher = learned.hasher.clone();
        learned.served(hasher.hashed(flow), model, served);
    }

    fn expected(learned: &TokenHistory, flow: &str, model: &str) -> u64 {
        learned.output_tokens(learned.hashed(flow), model)
    }

    fn answered(learned: &mut TokenHistory, flow: &str, model: &str, tokens: u64) {
        let served = Served { output: Some(tokens), ..NOTHING };
        serve(learned, flow, model, &served);
    }

    #[test]
    fn expected_outputs_fall_back_from_flow_to_model_to_a_constant() {
        let mut learned = TokenHistory::new(NameHasher::default());
        assert_eq!(expected(&learned, "f", "m"), 256);
        answered(&mut learned, "g", "m", 10);
        answered(&mut learned, "g", "m", 21);
        assert_eq!(expected(&learned, "f", "m"), 15);
        answered(&mut learned, "f", "other", 7);
        assert_eq!(expected(&learned, "f", "m"), 7);
    }

    #[test]
    fn no_prompt_below_the_length_has_as_many_tokens_whatever_its_model() {
        let mut learned = TokenHistory::new(NameHasher::default());
        assert_eq!(learned.bytes_below(256), 1_020, "four bytes a token");
        for (model, bytes) in [("dense", 2_000), ("sparse", 9_000)] {
            let served = Served { prompt_bytes: Some(bytes), prompt: Some(1_000), ..NOTHING };
            for _ in 0..50 {
                serve(&mut learned, "f", model, &served);
            }
        }
        let longest = learned.bytes_below(256);
        assert!((510..600).contains(&longest), "{longest}");
        for model in ["dense", "sparse", "unknown"] {
            assert!(learned.prompt_tokens(model, Prompt::Bytes(longest)) < 256, "{model}");
        }
    }

    #[test]
    fn the_ratio_is_learned_per_model() {
        let mut learned = TokenHistory::new(NameHasher::default());
        assert_eq!(learned.prompt_tokens("m", Prompt::Bytes(4_001)), 1_001);
        for _ in 0..2_000 {
            let prompt = Served { prompt_bytes: Some(1_000), prompt: Some(500), ..NOTHING };
            serve(&mut learned, "f", "m", &prompt);
        }
        assert_eq!(learned.prompt_tokens("m", Prompt::Bytes(4_000)), 2_000);
        assert_eq!(learned.prompt_tokens("n", Prompt::Bytes(4_000)), 1_000);
        assert_eq!(learned.prompt_tokens("m", Prompt::Tokens(Tokens(9))), 9);
    }
}
