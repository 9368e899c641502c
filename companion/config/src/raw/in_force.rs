//! What a document says that leaves something open, said out: values that follow from others.

use std::time::Duration;

use super::{Document, Pool, Scrape, StockUnit, Watermark};
use crate::convert::bounds;
use crate::value::{Multiplier, Span, Trusted};

/// How long what was read from a server counts, unless it is read so seldom that this would be too short.
const STALE_AFTER: Duration = Duration::from_secs(5);
/// Requests a ready endpoint works on at a time, if nothing else is said.
pub(crate) const WATERMARK: u64 = 2;

impl Document {
    /// The same document with every value in force. What comes of it is the same; so it is for a document that is
    /// shown, and for nothing that asks whether something was said.
    pub(crate) fn in_force(mut self) -> Self {
        self.identity.trust.get_or_insert(Trusted::All);
        for pool in &mut self.pools {
            pool.say_out();
        }
        self
    }
}

impl Pool {
    fn say_out(&mut self) {
        self.scrape.stale_after = Some(self.scrape.stale_after());
        if self.slo.slo_multiplier.0 == 0.0 {
            self.slo.slo_multiplier = Multiplier(penstock_model::slo::Policy::default().multiplier);
        }
        let stock = &mut self.stock;
        let open = stock.watermark_per_backend.is_none() && matches!(stock.unit, StockUnit::Requests);
        // Bounds that were given may leave the usual watermark outside; it is moved to the nearest of them then.
        if open && bounds(stock, WATERMARK).is_some_and(|it| it.holds_watermark) {
            stock.watermark_per_backend = Some(Watermark::Fixed(WATERMARK));
        }
    }
}

impl Scrape {
    /// How long what was read counts.
    pub(crate) fn stale_after(&self) -> Span {
        self.stale_after
            .unwrap_or_else(|| Span(self.interval.0.saturating_mul(2).max(STALE_AFTER)))
    }
}
