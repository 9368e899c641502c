//! What health checks say: only a companion that can decide serves, and a standby that takes over does.

use std::net::SocketAddr;

use penstock_tests::gateway::pool;
use penstock_tests::picker::{Setup, health};
use penstock_tests::ports::{free_address, free_addresses};
use penstock_tests::replicas::replicas_key;
use penstock_tests::{ClientRequest, Companion, PickerGateway, Upstream, run, until};

const PICKER: &str = "envoy.service.ext_proc.v3.ExternalProcessor";
/// Values of the protocol of health checks.
const SERVING: Option<u8> = Some(1);
const NOT_SERVING: Option<u8> = Some(2);

async fn becomes(address: SocketAddr, service: &str, expected: Option<u8>) {
    until(&format!("{service} at {address} is {expected:?}"), || async {
        let seen = health(address, service).await;
        if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

#[test]
fn a_standby_does_not_serve_until_it_leads() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let lease = format!("{{file: '{}'}}", folder.path().join("lease").display());
        let addresses = free_addresses(2);
        let mut companions = Vec::new();
        let mut ports = Vec::new();
        for &address in &addresses {
            let (listen, health) = (free_address(), free_address());
            let head = format!(
                "{}picker: {{listen: '{listen}', health: '{health}'}}\n",
                replicas_key(&addresses, address, &lease, "")
            );
            companions.push(Companion::replica(address, &head, &[pool("chat", "", &[&server], "")]).await);
            ports.push((listen, health));
            if ports.len() == 1 {
                becomes(health, "readiness", SERVING).await;
            }
        }
        let [(leader, leader_health), (standby, standby_health)] = ports[..] else {
            panic!("two companions")
        };
        for address in [leader, leader_health] {
            for service in ["liveness", "readiness", PICKER] {
                becomes(address, service, SERVING).await;
            }
        }
        for address in [standby, standby_health] {
            becomes(address, "liveness", SERVING).await;
            becomes(address, "readiness", NOT_SERVING).await;
            becomes(address, PICKER, NOT_SERVING).await;
        }
        assert_eq!(health(leader, "unknown").await, None);
        companions[0].kill().await;
        becomes(standby, PICKER, SERVING).await;
        let setup = Setup { picker: Some(standby), ..Setup::default() };
        let gateway = PickerGateway::with("", &[pool("none", "none", &[&server], "")], "", &setup).await;
        let answer = gateway.spawn(ClientRequest::chat("m", "hi"));
        server.next().await.answer();
        assert_eq!(answer.await.expect("no panic").status, 200);
        companions[1].stock("chat", 0).await;
    });
}

#[test]
fn a_companion_that_drains_stops_serving_first() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("chat", "", &[&server], "")];
        let gateway = PickerGateway::with("", &pools, "", &Setup::default()).await;
        let answer = gateway.spawn(ClientRequest::chat("m", "runs"));
        let call = server.next().await;
        becomes(gateway.picker, PICKER, SERVING).await;
        gateway.signal(libc::SIGTERM);
        becomes(gateway.picker, PICKER, NOT_SERVING).await;
        call.answer();
        assert_eq!(answer.await.expect("no panic").status, 200, "a running request may finish");
    });
}
