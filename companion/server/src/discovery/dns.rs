//! Endpoints from DNS: all addresses of a name, as headless Kubernetes services and most registries publish them.
//!
//! The system's resolver is used, so `/etc/hosts` and search domains count. It returns no TTL, so the name is resolved
//! every `refresh`. An unknown name is a failure like any other: the last endpoints stay.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_config::{Endpoint, EndpointDefaults};
use tokio::time::MissedTickBehavior;

use super::Report;

/// A resolver that doesn't answer within this time has failed.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Resolves the name periodically.
pub(super) async fn run(mut report: Report, name: String, port: u16, refresh: Duration) {
    let mut ticks = tokio::time::interval(refresh);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match look_up(&name, port, &report.settings.defaults).await {
            Ok(endpoints) => report.send_endpoints(endpoints).await,
            Err(why) => report.failed(&why),
        }
    }
}

async fn look_up(name: &str, port: u16, defaults: &EndpointDefaults) -> Result<Vec<Endpoint>, String> {
    match tokio::time::timeout(ANSWER_MAX, tokio::net::lookup_host((name, port))).await {
        Ok(Ok(addresses)) => Ok(endpoints(addresses, defaults)),
        Ok(Err(why)) => Err(format!("{name} can't be resolved: {why}")),
        Err(_) => Err(format!("{name} was not resolved within {ANSWER_MAX:?}")),
    }
}

/// Sorted, because resolvers shuffle addresses. If the name has IPv4 addresses, its IPv6 addresses are dropped:
/// otherwise a server with both would be two endpoints.
fn endpoints(addresses: impl Iterator<Item = SocketAddr>, defaults: &EndpointDefaults) -> Vec<Endpoint> {
    let mut all: Vec<SocketAddr> = addresses.collect();
    if all.iter().any(SocketAddr::is_ipv4) {
        all.retain(SocketAddr::is_ipv4);
    }
    all.sort_unstable();
    all.into_iter().map(|address| defaults.endpoint(address)).collect()
}

#[cfg(test)]
mod tests {
    use penstock_config::Discovery;
    use tokio::sync::mpsc;

    use super::*;
    use crate::discovery::{settings, states};

    fn resolve(addresses: &[&str]) -> Vec<String> {
        let addresses = addresses.iter().map(|address| address.parse().expect("valid"));
        endpoints(addresses, &EndpointDefaults::default())
            .iter()
            .map(|endpoint| endpoint.address.to_string())
            .collect()
    }

    #[test]
    fn addresses_are_sorted_and_ipv4_is_preferred() {
        assert_eq!(resolve(&["10.0.0.9:1", "[fd00::1]:1", "10.0.0.10:1"]), ["10.0.0.9:1", "10.0.0.10:1"]);
        assert_eq!(resolve(&["[fd00::2]:1", "[fd00::1]:1"]), ["[fd00::1]:1", "[fd00::2]:1"]);
    }

    #[tokio::test]
    async fn a_known_name_has_endpoints_and_an_unknown_one_fails() {
        let refresh = Duration::from_millis(5);
        let discovery = Discovery::Dns { name: "localhost".into(), port: 8000, refresh };
        let (sender, mut found) = mpsc::channel(8);
        let task = tokio::spawn(run(
            Report::new("a".into(), settings(discovery), sender, states("a")),
            "localhost".into(),
            8000,
            refresh,
        ));
        let first = found.recv().await.expect("found");
        task.abort();
        let local =
            |endpoint: &Endpoint| endpoint.address.port() == 8000 && endpoint.address.ip().is_loopback();
        assert!(first.discovered.endpoints.iter().all(local), "{first:?}");
        // A name with a space is rejected without a query.
        let why = look_up("no such name", 8000, &EndpointDefaults::default()).await.expect_err("unknown");
        assert!(why.starts_with("no such name can't be resolved"), "{why}");
    }
}
