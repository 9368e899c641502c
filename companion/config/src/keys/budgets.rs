//! `arbitration.flows.budgets`: what flows may use in windows of time.

use std::fmt;

use jiff::civil;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use penstock_engine::limits::{BUDGET_WINDOWS_MAX, BUDGETS_MAX};
use penstock_engine::policy::{self, BudgetCalendar, BudgetPeriod, CostUnit, FlowGlob, Over};
use schemars::{JsonSchema, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::error::Violation;
use crate::value::{Count, PositiveDuration, inline_schema};

/// What each of some flows may use in windows of time.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    /// A glob of flows' identities, as `key` defines them. `"*"` matches every flow.
    #[serde(rename = "match")]
    #[schemars(length(min = 1, max = 256))]
    pub(crate) flows: String,
    /// The windows, each unit and period once. A request goes while anything is left in all of them; what it takes beyond is paid
    /// back before the next one goes.
    #[schemars(length(min = 1, max = 8))]
    pub(crate) windows: Vec<BudgetWindow>,
    /// The time zone of its days, weeks and months, as the IANA's database names it, like `Europe/Berlin`. A day on which clocks change
    /// is as long as it is there.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    pub(crate) timezone: String,
    /// When its weeks and months begin.
    #[serde(default)]
    pub(crate) starts: Starts,
    /// The way of requests for which nothing is left.
    #[serde(default)]
    pub(crate) over: Over,
    /// Decides nothing, and counts what it would have decided.
    #[serde(default)]
    pub(crate) shadow: bool,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// When weeks and months begin, at midnight.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(inline)]
pub(crate) struct Starts {
    /// The day on which a month begins. A month that doesn't have it begins on its last day.
    pub(crate) day: MonthDay,
    /// The day on which a week begins.
    pub(crate) weekday: Weekday,
}

impl Default for Starts {
    fn default() -> Self {
        Self { day: MonthDay(1), weekday: Weekday::Monday }
    }
}

/// A day of a month.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MonthDay(i8);

impl<'de> Deserialize<'de> for MonthDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MonthDayVisitor;
        impl Visitor<'_> for MonthDayVisitor {
            type Value = MonthDay;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a day of a month, 1 to 31")
            }
            fn visit_u64<E: de::Error>(self, day: u64) -> Result<MonthDay, E> {
                let valid = i8::try_from(day).ok().filter(|day| (1..=31).contains(day));
                valid.map(MonthDay).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(day), &self))
            }
        }
        deserializer.deserialize_any(MonthDayVisitor)
    }
}

inline_schema!(MonthDay, |_generator| json_schema!({"type": "integer", "minimum": 1, "maximum": 31}));

/// A day of a week.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl From<Weekday> for civil::Weekday {
    fn from(weekday: Weekday) -> Self {
        match weekday {
            Weekday::Monday => Self::Monday,
            Weekday::Tuesday => Self::Tuesday,
            Weekday::Wednesday => Self::Wednesday,
            Weekday::Thursday => Self::Thursday,
            Weekday::Friday => Self::Friday,
            Weekday::Saturday => Self::Saturday,
            Weekday::Sunday => Self::Sunday,
        }
    }
}

/// A window of time: exactly one of `tokens` and `requests`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    {"required": ["tokens"], "properties": {"tokens": {"type": "integer"}}},
    {"required": ["requests"], "properties": {"requests": {"type": "integer"}}},
]))]
pub(crate) struct BudgetWindow {
    /// Tokens, weighted by `usage.input_token_weight` and `usage.output_token_weight`. Cached prompt tokens cost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<Count>,
    /// Requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<Count>,
    /// The last so much time, at least `1s`, counted in steps of a 60th; or the calendar's day, week or month.
    pub(crate) per: Period,
}

/// The time of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period(BudgetPeriod);

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PeriodVisitor;
        impl Visitor<'_> for PeriodVisitor {
            type Value = Period;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .write_str("day, week, month, or a duration of at least 1s with its unit, like 1m or 1h")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                match text {
                    "day" => Ok(Period(BudgetPeriod::Day)),
                    "week" => Ok(Period(BudgetPeriod::Week)),
                    "month" => Ok(Period(BudgetPeriod::Month)),
                    text => PositiveDuration::parse(text)
                        .filter(|duration| duration.0.as_secs() >= 1)
                        .map(|duration| Period(BudgetPeriod::Sliding(duration.0)))
                        .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(PeriodVisitor)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            BudgetPeriod::Sliding(duration) => PositiveDuration(duration).serialize(serializer),
            BudgetPeriod::Day => serializer.serialize_str("day"),
            BudgetPeriod::Week => serializer.serialize_str("week"),
            BudgetPeriod::Month => serializer.serialize_str("month"),
        }
    }
}

inline_schema!(
    Period,
    |generator| json_schema!({"anyOf": [{"enum": ["day", "week", "month"]}, PositiveDuration::json_schema(generator)]})
);

/// The longest glob, in bytes.
const GLOB_BYTES_MAX: usize = 256;

