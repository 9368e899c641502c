//! Budgets of flows, which the engine calls quotas.

use penstock_engine::limits::{QUOTA_WINDOWS_MAX, QUOTAS_MAX};
use penstock_engine::policy::{CostUnit, FlowGlob, Quota, QuotaPeriod, QuotaWindow};

use crate::error::Violation;
use crate::raw::{Budget, BudgetWindow, Period};

/// The longest glob, in bytes.
const GLOB_BYTES_MAX: usize = 256;

/// Checks `budgets`; `path` is the list's.
pub(super) fn convert(raw: Vec<Budget>, path: &str) -> Result<Vec<Quota>, Violation> {
    if raw.len() > QUOTAS_MAX {
        return Err(Violation::new(
            path,
            format!("at most {QUOTAS_MAX} budgets are allowed; a glob can match many flows"),
        ));
    }
    let mut globs: Vec<String> = Vec::with_capacity(raw.len());
    let mut quotas = Vec::with_capacity(raw.len());
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
        quotas.push(Quota {
            flows: FlowGlob::new(&budget.flows),
            windows: convert_windows(&budget.windows, &format!("{path}.windows"))?,
            over: budget.over,
            shadow: budget.shadow,
        });
        globs.push(budget.flows);
    }
    Ok(quotas)
}

fn convert_windows(raw: &[BudgetWindow], path: &str) -> Result<Vec<QuotaWindow>, Violation> {
    if !(1..=QUOTA_WINDOWS_MAX).contains(&raw.len()) {
        return Err(Violation::new(
            path,
            format!("1 to {QUOTA_WINDOWS_MAX} windows are required, like {{tokens: 100000, per: 1h}}"),
        ));
    }
    let mut windows: Vec<QuotaWindow> = Vec::with_capacity(raw.len());
    for (index, window) in raw.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (unit, limit) = match (window.tokens, window.requests) {
            (Some(tokens), None) => (CostUnit::Tokens, tokens),
            (None, Some(requests)) => (CostUnit::Requests, requests),
            (Some(_), Some(_)) | (None, None) => {
                return Err(Violation::new(path, "a window has exactly one of tokens and requests"));
            }
        };
        let period = match window.per {
            Period::Sliding(duration) => QuotaPeriod::Sliding(duration.0),
            Period::Day => QuotaPeriod::Day,
            Period::Month => QuotaPeriod::Month,
        };
        if windows.iter().any(|other| (other.unit, other.period) == (unit, period)) {
            return Err(Violation::new(
                path,
                "another window of this budget has the same unit and time; the smaller limit would count",
            ));
        }
        windows.push(QuotaWindow { unit, limit: limit.0, period });
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use penstock_engine::policy::{CostUnit, FlowGlob, Over, Quota, QuotaPeriod, QuotaWindow};

    use crate::Config;

    fn quotas(budgets: &str) -> Result<Vec<Quota>, String> {
        let text = format!(
            "pools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001']}}\n  arbitration:\n    flows:\n      budgets: {budgets}\n"
        );
        Config::parse(&text, "f.yaml")
            .map(|mut config| config.pools.remove(0).policy.flows.quotas)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn budgets_reach_the_engine_in_their_order() {
        let found = quotas(
            "[{match: 'free-*', windows: [{tokens: 100000, per: 1h}, {tokens: 1000000, per: day}, {requests: 9, per: month}]},
             {match: acme, windows: [{requests: 1000, per: 1m}], over: refuse, shadow: true},
             {match: '*', windows: [{tokens: 1, per: 1s}], over: hold}]",
        );
        let window = |unit, limit, period| QuotaWindow { unit, limit, period };
        let sliding = |seconds| QuotaPeriod::Sliding(Duration::from_secs(seconds));
        let (tokens, requests) = (CostUnit::Tokens, CostUnit::Requests);
        let quota = |glob: &str, windows: &[QuotaWindow], over, shadow| Quota {
            flows: FlowGlob::new(glob),
            windows: windows.to_vec(),
            over,
            shadow,
        };
        let free = [
            window(tokens, 100_000, sliding(3_600)),
            window(tokens, 1_000_000, QuotaPeriod::Day),
            window(requests, 9, QuotaPeriod::Month),
        ];
        let expected = vec![
            quota("free-*", &free, Over::Demote, false),
            quota("acme", &[window(requests, 1_000, sliding(60))], Over::Refuse, true),
            quota("*", &[window(tokens, 1, sliding(1))], Over::Hold, false),
        ];
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn wrong_budgets_are_named_with_what_is_allowed() {
        let many = format!("[{}]", "{match: a, windows: [{tokens: 1, per: day}]},".repeat(257));
        let windows = "{tokens: 1, per: 1s},".repeat(9);
        let windows = format!("[{{match: a, windows: [{windows}]}}]");
        for (budgets, key, words) in [
            ("[{windows: [{tokens: 1, per: day}]}]", "budgets[0].match", "has no default"),
            ("[{match: '', windows: [{tokens: 1, per: day}]}]", "budgets[0].match", "`*` matches every flow"),
            ("[{match: a}]", "budgets[0].windows", "has no default"),
            ("[{match: a, windows: []}]", "budgets[0].windows", "1 to 8 windows"),
            (&windows, "budgets[0].windows", "1 to 8 windows"),
            (&many, "budgets", "at most 256"),
            (
                "[{match: a, windows: [{per: day}]}]",
                "budgets[0].windows[0]",
                "exactly one of tokens and requests",
            ),
            (
                "[{match: a, windows: [{tokens: 1, requests: 1, per: day}]}]",
                "budgets[0].windows[0]",
                "exactly one",
            ),
            ("[{match: a, windows: [{tokens: 0, per: day}]}]", "budgets[0].windows[0].tokens", "at least 1"),
            ("[{match: a, windows: [{tokens: 1}]}]", "budgets[0].windows[0].per", "has no default"),
            (
                "[{match: a, windows: [{tokens: 1, per: week}]}]",
                "budgets[0].windows[0].per",
                "day, month, or a duration",
            ),
            ("[{match: a, windows: [{tokens: 1, per: 0s}]}]", "budgets[0].windows[0].per", "at least 1s"),
            ("[{match: a, windows: [{tokens: 1, per: 999ms}]}]", "budgets[0].windows[0].per", "at least 1s"),
            ("[{match: a, windows: [{tokens: 1, per: 60}]}]", "budgets[0].windows[0].per", "with its unit"),
            (
                "[{match: a, windows: [{tokens: 1, per: 1m}, {tokens: 2, per: 60s}]}]",
                "budgets[0].windows[1]",
                "same unit and time",
            ),
            ("[{match: a, windows: [{tokens: 1, per: day}], over: drop}]", "budgets[0].over", "refuse"),
            (
                "[{match: a, windows: [{tokens: 1, per: day}], shadow: 1}]",
                "budgets[0].shadow",
                "true or false",
            ),
            (
                "[{match: a, windows: [{tokens: 1, per: day}]}, {match: a, windows: [{tokens: 1, per: day}]}]",
                "budgets[1].match",
                "listed twice",
            ),
        ] {
            let message = quotas(budgets).expect_err(budgets);
            assert!(
                message.starts_with(&format!("f.yaml:6: pools[0].arbitration.flows.{key}:")),
                "{budgets}: {message}"
            );
            assert!(message.contains(words), "{budgets}: {message}");
        }
    }
}
