//! Admission credits beside everything else: other pools, reloads, companions that take over, clients without trust, and requests that
//! would ask anyway.

use std::time::Duration;

use penstock_control::{Event, Settings};
use penstock_election::RoleChange;
use penstock_engine::Outcome;
use penstock_wire::filter_frame::Event as Message;
use penstock_wire::{self as wire};

use crate::credits::{
    admitted, ask, counts, credits, ended, gate, given_places, named, places, recalls, returned, settings,
    with_credit, world,
};
use crate::harness::*;

/// Requests that a filter with credit would register nevertheless, one after the other.
fn ask_with(world: &mut World, change: impl Fn(&mut wire::Register)) -> Taken {
    for sequence in 1..50 {
        let mut register = register(sequence);
        change(&mut register);
        world.send(1, Message::Register(register));
        world.send(1, completed(sequence));
    }
    world.take()
}

/// Settings with two servers of 100 places each.
fn two_servers() -> Settings {
    let mut two = settings_of(&[SERVER, SECOND]);
    two.pools[0].credit = settings().pools[0].credit;
    two.pools[0].policy.gate = gate(100);
    two
}

/// Settings without the pool.
fn removed() -> Settings {
    Settings { pools: Vec::new(), ..settings() }
}

/// A world whose companion leads one of several until `seconds` have passed, and whose filter holds credit 1 with four places.
fn credit_of_leader(seconds: u64) -> World {
    let mut replicated = settings();
    replicated.is_replicated = true;
    let mut world = World::with(replicated);
    let grants_until = world.now.after(Duration::from_secs(seconds));
    world.handle(Event::Leadership(RoleChange::Lead {
        term: 8,
        known: Vec::new(),
        pickers: Vec::new(),
        is_last_leader_gone: true,
        grants_until,
    }));
    world.pass(Duration::from_secs(3));
    world.greet(1, named(1), Vec::new(), Vec::new());
    world.pass(Duration::from_secs(2));
    world.take();
    assert_eq!(places(&ask(&mut world, 1..5)), [4]);
    world
}

/// A world of one place more than is given, whose filter holds credit 1 and is asked for it, because a request of another filter
/// waits.
fn recalled() -> World {
    let mut world = with_credit();
    world.greet(2, filter(3), Vec::new(), Vec::new());
    // No request with an endpoint of its own gives its filter credit.
    let pinned = |sequence| Message::Register(wire::Register { pin: SERVER.into(), ..register(sequence) });
    for sequence in 1..97 {
        world.send(2, pinned(sequence));
    }
    assert_eq!(world.take().granted().len(), 96, "stock and credit fill the bound");
    world.send(2, pinned(97));
    let taken = world.take();
    assert_eq!((taken.granted(), recalls(&taken)), (vec![], vec![1]));
    world
}

#[test]
fn a_filter_that_never_answers_a_recall_loses_its_places() {
    let mut world = recalled();
    world.pass_beating(9, &[1, 2]);
    assert!(world.take().closed.is_empty());
    assert_eq!(counts(&world), (96, 4));
    world.pass_beating(1, &[1, 2]);
    let taken = world.take();
    assert_eq!(taken.closed, [1]);
    assert!(taken.granted().is_empty(), "what the filter runs isn't known yet");
    world.pass_beating(5, &[2]);
    assert_eq!(world.take().granted(), [97]);
    assert_eq!(counts(&world), (97, 0));
}

#[test]
fn a_filter_that_has_lost_its_stream_for_an_unanswered_recall_goes_on_with_its_next_hello() {
    let mut world = recalled();
    world.pass_beating(10, &[1, 2]);
    assert_eq!(world.take().closed, [1]);
    world.greet(3, named(2), Vec::new(), vec![runs(50)]);
    assert_eq!(world.take().granted(), [97]);
    assert_eq!(counts(&world), (98, 0));
}

#[test]
fn a_recall_that_is_answered_closes_no_stream() {
    let mut world = recalled();
    world.pass_beating(9, &[1, 2]);
    world.send(1, returned(1));
    assert_eq!(world.take().granted(), [97]);
    world.pass_beating(20, &[1, 2]);
    assert!(world.take().closed.is_empty());
}

#[test]
fn requests_that_would_ask_anyway_get_no_credit() {
    type Change = fn(&mut wire::Register);
    let changes: [Change; 6] = [
        |register| register.deadline_ms = Some(60_000),
        |register| register.slo_ttft_ms = Some(60_000),
        |register| register.pin = SERVER.into(),
        |register| register.subset = vec![SERVER.into()],
        |register| register.tolerations = vec!["spot".into()],
        |register| register.requeues = 1,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let taken = ask_with(&mut world(settings()), change);
        assert_eq!(credits(&taken).len(), 0, "change {index}");
    }
    let mut two = two_servers();
    let taken = ask_with(&mut world(two.clone()), |register| register.prompt_bytes = 100_000);
    assert_eq!(credits(&taken).len(), 0, "the prefix decides where long prompts go");
    two.pools[0].policy.scheduler.prefix = 0.0;
    let taken = ask_with(&mut world(two), |register| register.prompt_bytes = 100_000);
    assert!(!credits(&taken).is_empty());
}

