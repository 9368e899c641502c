//! Budgets: what flows may use in windows of time.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use super::{CostUnit, FlowGlob, Flows};

/// What each of the flows that match may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// The flows.
    pub flows: FlowGlob,
    /// A request goes while there is room in all of them; at least one, each unit and period once.
    pub windows: Vec<BudgetWindow>,
    /// When the days, weeks and months of its windows begin.
    pub calendar: BudgetCalendar,
    /// What happens to the requests of a flow without room.
    pub over: Over,
    /// The budget decides nothing, and what it would have decided is counted.
    pub shadow: bool,
}

/// When days, weeks and months begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetCalendar {
    /// Where midnight is. A day on which clocks change is as long as it is there.
    pub timezone: TimeZone,
    /// The day of the month on which a month begins, 1 to 31; the last day of a month that doesn't have it.
    pub month_starts: i8,
    /// The day on which a week begins.
    pub week_starts: Weekday,
}

/// UTC; months begin on the first, weeks on Monday.
impl Default for BudgetCalendar {
    fn default() -> Self {
        Self { timezone: TimeZone::UTC, month_starts: 1, week_starts: Weekday::Monday }
    }
}

/// A window of time, and what a flow may use in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetWindow {
    /// What is counted. Tokens are weighted by [`super::TokenWeights`].
    pub unit: CostUnit,
    /// How much may be used; at least 1.
    pub limit: u64,
    /// The time.
    pub period: BudgetPeriod,
}

/// The time of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetPeriod {
    /// The last so much; at least 1 s. Counted in steps of a 60th ([`crate::limits::BUDGET_STEPS`]).
    Sliding(Duration),
    /// The day.
    Day,
    /// The week.
    Week,
    /// The month.
    Month,
}

/// The period as the configuration writes it: `day`, `week`, `month`, or a duration such as `1h` or `1m30s`.
impl fmt::Display for BudgetPeriod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = match self {
            Self::Day => return formatter.write_str("day"),
            Self::Week => return formatter.write_str("week"),
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

/// What happens to the requests of a flow without room in its budget.
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
    /// The budget of the flow of this identity: the first that matches, as an index into [`Flows::budgets`].
    #[must_use]
    pub fn budget_of(&self, name: &str) -> Option<usize> {
        self.budgets.iter().position(|budget| budget.flows.matches(name))
    }

    /// Whether a budget counts tokens.
    pub(super) fn has_token_budget(&self) -> bool {
        let mut windows = self.budgets.iter().flat_map(|budget| &budget.windows);
        windows.any(|window| window.unit == CostUnit::Tokens)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec;

    use super::*;

    #[test]
    fn the_first_budget_that_matches_is_a_flow_s_own() {
        let budget = |glob: &str| Budget {
            flows: FlowGlob::new(glob),
            windows: Vec::new(),
            calendar: BudgetCalendar::default(),
            over: Over::Demote,
            shadow: false,
        };
        let flows =
            Flows { budgets: vec![budget("free-?"), budget("free-*"), budget("*e")], ..Flows::default() };
        let found = ["free-1", "free-12", "acme", "umbrella"].map(|name| flows.budget_of(name));
        assert_eq!(found, [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn periods_are_named_as_in_the_configuration() {
        let sliding = |ms: u64| BudgetPeriod::Sliding(Duration::from_millis(ms)).to_string();
        let names = [1_000, 90_000, 3_600_000, 86_400_000, 5_400_500].map(sliding);
        assert_eq!(names, ["1s", "1m30s", "1h", "24h", "1h30m500ms"]);
        assert_eq!(BudgetPeriod::Day.to_string(), "day");
        assert_eq!(BudgetPeriod::Month.to_string(), "month");
    }
}
