//! The scorers' votes, all counted anew for each choice.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::input::ServerStats;
use penstock_engine::{EndpointId, RequestId};

use super::{Item, Model};

/// What is known of the servers beside what runs there.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub stats: BTreeMap<EndpointId, ServerStats>,
    /// Beginnings of prompts, and who computed them.
    computed: BTreeSet<(u64, EndpointId)>,
}

impl Model {
    /// `id` was sent to `endpoint`.
    pub(super) fn computes(&mut self, id: RequestId, endpoint: EndpointId) {
        let ready = self.endpoints.get(&endpoint).is_some_and(|server| server.ready);
        if ready && self.policy.scheduler.prefix > 0.0 {
            let prefix = self.item(id).prefix.clone();
            self.seen
                .computed
                .extend(prefix.iter().map(|&hash| (hash, endpoint)));
        }
    }

    /// Who isn't ready holds nothing any more.
    pub(super) fn lose(&mut self) {
        let endpoints = &self.endpoints;
        let ready = |id: &EndpointId| endpoints.get(id).is_some_and(|server| server.ready);
        self.seen.computed.retain(|(_, id)| ready(id));
        self.seen.stats.retain(|id, _| endpoints.contains_key(id));
    }

    /// 0 where nobody but the stock has a vote; `free`: that vote. `ahead`: it has far more than another.
    pub(super) fn score(&self, item: &Item, id: EndpointId, free: f64, ahead: bool) -> f64 {
        let weights = self.policy.scheduler;
        let asks_prefixes = weights.prefix > 0.0 && !item.prefix.is_empty() && !self.seen.computed.is_empty();
        let counts = |stats: &ServerStats| {
            (stats.waiting.is_some() && weights.queue > 0.0)
                || (stats.kv_used.is_some() && weights.kv_cache > 0.0)
                || (stats.adapters.is_some() && weights.lora > 0.0)
        };
        if !asks_prefixes && !self.seen.stats.values().any(counts) {
            return 0.0;
        }
        if ahead {
            return -1.0;
        }
        let stats = self.seen.stats.get(&id).cloned().unwrap_or_default();
        let mut votes = vec![(weights.stock, free)];
        if let Some(waiting) = stats.waiting {
            votes.push((weights.queue, 1.0 / (1.0 + waiting as f64)));
        }
        if let Some(used) = stats.kv_used {
            votes.push((weights.kv_cache, 1.0 - used));
        }
        if asks_prefixes {
            // Prompts come counted here, so that a beginning is all that is known of their length.
            let held = item
                .prefix
                .iter()
                .any(|&hash| self.seen.computed.contains(&(hash, id)));
            votes.push((weights.prefix, f64::from(u8::from(held))));
        }
        if let Some(adapters) = stats.adapters {
            votes.push((weights.lora, f64::from(u8::from(adapters.contains(&item.target)))));
        }
        let weight: f64 = votes.iter().map(|(weight, _)| weight).sum();
        let sum: f64 = votes.iter().map(|(weight, vote)| weight * vote).sum();
        if weight > 0.0 { sum / weight } else { 0.0 }
    }
}
