//! Attempts that servers failed: where a request goes then, how often, and which answer is the client's.

use penstock_engine::policy::Gate;
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Two filters of one Envoy, on streams 1 and 2.
fn world(servers: &[&str]) -> World {
    world_of(servers, 1)
}

/// So many places at each server.
fn world_of(servers: &[&str], places: u64) -> World {
    let mut settings = settings_of(servers);
    settings.pools[0].requeues = None;
    settings.pools[0].policy.gate = Gate::requests(Decimal::whole(places));
    let mut world = World::with(settings);
    for epoch in [1, 2] {
        let filter = Filter { can_requeue: true, ..filter(epoch) };
        world.greet(epoch, filter, Vec::new(), Vec::new());
    }
    world.take();
    world
}

fn failed(sequence: u64, endpoint: &str, status: u32) -> wire::AttemptFailed {
    wire::AttemptFailed {
        sequence,
        endpoint: endpoint.into(),
        status,
        pool: "chat".into(),
        ..Default::default()
    }
}

fn cut(sequence: u64, endpoint: &str, reused: bool) -> wire::AttemptFailed {
    wire::AttemptFailed { cut: true, reused, ..failed(sequence, endpoint, 0) }
}

/// The request comes in again after this attempt.
fn comes_again(world: &mut World, sequence: u64, attempt: &wire::AttemptFailed) -> Taken {
    let register =
        wire::Register { failed_attempt: Some(attempt.clone()), ..again(sequence, 1, attempt.sequence) };
    world.send(1, Message::Register(register));
    world.take()
}

/// The endpoint of the only grant.
fn granted_at(taken: &Taken) -> (String, bool) {
    let grants = taken.grants();
    let [(_, grant)] = &grants[..] else { panic!("{taken:?}") };
    (grant.endpoints[0].clone(), grant.final_status)
}

#[test]
fn a_request_whose_connections_are_cut_is_sent_twice() {
    let mut world = world(&[SERVER, SECOND]);
    world.send(1, Message::Register(register(1)));
    let (first, _) = granted_at(&world.take());
    let (second, _) = granted_at(&comes_again(&mut world, 2, &cut(1, &first, false)));
    assert_ne!(first, second);
    let taken = comes_again(&mut world, 3, &cut(2, &second, false));
    assert_eq!(taken.granted(), Vec::<u64>::new());
    assert_eq!((world.waiting(), world.stock()), (0, 0));
    let rejects: Vec<_> = taken
        .commands
        .iter()
        .filter_map(|(_, kind)| match kind {
            wire::command::Kind::Reject(reject) => {
                Some((reject.sequence, reject.status, reject.code.clone()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(rejects, [(3, 502, "upstream_reset".into())]);
    assert_eq!(taken.marked, [], "one request marks nothing");
}

#[test]
fn cuts_of_reused_connections_count_only_if_they_go_on() {
    let mut world = world(&[SERVER]);
    world.send(1, Message::Register(register(1)));
    let (server, _) = granted_at(&world.take());
    for sequence in 2..=4 {
        let taken = comes_again(&mut world, sequence, &cut(sequence - 1, &server, true));
        assert_eq!(taken.granted(), [sequence], "at once, at the same server");
    }
    comes_again(&mut world, 5, &cut(4, &server, true));
    world.pass(std::time::Duration::from_secs(1));
    assert_eq!(world.take().granted(), [5], "a reset that counts: after a pause");
    comes_again(&mut world, 6, &cut(5, &server, true));
    assert_eq!(world.waiting(), 0);
}

#[test]
fn the_second_server_error_of_an_endpoint_is_the_clients() {
    let mut world = world(&[SERVER, SECOND]);
    world.send(1, Message::Register(register(1)));
    let (first, is_final) = granted_at(&world.take());
    assert!(!is_final);
    let (second, is_final) = granted_at(&comes_again(&mut world, 2, &failed(1, &first, 500)));
    assert!(first != second && !is_final, "no other server has failed it");
    comes_again(&mut world, 3, &failed(2, &second, 502));
    world.pass(std::time::Duration::from_secs(1));
    let (_, is_final) = granted_at(&world.take());
    assert!(is_final);
}

#[test]
fn a_model_that_one_server_lacks_goes_to_the_other() {
    let mut world = world(&[SERVER, SECOND]);
    world.send(1, Message::Register(register(1)));
    let taken = world.take();
    assert!(taken.grants()[0].1.retry_not_found, "no server is known to have it");
    let (first, _) = granted_at(&taken);
    let taken = comes_again(&mut world, 2, &failed(1, &first, 404));
    let (second, _) = granted_at(&taken);
    assert_ne!(first, second);
    assert!(!taken.grants()[0].1.retry_not_found, "once");
    world.send(1, completed_at(2, &second));
    world.take();
    for sequence in 3..8 {
        world.send(1, Message::Register(register(sequence)));
        let taken = world.take();
        assert_eq!(granted_at(&taken).0, second);
        assert!(!taken.grants()[0].1.retry_not_found, "it has served the model");
        world.send(1, completed_at(sequence, &second));
        world.take();
    }
}

#[test]
fn streams_that_run_at_another_endpoint_are_a_measure_until_they_end() {
    let mut world = world_of(&[SERVER, SECOND], 4);
    let begin = |world: &mut World, sequence: u64| {
        world.send(1, Message::Register(wire::Register { pin: SERVER.into(), ..register(sequence) }));
        assert_eq!(granted_at(&world.take()).0, SERVER);
        let started = wire::Started { sequence, endpoint: SERVER.into(), status: 200, ..Default::default() };
        world.send(1, Message::Started(started));
    };
    let left = |world: &mut World, sequence: u64| {
        let end = wire::EndReason::ClientLeft.into();
        let completed = wire::Completed { sequence, endpoint: SERVER.into(), end, ..Default::default() };
        world.send(1, Message::Completed(completed));
    };
    begin(&mut world, 1);
    begin(&mut world, 2);
    left(&mut world, 1);
    world.take();
    world.send(1, Message::Register(wire::Register { pin: SERVER.into(), ..register(3) }));
    assert!(!world.take().grants()[0].1.retry_not_found, "the second stream still runs there");
    left(&mut world, 2);
    left(&mut world, 3);
    world.take();
    world.send(1, Message::Register(register(4)));
    assert!(world.take().grants()[0].1.retry_not_found, "none of them was served");
}
