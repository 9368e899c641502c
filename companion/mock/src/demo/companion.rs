//! The companion's pages /status and /metrics, as far as the demo shows and checks them.
//!
//! The demo reads them over HTTP, like any other tool.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::Outcome;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::tenants::MODEL;

/// A request to the companion that takes longer fails.
const TIMEOUT: Duration = Duration::from_secs(2);

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

/// A flow in one band.
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
    /// The waiting and running requests of a flow, over all bands.
    pub(super) fn flow(&self, key: &str) -> (u64, u64) {
        let bands = self.flows.iter().filter(|flow| flow.key == key);
        bands.fold((0, 0), |(waiting, running), flow| (waiting + flow.waiting, running + flow.in_flight))
    }
}

/// The companion's counts of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) all: RequestCounts,
    /// Requests for the demo's model.
    pub(super) demo: RequestCounts,
    pub(super) waiting: u64,
    pub(super) stock: u64,
}

/// Arrivals and outcomes of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestCounts {
    pub(super) arrivals: u64,
    pub(super) outcomes: BTreeMap<String, u64>,
}

impl RequestCounts {
    /// Requests that were admitted to a server.
    pub(super) fn admitted(&self) -> u64 {
        let granted = Outcome::ALL.into_iter().filter(|outcome| outcome.is_grant());
        granted.filter_map(|outcome| self.outcomes.get(outcome.as_str())).sum()
    }
}

/// A client for the companion's pages.
#[derive(Clone, Debug)]
pub(super) struct Companion {
    client: reqwest::Client,
    base: String,
}

impl Companion {
    /// `base` is an address such as `http://127.0.0.1:9191`, without a slash at the end.
    pub(super) fn new(base: String) -> reqwest::Result<Self> {
        Ok(Self { client: reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?, base })
    }

    /// The first pool. Fails if the companion doesn't answer or has no pool.
    pub(super) async fn pool(&self) -> Result<Pool, String> {
        let status: Status = self.page("/status").await?;
        status.pools.into_iter().next().ok_or_else(|| "/status: no pool".to_owned())
    }

    pub(super) async fn counts(&self) -> Result<Counts, String> {
        let text = self.get("/metrics").await?.text().await.map_err(|error| format!("/metrics: {error}"))?;
        Ok(counts(&text))
    }

    /// A page in JSON.
    pub(super) async fn page<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let page = self.get(path).await?.json().await;
        page.map_err(|error| format!("{path}: {error}"))
    }

    async fn get(&self, path: &str) -> Result<reqwest::Response, String> {
        let answer = self.client.get(format!("{}{path}", self.base)).send().await;
        answer.and_then(reqwest::Response::error_for_status).map_err(|error| format!("{path}: {error}"))
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

impl RequestCounts {
    fn add(&mut self, name: &str, labels: &str, value: u64) {
        if name == "penstock_arrivals_total" {
            self.arrivals += value;
        } else if name == "penstock_requests_total" && value > 0 {
            let outcome = label(labels, "outcome").unwrap_or("unnamed").to_owned();
            *self.outcomes.entry(outcome).or_default() += value;
        }
    }
}

/// The value of a label. The labels used here never contain characters that Prometheus escapes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let value = labels.match_indices(name).find_map(|(position, _)| {
        let value = labels[position + name.len()..].strip_prefix("=\"")?;
        (position == 0 || labels[..position].ends_with(',')).then_some(value)
    })?;
    value.split('"').next()
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
            RequestCounts { arrivals, outcomes: outcomes.collect() }
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
    fn unknown_fields_of_status_are_ignored() {
        let text = r#"{"version":"1","pools":[{"name":"demo","saturation":0.5,"stock":3,"lower":6,"upper":7,
            "watermark":6,"waiting":2,"bands":[],"flows":[
            {"key":"vip","band":"critical","waiting":1,"in_flight":2,"weight":1.0},
            {"key":"vip","band":"default","waiting":1,"in_flight":0,"weight":1.0}],
            "endpoints":[{"address":"a:1","variant":null,"ready":true,"stock":3,"bound":3}]}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!((status.pools[0].flow("vip"), status.pools[0].flow("you")), ((2, 2), (0, 0)));
        assert_eq!(status.pools[0].endpoints[0].bound, 3);
    }
}