/// Checks `budgets`; `path` is the list's.
pub(super) fn convert(raw: Vec<Budget>, path: &str) -> Result<Vec<policy::Budget>, Violation> {
    if raw.len() > BUDGETS_MAX {
        return Err(Violation::new(
            path,
            format!("at most {BUDGETS_MAX} budgets are allowed; a glob can match many flows"),
        ));
    }
    let mut globs: Vec<String> = Vec::with_capacity(raw.len());
    let mut budgets = Vec::with_capacity(raw.len());
    for (index, budget) in raw.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        let violation = |message: String| Err(Violation::new(format!("{path}.match"), message));
        if !(1..=GLOB_BYTES_MAX).contains(&budget.flows.len()) {
            return violation(format!("a glob has 1 to {GLOB_BYTES_MAX} bytes; `*` matches every flow"));
        }
        if globs.contains(&budget.flows) {
            return violation(format!(
                "`{}` is listed twice; the first entry that matches counts",
                budget.flows
            ));
        }
        budgets.push(policy::Budget {
            flows: FlowGlob::new(&budget.flows),
            windows: convert_windows(&budget.windows, &format!("{path}.windows"))?,
            calendar: BudgetCalendar {
                timezone: timezone(&budget.timezone, &format!("{path}.timezone"))?,
                month_starts: budget.starts.day.0,
                week_starts: budget.starts.weekday.into(),
            },
            over: budget.over,
            shadow: budget.shadow,
        });
        globs.push(budget.flows);
    }
    Ok(budgets)
}

fn timezone(name: &str, path: &str) -> Result<TimeZone, Violation> {
    // The system's database may lack names that the built-in one has.
    TimeZone::get(name).or_else(|_| TimeZoneDatabase::bundled().get(name)).map_err(|_| {
        Violation::new(
            path,
            format!("`{name}` is not in the time zone database; a name is like Europe/Berlin"),
        )
    })
}

fn convert_windows(raw: &[BudgetWindow], path: &str) -> Result<Vec<policy::BudgetWindow>, Violation> {
    if !(1..=BUDGET_WINDOWS_MAX).contains(&raw.len()) {
        return Err(Violation::new(
            path,
            format!("1 to {BUDGET_WINDOWS_MAX} windows are required, like {{tokens: 100000, per: 1h}}"),
        ));
    }
    let mut windows: Vec<policy::BudgetWindow> = Vec::with_capacity(raw.len());
    for (index, window) in raw.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (unit, limit) = match (window.tokens, window.requests) {
            (Some(tokens), None) => (CostUnit::Tokens, tokens),
            (None, Some(requests)) => (CostUnit::Requests, requests),
            (Some(_), Some(_)) | (None, None) => {
                return Err(Violation::new(path, "a window has exactly one of tokens and requests"));
            }
        };
        let period = window.per.0;
        if windows.iter().any(|other| (other.unit, other.period) == (unit, period)) {
            return Err(Violation::new(
                path,
                "another window of this budget has the same unit and time; the smaller limit would count",
            ));
        }
        windows.push(policy::BudgetWindow { unit, limit: limit.0, period });
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use jiff::civil::Weekday;
    use jiff::tz::TimeZone;
    use penstock_engine::policy::{
        Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Over,
    };

    use crate::Config;

    fn converted(budgets: &str) -> Result<Vec<Budget>, String> {
        let text = format!(
            "pools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001']}}\n  arbitration:\n    flows:\n      budgets: {budgets}\n"
        );
        Config::parse(&text, "f.yaml")
            .map(|mut config| config.pools.remove(0).policy.flows.budgets)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn budgets_reach_the_engine_in_their_order() {
        let found = converted(
            "[{match: 'free-*', windows: [{tokens: 100000, per: 1h}, {tokens: 1000000, per: day}, {requests: 9, per: month}]},
             {match: acme, windows: [{requests: 1000, per: 1m}], over: refuse, shadow: true},
             {match: '*', windows: [{tokens: 1, per: 1s}], over: hold}]",
        );
        let window = |unit, limit, period| BudgetWindow { unit, limit, period };
        let sliding = |seconds| BudgetPeriod::Sliding(Duration::from_secs(seconds));
        let (tokens, requests) = (CostUnit::Tokens, CostUnit::Requests);
        let budget = |glob: &str, windows: &[BudgetWindow], over, shadow| Budget {
            flows: FlowGlob::new(glob),
            windows: windows.to_vec(),
            calendar: BudgetCalendar::default(),
            over,
            shadow,
        };
        let free = [
            window(tokens, 100_000, sliding(3_600)),
            window(tokens, 1_000_000, BudgetPeriod::Day),
            window(requests, 9, BudgetPeriod::Month),
        ];
        let expected = vec![
            budget("free-*", &free, Over::Demote, false),
            budget("acme", &[window(requests, 1_000, sliding(60))], Over::Refuse, true),
            budget("*", &[window(tokens, 1, sliding(1))], Over::Hold, false),
        ];
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn a_budget_may_have_a_calendar_of_its_own() {
        let calendar = |more: &str| {
            let budgets = converted(&format!("[{{match: a, windows: [{{tokens: 1, per: week}}]{more}}}]"));
            budgets.expect("valid").remove(0).calendar
        };
        assert_eq!(calendar(""), BudgetCalendar::default());
        let berlin = TimeZone::get("Europe/Berlin").expect("in the database");
        assert_eq!(
            calendar(", timezone: europe/berlin, starts: {day: 31, weekday: sunday}"),
            BudgetCalendar { timezone: berlin, month_starts: 31, week_starts: Weekday::Sunday }
        );
        assert_eq!(calendar(", starts: {day: 15}").month_starts, 15);
    }

    #[test]
    fn a_pool_has_at_most_256_budgets() {
        let many = format!("[{}]", "{match: a, windows: [{tokens: 1, per: day}]},".repeat(257));
        let message = converted(&many).expect_err("too many");
        assert!(
            message.starts_with("f.yaml:6: pools[0].arbitration.flows.budgets: at most 256"),
            "{message}"
        );
    }
}
