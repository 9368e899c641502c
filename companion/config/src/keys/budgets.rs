//! `arbitration.flows.budgets`: what flows may use in windows of time.

use std::fmt;

use penstock_engine::limits::{BUDGET_WINDOWS_MAX, BUDGETS_MAX};
use penstock_engine::policy::{self, BudgetPeriod, CostUnit, FlowGlob, Over};
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
    /// The way of requests for which nothing is left.
    #[serde(default)]
    pub(crate) over: Over,
    /// Decides nothing, and counts what it would have decided.
    #[serde(default)]
    pub(crate) shadow: bool,
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
    /// The last so much time, at least `1s`, counted in steps of a 60th; or the calendar's day or month, in UTC.
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
                formatter.write_str("day, month, or a duration of at least 1s with its unit, like 1m or 1h")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                match text {
                    "day" => Ok(Period(BudgetPeriod::Day)),
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
            BudgetPeriod::Month => serializer.serialize_str("month"),
        }
    }
}

inline_schema!(
    Period,
    |generator| json_schema!({"anyOf": [{"enum": ["day", "month"]}, PositiveDuration::json_schema(generator)]})
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
            over: budget.over,
            shadow: budget.shadow,
        });
        globs.push(budget.flows);
    }
    Ok(budgets)
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

    use penstock_engine::policy::{Budget, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Over};

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
    fn a_pool_has_at_most_256_budgets() {
        let many = format!("[{}]", "{match: a, windows: [{tokens: 1, per: day}]},".repeat(257));
        let message = converted(&many).expect_err("too many");
        assert!(
            message.starts_with("f.yaml:6: pools[0].arbitration.flows.budgets: at most 256"),
            "{message}"
        );
    }
}
