//! Table contents: one row per pool, flow, endpoint or variant, for the live table and for plain text.

use std::cmp::Reverse;

use super::view::{Budget, BudgetWindow, Endpoint, Flow, Model, Pool, View};

/// A table. The columns in `left` hold words and are aligned left, the others hold numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
    pub(super) left: &'static [usize],
}

/// The order of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Waiting,
    Running,
    Rate,
    Served,
    Name,
}

impl Sort {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Waiting => Self::Running,
            Self::Running => Self::Rate,
            Self::Rate => Self::Served,
            Self::Served => Self::Name,
            Self::Name => Self::Waiting,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Rate => "tokens/s",
            Self::Served => "served",
            Self::Name => "name",
        }
    }
}

/// The bound of a pool or endpoint without a bound, in the /status document.
const NO_BOUND: u64 = u64::MAX;
/// Shown for an unknown value.
const UNKNOWN: &str = "-";
/// Rows of budgets: the document has those with the smallest part left first.
const BUDGETS_MAX: usize = 20;
const BANDS: [&str; 3] = ["critical", "default", "sheddable"];

pub(super) fn pools(view: &View) -> Table {
    let row = |pool: &Pool| {
        let band =
            |name: &str| pool.bands.iter().find(|band| band.name == name).map_or(0, |band| band.waiting);
        let ready = pool.endpoints.iter().filter(|endpoint| endpoint.ready).count();
        let mut row = vec![
            name(pool),
            format!("{:.2}", pool.saturation),
            pool.stock.to_string(),
            bounds(pool),
            pool.waiting.to_string(),
        ];
        row.extend(BANDS.map(|name| band(name).to_string()));
        row.push(format!("{ready}/{}", pool.endpoints.len()));
        row.push(pool.advice.len().to_string());
        row
    };
    Table {
        title: "pools".into(),
        header: vec![
            "pool",
            "satur.",
            "stock",
            "bound",
            "waiting",
            "critical",
            "default",
            "sheddable",
            "ready",
            "advice",
        ],
        rows: view.pools.iter().map(row).collect(),
        left: &[0],
    }
}

/// The pool's name, and its leader if that is another companion.
fn name(pool: &Pool) -> String {
    let name = &pool.name;
    match &pool.replicas {
        Some(replicas) if !replicas.leads() => match &replicas.leader {
            Some(leader) => format!("{name} (standby of {leader})"),
            None => format!("{name} (no leader)"),
        },
        Some(_) | None => name.clone(),
    }
}

/// A row for each flow of a pool. `rate` returns a flow's served tokens per second, if known.
pub(super) fn flows(pool: &Pool, sort: Sort, rate: impl Fn(&Flow) -> Option<f64>) -> Table {
    let mut flows: Vec<(&Flow, Option<f64>)> = pool.flows.iter().map(|flow| (flow, rate(flow))).collect();
    flows.sort_by(|(a, a_rate), (b, b_rate)| {
        let by_name = || (&a.key, &a.band).cmp(&(&b.key, &b.band));
        match sort {
            Sort::Waiting => Reverse(a.waiting).cmp(&Reverse(b.waiting)),
            Sort::Running => Reverse(a.in_flight).cmp(&Reverse(b.in_flight)),
            Sort::Served => Reverse(a.served_tokens).cmp(&Reverse(b.served_tokens)),
            Sort::Rate => b_rate.unwrap_or(0.0).total_cmp(&a_rate.unwrap_or(0.0)),
            Sort::Name => core::cmp::Ordering::Equal,
        }
        .then_with(by_name)
    });
    let row = |(flow, rate): (&Flow, Option<f64>)| {
        let mut row = vec![
            if flow.key.is_empty() { "anonymous".into() } else { flow.key.clone() },
            flow.band.clone(),
            flow.waiting.to_string(),
            flow.in_flight.to_string(),
            grouped(flow.served_tokens),
            rate.map_or_else(|| UNKNOWN.into(), |rate| format!("{rate:.0}")),
            significant(flow.weight),
        ];
        if !pool.budgets.is_empty() {
            row.push(budget_mark(pool, &flow.key).into());
        }
        row
    };
    let mut header = vec!["flow", "band", "waiting", "running", "served tokens", "tokens/s", "weight"];
    if !pool.budgets.is_empty() {
        header.push("budget");
    }
    Table {
        title: format!("flows of {}, by {}", pool.name, sort.as_str()),
        header,
        rows: flows.into_iter().map(row).collect(),
        left: &[0, 1],
    }
}

