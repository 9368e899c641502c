//! Admission by credit: which requests a credit admits, and where.

use std::time::Duration;

use penstock_filter_core::effect::BodyAction;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Credit, EndpointCredit, Grant};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, grant, slice, without_retry};

pub(crate) const A: &str = "1.1.1.1:1";
const B: &str = "2.2.2.2:2";
pub(crate) const TTL: Duration = Duration::from_millis(2_000);
pub(crate) const BODY: &str = r#"{"model":"m1"}"#;

/// A credit for the pool `chat` with these places.
pub(crate) fn credit(id: u64, places: &[(&str, u32)]) -> Credit {
    let endpoints = places
        .iter()
        .map(|(address, requests)| EndpointCredit { address: (*address).into(), requests: *requests });
    Credit {
        pool: "chat".into(),
        id,
        ttl_ms: 2_000,
        endpoints: endpoints.collect(),
        prompt_bytes_max: 0,
        saturation_milli: 250,
        requeue: false,
    }
}

/// A worker whose companion supports credits.
pub(crate) fn connected() -> Rig {
    let mut rig = Rig::with(2, &config(|_| {}), &Shared::default());
    rig.open();
    rig.hello_ack(1);
    // All responses come from the only endpoint of most credits.
    rig.host.0.insert("upstream.address", A.as_bytes().to_vec());
    rig
}

/// A worker that holds credit 1, which has these places.
pub(crate) fn with_credit(places: &[(&str, u32)]) -> Rig {
    let mut rig = connected();
    assert_eq!(rig.command(0, [Kind::Credit(credit(1, places))]), []);
    rig
}

/// Sends a request. Returns its sequence number and, if it is admitted at once, the edits of its headers.
pub(crate) fn arrive(rig: &mut Rig, headers: &[(&str, &str)], body: &str) -> (u64, Option<Vec<HeaderEdit>>) {
    let sequence = rig.paused(headers);
    let read = |start, length| slice(body, start, length);
    let action = rig.worker.handle_request_body(rig.now, sequence, body.len(), true, read);
    match action {
        BodyAction::Continue(edits) => (sequence, Some(without_retry(edits))),
        BodyAction::Pause => (sequence, None),
        BodyAction::Reply(reply) => panic!("{reply:?}"),
    }
}

/// Sends a request that is admitted at once, without a message. Returns its sequence number.
pub(crate) fn admitted(rig: &mut Rig) -> u64 {
    let (sequence, edits) = arrive(rig, &[], BODY);
    assert!(edits.is_some(), "not admitted");
    assert_eq!(rig.outputs(), []);
    sequence
}

/// Sends a request that is registered, after the reports that are held. Returns its sequence number.
pub(crate) fn registered(rig: &mut Rig) -> u64 {
    registered_with(rig, &[])
}

fn registered_with(rig: &mut Rig, headers: &[(&str, &str)]) -> u64 {
    let (sequence, edits) = arrive(rig, headers, BODY);
    assert_eq!(edits, None, "admitted");
    let mut outputs = rig.outputs();
    outputs.retain(|output| !matches!(output, Output::Reported(..)));
    assert!(
        matches!(&outputs[..], [Output::Sent(_, Event::Register(register))] if register.sequence == sequence),
        "{outputs:?}"
    );
    sequence
}

/// The address at which a request is admitted.
fn address(rig: &mut Rig) -> String {
    let (_, edits) = arrive(rig, &[], BODY);
    let endpoint = edits.into_iter().flatten().find_map(|edit| match edit {
        HeaderEdit::Add("x-gateway-destination-endpoint", address) => Some(address),
        _ => None,
    });
    endpoint.expect("admitted")
}

#[test]
fn request_is_admitted_at_once_with_the_headers_of_a_grant() {
    let mut rig = with_credit(&[(A, 1)]);
    let (sequence, edits) = arrive(&mut rig, &[], BODY);
    let expected = [
        HeaderEdit::Add("x-penstock-pool", "chat".into()),
        HeaderEdit::Add("x-gateway-destination-endpoint", A.into()),
    ];
    assert_eq!(edits.as_deref(), Some(&expected[..]));
    assert_eq!(rig.outputs(), []);
    let action = rig.response(sequence, &[(":status", "200"), ("content-length", "2")], false);
    let report = [
        HeaderEdit::Add("x-penstock-outcome", "leased".into()),
        HeaderEdit::Add("x-penstock-queue-ms", "0".into()),
        HeaderEdit::Add("x-penstock-saturation", "0.25".into()),
        HeaderEdit::Add("x-gateway-destination-endpoint-served", A.into()),
    ];
    assert_eq!(action.edits, report);
}

