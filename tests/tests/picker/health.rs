//! What health checks say: only a companion that can decide serves, and a standby that takes over does. Gateways follow.

use std::net::SocketAddr;
use std::path::Path;

use penstock_tests::gateway::{pool, slots};
use penstock_tests::picker::{Setup, health};
use penstock_tests::ports::{free_address, free_addresses};
use penstock_tests::relay::Relay;
use penstock_tests::replicas::replicas_key;
use penstock_tests::{ClientRequest, Companion, PickerGateway, Upstream, run, until};

pub(crate) const PICKER: &str = "envoy.service.ext_proc.v3.ExternalProcessor";
/// Values of the protocol of health checks.
pub(crate) const SERVING: Option<u8> = Some(1);
const NOT_SERVING: Option<u8> = Some(2);

pub(crate) async fn becomes(address: SocketAddr, service: &str, expected: Option<u8>) {
    until(&format!("{service} at {address} is {expected:?}"), || async {
        let seen = health(address, service).await;
        if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// A companion of several.
pub(crate) struct Replica {
    pub(crate) companion: Companion,
    pub(crate) listen: SocketAddr,
    pub(crate) health: SocketAddr,
}

/// A leader and a standby, with these keys and pools.
pub(crate) async fn two(folder: &Path, head: &str, pools: &[String]) -> [Replica; 2] {
    let lease = format!("{{file: '{}'}}", folder.join("lease").display());
    two_by(&lease, head, pools).await
}

/// [`two`] with this lease.
pub(crate) async fn two_by(lease: &str, head: &str, pools: &[String]) -> [Replica; 2] {
    let addresses = free_addresses(2);
    let leader = replica(&addresses, 0, lease, head, pools).await;
    becomes(leader.health, "readiness", SERVING).await;
    [leader, replica(&addresses, 1, lease, head, pools).await]
}

/// The companion with the address of this index.
pub(crate) async fn replica(
    addresses: &[SocketAddr],
    index: usize,
    lease: &str,
    head: &str,
    pools: &[String],
) -> Replica {
    let (address, listen, health) = (addresses[index], free_address(), free_address());
    let head = format!(
        "{}picker: {{listen: '{listen}', health: '{health}'}}\n{head}",
        replicas_key(addresses, address, lease, "")
    );
    Replica { companion: Companion::replica(address, &head, pools).await, listen, health }
}

#[test]
fn a_standby_does_not_serve_until_it_leads() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [mut leader, standby] = two(folder.path(), "", &[pool("chat", "", &[&server], "")]).await;
        for address in [leader.listen, leader.health] {
            for service in ["liveness", "readiness", PICKER] {
                becomes(address, service, SERVING).await;
            }
        }
        for address in [standby.listen, standby.health] {
            becomes(address, "liveness", SERVING).await;
            becomes(address, "readiness", NOT_SERVING).await;
            becomes(address, PICKER, NOT_SERVING).await;
        }
        assert_eq!(health(leader.listen, "unknown").await, None);
        let gateway = gateway_of(standby.listen, &server).await;
        let refused = gateway.send(ClientRequest::chat("m", "hi")).await;
        assert_eq!(refused.status, 500, "a standby refuses at once, and the gateway's failure mode decides");
        // The standby's picker has nothing about which the leader could decide, so it isn't one of the leader's filters.
        leader.companion.picker_sessions().await;
        leader.companion.kill().await;
        becomes(standby.listen, PICKER, SERVING).await;
        let answer = gateway.spawn(ClientRequest::chat("m", "hi"));
        server.next().await.answer();
        assert_eq!(answer.await.expect("no panic").status, 200);
        standby.companion.stock("chat", 0).await;
    });
}

/// A gateway that asks the picker at this address.
pub(crate) async fn gateway_of(picker: SocketAddr, server: &Upstream) -> PickerGateway {
    let setup = Setup { picker: Some(picker), ..Setup::default() };
    PickerGateway::with("", &[pool("none", "none", &[server], "")], "", &setup).await
}

#[test]
fn a_gateway_follows_the_leader_when_it_hands_over() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pools = [pool("chat", "", &[&server], &slots(1))];
        let [mut leader, standby] = two(folder.path(), "", &pools).await;
        // As a Service: one address, whichever companion is ready.
        let service = Relay::to(leader.listen).await;
        let gateway = gateway_of(service.address(), &server).await;
        let running = gateway.spawn(ClientRequest::chat("m", "runs").streamed());
        let events = server.next().await.stream();
        events.text("one");
        let waiting = gateway.spawn(ClientRequest::chat("m", "waits"));
        leader.companion.waiting("chat", 1).await;
        service.redirect(standby.listen);
        leader.companion.signal(libc::SIGTERM);
        becomes(standby.listen, PICKER, SERVING).await;
        // The gateway has kept its connection to the last leader for these two, and asks the next one, which has counted them.
        let next = gateway.spawn(ClientRequest::chat("m", "next"));
        standby.companion.waiting("chat", 2).await;
        standby.companion.stock("chat", 1).await;
        assert!(server.arrived().await.is_none(), "the only place is taken");
        events.text("two");
        events.finish(9, 2);
        let answer = running.await.expect("no panic");
        assert_eq!(answer.status, 200);
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        for (text, answer) in [("waits", waiting), ("next", next)] {
            let call = server.next().await;
            assert_eq!(call.text(), text);
            call.answer();
            assert_eq!(answer.await.expect("no panic").status, 200, "{text}");
        }
        leader.companion.exit().await;
        standby.companion.stock("chat", 0).await;
    });
}

#[test]
fn a_companion_that_ends_stops_serving_first() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("chat", "", &[&server], "")];
        for keys in ["", "shutdown: {queued: reject}\n"] {
            let health = free_address();
            let port = format!(", health: '{health}'");
            let gateway = PickerGateway::with(keys, &pools, &port, &Setup::default()).await;
            let answer = gateway.spawn(ClientRequest::chat("m", "runs"));
            let call = server.next().await;
            becomes(health, PICKER, SERVING).await;
            gateway.signal(libc::SIGTERM);
            becomes(health, PICKER, NOT_SERVING).await;
            becomes(health, "liveness", SERVING).await;
            call.answer();
            assert_eq!(answer.await.expect("no panic").status, 200, "a running request may finish");
        }
    });
}