#[test]
fn the_second_without_a_wait_begins_when_the_last_request_stops_waiting() {
    let mut settings = settings();
    settings.pools[0].policy.gate = gate(8);
    let mut world = world(settings);
    for sequence in 1..10 {
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!((places(&world.take()), world.waiting()), (vec![1], 2), "a place was lent before they waited");
    world.send(1, returned(1));
    assert_eq!(world.waiting(), 1);
    world.pass_beating(5, &[1]);
    for sequence in 1..10 {
        world.send(1, completed(sequence));
    }
    assert_eq!(credits(&world.take()).len(), 0);
    assert_eq!(credits(&ask(&mut world, 20..40)).len(), 0, "one waited until now");
    world.pass(Duration::from_secs(1));
    let taken = ask(&mut world, 40..44);
    assert_eq!(places(&taken).first(), Some(&1), "a quarter of half of 8");
}

#[test]
fn a_newcomer_that_is_rejected_for_lack_of_room_recalls_credit() {
    let mut settings = settings();
    settings.pools[0].policy.gate = gate(20);
    settings.pools[0].policy.queue.flow_capacity = 1;
    settings.pools[0].policy.queue.total_bytes = 1;
    let mut world = world(settings);
    ask(&mut world, 1..10);
    for sequence in 100..110 {
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!(recalls(&world.take()).len(), 0);
    let large = wire::Register { body_bytes: 1_000, ..register(111) };
    world.send(1, Message::Register(large));
    let taken = world.take();
    assert_eq!(taken.outcomes, [Outcome::RejectedTooManyFlows]);
    assert_eq!(recalls(&taken), [1]);
}

#[test]
fn an_envoy_that_passes_an_endpoint_over_loses_its_credit_there() {
    let mut world = world(two_servers());
    let taken = ask(&mut world, 1..5);
    let given_at = credits(&taken)[0].endpoints[0].address.clone();
    let other = if given_at == SERVER { SECOND } else { SERVER };
    let Message::Completed(mut end) = completed_at(10, other) else {
        unreachable!("it is one");
    };
    end.attempts = 1;
    let report =
        wire::Admitted { running: Some(runs_as(register(10), &given_at)), credit: 1, completed: Some(end) };
    world.report(1, report);
    let taken = world.take();
    assert_eq!((taken.misrouted, recalls(&taken)), (1, vec![1]));
}

#[test]
fn a_pool_that_is_removed_stays_until_its_credit_is_back() {
    let mut world = with_credit();
    world.handle(Event::Settings(Box::new(removed())));
    assert_eq!(recalls(&world.take()), [1]);
    assert!(!world.control.is_idle(), "a filter may run requests");
    world.report(1, admitted(10, 1));
    let taken = world.take();
    assert_eq!((taken.arrived, &taken.outcomes[..]), (1, &[Outcome::Leased][..]));
    assert_eq!(given_places(&world), 3);
    world.send(1, returned(1));
    assert!(!world.control.is_idle(), "one runs on");
    world.send(1, completed(10));
    assert!(world.control.is_idle() && world.control.status(world.now).pools.is_empty());
}

#[test]
fn a_pool_that_is_configured_again_knows_what_it_has_given() {
    let mut world = with_credit();
    world.handle(Event::Settings(Box::new(removed())));
    world.handle(Event::Settings(Box::new(settings())));
    assert_eq!(counts(&world), (0, 4));
    world.send(1, returned(1));
    assert_eq!(counts(&world), (0, 0));
}

#[test]
fn a_pool_that_was_forgotten_and_is_configured_again_gives_credits_with_higher_numbers() {
    let mut world = with_credit();
    world.handle(Event::Settings(Box::new(removed())));
    world.send(1, returned(1));
    assert!(world.control.status(world.now).pools.is_empty());
    world.handle(Event::Settings(Box::new(settings())));
    world.take();
    let taken = ask(&mut world, 10..14);
    let [credit] = credits(&taken)[..] else {
        panic!("one credit");
    };
    assert!(credit.id > 1, "the filter ignores the number of a credit that it has returned");
    world.send(1, returned(credit.id));
    assert_eq!(counts(&world), (0, 0));
}

#[test]
fn credit_that_is_switched_off_comes_back_and_leaves_no_timer() {
    let mut world = with_credit();
    let mut off = settings();
    off.pools[0].credit = None;
    world.handle(Event::Settings(Box::new(off)));
    assert_eq!(recalls(&world.take()), [1]);
    world.pass_beating(2, &[1]);
    world.send(1, returned(1));
    assert_eq!(counts(&world), (0, 0));
    assert_eq!(credits(&ask(&mut world, 10..50)).len(), 0);
}

#[test]
fn a_report_belongs_to_the_pool_that_gave_the_credit_whatever_it_serves_now() {
    let mut world = with_credit();
    let mut other = settings();
    other.pools[0].models = vec!["gpt-*".into()];
    world.handle(Event::Settings(Box::new(other)));
    world.take();
    world.report(1, ended(10, 1));
    let taken = world.take();
    assert_eq!((taken.arrived, &taken.outcomes[..]), (1, &[Outcome::Leased][..]));
    let counters = world.control.status(world.now).pools[0].snapshot.counters;
    assert_eq!(counters.outcome(Outcome::Leased), 1);
}

#[test]
fn a_report_that_no_pool_takes_is_counted_and_not_answered() {
    let mut world = with_credit();
    let mut report = admitted(10, 1);
    if let Some(running) = &mut report.running {
        running.pool = "gone".into();
        running.register = Some(wire::Register { model: "unknown".into(), ..register(10) });
    }
    world.report(1, report);
    let taken = world.take();
    assert_eq!((taken.arrived, &taken.outcomes[..]), (1, &[Outcome::Leased][..]));
    assert_eq!(taken.rejects().len(), 0);
    assert_eq!(counts(&world), (0, 4));
}

#[test]
fn a_companion_that_stands_by_has_given_nothing() {
    let mut world = credit_of_leader(100);
    world.handle(Event::Leadership(RoleChange::StandBy { leader: None, term: 9 }));
    assert_eq!(counts(&world), (0, 0));
    assert!(world.control.is_idle());
}

#[test]
fn a_leader_whose_lease_lapses_recalls_credit() {
    let mut world = credit_of_leader(6);
    for sequence in 10..20 {
        world.report(1, ended(sequence, 1));
    }
    world.pass(Duration::from_millis(900));
    assert_eq!(recalls(&world.take()).len(), 0);
    world.pass(Duration::from_millis(100));
    assert_eq!(recalls(&world.take()), [1]);
}

#[test]
fn a_client_without_trust_keeps_its_flow_when_its_leased_request_is_requeued() {
    let flow = |world: &World| {
        let flows = world.control.status(world.now).pools[0].snapshot.flows.clone();
        let mut busy = flows.into_iter().filter(|flow| flow.in_flight + flow.waiting > 0);
        busy.next().map(|flow| flow.key)
    };
    let untrusted =
        |register: wire::Register| wire::Register { untrusted: true, client: "10.1.2.3".into(), ..register };
    let mut world = with_credit();
    let mut report = admitted(10, 1);
    if let Some(running) = &mut report.running {
        running.register = Some(untrusted(register(10)));
    }
    world.report(1, report);
    let first = flow(&world);
    world.send(1, completed(10));
    let second_pass = wire::Register { credit_endpoint: SERVER.into(), ..untrusted(again(21, 2, 20)) };
    world.send(1, Message::Register(second_pass));
    assert!(first.is_some());
    assert_eq!(flow(&world), first);
}

#[test]
fn a_leased_request_that_ended_before_it_comes_in_again_is_not_waited_for() {
    let mut world = with_credit();
    world.report(1, ended(10, 1));
    let second_pass = wire::Register { credit_endpoint: SERVER.into(), ..again(11, 2, 10) };
    world.send(1, Message::Register(second_pass));
    let taken = world.take();
    assert_eq!((taken.arrived, &taken.outcomes[..]), (1, &[Outcome::Leased][..]));
    assert_eq!(taken.rejected(), [(11, "cancelled", 499)]);
    assert_eq!(counts(&world), (0, 4));
}

#[test]
fn a_used_up_credit_is_followed_by_one_with_another_number() {
    let mut world = with_credit();
    for sequence in 10..14 {
        world.report(1, admitted(sequence, 1));
    }
    assert_eq!(counts(&world), (4, 0));
    let taken = ask(&mut world, 20..21);
    assert_eq!((credits(&taken)[0].id, places(&taken)), (2, vec![4]));
    world.send(1, returned(1));
    assert_eq!(counts(&world), (4, 4), "that one was used up");
}

#[test]
fn a_report_of_the_wrong_endpoint_takes_no_place() {
    let mut world = with_credit();
    let mut report = admitted(10, 1);
    if let Some(running) = &mut report.running {
        running.endpoint = "10.9.9.9:1".into();
    }
    world.report(1, report);
    assert_eq!(counts(&world), (0, 4), "it runs at no endpoint of the pool");
}

#[test]
fn a_session_that_says_bye_returns_its_places() {
    let mut world = with_credit();
    world.send(1, Message::Bye(wire::Bye {}));
    assert_eq!(counts(&world), (0, 0));
    assert!(world.control.is_idle());
}
