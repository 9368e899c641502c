//! Endpoints that fail requests before they answer, and Envoys that send requests elsewhere.

use std::time::Duration;

use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

fn unavailable(sequence: u64, attempts: u32) -> Message {
    Message::Completed(wire::Completed {
        sequence,
        endpoint: SERVER.into(),
        status: 503,
        attempts,
        end: wire::EndReason::Unavailable.into(),
        ..Default::default()
    })
}

/// A filter whose Envoy has no requeue listener: its grants name fallbacks.
const fn without_listener(epoch: u64) -> Filter {
    Filter { can_requeue: false, ..filter(epoch) }
}

/// Two servers, of which the first takes what comes first, and a session on stream 1 without a requeue listener.
fn world() -> World {
    world_with(without_listener(1))
}

fn world_with(filter: Filter) -> World {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter, Vec::new(), Vec::new());
    world.take();
    world
}

fn first_choice(taken: &Taken) -> String {
    taken.grants()[0].1.endpoints[0].clone()
}

/// Registers until the first choice of a grant is `address`; earlier requests end at once.
fn granted_at(world: &mut World, sequences: &mut std::ops::RangeFrom<u64>, address: &str) -> u64 {
    loop {
        let sequence = sequences.next().expect("endless");
        world.send(1, Message::Register(register(sequence)));
        let first = first_choice(&world.take());
        if first == address {
            return sequence;
        }
        world.send(1, completed_at(sequence, &first));
    }
}

#[test]
fn only_a_grant_without_a_way_back_names_fallbacks() {
    let servers = [SERVER, SECOND, THIRD];
    for (filter, named) in [(without_listener(1), 3), (filter(1), 1)] {
        let mut world = World::with(settings_of(&servers));
        world.greet(1, filter, Vec::new(), Vec::new());
        world.take();
        world.send(1, Message::Register(register(1)));
        let taken = world.take();
        let grant = &taken.grants()[0].1;
        assert_eq!((grant.endpoints.len(), grant.requeue), (named, named == 1));
    }
    // No requeue is left: the last attempt has one endpoint too.
    let mut settings = settings_of(&servers);
    settings.pools[0].requeues = Some(0);
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world.send(1, Message::Register(register(1)));
    let taken = world.take();
    let grant = &taken.grants()[0].1;
    assert_eq!((grant.endpoints.len(), grant.requeue), (1, false));
}

#[test]
fn fallbacks_had_room_at_the_grant() {
    let mut world = world();
    for sequence in 1..=2 {
        world.send(1, Message::Register(register(sequence)));
    }
    let taken = world.take();
    let named: Vec<_> = taken.grants().iter().map(|(_, grant)| grant.endpoints.len()).collect();
    assert_eq!(named, [2, 1], "the first server takes one request");
}

#[test]
fn a_requeued_request_is_granted_another_endpoint() {
    let mut world = world_with(filter(1));
    let mut sequences = 1..;
    let sequence = granted_at(&mut world, &mut sequences, SERVER);
    let second = sequences.next().expect("endless");
    world.send(1, Message::Register(again(second, 1, sequence)));
    assert_eq!(world.take().grants()[0].1.endpoints, [SECOND]);
    let third = sequences.next().expect("endless");
    world.send(1, Message::Register(again(third, 1, second)));
    assert_eq!(world.take().grants(), [], "both have failed it");
    world.pass(Duration::from_millis(199));
    assert_eq!(world.take().grants(), []);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.take().granted(), [third]);
}

#[test]
fn an_endpoint_that_failed_two_requests_is_marked_down_and_probed() {
    let mut world = world();
    let mut sequences = 1..;
    for down in [false, true] {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        // The repeated message is no second failure.
        for _ in 0..2 {
            world.send(1, started(sequence, SECOND, 2));
        }
        let taken = world.take();
        let announced: Vec<_> =
            taken.endpoints().iter().map(|(_, endpoints)| endpoints.ready.clone()).collect();
        let expected: Vec<Vec<String>> = if down { vec![vec![SECOND.into()]] } else { vec![] };
        assert_eq!(announced, expected);
        let marked: Vec<_> = expected.iter().map(|_| (SERVER.into(), true)).collect();
        assert_eq!(taken.marked, marked);
        world.send(1, completed_at(sequence, SECOND));
    }
    world.pass(Duration::from_secs(1));
    let taken = world.take();
    assert_eq!(taken.marked, [(SERVER.into(), false)]);
    assert_eq!(taken.endpoints()[0].1.ready, [SERVER, SECOND]);
}

#[test]
fn endpoints_failed_as_far_as_the_list_was_tried() {
    let mut world = world();
    let mut sequences = 1..;
    for _ in 0..2 {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        world.send(1, unavailable(sequence, 1));
    }
    assert_eq!(world.take().endpoints()[0].1.ready, [SECOND]);
    assert_eq!(world.stock(), 0, "refunded");
}

#[test]
fn an_end_without_an_attempt_is_no_failure() {
    let mut world = world();
    let mut sequences = 1..;
    for _ in 0..3 {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        world.send(1, unavailable(sequence, 0));
    }
    assert_eq!(world.take().endpoints(), []);
}

#[test]
fn a_requeued_request_failed_everywhere_and_the_last_endpoint_stays() {
    let mut world = world_with(filter(1));
    let mut sequences = 1..;
    for _ in 0..2 {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        let second = sequences.next().expect("endless");
        world.send(1, Message::Register(again(second, 1, sequence)));
        let taken = world.take();
        let endpoints = taken.grants()[0].1.endpoints.clone();
        world.send(1, completed_at(second, &endpoints[0]));
    }
    let status = world.control.status(world.now);
    let down: Vec<_> =
        status.pools[0].snapshot.endpoints.iter().map(|endpoint| endpoint.down_until.is_some()).collect();
    assert_eq!(down.iter().filter(|down| **down).count(), 1);
}

