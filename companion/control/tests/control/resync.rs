//! Resync: a Hello brings both sides to the same state.

use std::time::Duration;

use penstock_control::Event;
use penstock_engine::Outcome;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

#[test]
fn a_lost_grant_is_sent_again() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
    world.close(1);
    world.open_session(2, 2, vec![register(1)], Vec::new());
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.outcomes, [], "its outcome was counted before");
    assert_eq!(world.stock(), 1);
}

#[test]
fn running_requests_are_adopted_above_the_bound_and_waiting_ones_queue_behind_them() {
    let mut world = World::new();
    world.open_session(1, 1, vec![register(3)], vec![runs(1), runs(2)]);
    let taken = world.take();
    assert_eq!(taken.granted(), [] as [u64; 0]);
    assert_eq!(taken.outcomes, [Outcome::Dispatched, Outcome::Dispatched]);
    assert_eq!((world.stock(), world.waiting()), (2, 1));
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [] as [u64; 0], "still at the bound");
    world.send(1, completed(2));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn a_request_that_runs_at_an_address_that_is_not_listed_is_counted_and_takes_no_place() {
    let mut world = World::new();
    let elsewhere = wire::Running { endpoint: THIRD.into(), ..runs(1) };
    world.open_session(1, 1, vec![register(2)], vec![elsewhere]);
    assert_eq!(world.take().granted(), [2], "at the server that is listed");
    let snapshot = |world: &World| world.control.status(world.now).pools[0].snapshot.clone();
    assert_eq!((snapshot(&world).stock, snapshot(&world).draining_stock), (1, 1));
    world.send(1, completed(2));
    world.send(1, completed_at(1, THIRD));
    assert_eq!(snapshot(&world).draining_stock, 0);
    assert_eq!(world.control.status(world.now).pools[0].addresses.len(), 1, "the address is forgotten");
    assert!(world.control.is_idle());
}

#[test]
fn what_runs_at_a_server_counts_as_soon_as_discovery_lists_it() {
    let mut world = World::with(settings_of(&[]));
    world.open_session(1, 1, vec![register(2)], vec![runs(1)]);
    let mut waits = || {
        world.handle(Event::Settings(Box::new(settings_of(&[SERVER]))));
        assert_eq!(world.take().granted(), [] as [u64; 0], "the only place is taken");
        assert_eq!((world.stock(), world.waiting()), (1, 1));
    };
    waits();
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [2]);
}

#[test]
fn a_running_request_that_names_no_address_is_not_taken() {
    let mut world = World::new();
    for nowhere in ["", "server", "127.0.0.9"] {
        let nowhere = wire::Running { endpoint: nowhere.into(), ..runs(1) };
        world.open_session(1, 1, Vec::new(), vec![nowhere]);
        assert_eq!(world.take().outcomes, []);
        assert!(world.control.is_idle());
        world.close(1);
    }
}

#[test]
fn requests_that_a_hello_does_not_name_are_cancelled_or_settled_by_their_repeated_end() {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.send(1, Message::Register(register(sequence)));
    }
    world.take();
    world.close(1);
    world.open_session(2, 2, vec![register(3)], Vec::new());
    world.send(2, completed(1));
    let taken = world.take();
    assert_eq!(taken.granted(), [3], "the repeated end frees the place");
    assert_eq!(taken.outcomes, [Outcome::Dispatched]);
    world.send(2, Message::Heartbeat(wire::Heartbeat::default()));
    assert_eq!(
        world.take().outcomes,
        [Outcome::Cancelled],
        "the second, which waited, and whose end wasn't repeated"
    );
    world.close(2);
    world.open_session(3, 3, Vec::new(), Vec::new());
    assert_eq!(world.stock(), 1);
    world.send(3, Message::Heartbeat(wire::Heartbeat::default()));
    assert_eq!(world.stock(), 0, "no end was repeated: released with the first beat");
}

#[test]
fn a_rejected_request_that_its_filter_let_go_runs_with_its_counted_outcome() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    world.handle(Event::Drain(true));
    assert_eq!(world.take().rejected(), [(2, "shutting_down", 503)]);
    world.close(1);
    world.open_session(2, 2, Vec::new(), vec![runs(1), runs(2)]);
    let taken = world.take();
    assert_eq!((taken.rejected(), taken.counts()), (vec![], (0, 0, 0)));
    assert_eq!(world.stock(), 2);
    for sequence in [1, 2] {
        world.send(2, completed(sequence));
    }
    assert!(world.control.is_idle());
    assert_eq!(world.take().counts(), (0, 0, 0));
}

#[test]
fn a_hello_repeats_where_a_request_runs() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    let first = world.take().grants()[0].1.endpoints[0].clone();
    let other = if first == SERVER { SECOND } else { SERVER };
    // The message that it went to the second endpoint of its list is lost with the stream.
    world.close(1);
    let back = Filter { stream: 2, ..filter(1) };
    world.greet(2, back, Vec::new(), vec![runs_as(register(1), other)]);
    let status = world.control.status(world.now);
    let stock: Vec<(&str, u64)> = status.pools[0]
        .snapshot
        .endpoints
        .iter()
        .map(|endpoint| (status.pools[0].address(endpoint.id), endpoint.stock))
        .collect();
    assert!(stock.contains(&(other, 1)) && stock.contains(&(first.as_str(), 0)));
    assert_eq!(world.take().counts(), (0, 0, 0));
}

