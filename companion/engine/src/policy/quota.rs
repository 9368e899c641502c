//! Quotas: what flows may use in windows of time. The configuration calls them budgets.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::{CostUnit, FlowGlob, Flows};

/// What each of the flows that match may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// The flows.
    pub flows: FlowGlob,
    /// A request goes while there is room in all of them; at least one, each unit and period once.
    pub windows: Vec<QuotaWindow>,
    /// What happens to the requests of a flow without room.
    pub over: Over,
    /// It decides nothing, and what it would have decided is counted.
    pub shadow: bool,
}

/// A window of time, and what a flow may use in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaWindow {
    /// What is counted. Tokens are weighted by [`super::TokenWeights`].
    pub unit: CostUnit,
    /// So much may be used; at least 1.
    pub limit: u64,
    /// The time.
    pub period: QuotaPeriod,
}

/// The time of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaPeriod {
    /// The last so much; at least 1 s. Counted in steps of a 60th ([`crate::limits::QUOTA_STEPS`]).
    Sliding(Duration),
    /// The day in UTC.
    Day,
    /// The month in UTC.
    Month,
}

/// As the configuration writes it: `day`, `month`, or a duration such as `1h` or `1m30s`.
impl fmt::Display for QuotaPeriod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = match self {
            Self::Day => return formatter.write_str("day"),
            Self::Month => return formatter.write_str("month"),
            Self::Sliding(duration) => duration,
        };
        let seconds = duration.as_secs();
        let parts = [
            (seconds / 3_600, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
            (u64::from(duration.subsec_millis()), "ms"),
        ];
        let mut parts = parts.iter().filter(|(number, _)| *number > 0);
        parts.try_for_each(|(number, unit)| write!(formatter, "{number}{unit}"))
    }
}

/// What happens to the requests of a flow without room in its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum Over {
    /// Served as sheddable, after everything of flows that are within their budgets.
    #[default]
    Demote,
    /// Waits, within its ttl, until there is room.
    Hold,
    /// Answered 429 `budget_exceeded`.
    Refuse,
}

impl Over {
    /// The name in the configuration, metrics and `/status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Demote => "demote",
            Self::Hold => "hold",
            Self::Refuse => "refuse",
        }
    }
}

impl Flows {
    /// The quota of the flow of this identity: the first that matches, as an index into [`Flows::quotas`].
    #[must_use]
    pub fn quota_of(&self, name: &str) -> Option<usize> {
        self.quotas.iter().position(|quota| quota.flows.matches(name))
    }

    /// Whether a quota counts tokens.
    pub(super) fn has_token_quota(&self) -> bool {
        let mut windows = self.quotas.iter().flat_map(|quota| &quota.windows);
        windows.any(|window| window.unit == CostUnit::Tokens)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec;

    use super::*;

    #[test]
    fn the_first_quota_that_matches_is_a_flow_s_own() {
        let quota = |glob: &str| Quota {
            flows: FlowGlob::new(glob),
            windows: Vec::new(),
            over: Over::Demote,
            shadow: false,
        };
        let flows = Flows { quotas: vec![quota("free-?"), quota("free-*"), quota("*e")], ..Flows::default() };
        let found = ["free-1", "free-12", "acme", "umbrella"].map(|name| flows.quota_of(name));
        assert_eq!(found, [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn periods_are_named_as_in_the_configuration() {
        let sliding = |ms: u64| QuotaPeriod::Sliding(Duration::from_millis(ms)).to_string();
        let names = [1_000, 90_000, 3_600_000, 86_400_000, 5_400_500].map(sliding);
        assert_eq!(names, ["1s", "1m30s", "1h", "24h", "1h30m500ms"]);
        assert_eq!(QuotaPeriod::Day.to_string(), "day");
        assert_eq!(QuotaPeriod::Month.to_string(), "month");
    }
}
