//! Requests whose clients have left: they count at their endpoint until its server reports that they have ended.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Settled};
use penstock_engine::input::{Band, ServerStats, Service, Usage};
use penstock_engine::snapshot::EndpointSnapshot;
use penstock_engine::{EndpointId, Input, Instant, Policy, Request, RequestId};

use crate::support::*;

const HERE: EndpointId = EndpointId(1);

/// One endpoint with a bound of two, whose server reports that it runs nothing.
fn reported(policy: Policy) -> Harness {
    let mut harness = Harness::new(policy, 1);
    report(&mut harness, Some(0));
    harness
}

fn report(harness: &mut Harness, running: Option<u64>) -> Vec<ShortEffect> {
    harness.handle(Input::Load { id: HERE, running })
}

fn leave(harness: &mut Harness, id: u64) -> Vec<ShortEffect> {
    harness.handle(Input::Left { id: RequestId(id), service: Service::Served(Usage::default()) })
}

fn here(harness: &Harness) -> EndpointSnapshot {
    harness.engine.snapshot().endpoints[0]
}

/// Stock, abandoned and foreign.
fn counts(harness: &Harness) -> (u64, u64, u64) {
    (here(harness).stock, here(harness).abandoned, here(harness).foreign)
}

fn after(release_after: Duration) -> Policy {
    Policy { release_after: Some(release_after), ..policy() }
}

#[test]
fn a_report_that_was_asked_for_before_a_client_left_says_nothing_about_its_request() {
    let mut harness = reported(policy());
    harness.register(1, "f", Default);
    harness.register(2, "f", Default);
    harness.advance_to(10.0);
    leave(&mut harness, 1);
    harness.advance_to(12.0);
    leave(&mut harness, 2);
    harness.advance_to(13.0);
    let asked = |seconds| {
        let stats = ServerStats { asked_ago: Duration::from_secs(seconds), ..ServerStats::default() };
        Input::ServerStats { id: HERE, stats }
    };
    // The server hadn't counted them yet when it was asked.
    for (seconds, held) in [(4, 2), (2, 1), (0, 0)] {
        harness.handle(asked(seconds));
        report(&mut harness, Some(0));
        assert_eq!(counts(&harness), (held, held, 0), "asked {seconds} s ago");
    }
}

#[test]
fn a_request_that_was_counted_before_it_was_known_is_not_foreign_and_keeps_its_place() {
    let mut harness = reported(policy());
    harness.advance_to(10.0);
    report(&mut harness, Some(2));
    assert_eq!(counts(&harness), (0, 0, 2), "one of them was admitted by credit, and isn't reported yet");
    for (id, arrived_ms, foreign) in [(1, 9_900, 1), (2, 10_100, 1)] {
        harness.advance_to(10.2);
        let arrived = Instant::from_nanos(arrived_ms * 1_000_000);
        let request = Request { arrived, ..request(id, "f", Default) };
        harness.handle(Input::AdmittedByCredit { request, place: None, endpoint: HERE });
        assert_eq!(here(&harness).foreign, foreign, "{id}: the report knew those that came before it");
    }
    leave(&mut harness, 1);
    leave(&mut harness, 2);
    harness.advance_to(11.0);
    report(&mut harness, Some(3));
    assert_eq!(counts(&harness), (2, 2, 1));
}

#[test]
fn the_place_of_a_client_that_left_is_free_when_the_server_reports_fewer() {
    let mut harness = reported(policy());
    for id in 1..=4 {
        harness.register(id, "f", Default);
    }
    assert_eq!(leave(&mut harness, 1), [Settled(1, 1)]);
    assert_eq!(leave(&mut harness, 2), [Settled(2, 1)]);
    assert_eq!(counts(&harness), (2, 2, 0));
    assert_eq!(report(&mut harness, Some(2)), [], "both go on");
    assert_eq!(counts(&harness), (2, 2, 0), "and are not foreign");
    assert_eq!(report(&mut harness, Some(1)), [Dispatched(3, 1)]);
    assert_eq!(counts(&harness), (2, 1, 0));
    assert_eq!(report(&mut harness, Some(1)), [Dispatched(4, 1)], "only 3 runs there");
    assert_eq!(counts(&harness), (2, 0, 0));
}

#[test]
fn foreign_requests_of_the_last_report_are_not_of_clients_that_left() {
    let mut harness = reported(with_gate(gate(6, 6)));
    harness.register(1, "f", Default);
    harness.register(2, "f", Default);
    report(&mut harness, Some(4));
    leave(&mut harness, 1);
    report(&mut harness, Some(3));
    assert_eq!(counts(&harness), (1, 0, 2));
}

#[test]
fn what_waits_in_the_server_s_own_queue_has_not_ended() {
    let mut harness = reported(policy());
    harness.register(1, "f", Default);
    leave(&mut harness, 1);
    let stats = |waiting| ServerStats { waiting: Some(waiting), ..ServerStats::default() };
    harness.handle(Input::ServerStats { id: HERE, stats: stats(1) });
    report(&mut harness, Some(0));
    assert_eq!(counts(&harness), (1, 1, 0));
    harness.handle(Input::ServerStats { id: HERE, stats: stats(0) });
    report(&mut harness, Some(0));
    assert_eq!(counts(&harness), (0, 0, 0));
}

