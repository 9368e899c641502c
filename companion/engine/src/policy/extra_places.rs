//! Places above the bound of an endpoint.

use super::{Gate, StockUnit};
use crate::units::Decimal;

/// How much each endpoint takes above its bound, all together, of flows with nothing running.
///
/// Requests that were granted together end together, so behind a full bound a flow that has nothing running may wait for a
/// whole service time. Its next request may take such a place, the oldest of all such flows first. It is charged as ever. A
/// flow that claims to be many gains no more than these places, which are one number for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraPlaces {
    /// So many requests, or sequences where these are the gate's unit; 0: none.
    Count(u64),
    /// This part of the bound, rounded down, in the gate's unit; above 0. At least one request or sequence.
    Part(Decimal),
}

impl ExtraPlaces {
    /// No places.
    pub const NONE: Self = Self::Count(0);
    /// A tenth, the default of the configuration.
    pub const TENTH: Self = Self::Part(Decimal::from_billionths(Decimal::ONE / 10));

    /// Whether there are any under this gate: only a gate with bounds has something above them.
    #[must_use]
    pub const fn is_on(self, gate: Gate) -> bool {
        match gate {
            Gate::Open | Gate::Manual => false,
            Gate::Auto { .. } | Gate::Bounded { .. } => !matches!(self, Self::Count(0)),
        }
    }

    /// What an endpoint with this bound takes above it, in `unit`. Where that is tokens, one request fits in any case, and a count is of
    /// requests.
    #[must_use]
    pub fn above(self, bound: u64, unit: StockUnit) -> u64 {
        match (self, unit) {
            (Self::Count(0), _) => 0,
            (Self::Count(count), StockUnit::Requests | StockUnit::Sequences) => count,
            (Self::Count(_), StockUnit::Tokens) => u64::MAX,
            (Self::Part(part), _) => {
                let above = part.billionths().saturating_mul(bound.into()) / Decimal::ONE;
                u64::try_from(above).unwrap_or(u64::MAX).max(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_rounded_down_and_gives_one_place_at_least() {
        let tenth = ExtraPlaces::TENTH;
        let above = |bound| tenth.above(bound, StockUnit::Requests);
        assert_eq!([1, 9, 10, 19, 20, 256].map(above), [1, 1, 1, 1, 2, 25]);
        assert_eq!(ExtraPlaces::Part(Decimal::whole(2)).above(8, StockUnit::Sequences), 16);
        assert_eq!(ExtraPlaces::Part(Decimal::whole(2)).above(u64::MAX, StockUnit::Tokens), u64::MAX);
        assert_eq!(ExtraPlaces::Count(3).above(8, StockUnit::Requests), 3);
        assert_eq!(ExtraPlaces::NONE.above(8, StockUnit::Requests), 0);
        assert!(tenth.is_on(Gate::default()) && !tenth.is_on(Gate::Open) && !tenth.is_on(Gate::Manual));
        assert!(!ExtraPlaces::NONE.is_on(Gate::default()));
    }
}
