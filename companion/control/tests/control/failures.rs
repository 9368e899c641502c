//! Servers that fail requests before they answer, and Envoys that send them elsewhere.

use std::time::Duration;

use penstock_wire as wire;
use wire::filter_frame::Event as Said;

use crate::harness::*;

fn unavailable(sequence: u64, attempts: u32) -> Said {
    Said::Completed(wire::Completed {
        sequence,
        endpoint: SERVER.into(),
        status: 503,
        attempts,
        end: wire::EndReason::Unavailable.into(),
        ..Default::default()
    })
}

/// Two servers, of which the first takes what comes first, and a session on stream 1.
fn world() -> World {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

fn first_choice(taken: &Taken) -> String {
    taken.grants()[0].1.endpoints[0].clone()
}

/// Registers until a request is granted `address` at first; the others end at once.
fn granted_at(world: &mut World, sequences: &mut std::ops::RangeFrom<u64>, address: &str) -> u64 {
    loop {
        let sequence = sequences.next().expect("endless");
        world.say(1, Said::Register(register(sequence)));
        let first = first_choice(&world.take());
        if first == address {
            return sequence;
        }
        world.say(1, completed_at(sequence, &first));
    }
}

#[test]
fn what_two_requests_went_past_is_marked_down_and_comes_back() {
    let mut world = world();
    let mut sequences = 1..;
    for down in [false, true] {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        // Said twice, it is one failure.
        for _ in 0..2 {
            world.say(1, started(sequence, SECOND, 2));
        }
        let taken = world.take();
        let told: Vec<_> = taken.endpoints().iter().map(|(_, it)| it.ready.clone()).collect();
        let expected: Vec<Vec<String>> = if down { vec![vec![SECOND.into()]] } else { vec![] };
        assert_eq!(told, expected);
        let marked: Vec<_> = expected.iter().map(|_| (SERVER.into(), true)).collect();
        assert_eq!(taken.marked, marked);
        world.say(1, completed_at(sequence, SECOND));
    }
    world.pass(Duration::from_secs(1));
    let taken = world.take();
    assert_eq!(taken.marked, [(SERVER.into(), false)]);
    assert_eq!(taken.endpoints()[0].1.ready, [SERVER, SECOND]);
}

#[test]
fn a_list_that_is_used_up_failed_as_far_as_it_was_tried() {
    let mut world = world();
    let mut sequences = 1..;
    for _ in 0..2 {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        world.say(1, unavailable(sequence, 1));
    }
    assert_eq!(world.take().endpoints()[0].1.ready, [SECOND]);
    assert_eq!(world.stock(), 0, "refunded");
}

#[test]
fn an_end_without_an_attempt_is_nobodys_failure() {
    let mut world = world();
    let mut sequences = 1..;
    for _ in 0..3 {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        world.say(1, unavailable(sequence, 0));
    }
    assert_eq!(world.take().endpoints(), []);
}

#[test]
fn what_enters_again_has_failed_everywhere_and_the_last_server_stays() {
    let mut world = world();
    let mut sequences = 1..;
    for _ in 0..2 {
        let sequence = granted_at(&mut world, &mut sequences, SERVER);
        let second = sequences.next().expect("endless");
        world.say(1, Said::Register(again(second, 1, sequence)));
        let taken = world.take();
        let endpoints = taken.grants()[0].1.endpoints.clone();
        world.say(1, completed_at(second, &endpoints[0]));
    }
    let status = world.control.status(world.now);
    let down: Vec<_> = status.pools[0]
        .snapshot
        .endpoints
        .iter()
        .map(|it| it.down_until.is_some())
        .collect();
    assert_eq!(down.iter().filter(|down| **down).count(), 1);
}

#[test]
fn stock_follows_the_address_that_was_used() {
    let mut world = world();
    let sequence = granted_at(&mut world, &mut (1..), SERVER);
    let stock = |world: &World| {
        let status = world.control.status(world.now);
        let endpoints = &status.pools[0].snapshot.endpoints;
        endpoints.iter().map(|it| it.stock).collect::<Vec<u64>>()
    };
    assert_eq!(stock(&world), [1, 0]);
    world.say(1, started(sequence, SECOND, 2));
    assert_eq!(stock(&world), [0, 1]);
    world.say(1, completed_at(sequence, SECOND));
    assert_eq!(stock(&world), [0, 0]);
}

#[test]
fn what_an_envoy_passes_over_is_not_granted_to_it_for_a_while() {
    let mut world = world();
    let other = Filter {
        envoy: 78,
        ..filter(2)
    };
    world.greet(2, other, Vec::new(), Vec::new());
    let sequence = granted_at(&mut world, &mut (1..), SERVER);
    // Without an attempt at the first: this Envoy's cluster doesn't have it.
    world.say(1, started(sequence, SECOND, 1));
    assert_eq!(world.take().misrouted, 0, "it was granted, too");
    world.say(1, completed_at(sequence, SECOND));
    for at in 0..4 {
        world.say(1, Said::Register(register(100 + at)));
        let taken = world.take();
        assert_eq!(taken.grants()[0].1.endpoints, [SECOND]);
        world.say(1, completed_at(100 + at, SECOND));
    }
    world.say(2, Said::Register(register(1)));
    let taken = world.take();
    assert_eq!(
        taken.grants()[0].1.endpoints.len(),
        2,
        "the other Envoy's all have"
    );
    world.say(2, completed_at(1, &first_choice(&taken)));
    world.pass_beating(60, &[1, 2]);
    world.take();
    world.say(1, Said::Register(register(200)));
    assert_eq!(world.take().grants()[0].1.endpoints.len(), 2, "tried again");
}

#[test]
fn an_envoy_that_knows_none_of_the_granted_is_granted_others_as_long_as_there_are() {
    let mut world = World::with(settings_of(&[SERVER, SECOND, THIRD]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    let pinned = wire::Register {
        pin: SERVER.into(),
        ..register(1)
    };
    world.say(1, Said::Register(pinned.clone()));
    assert_eq!(world.take().grants()[0].1.endpoints, [SERVER]);
    world.say(1, started(1, THIRD, 1));
    let taken = world.take();
    assert_eq!(taken.misrouted, 1);
    world.say(1, completed_at(1, THIRD));
    assert_eq!(world.take().misrouted, 0, "said again with its end");
    world.say(1, Said::Register(register(2)));
    let taken = world.take();
    assert!(!taken.grants()[0].1.endpoints.contains(&SERVER.to_owned()));
    world.say(1, completed_at(2, &first_choice(&taken)));
    // Who may only go there is sent there, and the Envoy that has it by now uses it again.
    world.say(
        1,
        Said::Register(wire::Register {
            sequence: 3,
            ..pinned
        }),
    );
    assert_eq!(world.take().grants()[0].1.endpoints, [SERVER]);
    world.say(1, started(3, SERVER, 1));
    world.say(1, completed(3));
    world.say(1, Said::Register(register(4)));
    assert_eq!(world.take().grants()[0].1.endpoints.len(), 3);
}

#[test]
fn what_another_companion_granted_may_have_gone_to_any_of_its_list() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), vec![runs(1)]);
    world.say(1, started(1, SECOND, 2));
    world.say(1, completed_at(1, SECOND));
    assert_eq!(world.take().misrouted, 0);
    world.say(1, Said::Register(register(2)));
    assert_eq!(
        world.take().grants()[0].1.endpoints.len(),
        2,
        "nothing is held against it"
    );
}
