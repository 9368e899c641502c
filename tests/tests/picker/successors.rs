//! Companions that lead one after the other while requests of earlier leaders' pickers run: what each of them counts.

use std::path::Path;

use penstock_tests::gateway::{pool, slots};
use penstock_tests::ports::free_addresses;
use penstock_tests::replicas::etcd_lease;
use penstock_tests::{ClientRequest, Etcd, Upstream, run};

use crate::health::{PICKER, SERVING, becomes, gateway_of, replica};

/// A pool whose servers are read from a file, so that a companion doesn't know them when it starts.
fn discovered(folder: &Path, server: &Upstream, bound: u32) -> String {
    let file = folder.join("servers.yaml");
    std::fs::write(&file, format!("- {}\n", server.address())).expect("written");
    format!("- name: chat\n  endpoints: {{file: '{}'}}\n{}", file.display(), slots(bound))
}

#[test]
fn what_two_earlier_leaders_left_counts_at_one_that_has_just_started() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pools = [discovered(folder.path(), &server, 2)];
        // Its lease is taken over at once, before a companion that has just started knows its servers.
        let etcd = Etcd::start().await;
        let lease = etcd_lease(&etcd.url());
        let addresses = free_addresses(3);
        let mut first = replica(&addresses, 0, &lease, "", &pools).await;
        becomes(first.health, "readiness", SERVING).await;
        let gateway = gateway_of(first.listen, &server).await;
        let of_first = gateway.spawn(ClientRequest::chat("m", "first").streamed());
        let events_of_first = server.next().await.stream();
        events_of_first.text("one");
        let mut second = replica(&addresses, 1, &lease, "", &pools).await;
        first.companion.signal(libc::SIGTERM);
        becomes(second.listen, PICKER, SERVING).await;
        second.companion.stock("chat", 1).await;
        let gateway = gateway_of(second.listen, &server).await;
        let of_second = gateway.spawn(ClientRequest::chat("m", "second").streamed());
        let events_of_second = server.next().await.stream();
        events_of_second.text("one");
        let waits = gateway.spawn(ClientRequest::chat("m", "waits"));
        second.companion.waiting("chat", 1).await;
        // The third one starts as the second one leaves, so it leads before it has run for long.
        second.companion.signal(libc::SIGTERM);
        let third = replica(&addresses, 2, &lease, "", &pools).await;
        becomes(third.listen, PICKER, SERVING).await;
        third.companion.stock("chat", 2).await;
        third.companion.waiting("chat", 1).await;
        assert!(server.arrived().await.is_none(), "both places are taken");
        for events in [events_of_first, events_of_second] {
            events.text("two");
            events.finish(9, 2);
        }
        server.next().await.answer();
        for answer in [of_first, of_second] {
            let answer = answer.await.expect("no panic");
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        }
        assert_eq!(waits.await.expect("no panic").status, 200);
        for companion in [&mut first.companion, &mut second.companion] {
            assert!(companion.exit().await.success());
        }
        third.companion.stock("chat", 0).await;
        let page = third.companion.metrics().await;
        assert_eq!(page.sum("penstock_output_tokens_total", &[]), 8.0, "of all three");
    });
}

#[test]
fn what_an_earlier_leader_left_counts_after_the_death_of_its_successor() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("chat", "", &[&server], &slots(1))];
        let etcd = Etcd::start().await;
        let lease = etcd_lease(&etcd.url());
        let addresses = free_addresses(3);
        let mut first = replica(&addresses, 0, &lease, "", &pools).await;
        becomes(first.health, "readiness", SERVING).await;
        let gateway = gateway_of(first.listen, &server).await;
        let of_first = gateway.spawn(ClientRequest::chat("m", "first").streamed());
        let events = server.next().await.stream();
        events.text("one");
        let mut second = replica(&addresses, 1, &lease, "", &pools).await;
        first.companion.signal(libc::SIGTERM);
        becomes(second.listen, PICKER, SERVING).await;
        second.companion.stock("chat", 1).await;
        let third = replica(&addresses, 2, &lease, "", &pools).await;
        becomes(third.health, "liveness", SERVING).await;
        // The record of the lease names the picker of the first one, which goes on.
        second.companion.kill().await;
        becomes(third.listen, PICKER, SERVING).await;
        let gateway = gateway_of(third.listen, &server).await;
        let waits = gateway.spawn(ClientRequest::chat("m", "waits"));
        third.companion.waiting("chat", 1).await;
        third.companion.stock("chat", 1).await;
        assert!(server.arrived().await.is_none(), "the only place is taken");
        events.text("two");
        events.finish(9, 2);
        server.next().await.answer();
        let answer = of_first.await.expect("no panic");
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        assert_eq!(waits.await.expect("no panic").status, 200);
        assert!(first.companion.exit().await.success());
        third.companion.stock("chat", 0).await;
    });
}
