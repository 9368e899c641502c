//! Several companions: the session finds the one that leads, and lists its requests to that one only.

use std::time::Duration;

use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::limits::{LEADER_WAIT, VERSION_MAX};
use penstock_wire::{Cancel, Endpoints, Heartbeat, Hello, HelloAck, Role, endpoints_digest};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, grant};

const TICK: Duration = Duration::from_millis(50);

/// A worker whose last companion, with term 5, has gone.
fn orphaned() -> Rig {
    let mut rig = Rig::new();
    rig.open();
    rig.hello_ack(5);
    rig
}

/// Ends the stream and opens the next one. Returns the Hello on it.
fn reopen(rig: &mut Rig) -> Hello {
    rig.closed();
    rig.advance(TICK);
    only_hello(probed(rig))
}

/// Opens the stream that the session asks for.
fn probed(rig: &mut Rig) -> Vec<Output> {
    assert_eq!(rig.tick(), [Output::OpenStream]);
    rig.open_silently()
}

fn only_hello(outputs: Vec<Output>) -> Hello {
    match outputs.as_slice() {
        [Output::Sent(_, Event::Hello(hello))] => hello.clone(),
        other => panic!("not a Hello: {other:?}"),
    }
}

fn standby(leader: &str, term: u64) -> Kind {
    Kind::Role(Role { term, leader: leader.to_owned(), here: false })
}

fn leads(term: u64) -> Kind {
    Kind::Role(Role { term, leader: String::new(), here: true })
}

fn hello_ack(term: u64) -> Kind {
    Kind::HelloAck(HelloAck { version: VERSION_MAX, term })
}

#[test]
fn requests_are_listed_to_the_leader_only() {
    let mut rig = orphaned();
    let (waiting, _) = rig.waiting("m1");
    let probe = reopen(&mut rig);
    assert_eq!((probe.probe, probe.last, probe.part), (true, false, 0));
    assert_eq!((probe.term, probe.waiting.len()), (5, 0));
    // No leader yet: the stream stays open, and heartbeats keep it so.
    assert_eq!(rig.command(1, [standby("", 0)]), []);
    rig.advance(Duration::from_secs(1));
    assert_eq!(rig.tick(), [Output::Sent(2, Event::Heartbeat(Heartbeat::default()))]);
    // The standby has become the leader.
    let hello = only_hello(rig.command(2, [leads(6)]));
    assert_eq!((hello.probe, hello.last, hello.part), (false, true, 0));
    assert_eq!(hello.waiting.len(), 1);
    assert_eq!(hello.waiting[0].sequence, waiting);
    rig.command(3, [hello_ack(6)]);
    let outputs = rig.command(3, [Kind::Grant(grant(waiting))]);
    assert!(matches!(&outputs[..], [Output::Resume(..)]), "{outputs:?}");
}

#[test]
fn hello_has_the_digest_of_the_known_endpoints() {
    let mut rig = orphaned();
    let endpoints = |ready: &[&str], bound, keep_ready| {
        Kind::Endpoints(Endpoints {
            pool: "chat".into(),
            ready: ready.iter().map(|address| (*address).to_owned()).collect(),
            fallback_bound: Some(bound),
            keep_ready,
        })
    };
    rig.command(1, [endpoints(&["1.1.1.1:1", "2.2.2.2:2"], 8, false)]);
    rig.command(1, [endpoints(&[], 4, true)]);
    reopen(&mut rig);
    let hello = only_hello(rig.command(1, [leads(6)]));
    let digest = endpoints_digest("chat", ["2.2.2.2:2", "1.1.1.1:1"].into_iter(), Some(4));
    assert_eq!(hello.endpoints_digest, digest);
}

#[test]
fn standby_sends_the_filter_to_the_leader() {
    let mut rig = orphaned();
    reopen(&mut rig);
    let outputs = rig.command(1, [standby("10.0.0.2:9190", 6)]);
    assert!(matches!(&outputs[..], [Output::Info(text)] if text.contains("10.0.0.2:9190")));
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(TICK);
    assert_eq!(rig.tick(), [Output::OpenStreamTo("10.0.0.2:9190".to_owned())]);
    // The leader is gone as well: the next stream goes to any companion.
    rig.open_failed();
    rig.advance(Duration::from_secs(1));
    let probe = only_hello(probed(&mut rig));
    assert_eq!(probe.unreachable_term, 6, "the standby must not name it again");
    // The leader may have been away for a moment: the filter tries it again.
    rig.command(1, [standby("", 0)]);
    rig.advance(LEADER_WAIT);
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(Duration::from_secs(1));
    assert_eq!(only_hello(probed(&mut rig)).unreachable_term, 0);
}

#[test]
fn standby_with_an_outdated_leader_is_waited_for() {
    let mut rig = orphaned();
    reopen(&mut rig);
    assert_eq!(rig.command(1, [standby("10.0.0.2:9190", 4)]), []);
    rig.advance(LEADER_WAIT);
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(Duration::from_secs(1));
    assert!(only_hello(probed(&mut rig)).probe);
}

#[test]
fn companion_that_has_the_lease_is_waited_for() {
    // It takes over, or it is the filter's own leader, which can't reach the store.
    for term in [6, 5] {
        let mut rig = orphaned();
        reopen(&mut rig);
        rig.command(1, [standby("", term)]);
        for second in 0..2 * LEADER_WAIT.as_secs() {
            rig.advance(Duration::from_secs(1));
            assert_eq!(rig.tick(), [Output::Sent(second + 2, Event::Heartbeat(Heartbeat::default()))]);
        }
    }
}

#[test]
fn leader_with_a_lower_term_is_refused() {
    let mut rig = orphaned();
    reopen(&mut rig);
    let outputs = rig.command(1, [leads(4)]);
    assert!(matches!(&outputs[..], [Output::Warning(text)] if text.contains("older")));
    let mut rig = orphaned();
    reopen(&mut rig);
    rig.command(1, [leads(5)]);
    let outputs = rig.command(2, [hello_ack(4)]);
    assert!(matches!(&outputs[..], [Output::Warning(text)] if text.contains("older")));
}

#[test]
fn acknowledgements_of_a_standby_do_not_count() {
    let mut rig = orphaned();
    let (waiting, _) = rig.waiting("m1");
    reopen(&mut rig);
    assert_eq!(rig.log(waiting), [], "the standby would discard it");
    rig.command(1, [standby("", 0)]);
    assert_eq!(rig.worker.unacknowledged(), 1);
    let outputs = rig.command(1, [leads(6)]);
    let cancel = Event::Cancel(Cancel { sequence: waiting });
    assert_eq!(outputs[1..], [Output::Sent(3, cancel)]);
    rig.command(3, [hello_ack(6)]);
    assert_eq!(rig.worker.unacknowledged(), 0);
}

#[test]
fn session_follows_a_leader_that_steps_down() {
    let mut rig = orphaned();
    let outputs = rig.command(1, [standby("10.0.0.2:9190", 6)]);
    assert!(matches!(&outputs[..], [Output::Info(_)]));
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(TICK);
    assert_eq!(rig.tick(), [Output::OpenStreamTo("10.0.0.2:9190".to_owned())]);
}