#[test]
fn without_reports_the_place_is_free_at_once_or_after_its_time() {
    let mut harness = Harness::new(policy(), 1);
    harness.register(1, "f", Default);
    leave(&mut harness, 1);
    assert_eq!(counts(&harness), (0, 0, 0));

    let mut harness = Harness::new(after(Duration::from_secs(5)), 1);
    for id in 1..=3 {
        harness.register(id, "f", Default);
    }
    leave(&mut harness, 1);
    harness.advance_to(2.0);
    leave(&mut harness, 2);
    assert_eq!(harness.engine.poll_timeout(), Some(time(5.0)));
    assert_eq!(harness.advance_to(4.999).handle_timeout(), []);
    assert_eq!(harness.advance_to(5.0).handle_timeout(), [Dispatched(3, 1)]);
    assert_eq!(counts(&harness), (2, 1, 0));
    harness.advance_to(7.0).handle_timeout();
    assert_eq!(counts(&harness), (1, 0, 0));
}

#[test]
fn reports_and_time_together_end_a_place_by_what_comes_first() {
    let mut harness = reported(after(Duration::from_secs(5)));
    harness.register(1, "f", Default);
    harness.register(2, "f", Default);
    leave(&mut harness, 1);
    leave(&mut harness, 2);
    harness.advance_to(1.0);
    report(&mut harness, Some(1));
    assert_eq!(counts(&harness), (1, 1, 0));
    report(&mut harness, None);
    assert_eq!(counts(&harness), (1, 1, 0), "nothing but time shows its end");
    harness.advance_to(5.0).handle_timeout();
    assert_eq!(counts(&harness), (0, 0, 0));
    report(&mut harness, Some(1));
    assert_eq!(counts(&harness), (0, 0, 1), "the server still runs it, so it takes room");
}

#[test]
fn reports_that_end_free_the_places() {
    let mut harness = reported(policy());
    for id in 1..=3 {
        harness.register(id, "f", Default);
    }
    leave(&mut harness, 1);
    assert_eq!(report(&mut harness, None), [Dispatched(3, 1)]);
    assert_eq!(counts(&harness), (2, 0, 0));
    leave(&mut harness, 2);
    assert_eq!(counts(&harness), (1, 0, 0), "nothing is reported now");
}

#[test]
fn no_place_is_held_for_ever_or_at_an_endpoint_that_is_gone() {
    let mut harness = reported(policy());
    harness.register(1, "f", Default);
    leave(&mut harness, 1);
    report(&mut harness, Some(1));
    assert_eq!(harness.engine.poll_timeout(), Some(time(600.0)));
    harness.advance_to(600.0).handle_timeout();
    assert_eq!(counts(&harness), (0, 0, 0));

    harness.register(2, "f", Default);
    leave(&mut harness, 2);
    harness.handle(Input::EndpointRemoved(HERE));
    assert!(!harness.engine.has_endpoint(HERE));
}

#[test]
fn an_idle_server_with_an_old_number_takes_one_request() {
    let mut harness = reported(policy());
    for id in 1..=3 {
        harness.register(id, "f", Default);
    }
    leave(&mut harness, 1);
    leave(&mut harness, 2);
    let mut at = |second: f64, generated: Option<u64>| {
        let stats = ServerStats { generated, ..ServerStats::default() };
        harness.advance_to(second).handle(Input::ServerStats { id: HERE, stats });
        report(&mut harness, Some(2))
    };
    for (second, generated) in [(1.0, 10), (2.0, 20), (5.0, 30), (7.0, 30)] {
        assert_eq!(at(second, Some(generated)), [], "it generates");
    }
    assert_eq!(at(8.0, Some(30)), [Dispatched(3, 1)]);
    assert_eq!(counts(&harness), (1, 0, 2));

    leave(&mut harness, 3);
    harness.register(4, "f", Default);
    let mut at = |second: f64| {
        harness.advance_to(second).handle(Input::ServerStats { id: HERE, stats: ServerStats::default() });
        report(&mut harness, Some(3))
    };
    assert_eq!(at(10.0), [], "its tokens aren't known");
    assert_eq!(at(29.9), []);
    assert_eq!(at(30.0), [Dispatched(4, 1)]);
}

#[test]
fn sequences_of_one_request_end_one_by_one() {
    let mut harness = reported(with_gate(gate(8, 8)));
    harness.handle(Input::Register(Request { sequences: 6, ..request(1, "f", Default) }));
    leave(&mut harness, 1);
    report(&mut harness, Some(4));
    assert_eq!(counts(&harness), (1, 1, 0));
    report(&mut harness, Some(5));
    assert_eq!(counts(&harness), (1, 1, 1), "two had ended");
    report(&mut harness, Some(0));
    assert_eq!(counts(&harness), (0, 0, 0));
    assert_eq!(harness.register(2, "f", Default), [Bypassed(2, 1)]);
}

#[test]
fn credit_is_no_way_around_the_bound_for_clients_that_leave() {
    let mut harness = reported(with_gate(gate(8, 8)));
    harness.handle(Input::GiveCredit { endpoint: HERE, requests: 3 });
    assert!(harness.engine.keeps_credit_at(HERE));
    for id in 1..=3 {
        let request = request(id, "f", Default);
        harness.handle(Input::AdmittedByCredit { request, place: None, endpoint: HERE });
        leave(&mut harness, id);
    }
    assert_eq!(counts(&harness), (3, 3, 0));
    assert!(!harness.engine.keeps_credit_at(HERE), "three more could follow before the next report");
    report(&mut harness, Some(0));
    assert!(harness.engine.keeps_credit_at(HERE));
}
