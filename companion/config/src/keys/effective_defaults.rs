//! Defaults that follow from other keys, written into the document so that it shows every effective value.

use std::time::Duration;

use penstock_engine::policy::StockUnit;

use super::stock::WATERMARK;
use super::{Document, Pool, Scrape, Watermark};
use crate::Trust;
use crate::value::{Multiplier, PositiveDuration, Shortened};

/// How long scraped values count, unless the interval is so long that they would be stale before they are read again.
const STALE_AFTER: Duration = Duration::from_secs(5);

impl Document {
    /// This document with every effective value. The meaning stays, except that `identity.trust` counts as given.
    pub(crate) fn with_effective_defaults(mut self) -> Self {
        self.identity.trust.get_or_insert(Trust::All);
        self.shutdown.queued = Some(self.shutdown.queued(&self.picker));
        for pool in &mut self.pools {
            pool.fill_in_defaults();
        }
        self
    }
}

impl Pool {
    fn fill_in_defaults(&mut self) {
        self.scrape.stale_after = Some(self.scrape.stale_after());
        let defaults = &self.endpoints.defaults;
        for Shortened(endpoint) in self.endpoints.listed.iter_mut().flatten() {
            endpoint.variant.get_or_insert_with(|| defaults.variant.clone());
            endpoint.max_batch = endpoint.max_batch.or(Some(defaults.max_batch));
            endpoint.max_batched_tokens = endpoint.max_batched_tokens.or(defaults.max_batched_tokens);
        }
        if self.slo.slo_multiplier.0 == 0.0 {
            self.slo.slo_multiplier = Multiplier(penstock_model::slo::MULTIPLIER);
        }
        let stock = &mut self.stock;
        let is_default = stock.watermark_per_backend.is_none() && !matches!(stock.unit, StockUnit::Tokens);
        // If the given bounds exclude the default watermark, the effective one is the nearest bound, which need not be a whole
        // number. Then the key stays empty.
        if is_default && stock.bounds(WATERMARK).is_some_and(|bounds| bounds.holds_watermark) {
            stock.watermark_per_backend = Some(Watermark::Fixed(WATERMARK));
        }
    }
}

impl Scrape {
    /// `stale_after`, or its default.
    pub(crate) fn stale_after(&self) -> PositiveDuration {
        self.stale_after
            .unwrap_or_else(|| PositiveDuration(self.interval.0.saturating_mul(2).max(STALE_AFTER)))
    }
}
