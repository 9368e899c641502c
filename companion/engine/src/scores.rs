//! The score of an endpoint for a request: the weighted mean of the scorers' votes.
//!
//! Each scorer votes with a number from 0 to 1, or abstains where it has no data; an abstention counts neither for nor
//! against. Scores only order endpoints that have room: the worst one still takes a request that no other takes. An
//! endpoint whose stock is a quarter of its bound above the least loaded one comes after all that aren't, whatever the
//! scores, so that no server idles; with small bounds the least stock decides.

use core::cmp::Ordering;

use crate::endpoint::Endpoint;
use crate::input::{EndpointId, ServerStats};
use crate::policy::Scorers;
use crate::prefixes::{Prefixes, prefix_bytes};

/// The attributes of a request that scorers use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoredRequest<'a> {
    /// The model that the server runs.
    pub(crate) model: &'a str,
    /// Hashes of the prompt's prefixes.
    pub(crate) prefix: &'a [u64],
    /// Length of the whole prompt, if it came in bytes.
    pub(crate) prompt_bytes: Option<u64>,
}

/// A score. The order of scores is best first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score(f64);

impl Score {
    pub(crate) const NONE: Self = Self(0.0);
    /// Below every other score: the endpoint's stock is too far above the least.
    pub(crate) const OVERLOADED: Self = Self(-1.0);

    pub(crate) fn order(self, other: Self) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

/// The scorers' weights, and the prefixes that endpoints computed.
#[derive(Debug, Default)]
pub(crate) struct EndpointScorer {
    weights: Scorers,
    /// The policy counts cached tokens, so prefixes are kept even if no scorer uses them.
    counts_cached: bool,
    prefixes: Prefixes,
    /// Endpoints with a metric that a scorer of positive weight uses.
    voting: usize,
}

impl EndpointScorer {
    /// Changes the weights. `counts_cached`: the policy counts cached tokens. `all`: the metrics of every endpoint.
    pub(crate) fn set_weights<'a>(
        &mut self,
        weights: Scorers,
        counts_cached: bool,
        all: impl Iterator<Item = &'a ServerStats>,
    ) {
        self.weights = weights;
        self.counts_cached = counts_cached;
        self.voting = all.filter(|stats| self.counts(stats)).count();
        if !self.keeps_prefixes() {
            self.prefixes = Prefixes::default();
        }
    }

    fn keeps_prefixes(&self) -> bool {
        self.counts_cached || self.weights.prefix > 0.0
    }

    /// The metrics of one endpoint changed.
    pub(crate) fn stats_changed(&mut self, from: &ServerStats, to: &ServerStats) {
        self.voting = self.voting + usize::from(self.counts(to)) - usize::from(self.counts(from));
    }

    fn counts(&self, stats: &ServerStats) -> bool {
        let weights = &self.weights;
        weights.queue > 0.0 && stats.waiting.is_some()
            || weights.kv_cache > 0.0 && stats.kv_used.is_some()
            || weights.lora > 0.0 && stats.adapters.is_some()
    }

    pub(crate) const fn weights(&self) -> Scorers {
        self.weights
    }

    pub(crate) const fn voting(&self) -> usize {
        self.voting
    }

    /// Some scorer besides the stock's has data for `request`.
    pub(crate) fn has_votes(&self, request: &ScoredRequest<'_>) -> bool {
        self.voting > 0 || self.scores_prefixes(request)
    }

    fn scores_prefixes(&self, request: &ScoredRequest<'_>) -> bool {
        self.weights.prefix > 0.0 && !request.prefix.is_empty() && !self.prefixes.is_empty()
    }

    /// `endpoint` computes a prompt with these prefixes.
    pub(crate) fn prompt_sent(&mut self, endpoint: &Endpoint, prefix: &[u64]) {
        if self.keeps_prefixes() && endpoint.ready {
            self.prefixes.add(endpoint.id, prefix);
        }
    }

    /// The longest of these prefixes that one endpoint of `eligible` has computed, in bytes, and the endpoints that have; `None`: any
    /// endpoint. `eligible` is sorted.
    pub(crate) fn longest_computed<'a>(
        &'a self,
        eligible: Option<&'a [EndpointId]>,
        prefix: &[u64],
    ) -> Option<(u64, impl Iterator<Item = EndpointId> + 'a)> {
        let index = self.prefixes.longest(eligible, prefix).checked_sub(1)?;
        Some((prefix_bytes(index), self.prefixes.holders(prefix[index], eligible)))
    }

    /// Bytes of the longest of these prefixes that `endpoint` has computed.
    pub(crate) fn computed_bytes_at(&self, endpoint: EndpointId, prefix: &[u64]) -> u64 {
        let matched = self.prefixes.matched(endpoint, prefix);
        matched.checked_sub(1).map_or(0, prefix_bytes)
    }

    /// `endpoint` has lost its cache.
    pub(crate) fn cache_lost(&mut self, endpoint: &Endpoint) {
        if !self.prefixes.is_empty() {
            self.prefixes.forget(endpoint.id);
        }
    }

    /// The mean of the votes. `free`: the free part of the endpoint's bound, 0 to 1.
    pub(crate) fn score(&self, endpoint: &Endpoint, free: f64, request: &ScoredRequest<'_>) -> Score {
        let (weights, stats) = (&self.weights, &endpoint.stats);
        // One half with one request in the server's queue, one third with two.
        let queue = stats.waiting.map(|waiting| 1.0 / (1.0 + waiting as f64));
        let kv_cache = stats.kv_used.map(|used| 1.0 - used.clamp(0.0, 1.0));
        let prefix = self.scores_prefixes(request).then(|| {
            let bytes = self.computed_bytes_at(endpoint.id, request.prefix);
            bytes as f64 / request.prompt_bytes.unwrap_or(0).max(bytes).max(1) as f64
        });
        let lora = stats.adapters.as_ref().map(|adapters| {
            let holds = adapters.iter().any(|adapter| **adapter == *request.model);
            f64::from(u8::from(holds))
        });
        let votes = [
            (weights.stock, Some(free)),
            (weights.queue, queue),
            (weights.kv_cache, kv_cache),
            (weights.prefix, prefix),
            (weights.lora, lora),
        ];
        let (weight, sum) = votes
            .into_iter()
            .filter_map(|(weight, vote)| Some((weight, vote?)))
            .fold((0.0, 0.0), |(all, sum), (weight, vote)| (all + weight, sum + weight * vote));
        Score(if weight > 0.0 { sum / weight } else { 0.0 })
    }
}