/// `over` for a flow without room in its budget; empty for every other one.
fn budget_mark(pool: &Pool, flow: &str) -> &'static str {
    let budget = pool.budgets.iter().find(|budget| budget.flow == flow);
    match budget {
        Some(budget) if !budget.has_room && budget.shadow => "shadow",
        Some(budget) if !budget.has_room => "over",
        Some(_) | None => "",
    }
}

/// A row for each window of the budgets of a pool; no rows if none is used.
pub(super) fn budgets(pool: &Pool) -> Table {
    let row = |budget: &Budget, window: &BudgetWindow| {
        let state = match (window.remaining, budget.shadow) {
            (0, false) => budget.over.clone(),
            (0, true) => format!("{} (shadow)", budget.over),
            _ => String::new(),
        };
        vec![
            budget.flow.clone(),
            format!("{} {}", window.per, window.unit),
            grouped(window.limit),
            grouped(window.used.saturating_add(window.reserved)),
            grouped(window.remaining),
            window.resets_at.clone(),
            state,
        ]
    };
    let rows = pool.budgets.iter().flat_map(|budget| {
        let windows = budget.windows.iter();
        windows.map(move |window| row(budget, window))
    });
    Table {
        title: format!("budgets of {}", pool.name),
        header: vec!["flow", "window", "limit", "used", "left", "empty at", "over"],
        rows: rows.take(BUDGETS_MAX).collect(),
        left: &[0, 1, 5, 6],
    }
}

/// A row for each policy class of a pool; no rows if none are configured.
pub(super) fn classes(pool: &Pool) -> Table {
    let rows = pool.classes.iter().map(|class| {
        vec![
            class.name.clone(),
            class.waiting.to_string(),
            class.quantum.to_string(),
            class.deficit.to_string(),
        ]
    });
    Table {
        title: format!("classes of {}", pool.name),
        header: vec!["class", "waiting", "quantum", "deficit"],
        rows: rows.collect(),
        left: &[0],
    }
}

pub(super) fn endpoints(pool: &Pool) -> Table {
    let row = |endpoint: &Endpoint| {
        vec![
            endpoint.address.clone(),
            endpoint.variant.clone().unwrap_or_else(|| UNKNOWN.into()),
            endpoint.stock.to_string(),
            if endpoint.bound == NO_BOUND { "any".into() } else { endpoint.bound.to_string() },
            or_unknown(endpoint.foreign),
            or_unknown(endpoint.queue),
            endpoint.kv.map_or_else(|| UNKNOWN.into(), |kv| format!("{:.0} %", kv * 100.0)),
            endpoint.why.clone(),
        ]
    };
    Table {
        title: format!("endpoints of {}", pool.name),
        header: vec!["endpoint", "variant", "stock", "bound", "foreign", "queue", "kv", "state"],
        rows: pool.endpoints.iter().map(row).collect(),
        left: &[0, 1, 7],
    }
}

/// A row for each variant of a pool's servers, with its learned parameters.
pub(super) fn model(pool: &Pool) -> Table {
    let number = |value: Option<f64>| value.map_or_else(|| UNKNOWN.into(), significant);
    let row = |model: &Model| {
        vec![
            model.variant.clone(),
            model.state.replace('_', " "),
            number(model.alpha),
            number(model.beta),
            number(model.gamma),
            number(model.n_star),
            number(model.lambda_star),
            significant(model.demand),
            model.current_replicas.to_string(),
            or_unknown(model.desired_replicas),
        ]
    };
    Table {
        title: format!("model of {}", pool.name),
        header: vec![
            "variant",
            "model",
            "alpha ms",
            "beta ms",
            "gamma ms",
            "n*",
            "takes/s",
            "offered/s",
            "servers",
            "needed",
        ],
        rows: pool.model.iter().map(row).collect(),
        left: &[0, 1],
    }
}