#[test]
fn slot_admits_the_next_request_once_its_request_has_ended() {
    let mut rig = with_credit(&[(A, 1)]);
    for _ in 0..3 {
        let sequence = admitted(&mut rig);
        rig.log(sequence);
    }
}

#[test]
fn request_without_a_free_place_is_registered() {
    let mut rig = with_credit(&[(A, 2)]);
    admitted(&mut rig);
    admitted(&mut rig);
    registered(&mut rig);
}

#[test]
fn waiting_request_is_not_overtaken() {
    let mut rig = with_credit(&[(A, 9)]);
    let waiting = registered_with(&mut rig, &[("x-penstock-deadline-ms", "1000")]);
    let next = registered(&mut rig);
    rig.command(0, [Kind::Grant(grant(waiting))]);
    let last = registered(&mut rig);
    // One is granted, and the client of the other leaves.
    rig.command(0, [Kind::Grant(grant(next))]);
    rig.log(last);
    admitted(&mut rig);
}

#[test]
fn request_that_waited_before_the_credit_is_not_overtaken() {
    let mut rig = connected();
    registered(&mut rig);
    rig.command(0, [Kind::Credit(credit(1, &[(A, 9)]))]);
    registered(&mut rig);
}

#[test]
fn waiting_request_of_another_pool_does_not_count() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.waiting("p1");
    admitted(&mut rig);
}

#[test]
fn credit_is_for_its_pool_alone() {
    let mut rig = with_credit(&[(A, 1)]);
    let (_, edits) = arrive(&mut rig, &[], r#"{"model":"p1"}"#);
    assert_eq!(edits, None);
}

#[test]
fn request_with_a_deadline_is_registered() {
    registered_with(&mut with_credit(&[(A, 1)]), &[("x-penstock-deadline-ms", "1000")]);
}

#[test]
fn request_with_a_ttft_target_is_registered() {
    registered_with(&mut with_credit(&[(A, 1)]), &[("x-slo-ttft-ms", "1000")]);
}

#[test]
fn request_with_a_pin_is_registered() {
    registered_with(&mut with_credit(&[(A, 1)]), &[("x-penstock-endpoint", A)]);
}

#[test]
fn request_with_a_subset_is_registered() {
    let subset = [("x-gateway-destination-endpoint-subset", A)];
    registered_with(&mut with_credit(&[(A, 1)]), &subset);
}

#[test]
fn request_with_tolerations_is_registered() {
    registered_with(&mut with_credit(&[(A, 1)]), &[("x-penstock-tolerate", "spot")]);
}

#[test]
fn request_with_a_longer_prompt_than_the_credit_allows_is_registered() {
    let mut rig = connected();
    let limited = Credit { prompt_bytes_max: 4, ..credit(1, &[(A, 2)]) };
    rig.command(0, [Kind::Credit(limited)]);
    let body =
        |prompt: &str| format!(r#"{{"model":"m1","messages":[{{"role":"user","content":"{prompt}"}}]}}"#);
    assert!(arrive(&mut rig, &[], &body("1234")).1.is_some());
    assert_eq!(arrive(&mut rig, &[], &body("12345")).1, None);
}

/// A worker of the first listener or of the requeue listener, connected and without credit.
fn with_requeue_listener(epoch: u64, is_requeue_listener: bool, shared: &Shared) -> Rig {
    let config = config(|config| {
        config.requeue_listener = Some("envoy://requeue/".into());
        config.is_requeue_listener = is_requeue_listener;
    });
    let mut rig = Rig::with(epoch, &config, shared);
    rig.open();
    rig.hello_ack(1);
    rig
}

#[test]
fn requeued_request_is_registered_with_the_endpoint_of_its_credit() {
    let shared = Shared::default();
    let rig = |epoch, is_requeue_listener| {
        let mut rig = with_requeue_listener(epoch, is_requeue_listener, &shared);
        let credit = Credit { requeue: true, ..credit(1, &[(A, 9)]) };
        rig.command(0, [Kind::Credit(credit)]);
        rig
    };
    let mut first = rig(5, false);
    let (sequence, edits) = arrive(&mut first, &[], BODY);
    let edits = edits.expect("admitted");
    let [_, endpoint, route, HeaderEdit::Set("x-penstock-requeue", token)] = &edits[..] else {
        panic!("{edits:?}")
    };
    assert_eq!(endpoint, &HeaderEdit::Add("x-gateway-destination-endpoint", A.into()));
    let expected = format!("{A},envoy://requeue/");
    assert_eq!(route, &HeaderEdit::Add("x-penstock-route", expected));

    let mut second = rig(6, true);
    assert_eq!(arrive(&mut second, &[("x-penstock-requeue", token)], BODY).1, None);
    let outputs = second.outputs();
    let [Output::Sent(_, Event::Register(register))] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(register.credit_endpoint, A);
    assert_eq!(register.requeued_from.expect("a key").sequence, sequence);
}

#[test]
fn granted_request_has_no_credit_endpoint_when_it_is_requeued() {
    let shared = Shared::default();
    let mut first = with_requeue_listener(5, false, &shared);
    let (sequence, _) = first.waiting("m1");
    let requeue = Grant { requeue: true, ..grant(sequence) };
    let outputs = first.command(0, [Kind::Grant(requeue)]);
    let [Output::Resume(_, edits)] = &outputs[..] else { panic!("{outputs:?}") };
    let (_, token) = edits.split_once(r#""x-penstock-requeue", ""#).expect("a token");
    let token = token.split('"').next().expect("quoted");
    let mut second = with_requeue_listener(6, true, &shared);
    arrive(&mut second, &[("x-penstock-requeue", token)], BODY);
    let outputs = second.outputs();
    let [Output::Sent(_, Event::Register(register))] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(register.credit_endpoint, "");
}

#[test]
fn expired_credit_admits_nothing_and_is_returned() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.advance(TTL - Duration::from_millis(1));
    let sequence = admitted(&mut rig);
    rig.log(sequence);
    rig.advance(Duration::from_millis(1));
    assert_eq!(arrive(&mut rig, &[], BODY).1, None);
    let outputs = rig.outputs();
    assert!(
        matches!(
            &outputs[..],
            [
                Output::Reported(..),
                Output::Sent(_, Event::CreditReturned(_)),
                Output::Sent(_, Event::Register(_))
            ]
        ),
        "{outputs:?}"
    );
}

#[test]
fn credit_ends_with_its_stream() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.closed();
    assert_eq!(arrive(&mut rig, &[], BODY).1, None);
    assert_eq!(rig.outputs(), []);
}

#[test]
fn credit_of_an_earlier_stream_admits_nothing_on_the_next_one() {
    let mut rig = with_credit(&[(A, 1)]);
    crate::worker::credit_reports::reopen(&mut rig);
    registered(&mut rig);
}

#[test]
fn credit_ids_begin_again_with_each_stream() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.command(0, [Kind::Credit(credit(7, &[(A, 1)]))]);
    crate::worker::credit_reports::reopen(&mut rig);
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    admitted(&mut rig);
}

