//! Servers that refuse requests by themselves: their bounds, and where the requests go.

use std::time::Duration;

use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Two filters of one Envoy, on streams 1 and 2, and servers that take four requests each.
fn world(servers: &[&str], can_requeue: bool) -> World {
    let mut settings = settings_of(servers);
    let whole = penstock_engine::units::Decimal::whole(4);
    settings.pools[0].policy.gate = penstock_engine::policy::Gate::requests(whole);
    settings.pools[0].requeues = None;
    let mut world = World::with(settings);
    for epoch in [1, 2] {
        let filter = Filter { can_requeue, ..filter(epoch) };
        world.greet(epoch, filter, Vec::new(), Vec::new());
    }
    world.take();
    world
}

fn pushed_back(sequence: u64, endpoint: &str, retry_after_ms: Option<u64>) -> Message {
    Message::AttemptFailed(wire::AttemptFailed {
        sequence,
        endpoint: endpoint.into(),
        status: 429,
        retry_after_ms,
        pool: "chat".into(),
        ..Default::default()
    })
}

/// A request that comes again, with the report of its refusal at `SERVER`.
fn refused_again(sequence: u64, before: u64) -> Message {
    again_with(sequence, before, pushed_back(before, SERVER, None))
}

fn again_with(sequence: u64, before: u64, report: Message) -> Message {
    let Message::AttemptFailed(attempt) = report else { panic!("no report: {report:?}") };
    Message::Register(wire::Register { failed_attempt: Some(attempt), ..again(sequence, 1, before) })
}

/// The bound of an endpoint, and the bound that its refusals set.
fn bounds(world: &World, endpoint: usize) -> (u64, Option<u64>) {
    let endpoint = world.control.status(world.now).pools[0].snapshot.endpoints[endpoint];
    (endpoint.bound, endpoint.pushback)
}

fn is_ready(world: &World, endpoint: usize) -> bool {
    world.control.status(world.now).pools[0].snapshot.endpoints[endpoint].ready
}

/// Requests 1 to `count`, granted to the only server.
fn granted(world: &mut World, count: u64) {
    for sequence in 1..=count {
        world.send(1, Message::Register(register(sequence)));
    }
    world.take();
}

#[test]
fn a_refusal_is_counted_once_and_lowers_the_bound_by_the_request() {
    let mut world = world(&[SERVER], true);
    granted(&mut world, 3);
    world.send(1, pushed_back(3, SERVER, None));
    let taken = world.take();
    assert_eq!(taken.pushed_back, [(SERVER.into(), 429)]);
    assert_eq!(bounds(&world, 0), (2, Some(2)));
    world.send(2, refused_again(9, 3));
    let taken = world.take();
    assert_eq!((taken.requeued, taken.granted(), taken.marked), (1, vec![], vec![]));
    assert!(taken.pushed_back.is_empty());
    assert_eq!((bounds(&world, 0), world.stock(), world.waiting()), ((2, Some(2)), 2, 1));
    // One is served: the place is that of the refused request.
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [9]);
    assert_eq!(bounds(&world, 0), (3, Some(3)));
}

#[test]
fn a_report_that_comes_after_the_requeue_is_counted_and_changes_nothing_else() {
    let mut world = world(&[SERVER], true);
    granted(&mut world, 3);
    world.send(2, refused_again(9, 3));
    assert_eq!((bounds(&world, 0), world.waiting()), ((2, Some(2)), 1));
    world.take();
    world.send(1, pushed_back(3, SERVER, None));
    assert_eq!(world.take().pushed_back, [(SERVER.into(), 429)]);
    assert_eq!((bounds(&world, 0), world.waiting()), ((2, Some(2)), 1));
}

