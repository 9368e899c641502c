//! The cached part of prompts: predicted by the index of prefixes, and discounted by what the endpoints' answers confirm.

use super::Endpoints;
use crate::endpoint::Endpoint;
use crate::endpoint::cache_trust::CacheTrust;
use crate::ids::EndpointIndex;
use crate::input::EndpointId;

/// Endpoints with the same prefix whose trust is compared.
const HOLDERS_MAX: usize = 8;

/// A prompt that came in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedPrompt<'a> {
    /// Hashes of its prefixes.
    pub(crate) prefix: &'a [u64],
    /// The length of the whole prompt.
    pub(crate) bytes: u64,
    /// The prompt's tokens.
    pub(crate) tokens: u64,
}

impl HashedPrompt<'_> {
    /// The tokens of its first `bytes`.
    fn tokens_of(&self, bytes: u64) -> u64 {
        if self.bytes == 0 {
            return 0;
        }
        // At most `tokens`.
        let part = u128::from(self.tokens) * u128::from(bytes.min(self.bytes));
        (part / u128::from(self.bytes)) as u64
    }
}

impl Endpoints {
    /// The prompt tokens that one endpoint of `eligible` probably has cached: the longest prefix that was sent to one of them, as far
    /// as answers confirm such predictions there. `None`: any endpoint. `eligible` is sorted.
    pub(crate) fn cached_tokens(&self, eligible: Option<&[EndpointId]>, prompt: &HashedPrompt<'_>) -> u64 {
        let Some((bytes, holders)) = self.scorer.longest_computed(eligible, prompt.prefix) else {
            return 0;
        };
        let predicted = prompt.tokens_of(bytes);
        // Servers of a pool mostly have the same settings, so a few tell enough.
        let holders = holders.take(HOLDERS_MAX).filter_map(|id| self.get(id));
        let cached = holders.map(|endpoint| endpoint.cache_trust.of(predicted));
        cached.max().unwrap_or(0)
    }

    /// The prompt tokens that `endpoint` has cached by the index alone.
    pub(crate) fn predicted_tokens_at(&self, endpoint: EndpointId, prompt: &HashedPrompt<'_>) -> u64 {
        prompt.tokens_of(self.scorer.computed_bytes_at(endpoint, prompt.prefix))
    }

    /// The prompt tokens that `endpoint` probably has cached.
    pub(crate) fn cached_tokens_at(&self, endpoint: &Endpoint, prompt: &HashedPrompt<'_>) -> u64 {
        endpoint.cache_trust.of(self.predicted_tokens_at(endpoint.id, prompt))
    }

    /// The server of `id` has lost its cache: it was restarted, or may have been. What its answers confirmed was about the lost cache.
    pub(crate) fn forget_cache(&mut self, id: EndpointId) {
        if let Some(&index) = self.indices.get(&id) {
            let endpoint = &mut self.all[index];
            endpoint.cache_trust = CacheTrust::default();
            self.scorer.cache_lost(endpoint);
        }
    }

    /// The server at `index` has answered a prompt of which `predicted` tokens were expected in its cache. `cached`: as it counts.
    pub(crate) fn record_cached(&mut self, index: EndpointIndex, predicted: u64, cached: Option<u64>) {
        self.all[index].cache_trust.record(predicted, cached);
    }
}
