//! Which of the endpoints that take a request is the best for it: a mean of votes, by weight.
//!
//! Each scorer says a number from 0 to 1 of an endpoint, or nothing where it doesn't know; what isn't known doesn't count,
//! for or against. Nobody is kept from anything by a score: who has no room isn't asked, and one that scores worst
//! still takes what nobody else does. Nor does a score leave others idle: who is a quarter of its bound ahead of the
//! least loaded comes after all that aren't, so that with small bounds the least stock decides.

use core::cmp::Ordering;

use crate::endpoint::Endpoint;
use crate::input::ServerStats;
use crate::policy::Scorers;
use crate::prefixes::{Prefixes, bytes_of};

/// What of a request the scorers look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// The model that the server is asked for.
    pub(crate) model: &'a str,
    /// The beginnings of its prompt.
    pub(crate) prefix: &'a [u64],
    /// Of the whole prompt; 0: not known.
    pub(crate) prompt_bytes: u64,
}

/// How an endpoint does by its score: more is less, so that the best comes first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score(f64);

impl Score {
    pub(crate) const NONE: Self = Self(0.0);
    /// Below every other: it would have far more than another has.
    pub(crate) const AHEAD: Self = Self(-1.0);

    pub(crate) fn order(self, other: Self) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

/// What says the score: weights and what is remembered of prompts.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    weights: Scorers,
    prefixes: Prefixes,
    /// Endpoints of which a server has said something that counts.
    voting: usize,
}

impl Scheduler {
    /// Other weights. `all`: what every endpoint's server said last.
    pub(crate) fn weigh<'a>(&mut self, weights: Scorers, all: impl Iterator<Item = &'a ServerStats>) {
        self.weights = weights;
        self.voting = all.filter(|stats| self.counts(stats)).count();
    }

    /// What the server of one endpoint says has changed.
    pub(crate) fn changed(&mut self, from: &ServerStats, to: &ServerStats) {
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

    /// Somebody besides the stock has a vote.
    pub(crate) fn is_asked(&self, ask: &Ask<'_>) -> bool {
        self.voting > 0 || self.asks_prefixes(ask)
    }

    fn asks_prefixes(&self, ask: &Ask<'_>) -> bool {
        self.weights.prefix > 0.0 && !ask.prefix.is_empty() && !self.prefixes.is_empty()
    }

    /// `endpoint` computes a prompt.
    pub(crate) fn sent(&mut self, endpoint: &Endpoint, prefix: &[u64]) {
        if self.weights.prefix > 0.0 && endpoint.ready {
            self.prefixes.add(endpoint.id, prefix);
        }
    }

    /// What `endpoint` held is gone.
    pub(crate) fn lost(&mut self, endpoint: &Endpoint) {
        if !self.prefixes.is_empty() {
            self.prefixes.forget(endpoint.id);
        }
    }

    /// The mean of the votes. `free`: the part of its bound that is free, 0 to 1.
    pub(crate) fn score(&self, endpoint: &Endpoint, free: f64, ask: &Ask<'_>) -> Score {
        let (weights, stats) = (&self.weights, &endpoint.stats);
        // Half with one that waits there, a third with two.
        let queue = stats.waiting.map(|waiting| 1.0 / (1.0 + waiting as f64));
        let kv_cache = stats.kv_used.map(|used| 1.0 - used.clamp(0.0, 1.0));
        let prefix = self.asks_prefixes(ask).then(|| {
            let matched = self.prefixes.matched(endpoint.id, ask.prefix);
            let bytes = matched.checked_sub(1).map_or(0, bytes_of);
            bytes as f64 / ask.prompt_bytes.max(bytes).max(1) as f64
        });
        let lora = stats.adapters.as_ref().map(|adapters| {
            let holds = adapters.iter().any(|adapter| **adapter == *ask.model);
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
            .fold((0.0, 0.0), |(all, sum), (weight, vote)| {
                (all + weight, sum + weight * vote)
            });
        Score(if weight > 0.0 { sum / weight } else { 0.0 })
    }
}
