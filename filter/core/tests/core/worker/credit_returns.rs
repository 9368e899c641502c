//! Credits that the filter gives up: because they are recalled, expire, or are replaced.

use std::time::Duration;

use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::limits::HEARTBEAT_INTERVAL;
use penstock_wire::{Admitted, Completed, CreditReturned, Policy, Recall};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::credit_reports::{Message, held, log, messages, reopen, running};
use crate::worker::credits::{A, TTL, admitted, connected, credit, registered, with_credit};
use crate::worker::harness::{Rig, Shared, config};

pub(crate) fn recall(id: u64) -> Kind {
    Kind::Recall(Recall { pool: "chat".into(), credit: id })
}

fn returned(id: u64) -> Message {
    Message::Event(Event::CreditReturned(CreditReturned { pool: "chat".into(), credit: id }))
}

#[test]
fn recalled_credit_is_returned_after_the_reports_of_its_running_requests() {
    let mut rig = with_credit(&[(A, 3)]);
    let (a, b) = (admitted(&mut rig), admitted(&mut rig));
    assert_eq!(
        messages(rig.command(0, [recall(1)])),
        [Message::Reported(running(a, 0)), Message::Reported(running(b, 0)), returned(1)]
    );
    registered(&mut rig);
}

#[test]
fn request_that_a_return_has_reported_ends_as_a_granted_one() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    rig.command(0, [recall(1)]);
    let outputs = log(&mut rig, sequence);
    assert!(
        matches!(&outputs[..], [Message::Event(Event::Completed(Completed { sequence: ended, .. }))] if *ended == sequence),
        "{outputs:?}"
    );
}

#[test]
fn streamed_request_is_reported_once() {
    let mut rig = with_credit(&[(A, 2)]);
    let sequence = admitted(&mut rig);
    rig.response(sequence, &[(":status", "200")], false);
    assert!(matches!(&held(&mut rig)[..], [Message::Reported(_)]));
    assert_eq!(messages(rig.command(0, [recall(1)])), [returned(1)]);
}

#[test]
fn granted_and_waiting_requests_are_not_reported_by_a_return() {
    let mut rig = connected();
    rig.running("m1");
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    rig.waiting("p1");
    assert_eq!(messages(rig.command(0, [recall(1)])), [returned(1)]);
}

/// A worker with credit 1, which has one place, and a request that is admitted by it.
fn with_requeue_listener() -> (Rig, u64) {
    let config = config(|config| config.requeue_listener = Some("envoy://requeue/".into()));
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    let sequence = admitted(&mut rig);
    (rig, sequence)
}

/// The response of the requeue listener arrives.
fn requeue(rig: &mut Rig, sequence: u64) {
    let listener = b"envoy://requeue/".to_vec();
    rig.host.0.insert("upstream.address", listener);
    rig.response(sequence, &[(":status", "200")], false);
}

#[test]
fn requeued_request_of_a_returned_credit_frees_no_place_of_the_next_one() {
    let (mut rig, sequence) = with_requeue_listener();
    requeue(&mut rig, sequence);
    rig.command(0, [recall(1), Kind::Credit(credit(2, &[(A, 1)]))]);
    admitted(&mut rig);
    rig.log(sequence);
    registered(&mut rig);
}

#[test]
fn requeued_request_that_an_earlier_stream_reported_ends_with_its_admission() {
    let (mut rig, sequence) = with_requeue_listener();
    rig.command(0, [recall(1)]);
    requeue(&mut rig, sequence);
    // The Hello doesn't list it.
    let (hello, _) = reopen(&mut rig);
    assert_eq!(hello.running, []);
    assert!(matches!(&log(&mut rig, sequence)[..], [Message::Reported(Admitted { completed: Some(_), .. })]));
}

#[test]
fn requeued_request_is_not_reported_by_a_return() {
    let (mut rig, sequence) = with_requeue_listener();
    requeue(&mut rig, sequence);
    assert_eq!(messages(rig.command(0, [recall(1)])), [returned(1)]);
    assert!(matches!(&log(&mut rig, sequence)[..], [Message::Reported(Admitted { completed: Some(_), .. })]));
}

#[test]
fn recall_of_an_unknown_credit_is_ignored() {
    let mut rig = with_credit(&[(A, 1)]);
    assert_eq!(rig.command(0, [recall(2)]), []);
    let other = Kind::Recall(Recall { pool: "patient".into(), credit: 1 });
    assert_eq!(rig.command(0, [other]), []);
    admitted(&mut rig);
}

#[test]
fn second_recall_is_ignored() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.command(0, [recall(1)]);
    assert_eq!(rig.command(0, [recall(1)]), []);
}

#[test]
fn credit_with_the_id_of_a_returned_one_is_ignored() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.command(0, [Kind::Credit(credit(2, &[(A, 1)])), recall(2)]);
    for late in [1, 2] {
        assert_eq!(rig.command(0, [Kind::Credit(credit(late, &[(A, 9)]))]), []);
    }
    registered(&mut rig);
}

#[test]
fn credit_after_a_recall_admits_again() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    rig.command(0, [recall(1), Kind::Credit(credit(2, &[(A, 1)]))]);
    admitted(&mut rig);
    // The end of a request of the recalled credit frees no place of this one.
    rig.log(sequence);
    registered(&mut rig);
}

#[test]
fn credit_with_a_higher_id_replaces_the_present_one() {
    let mut rig = with_credit(&[(A, 2)]);
    let sequence = admitted(&mut rig);
    assert_eq!(
        messages(rig.command(0, [Kind::Credit(credit(2, &[(A, 1)]))])),
        [Message::Reported(running(sequence, 0)), returned(1)]
    );
    admitted(&mut rig);
    registered(&mut rig);
}

#[test]
fn expired_credit_is_returned_by_the_next_tick() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    rig.advance(TTL - Duration::from_millis(1));
    rig.tick();
    rig.advance(Duration::from_millis(1));
    assert!(rig.worker.tick_period(rig.now) <= HEARTBEAT_INTERVAL);
    let age = u64::try_from(TTL.as_micros()).expect("short");
    let expected = [Message::Reported(running(sequence, age)), returned(1)];
    assert_eq!(messages(rig.tick()), expected);
    assert_eq!(rig.tick(), []);
}

#[test]
fn credit_that_is_renewed_late_is_in_force_again_if_it_has_not_been_returned() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.advance(TTL);
    rig.command(0, [Kind::Credit(credit(1, &[]))]);
    admitted(&mut rig);
}

#[test]
fn tick_after_the_end_of_the_stream_returns_nothing() {
    let mut rig = with_credit(&[(A, 1)]);
    admitted(&mut rig);
    rig.closed();
    rig.advance(Duration::from_millis(1));
    assert_eq!(rig.tick(), []);
}

#[test]
fn credit_of_a_pool_that_a_policy_removes_is_returned_when_it_expires() {
    let mut rig = with_credit(&[(A, 1)]);
    let policy = Policy { digest: "d1".into(), ..Policy::default() };
    rig.command(0, [Kind::Policy(policy)]);
    rig.advance(TTL);
    let outputs = messages(rig.tick());
    assert!(outputs.contains(&returned(1)), "{outputs:?}");
}