/// The Hello of one of two Envoys on a host. `clock_us`: what the host's clock shows.
fn told(epoch: u64, clock_us: u64, ages_ms: &[(u64, u64)]) -> Message {
    let waiting = ages_ms
        .iter()
        .map(|(sequence, age_ms)| wire::Register { age_us: age_ms * 1_000, ..register(*sequence) });
    let sender = Filter { envoy: epoch, ..filter(epoch) };
    Message::Hello(wire::Hello { clock_us, ..hello(sender, waiting.collect(), Vec::new()) })
}

#[test]
fn requests_of_two_envoys_of_a_host_keep_their_order_however_long_their_hellos_take() {
    // The second Hello takes longer than the first, or less.
    for takes_longer in [true, false] {
        let mut settings = settings();
        settings.sessions_expected = Some(2);
        let mut world = World::with(settings);
        world.pass(Duration::from_millis(500));
        world.open(1);
        world.open(2);
        let (first, second) = if takes_longer { (9_000_000, 9_005_000) } else { (8_960_000, 9_040_000) };
        world.send(1, told(1, first, &[(11, 4), (13, 1)]));
        world.pass(Duration::from_millis(45));
        let age = (second - first) / 1_000 + 2;
        world.send(2, told(2, second, &[(22, age)]));
        let mut granted = world.take().granted();
        for (conn, sequence) in [(1, 11), (2, 22)] {
            world.send(conn, completed(sequence));
            granted.extend(world.take().granted());
        }
        assert_eq!(granted, [11, 22, 13], "takes longer: {takes_longer}");
    }
}

#[test]
fn a_hello_in_parts_was_sent_before_its_first_part_came() {
    let mut world = World::new();
    world.pass(Duration::from_millis(500));
    world.open(1);
    let Message::Hello(whole) = told(1, 9_000_000, &[(1, 10), (2, 9)]) else {
        panic!("a Hello");
    };
    let part = |part, waiting, last| Message::Hello(wire::Hello { part, waiting, last, ..whole.clone() });
    world.send(1, part(0, vec![whole.waiting[0].clone()], false));
    world.pass(Duration::from_millis(30));
    world.send(1, part(1, vec![whole.waiting[1].clone()], true));
    let taken = world.take();
    let grants = taken.grants();
    assert_eq!(grants.len(), 1);
    assert_eq!((grants[0].1.sequence, grants[0].1.queue_us), (1, 40_000), "its age and 30 ms more");
}

/// The stock at an address, listed or not.
fn stock_at(world: &World, address: &str) -> u64 {
    let status = world.control.status(world.now);
    let pool = &status.pools[0];
    let found = pool.snapshot.endpoints.iter().find(|endpoint| pool.address(endpoint.id) == address);
    found.map_or(0, |endpoint| endpoint.stock)
}

#[test]
fn a_running_request_is_counted_where_its_server_is_although_that_is_not_listed() {
    let mut world = World::new();
    // Its gateway doesn't send requests back to the queue, so the address is no other listener of that gateway.
    let hello = wire::Hello { no_requeue: true, ..hello(filter(2), vec![register(1)], Vec::new()) };
    world.open(1);
    world.send(1, Message::Hello(hello));
    assert_eq!(world.take().granted(), [1]);
    // Envoy chose a server that discovery has just dropped.
    world.send(1, started(1, THIRD, 1));
    assert_eq!((stock_at(&world, SERVER), stock_at(&world, THIRD)), (0, 1));
    // The next Hello of the filter names that server, too.
    world.close(1);
    let there = wire::Running { endpoint: THIRD.into(), ..runs(1) };
    world.open_session(2, 2, Vec::new(), vec![there]);
    assert_eq!((stock_at(&world, SERVER), stock_at(&world, THIRD)), (0, 1));
    world.send(2, completed_at(1, THIRD));
    assert!(world.control.is_idle());
}

#[test]
fn a_request_that_moves_from_a_server_that_is_not_listed_is_followed_at_the_one_that_is() {
    let mut world = World::new();
    let elsewhere = wire::Running { endpoint: THIRD.into(), ..runs(1) };
    world.open_session(1, 1, Vec::new(), vec![elsewhere]);
    world.send(1, started(1, SERVER, 2));
    assert_eq!((stock_at(&world, SERVER), stock_at(&world, THIRD)), (1, 0));
    world.send(1, Message::Register(register(2)));
    assert_eq!(world.take().granted(), [] as [u64; 0], "the only place is taken");
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [2]);
}

#[test]
fn the_pool_that_granted_a_request_counts_it_although_another_one_serves_its_model_now() {
    let mut settings = settings();
    let mut other = settings.pools[0].clone();
    settings.pools[0].models = vec!["else".into()];
    other.name = "other".into();
    other.endpoints[0].address = SECOND.into();
    settings.pools.push(other);
    let mut world = World::with(settings);
    let here = wire::Running { pool: "chat".into(), ..runs(1) };
    // The pool `gone` isn't configured any more, so the one that serves the model counts it.
    let gone = wire::Running { pool: "gone".into(), endpoint: SECOND.into(), ..runs(2) };
    world.open_session(1, 1, Vec::new(), vec![here, gone]);
    let status = world.control.status(world.now);
    let stocks: Vec<_> = status.pools.iter().map(|pool| (&*pool.name, pool.snapshot.stock)).collect();
    assert_eq!(stocks, [("chat", 1), ("other", 1)]);
}
