//! Places above the bound of one endpoint, for flows with nothing running.
//!
//! What runs there doesn't fill the bound, so it takes none of its places from the flows that take turns. An endpoint that is held to fewer
//! requests than its bound, because it starts slowly, is probed or refuses requests, has no such places.

use super::Endpoint;
use crate::load::Load;
use crate::policy::{ExtraPlaces, Gate, StockUnit};

impl Endpoint {
    /// The stock within the bound.
    pub(crate) const fn within(&self) -> u64 {
        self.stock.saturating_sub(self.extra())
    }

    /// The stock in places above the bound, in the unit of the gate.
    pub(crate) const fn extra(&self) -> u64 {
        self.running.extra.in_unit(self.unit)
    }

    /// A request with this load fits above the bound.
    pub(crate) fn takes_above(&self, load: &Load, gate: Gate) -> bool {
        let places = self.extra_places;
        let is_limited = self.starting_limit().is_some() || self.pushback.limit().is_some();
        if !self.ready || is_limited || !places.is_on(gate) || self.prefills_for_others() {
            return false;
        }
        let allowance = self.allowance_in(gate);
        // Under an allowance without a limit on requests, the typical number stands for a bound.
        let limit = Some(self.bound).filter(|bound| *bound != u64::MAX);
        let bound = limit.or_else(|| Some(allowance?.typical));
        let Some(bound) = bound else { return false };
        // What doesn't fit into a server waits inside it, and gains nothing.
        let fits_server = allowance.is_none_or(|allowance| {
            let resident = self.in_flight().resident().saturating_add(load.tokens);
            let sequences = self.sequences().saturating_add(self.foreign).saturating_add(load.sequences);
            allowance.kv_tokens_max.is_none_or(|most| resident <= most)
                && allowance.sequences_max.is_none_or(|most| sequences <= most)
        });
        let whole = if allowance.is_some() { self.whole(gate) } else { bound };
        let above = places.above(whole, self.unit);
        let extra = self.running.extra;
        let fits = match self.unit {
            StockUnit::Requests | StockUnit::Sequences => {
                let more = if self.unit == StockUnit::Requests { 1 } else { load.sequences };
                // Requests that were taken over may be above the bound already, counted as within it.
                let sum = limit.map(|limit| limit.saturating_add(above));
                self.extra().saturating_add(more) <= above
                    && sum.is_none_or(|sum| self.stock.saturating_add(more) <= sum)
            }
            StockUnit::Tokens => match places {
                ExtraPlaces::Count(count) => extra.requests < count,
                ExtraPlaces::Part(_) => {
                    extra.requests == 0 || extra.tokens.saturating_add(load.tokens) <= above
                }
            },
        };
        fits && fits_server
    }

    /// Some request fits above the bound.
    pub(crate) fn has_extra_room(&self, gate: Gate) -> bool {
        let least = Load { sequences: 1, tokens: 1, ..Load::default() };
        self.takes_above(&least, gate)
    }
}