#[test]
fn stock_follows_the_address_that_was_used() {
    let mut world = world();
    let sequence = granted_at(&mut world, &mut (1..), SERVER);
    let stock = |world: &World| {
        let status = world.control.status(world.now);
        let endpoints = &status.pools[0].snapshot.endpoints;
        endpoints.iter().map(|endpoint| endpoint.stock).collect::<Vec<u64>>()
    };
    assert_eq!(stock(&world), [1, 0]);
    world.send(1, started(sequence, SECOND, 2));
    assert_eq!(stock(&world), [0, 1]);
    world.send(1, completed_at(sequence, SECOND));
    assert_eq!(stock(&world), [0, 0]);
}

#[test]
fn an_endpoint_that_an_envoy_passes_over_is_not_granted_to_it_for_a_while() {
    let mut world = world();
    let other = Filter { envoy: 78, ..without_listener(2) };
    world.greet(2, other, Vec::new(), Vec::new());
    let sequence = granted_at(&mut world, &mut (1..), SERVER);
    // Without an attempt at the first: this Envoy's cluster doesn't have it.
    world.send(1, started(sequence, SECOND, 1));
    assert_eq!(world.take().misrouted, 0, "it was granted, too");
    world.send(1, completed_at(sequence, SECOND));
    for at in 0..4 {
        world.send(1, Message::Register(register(100 + at)));
        let taken = world.take();
        assert_eq!(taken.grants()[0].1.endpoints, [SECOND]);
        world.send(1, completed_at(100 + at, SECOND));
    }
    world.send(2, Message::Register(register(1)));
    let taken = world.take();
    assert_eq!(taken.grants()[0].1.endpoints.len(), 2, "the other Envoy's all have");
    world.send(2, completed_at(1, &first_choice(&taken)));
    world.pass_beating(60, &[1, 2]);
    world.take();
    world.send(1, Message::Register(register(200)));
    assert_eq!(world.take().grants()[0].1.endpoints.len(), 2, "tried again");
}

#[test]
fn an_envoy_without_the_granted_endpoints_is_granted_others() {
    let mut world = World::with(settings_of(&[SERVER, SECOND, THIRD]));
    world.greet(1, without_listener(1), Vec::new(), Vec::new());
    world.take();
    let pinned = wire::Register { pin: SERVER.into(), ..register(1) };
    world.send(1, Message::Register(pinned.clone()));
    assert_eq!(world.take().grants()[0].1.endpoints, [SERVER]);
    world.send(1, started(1, THIRD, 1));
    let taken = world.take();
    assert_eq!(taken.misrouted, 1);
    world.send(1, completed_at(1, THIRD));
    assert_eq!(world.take().misrouted, 0, "said again with its end");
    world.send(1, Message::Register(register(2)));
    let taken = world.take();
    assert!(!taken.grants()[0].1.endpoints.contains(&SERVER.to_owned()));
    world.send(1, completed_at(2, &first_choice(&taken)));
    // A request that is pinned there is granted it, and the Envoy that has it by now uses it again.
    world.send(1, Message::Register(wire::Register { sequence: 3, ..pinned }));
    assert_eq!(world.take().grants()[0].1.endpoints, [SERVER]);
    world.send(1, started(3, SERVER, 1));
    world.send(1, completed(3));
    world.send(1, Message::Register(register(4)));
    assert_eq!(world.take().grants()[0].1.endpoints.len(), 3);
}

#[test]
fn a_grant_of_another_companion_may_use_any_endpoint_of_its_list() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, without_listener(1), Vec::new(), vec![runs(1)]);
    world.send(1, started(1, SECOND, 2));
    world.send(1, completed_at(1, SECOND));
    assert_eq!(world.take().misrouted, 0);
    world.send(1, Message::Register(register(2)));
    assert_eq!(world.take().grants()[0].1.endpoints.len(), 2, "nothing is held against it");
}

#[test]
fn a_request_for_which_envoy_had_no_socket_marks_no_endpoint_down() {
    // The request comes back after its report or before it, or there is no way back.
    for (comes_back, is_late) in [(true, false), (true, true), (false, false)] {
        let mut world = World::with(settings_of(&[SERVER, SECOND]));
        world.greet(1, filter(1), Vec::new(), Vec::new());
        world.take();
        for sequence in 1..=6 {
            world.send(1, Message::Register(register(sequence)));
            let taken = world.take();
            let endpoint = taken.grants()[0].1.endpoints[0].clone();
            let unsent =
                wire::AttemptFailed { sequence, endpoint, pool: "chat".into(), ..Default::default() };
            let report = Message::AttemptFailed(unsent.clone());
            if !is_late {
                world.send(1, report.clone());
            }
            if comes_back {
                let register = wire::Register {
                    failed_attempt: is_late.then_some(unsent),
                    ..again(100 + sequence, 1, sequence)
                };
                world.send(1, Message::Register(register));
                if is_late {
                    world.send(1, report);
                }
                world.pass(Duration::from_millis(200));
            } else {
                world.send(1, unavailable(sequence, 1));
            }
            let taken = world.take();
            assert_eq!(taken.out_of_files, 1);
            assert_eq!((taken.marked, taken.pushed_back), (vec![], vec![]));
            assert_eq!(taken.requeued, usize::from(comes_back));
            if comes_back {
                world.send(1, completed(100 + sequence));
                world.take();
            }
            assert_eq!(world.stock(), 0);
        }
    }
}