#[test]
fn refusals_mark_no_endpoint_down_and_failures_do() {
    let mut world = world(&[SERVER, SECOND], true);
    let mut sequence = 1;
    let mut refused = [0, 0];
    // Refused five times at each server.
    while refused.iter().any(|count| *count < 5) {
        world.send(1, Message::Register(register(sequence)));
        let address = world.take().grants()[0].1.endpoints[0].clone();
        refused[usize::from(address == SECOND)] += 1;
        world.send(1, pushed_back(sequence, &address, None));
        world.send(1, again_with(sequence + 1, sequence, pushed_back(sequence, &address, None)));
        let taken = world.take();
        assert_eq!(taken.marked, []);
        world.send(1, Message::Cancel(wire::Cancel { sequence: sequence + 1 }));
        world.take();
        sequence += 2;
    }
    assert!(is_ready(&world, 0) && is_ready(&world, 1));
}

#[test]
fn the_servers_pause_is_kept() {
    let mut world = world(&[SERVER], true);
    granted(&mut world, 1);
    world.send(1, pushed_back(1, SERVER, Some(700)));
    world.send(2, refused_again(9, 1));
    world.take();
    world.pass(Duration::from_millis(699));
    assert_eq!(world.take().granted(), Vec::<u64>::new());
    world.pass(Duration::from_millis(1));
    assert_eq!(world.take().granted(), [9]);
}

#[test]
fn fallbacks_that_were_refused_first_are_no_failures() {
    let mut world = world(&[SERVER, SECOND, THIRD], false);
    for sequence in 1..=6 {
        world.send(1, Message::Register(register(sequence)));
        let taken = world.take();
        let endpoints = taken.grants()[0].1.endpoints.clone();
        // The first refuses, the second refuses the connection, the third answers.
        world.send(1, pushed_back(sequence, &endpoints[0], None));
        world.send(
            1,
            started(sequence, endpoints.last().expect("some"), u32::try_from(endpoints.len()).expect("few")),
        );
        let taken = world.take();
        let marked: Vec<_> = taken.marked.iter().filter(|(address, _)| **address == *endpoints[0]).collect();
        assert!(marked.is_empty(), "{marked:?}");
        assert_eq!(taken.pushed_back.len(), 1);
        world.send(1, completed_at(sequence, endpoints.last().expect("some")));
        world.take();
    }
}

#[test]
fn a_refusal_that_the_client_got_lowers_the_bound_too() {
    let mut world = world(&[SERVER], true);
    granted(&mut world, 2);
    world.send(1, pushed_back(2, SERVER, None));
    world.send(
        1,
        Message::Completed(wire::Completed {
            sequence: 2,
            endpoint: SERVER.into(),
            status: 429,
            end: wire::EndReason::Served.into(),
            ..Default::default()
        }),
    );
    assert_eq!((bounds(&world, 0), world.stock()), ((1, Some(1)), 1));
}

#[test]
fn reports_about_unknown_requests_endpoints_and_statuses_are_harmless() {
    let mut world = world(&[SERVER], true);
    granted(&mut world, 1);
    world.send(1, pushed_back(77, SERVER, None));
    world.send(1, pushed_back(1, THIRD, None));
    world.send(
        1,
        Message::AttemptFailed(wire::AttemptFailed {
            sequence: 1,
            endpoint: SERVER.into(),
            status: 200,
            ..Default::default()
        }),
    );
    assert_eq!(world.take().pushed_back, [(SERVER.into(), 429)], "of a request that has ended");
    assert_eq!(bounds(&world, 0), (4, None));
}

#[test]
fn why_of_a_request_names_the_lowered_bound() {
    let mut world = world(&[SERVER], true);
    granted(&mut world, 2);
    world.send(1, pushed_back(2, SERVER, None));
    let waiting = wire::Register { request_id: "mine".into(), ..register(3) };
    world.send(1, Message::Register(waiting));
    let status = world.control.request(world.now, "mine");
    let why = status.expect("it waits").why;
    assert!(why.contains("1 endpoint answered 429 or 503, so fewer requests go there"), "{why}");
}
