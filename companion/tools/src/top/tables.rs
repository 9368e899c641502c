//! What the tables say: one row a pool, a flow, an endpoint, a variant; the same for a terminal and for text.

use std::cmp::Reverse;

use super::view::{Endpoint, Flow, Model, Pool, View};

/// Rows under a header; the columns of `left` are words, the others numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
    pub(super) left: &'static [usize],
}

/// By what flows are sorted.
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

/// An endless bound.
const ENDLESS: u64 = u64::MAX;
/// What isn't known.
const UNKNOWN: &str = "-";
const BANDS: [&str; 3] = ["critical", "default", "sheddable"];

/// All pools, a row each.
pub(super) fn pools(view: &View) -> Table {
    let row = |pool: &Pool| {
        let band = |name: &str| {
            pool.bands
                .iter()
                .find(|it| it.name == name)
                .map_or(0, |it| it.waiting)
        };
        let ready = pool.endpoints.iter().filter(|it| it.ready).count();
        let mut row = vec![
            pool.name.clone(),
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

/// The flows of a pool, and how many tokens each was served a second, where that is known.
pub(super) fn flows(pool: &Pool, sort: Sort, rate: impl Fn(&Flow) -> Option<f64>) -> Table {
    let mut flows: Vec<(&Flow, Option<f64>)> = pool.flows.iter().map(|it| (it, rate(it))).collect();
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
        vec![
            if flow.key.is_empty() {
                "anonymous".into()
            } else {
                flow.key.clone()
            },
            flow.band.clone(),
            flow.waiting.to_string(),
            flow.in_flight.to_string(),
            grouped(flow.served_tokens),
            rate.map_or_else(|| UNKNOWN.into(), |it| format!("{it:.0}")),
            significant(flow.weight),
        ]
    };
    Table {
        title: format!("flows of {}, by {}", pool.name, sort.as_str()),
        header: vec![
            "flow",
            "band",
            "waiting",
            "running",
            "served tokens",
            "tokens/s",
            "weight",
        ],
        rows: flows.into_iter().map(row).collect(),
        left: &[0, 1],
    }
}

/// The policy classes of a pool; no rows where none are configured.
pub(super) fn classes(pool: &Pool) -> Table {
    let rows = pool.classes.iter().map(|it| {
        vec![
            it.name.clone(),
            it.waiting.to_string(),
            it.quantum.to_string(),
            it.deficit.to_string(),
        ]
    });
    Table {
        title: format!("classes of {}", pool.name),
        header: vec!["class", "waiting", "quantum", "deficit"],
        rows: rows.collect(),
        left: &[0],
    }
}

/// The endpoints of a pool.
pub(super) fn endpoints(pool: &Pool) -> Table {
    let row = |it: &Endpoint| {
        vec![
            it.address.clone(),
            it.variant.clone().unwrap_or_else(|| UNKNOWN.into()),
            it.stock.to_string(),
            if it.bound == ENDLESS {
                "any".into()
            } else {
                it.bound.to_string()
            },
            maybe(it.foreign),
            maybe(it.queue),
            it.kv
                .map_or_else(|| UNKNOWN.into(), |kv| format!("{:.0} %", kv * 100.0)),
            it.why.clone(),
        ]
    };
    Table {
        title: format!("endpoints of {}", pool.name),
        header: vec![
            "endpoint", "variant", "stock", "bound", "foreign", "queue", "kv", "state",
        ],
        rows: pool.endpoints.iter().map(row).collect(),
        left: &[0, 1, 7],
    }
}

/// What is known of a pool's servers.
pub(super) fn model(pool: &Pool) -> Table {
    let number = |of: Option<f64>| of.map_or_else(|| UNKNOWN.into(), significant);
    let row = |it: &Model| {
        vec![
            it.variant.clone(),
            it.state.replace('_', " "),
            number(it.alpha),
            number(it.beta),
            number(it.gamma),
            number(it.n_star),
            number(it.lambda_star),
            significant(it.demand),
            it.current_replicas.to_string(),
            maybe(it.desired_replicas),
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

/// All advice, the pool's name before its own.
pub(super) fn advice(view: &View) -> Vec<String> {
    let pools = view.pools.iter().flat_map(|pool| {
        let line = |it: &String| format!("{}: {it}", pool.name);
        pool.advice.iter().map(line).collect::<Vec<_>>()
    });
    view.advice.iter().cloned().chain(pools).collect()
}

fn bounds(pool: &Pool) -> String {
    match (pool.lower, pool.upper) {
        (ENDLESS, _) | (_, ENDLESS) => "any".into(),
        (lower, upper) => format!("{lower}..{upper}"),
    }
}

fn maybe(of: Option<u64>) -> String {
    of.map_or_else(|| UNKNOWN.into(), |it| it.to_string())
}

/// `1,234,567`.
fn grouped(of: u64) -> String {
    let digits = of.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits that say something.
fn significant(of: f64) -> String {
    if of == 0.0 || !of.is_finite() {
        return "0".into();
    }
    let before = of.abs().log10().floor();
    let places = if before >= 2.0 { 0.0 } else { 2.0 - before };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float has at most 324 digits before its first one"
    )]
    let text = format!("{of:.*}", places as usize);
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
    fn flows_are_sorted_by_what_is_asked() {
        let view = View::read(DOCUMENT).expect("valid");
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
        assert_eq!(sort, Sort::default(), "it goes round");
    }

    #[test]
    fn every_row_has_as_many_cells_as_its_header() {
        let view = View::read(DOCUMENT).expect("valid");
        for pool in &view.pools {
            let all = [
                pools(&view),
                flows(pool, Sort::Waiting, |_| None),
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
        assert_eq!(
            pools(&view).rows[0],
            ["chat", "0.86", "6", "6..7", "12", "1", "11", "0", "2/3", "1"]
        );
        let endpoints = endpoints(&view.pools[0]).rows;
        assert_eq!(endpoints[1][3], "any");
        assert_eq!(endpoints[2][4..], ["-", "-", "-", "its health check fails"]);
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.0005, "0.0005"),
            (29.53, "29.5"),
            (8.0, "8"),
            (1234.5, "1234"),
        ] {
            assert_eq!(significant(number), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
