//! What the companion says of the gateway: the parts of /status and /metrics that the demo shows and checks.
//!
//! Read over HTTP like any user's tool would, so that the demo also shows that these pages are enough.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::tenants::MODEL;

/// A companion that doesn't answer for so long is treated as away.
const PATIENCE: Duration = Duration::from_secs(2);

/// The demo's pool in /status.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(super) struct Pool {
    pub(super) saturation: f64,
    pub(super) stock: u64,
    pub(super) lower: u64,
    pub(super) upper: u64,
    pub(super) waiting: u64,
    pub(super) flows: Vec<Flow>,
    pub(super) endpoints: Vec<Endpoint>,
}

/// A flow, once for each of its bands.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(super) struct Flow {
    pub(super) key: String,
    pub(super) waiting: u64,
    pub(super) in_flight: u64,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) ready: bool,
    pub(super) stock: u64,
    pub(super) bound: u64,
}

#[derive(Deserialize)]
struct Status {
    pools: Vec<Pool>,
}

impl Pool {
    /// Requests of a flow that wait and that run, over its bands.
    pub(super) fn flow(&self, key: &str) -> (u64, u64) {
        let of = self.flows.iter().filter(|flow| flow.key == key);
        of.fold((0, 0), |(waiting, running), flow| {
            (waiting + flow.waiting, running + flow.in_flight)
        })
    }
}

/// The companion's own count of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Everybody's.
    pub(super) all: Passed,
    /// Those for the demo's model.
    pub(super) demo: Passed,
    pub(super) waiting: u64,
    pub(super) stock: u64,
}

/// What came in and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) arrivals: u64,
    pub(super) outcomes: BTreeMap<String, u64>,
}

impl Passed {
    /// Requests that were let through to a server.
    pub(super) fn admitted(&self) -> u64 {
        let names = ["bypassed", "leased", "dispatched"];
        names.iter().filter_map(|name| self.outcomes.get(*name)).sum()
    }
}

/// The companion's pages.
#[derive(Clone, Debug)]
pub(super) struct Companion {
    client: reqwest::Client,
    base: String,
}

impl Companion {
    /// `base`: `http://127.0.0.1:9191`, without a slash at the end.
    pub(super) fn new(base: String) -> reqwest::Result<Self> {
        Ok(Self {
            client: reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?,
            base,
        })
    }

    /// The first pool; an error if the companion doesn't answer, or has none.
    pub(super) async fn pool(&self) -> Result<Pool, String> {
        let status: Status = self
            .get("/status")
            .await?
            .json()
            .await
            .map_err(|e| format!("/status: {e}"))?;
        status
            .pools
            .into_iter()
            .next()
            .ok_or_else(|| "/status: no pool".to_owned())
    }

    pub(super) async fn counts(&self) -> Result<Counts, String> {
        let text = self
            .get("/metrics")
            .await?
            .text()
            .await
            .map_err(|e| format!("/metrics: {e}"))?;
        Ok(counts(&text))
    }

    async fn get(&self, path: &str) -> Result<reqwest::Response, String> {
        let answer = self.client.get(format!("{}{path}", self.base)).send().await;
        answer
            .and_then(reqwest::Response::error_for_status)
            .map_err(|e| format!("{path}: {e}"))
    }
}

fn counts(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let value = value.parse::<f64>().unwrap_or(0.0) as u64;
        match name {
            "penstock_queue_length" => counts.waiting += value,
            "penstock_stock_level" | "penstock_draining_stock" => counts.stock += value,
            _ => {
                counts.all.add(name, labels, value);
                if label(labels, "model") == Some(MODEL) {
                    counts.demo.add(name, labels, value);
                }
            }
        }
    }
    counts
}

impl Passed {
    fn add(&mut self, name: &str, labels: &str, value: u64) {
        if name == "penstock_arrivals_total" {
            self.arrivals += value;
        } else if name == "penstock_requests_total" && value > 0 {
            let outcome = label(labels, "outcome").unwrap_or("unnamed").to_owned();
            *self.outcomes.entry(outcome).or_default() += value;
        }
    }
}

/// The value of a label; outcomes hold nothing that Prometheus escapes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let starts = labels.match_indices(name).find_map(|(at, _)| {
        let value = labels[at + name.len()..].strip_prefix("=\"")?;
        (at == 0 || labels[..at].ends_with(',')).then_some(value)
    })?;
    starts.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_sums_over_all_other_labels() {
        let text = "# HELP penstock_arrivals_total Requests.\n\
            penstock_arrivals_total{model=\"demo\",pool=\"demo\",target_model=\"x\"} 7\n\
            penstock_arrivals_total{model=\"\",pool=\"demo\",target_model=\"demo\"} 1\n\
            penstock_requests_total{band=\"default\",model=\"demo\",outcome=\"bypassed\",pool=\"demo\"} 4\n\
            penstock_requests_total{band=\"critical\",model=\"demo\",outcome=\"bypassed\"} 2\n\
            penstock_requests_total{my_outcome=\"x\",outcome=\"cancelled\"} 1\n\
            penstock_requests_total{outcome=\"displaced\"} 0\n\
            penstock_queue_length{flow=\"a\"} 1\npenstock_stock_level{endpoint=\"127.0.0.1:1\"} 3\n\
            penstock_stock_level{endpoint=\"127.0.0.1:2\"} 2\npenstock_arrivals_total_created 99\n";
        let passed = |arrivals, outcomes: &[(&str, u64)]| {
            let outcomes = outcomes.iter().map(|(name, count)| ((*name).to_owned(), *count));
            Passed {
                arrivals,
                outcomes: outcomes.collect(),
            }
        };
        let expected = Counts {
            all: passed(8, &[("bypassed", 6), ("cancelled", 1)]),
            demo: passed(7, &[("bypassed", 6)]),
            waiting: 1,
            stock: 5,
        };
        assert_eq!(counts(text), expected);
        assert_eq!(expected.all.admitted(), 6);
    }

    #[test]
    fn status_is_read_past_what_is_unknown() {
        let text = r#"{"version":"1","pools":[{"name":"demo","saturation":0.5,"stock":3,"lower":6,"upper":7,
            "watermark":6,"waiting":2,"bands":[],"flows":[
            {"key":"vip","band":"critical","waiting":1,"in_flight":2,"weight":1.0},
            {"key":"vip","band":"default","waiting":1,"in_flight":0,"weight":1.0}],
            "endpoints":[{"address":"a:1","variant":null,"ready":true,"stock":3,"bound":3}]}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(
            (status.pools[0].flow("vip"), status.pools[0].flow("you")),
            ((2, 2), (0, 0))
        );
        assert_eq!(status.pools[0].endpoints[0].bound, 3);
    }
}