/// All advice. Lines about a pool start with the pool's name.
pub(super) fn advice(view: &View) -> Vec<String> {
    let pools = view.pools.iter().flat_map(|pool| {
        let line = |line: &String| format!("{}: {line}", pool.name);
        pool.advice.iter().map(line).collect::<Vec<_>>()
    });
    view.advice.iter().cloned().chain(pools).collect()
}

fn bounds(pool: &Pool) -> String {
    match (pool.lower, pool.upper) {
        (NO_BOUND, _) | (_, NO_BOUND) => "any".into(),
        (lower, upper) => format!("{lower}..{upper}"),
    }
}

fn or_unknown(value: Option<u64>) -> String {
    value.map_or_else(|| UNKNOWN.into(), |value| value.to_string())
}

impl Table {
    /// The width of each column: its longest cell, header included.
    pub(super) fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let cells = cells.map(|cell| cell.chars().count());
            cells.chain(self.header.get(column).map(|name| name.len())).max().unwrap_or(0)
        };
        (0..self.header.len()).map(width).collect()
    }
}

/// Formats a number as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with three significant digits.
fn significant(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return "0".into();
    }
    let exponent = number.abs().log10().floor();
    let places = if exponent >= 2.0 { 0.0 } else { 2.0 - exponent };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float has at most 324 digits before its first one"
    )]
    let text = format!("{number:.*}", places as usize);
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').into(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::DOCUMENT;
    use super::*;

    #[test]
    fn flows_are_sorted_by_the_selected_column() {
        let view = View::parse(DOCUMENT).expect("valid");
        let names = |sort| -> Vec<String> {
            let table = flows(&view.pools[0], sort, |flow| (flow.key == "vip").then_some(5.0));
            table.rows.into_iter().map(|row| row[0].clone()).collect()
        };
        assert_eq!(names(Sort::Waiting), ["greedy", "light", "vip"]);
        assert_eq!(names(Sort::Running), ["light", "greedy", "vip"]);
        assert_eq!(names(Sort::Rate), ["vip", "greedy", "light"]);
        assert_eq!(names(Sort::Served), ["light", "greedy", "vip"]);
        assert_eq!(names(Sort::Name), ["greedy", "light", "vip"]);
        let mut sort = Sort::default();
        for _ in 0..5 {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default(), "the order wraps around");
    }

    #[test]
    fn every_row_has_as_many_cells_as_the_header() {
        let view = View::parse(DOCUMENT).expect("valid");
        for pool in &view.pools {
            let all = [
                pools(&view),
                flows(pool, Sort::Waiting, |_| None),
                budgets(pool),
                classes(pool),
                endpoints(pool),
                model(pool),
            ];
            for table in all {
                for row in &table.rows {
                    assert_eq!(row.len(), table.header.len(), "{}", table.title);
                }
            }
        }
        assert_eq!(pools(&view).rows[0], ["chat", "0.86", "6", "6..7", "12", "1", "11", "0", "2/3", "1"]);
        let endpoints = endpoints(&view.pools[0]).rows;
        assert_eq!(endpoints[1][3], "any");
        assert_eq!(endpoints[2][4..], ["-", "-", "-", "its health check fails"]);
    }

    #[test]
    fn a_flow_that_is_over_its_budget_is_marked() {
        let view = View::parse(DOCUMENT).expect("valid");
        let flows = flows(&view.pools[0], Sort::Name, |_| None);
        let marks: Vec<&str> = flows.rows.iter().map(|row| &*row[7]).collect();
        assert_eq!(marks, ["over", "", ""]);
        let budgets = budgets(&view.pools[0]);
        assert_eq!(
            budgets.rows[0],
            ["greedy", "1h tokens", "100,000", "100,700", "0", "2026-11-24T18:00:00Z", "demote"]
        );
        assert_eq!(budgets.rows[1][1..5], ["day requests", "5,000", "122", "4,878"]);
        assert!(super::budgets(&view.pools[1]).rows.is_empty());
    }

    #[test]
    fn numbers_are_formatted_with_few_digits() {
        for (number, text) in [(0.0, "0"), (0.0005, "0.0005"), (29.53, "29.5"), (8.0, "8"), (1234.5, "1234")]
        {
            assert_eq!(significant(number), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
