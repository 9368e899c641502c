//! Endpoints that are all addresses of a name, as Kubernetes' headless services and most registries have it.
//!
//! The system's resolver is asked, so `/etc/hosts` and search domains count; it says nothing of how long an answer is
//! good for, so `refresh` does. That a name isn't known is a failure like any other: what was found stays.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_config::Endpoint;
use tokio::time::MissedTickBehavior;

use super::{Report, endpoint};

/// A resolver that doesn't answer is asked again after this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks the name up, again and again.
pub(super) async fn run(mut report: Report, name: String, port: u16, refresh: Duration) {
    let mut ticks = tokio::time::interval(refresh);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match look_up(&name, port).await {
            Ok(endpoints) => report.found(endpoints).await,
            Err(why) => report.failed(&why),
        }
    }
}

async fn look_up(name: &str, port: u16) -> Result<Vec<Endpoint>, String> {
    match tokio::time::timeout(PATIENCE, tokio::net::lookup_host((name, port))).await {
        Ok(Ok(addresses)) => Ok(endpoints(addresses)),
        Ok(Err(why)) => Err(format!("{name} can't be looked up: {why}")),
        Err(_) => Err(format!("{name} isn't looked up within {PATIENCE:?}")),
    }
}

/// In one order however the resolver shuffles them. A name that is known by both kinds of address is of servers that
/// have both: IPv4 counts, or each would be there twice.
fn endpoints(addresses: impl Iterator<Item = SocketAddr>) -> Vec<Endpoint> {
    let mut all: Vec<SocketAddr> = addresses.collect();
    if all.iter().any(SocketAddr::is_ipv4) {
        all.retain(SocketAddr::is_ipv4);
    }
    all.sort_unstable();
    all.into_iter().map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use penstock_config::Discovery;

    use super::*;

    fn of(addresses: &[&str]) -> Vec<String> {
        let addresses = addresses.iter().map(|it| it.parse().expect("valid"));
        endpoints(addresses)
            .iter()
            .map(|it| it.address.to_string())
            .collect()
    }

    #[test]
    fn the_order_is_ours_and_a_server_with_both_addresses_is_one() {
        assert_eq!(
            of(&["10.0.0.9:1", "[fd00::1]:1", "10.0.0.10:1"]),
            ["10.0.0.9:1", "10.0.0.10:1"]
        );
        assert_eq!(
            of(&["[fd00::2]:1", "[fd00::1]:1"]),
            ["[fd00::1]:1", "[fd00::2]:1"]
        );
    }

    #[tokio::test]
    async fn a_name_is_found_and_one_that_isnt_known_is_a_failure() {
        let refresh = Duration::from_millis(5);
        let by = Discovery::Dns {
            name: "localhost".into(),
            port: 8000,
            refresh,
        };
        let (to, mut found) = mpsc::channel(8);
        let task = tokio::spawn(run(
            Report::new("a".into(), by, to),
            "localhost".into(),
            8000,
            refresh,
        ));
        let first = found.recv().await.expect("found");
        task.abort();
        let local = |it: &Endpoint| it.address.port() == 8000 && it.address.ip().is_loopback();
        assert!(first.endpoints.iter().all(local), "{first:?}");
        // No name has a blank in it: nobody is asked.
        let why = look_up("no such name", 8000).await.expect_err("unknown");
        assert!(why.starts_with("no such name can't be looked up"), "{why}");
    }
}
