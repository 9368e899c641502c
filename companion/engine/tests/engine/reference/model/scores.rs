//! The scorers' votes, computed from scratch for each choice.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::input::ServerStats;
use penstock_engine::{EndpointId, RequestId};

use super::{Item, Model};

/// Inputs of the scorers beside the stock.
#[derive(Clone, Debug, Default)]
pub struct ScorerInputs {
    pub stats: BTreeMap<EndpointId, ServerStats>,
    /// Prompt prefixes and the endpoints that computed them.
    computed: BTreeSet<(u64, EndpointId)>,
}

impl Model {
    /// Records that `id` was sent to `endpoint`.
    pub(super) fn record_prefix(&mut self, id: RequestId, endpoint: EndpointId) {
        let ready = self.endpoints.get(&endpoint).is_some_and(|server| server.ready);
        if ready && self.keeps_prefixes() {
            let prefix = self.item(id).prefix.clone();
            self.scorer_inputs.computed.extend(prefix.iter().map(|&hash| (hash, endpoint)));
        }
    }

    /// A scorer uses prefixes, or the policy counts cached tokens.
    fn keeps_prefixes(&self) -> bool {
        self.policy.scheduler.prefix > 0.0 || self.policy.counts_cached_tokens()
    }

    /// Discards prefixes that the policy doesn't use.
    pub(super) fn discard_unused_prefixes(&mut self) {
        if !self.keeps_prefixes() {
            self.scorer_inputs.computed.clear();
        }
    }

    /// Discards the prefixes of endpoints that aren't ready, and the stats of unlisted ones.
    pub(super) fn forget_cache(&mut self, endpoint: EndpointId) {
        self.scorer_inputs.computed.retain(|(_, id)| *id != endpoint);
    }

    pub(super) fn discard_lost_state(&mut self) {
        let endpoints = &self.endpoints;
        let ready = |id: &EndpointId| endpoints.get(id).is_some_and(|server| server.ready);
        self.scorer_inputs.computed.retain(|(_, id)| ready(id));
        self.scorer_inputs.stats.retain(|id, _| endpoints.contains_key(id));
    }

    /// The score of an endpoint; 0 if only the stock has a vote. `free` is the stock's vote; `ahead` is set if the
    /// endpoint has far more load than the least loaded one.
    pub(super) fn score(&self, item: &Item, id: EndpointId, free: f64, ahead: bool) -> f64 {
        let weights = self.policy.scheduler;
        let asks_prefixes =
            weights.prefix > 0.0 && !item.prefix.is_empty() && !self.scorer_inputs.computed.is_empty();
        let counts = |stats: &ServerStats| {
            (stats.waiting.is_some() && weights.queue > 0.0)
                || (stats.kv_used.is_some() && weights.kv_cache > 0.0)
                || (stats.adapters.is_some() && weights.lora > 0.0)
        };
        if !asks_prefixes && !self.scorer_inputs.stats.values().any(counts) {
            return 0.0;
        }
        if ahead {
            return -1.0;
        }
        let stats = self.scorer_inputs.stats.get(&id).cloned().unwrap_or_default();
        let mut votes = vec![(weights.stock, free)];
        if let Some(waiting) = stats.waiting {
            votes.push((weights.queue, 1.0 / (1.0 + waiting as f64)));
        }
        if let Some(used) = stats.kv_used {
            votes.push((weights.kv_cache, 1.0 - used));
        }
        if asks_prefixes {
            // Prompts have a token count here, so the length of a cached prefix is not known.
            let is_cached = item.prefix.iter().any(|&hash| self.scorer_inputs.computed.contains(&(hash, id)));
            votes.push((weights.prefix, f64::from(u8::from(is_cached))));
        }
        if let Some(adapters) = stats.adapters {
            votes.push((weights.lora, f64::from(u8::from(adapters.contains(&item.target)))));
        }
        let weight: f64 = votes.iter().map(|(weight, _)| weight).sum();
        let sum: f64 = votes.iter().map(|(weight, vote)| weight * vote).sum();
        if weight > 0.0 { sum / weight } else { 0.0 }
    }
}