#[test]
fn credit_ends_with_a_shutdown() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.worker.handle_shutdown();
    rig.outputs();
    assert_eq!(arrive(&mut rig, &[], BODY).1, None);
}

#[test]
fn second_message_with_the_same_id_adds_places_and_renews() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.advance(TTL - Duration::from_millis(1));
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1), (B, 1)]))]);
    rig.advance(TTL - Duration::from_millis(1));
    for _ in 0..3 {
        admitted(&mut rig);
    }
    registered(&mut rig);
}

#[test]
fn message_without_endpoints_only_renews() {
    let mut rig = with_credit(&[(A, 1)]);
    rig.advance(TTL - Duration::from_millis(1));
    rig.command(0, [Kind::Credit(credit(1, &[]))]);
    rig.advance(TTL - Duration::from_millis(1));
    admitted(&mut rig);
    registered(&mut rig);
}

#[test]
fn requests_go_to_the_endpoint_with_the_smallest_part_of_its_places_taken() {
    let mut rig = with_credit(&[(A, 2), (B, 4)]);
    let mut counts = [0, 0];
    for _ in 0..3 {
        counts[usize::from(address(&mut rig) == B)] += 1;
    }
    assert_eq!(counts, [1, 2]);
    for _ in 0..3 {
        counts[usize::from(address(&mut rig) == B)] += 1;
    }
    assert_eq!(counts, [2, 4]);
}

#[test]
fn equally_loaded_endpoints_take_turns() {
    let mut rig = with_credit(&[(A, 1), (B, 1)]);
    let mut addresses = Vec::new();
    for _ in 0..4 {
        let (sequence, edits) = arrive(&mut rig, &[], BODY);
        addresses.push(edits.expect("admitted").remove(1));
        rig.log(sequence);
    }
    let expected =
        [A, B, A, B].map(|address| HeaderEdit::Add("x-gateway-destination-endpoint", address.into()));
    assert_eq!(addresses, expected);
}

#[test]
fn request_of_no_pool_is_registered() {
    let config = config(|config| config.policy.pools.clear());
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    registered(&mut rig);
}
