//! The demo's traffic against a simulated server without a gateway.

use std::time::Duration;

use super::*;

fn args(time: Duration) -> Args {
    Args { time: Some(time), seed: 5, port: 0, admin_port: 0, kill_leader: false }
}

async fn fast() -> Running {
    let hardware = Hardware { alpha_ms: 0.2, beta_ms: 0.001, gamma_ms: 0.0, ..Hardware::default() };
    mock_server::start(mock_server::Settings { hardware, ..mock_server::Settings::default() }).await.unwrap()
}

#[tokio::test]
async fn every_sent_request_ends_and_the_server_agrees_by_tenant() {
    let server = fast().await;
    let address = server.address().to_string();
    let site = Site { gateway: address.clone(), companions: vec![address] };
    let mut signals = Signals::new().unwrap();
    let snapshot = run_traffic(&site, &args(Duration::from_millis(800)), Screen::lines(), &mut signals, None)
        .await
        .unwrap();
    let served = server.served_by_tenant().await.unwrap();
    for (tenant, tally) in snapshot.tenants.iter().zip(&snapshot.tallies) {
        assert_eq!(tally.sent, tally.ends(), "{}", tenant.name);
        assert_eq!(tally.served, tally.sent, "{}: {:?}", tenant.name, tally.last_failure);
        assert_eq!(served.get(tenant.name).copied().unwrap_or(0), tally.served, "{}", tenant.name);
    }
    assert!(snapshot.tallies[0].served > 0);
    let stats = server.stats().await.unwrap();
    assert_eq!((stats.in_flight, stats.cancelled, stats.refused), (0, 0, 0));
}

#[tokio::test]
async fn unreachable_gateway_gives_failures_that_are_counted() {
    let unreachable = {
        let server = fast().await;
        server.address().to_string()
    };
    let site = Site { gateway: unreachable.clone(), companions: vec![unreachable] };
    let mut signals = Signals::new().unwrap();
    let snapshot = run_traffic(&site, &args(Duration::from_millis(100)), Screen::lines(), &mut signals, None)
        .await
        .unwrap();
    let greedy = &snapshot.tallies[0];
    assert!(greedy.failed > 0 && greedy.failed == greedy.sent, "{greedy:?}");
    let clients = vec![("greedy", greedy.clone())];
    let mismatches = Accounting { clients, ..Accounting::default() }.mismatches();
    assert!(mismatches[0].contains("requests was served"), "{mismatches:?}");
}

#[test]
fn time_is_a_positive_duration_with_a_unit() {
    assert_eq!(positive("20s"), Ok(Duration::from_secs(20)));
    assert_eq!(positive("1m 30s"), Ok(Duration::from_secs(90)));
    assert!(positive("20").is_err() && positive("0s").is_err() && positive("soon").is_err());
}
