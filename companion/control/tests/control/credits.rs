//! Admission credits: when a filter is given places, when it must give them up, and that each request is counted once.

use std::time::Duration;

use penstock_control::{CreditSettings, Event, PoolEvent, Settings};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_engine::{Instant, Outcome};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event as Message;
use penstock_wire::{self as wire};

use crate::harness::*;

pub(crate) const BUSY: u32 = 4;

pub(crate) fn gate(bound: u64) -> Gate {
    Gate::requests(Decimal::whole(bound))
}

/// One pool with one server of 100 places, whose filters are busy with four requests a second.
pub(crate) fn settings() -> Settings {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].credit = Some(CreditSettings { busy_min: BUSY, ..CreditSettings::default() });
    settings.pools[0].policy.gate = gate(100);
    settings
}

/// A filter on this stream.
pub(crate) fn named(stream: u32) -> Filter {
    Filter { stream, ..filter(2) }
}

/// A world with an open session on connection 1.
pub(crate) fn world(settings: Settings) -> World {
    let mut world = World::with(settings);
    world.greet(1, named(1), Vec::new(), Vec::new());
    world.take();
    world
}

/// So many requests come in, one after the other, and end at once.
pub(crate) fn ask(world: &mut World, sequences: core::ops::Range<u64>) -> Taken {
    for sequence in sequences {
        world.send(1, Message::Register(register(sequence)));
        world.send(1, completed(sequence));
    }
    world.take()
}

pub(crate) fn credits(taken: &Taken) -> Vec<&wire::Credit> {
    let credits = taken.commands.iter().filter_map(|(_, kind)| match kind {
        Kind::Credit(credit) => Some(credit),
        _ => None,
    });
    credits.collect()
}

pub(crate) fn recalls(taken: &Taken) -> Vec<u64> {
    let recalls = taken.commands.iter().filter_map(|(_, kind)| match kind {
        Kind::Recall(recall) => Some(recall.credit),
        _ => None,
    });
    recalls.collect()
}

pub(crate) fn places(taken: &Taken) -> Vec<u32> {
    let places = credits(taken).into_iter().flat_map(|credit| &credit.endpoints);
    places.map(|endpoint| endpoint.requests).collect()
}

/// A world whose filter holds credit 1 with four places.
pub(crate) fn with_credit() -> World {
    let mut world = world(settings());
    let taken = ask(&mut world, 1..5);
    assert_eq!(places(&taken), [4]);
    world
}

pub(crate) fn returned(credit: u64) -> Message {
    Message::CreditReturned(wire::CreditReturned { pool: "chat".into(), credit })
}

/// A report of a request admitted by credit that runs.
pub(crate) fn admitted(sequence: u64, credit: u64) -> wire::Admitted {
    wire::Admitted { running: Some(runs(sequence)), credit, completed: None }
}

/// A report of one that has ended.
pub(crate) fn ended(sequence: u64, credit: u64) -> wire::Admitted {
    let Message::Completed(completed) = completed(sequence) else {
        unreachable!("it is one");
    };
    wire::Admitted { completed: Some(completed), ..admitted(sequence, credit) }
}

pub(crate) fn given_places(world: &World) -> u64 {
    world.control.status(world.now).pools[0].snapshot.credit
}

/// Stock and credit.
pub(crate) fn counts(world: &World) -> (u64, u64) {
    (world.stock(), given_places(world))
}

#[test]
fn a_busy_filter_is_given_places_and_they_double() {
    let mut world = world(settings());
    assert_eq!(credits(&ask(&mut world, 1..4)).len(), 0, "three requests a second aren't busy");
    let taken = ask(&mut world, 4..5);
    let [credit] = credits(&taken)[..] else {
        panic!("one credit");
    };
    assert_eq!((credit.pool.as_str(), credit.id, credit.ttl_ms), ("chat", 1, 2_000));
    assert_eq!(credit.endpoints[0].address, SERVER);
    assert_eq!((credit.prompt_bytes_max, credit.requeue), (0, true));
    assert_eq!(places(&ask(&mut world, 5..8)), [4, 8, 16]);
    assert_eq!(counts(&world), (0, 32));
}

#[test]
fn requests_of_several_sequences_ask_and_make_no_filter_busy() {
    let mut world = world(settings());
    for sequence in 1..50 {
        let request = wire::Register { sequences: 2, ..register(sequence) };
        world.send(1, Message::Register(request));
        world.send(1, completed(sequence));
    }
    assert_eq!(credits(&world.take()).len(), 0);
}

#[test]
fn credit_stays_at_half_of_the_bound() {
    let mut world = world(settings());
    ask(&mut world, 1..50);
    assert_eq!(counts(&world), (0, 50));
}

#[test]
fn no_policy_that_could_decide_otherwise_gives_credit() {
    type Change = fn(&mut Settings);
    let changes: [Change; 9] = [
        |settings| settings.pools[0].credit = None,
        |settings| settings.pools[0].policy.gate = Gate::Auto { initial: Decimal::whole(100) },
        |settings| {
            settings.pools[0].policy.gate = Gate::Bounded {
                unit: StockUnit::Tokens,
                lower: Decimal::whole(1_000_000),
                upper: Decimal::whole(1_000_000),
                watermark: Decimal::whole(1_000_000),
            };
        },
        |settings| settings.pools[0].policy.queue.max_rate = Some(1e6),
        |settings| settings.pools[0].policy.flows.max_in_flight = Some(1_000),
        |settings| settings.pools[0].policy.flows.max_in_flight_per_endpoint = Some(1_000),
        |settings| settings.pools[0].policy.bands.ceilings[2] = Some(Decimal::from_billionths(900_000_000)),
        |settings| settings.pools[0].endpoints[0].taints = vec!["spot".into()],
        |settings| {
            settings.pools[0].rewrite = vec![penstock_control::Rewrite {
                model: "llama-*".into(),
                targets: vec![("llama-8b".into(), 1.0)],
            }];
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut settings = settings();
        change(&mut settings);
        let mut world = world(settings);
        assert_eq!(credits(&ask(&mut world, 1..50)).len(), 0, "change {index}");
    }
}

#[test]
fn only_short_prompts_go_by_credit_where_prompts_choose_by_their_prefix() {
    let mut two = settings_of(&[SERVER, SECOND]);
    two.pools[0].credit = settings().pools[0].credit;
    two.pools[0].policy.gate = gate(100);
    let mut world = world(two);
    let taken = ask(&mut world, 1..5);
    // 255 tokens of four bytes, by the default ratio: the requests above have as many bytes a token.
    assert_eq!(credits(&taken)[0].prompt_bytes_max, 1_020);
}

#[test]
fn credit_is_recalled_when_a_request_waits_which_is_granted_once_it_is_back() {
    let mut settings = settings();
    settings.pools[0].policy.gate = gate(20);
    let mut world = world(settings);
    ask(&mut world, 1..10);
    let (_, given) = counts(&world);
    assert_eq!(given, 10);
    for sequence in 100..110 {
        world.send(1, Message::Register(register(sequence)));
    }
    let taken = world.take();
    assert_eq!((taken.granted().len(), recalls(&taken).len()), (10, 0), "stock and credit fill the bound");
    world.send(1, Message::Register(register(111)));
    let taken = world.take();
    assert_eq!((taken.granted(), recalls(&taken)), (vec![], vec![1]));
    world.send(1, returned(1));
    assert_eq!(world.take().granted(), [111]);
    assert_eq!(counts(&world), (11, 0));
}

#[test]
fn no_credit_is_given_within_a_second_after_a_wait() {
    let mut world = with_credit();
    for sequence in 10..107 {
        world.send(1, Message::Register(register(sequence)));
    }
    world.send(1, returned(1));
    for sequence in 10..107 {
        world.send(1, completed(sequence));
    }
    world.take();
    assert_eq!(credits(&ask(&mut world, 200..220)).len(), 0);
    world.pass(Duration::from_secs(1));
    let taken = ask(&mut world, 220..221);
    assert_eq!((credits(&taken)[0].id, places(&taken)), (2, vec![4]));
}

#[test]
fn a_request_that_ended_is_counted_once_and_its_place_stays_given() {
    let mut world = with_credit();
    world.report(1, ended(10, 1));
    let taken = world.take();
    assert_eq!((taken.arrived, &taken.outcomes[..]), (1, &[Outcome::Leased][..]));
    assert_eq!(counts(&world), (0, 4));
    world.report(1, ended(10, 1));
    assert_eq!(world.take().counts(), (0, 0, 0), "the report was repeated");
    let served: u64 = world.control.status(world.now).pools[0].served.iter().map(|(_, cost)| cost).sum();
    // 100 prompt tokens and 10 output tokens that count twice, of five requests.
    assert_eq!(served, 5 * 120);
}

#[test]
fn a_request_that_runs_on_takes_its_place_along() {
    let mut world = with_credit();
    world.report(1, admitted(10, 1));
    let taken = world.take();
    assert_eq!((taken.arrived, &taken.outcomes[..]), (1, &[Outcome::Leased][..]));
    assert_eq!(counts(&world), (1, 3));
    world.report(1, ended(10, 1));
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(counts(&world), (0, 3));
}

#[test]
fn a_report_with_a_credit_that_is_not_held_counts_beside_what_is_given() {
    let mut world = with_credit();
    world.report(1, admitted(10, 7));
    assert_eq!(counts(&world), (1, 4));
    world.report(1, ended(11, 7));
    assert_eq!(counts(&world), (1, 4));
    world.send(1, returned(7));
    assert_eq!(counts(&world), (1, 4), "nothing was given under this number");
}

#[test]
fn a_credit_is_renewed_while_its_filter_is_busy() {
    let mut world = with_credit();
    world.pass(Duration::from_millis(900));
    for sequence in 10..14 {
        world.report(1, ended(sequence, 1));
    }
    world.pass(Duration::from_millis(200));
    let taken = world.take();
    let [renewal] = credits(&taken)[..] else {
        panic!("one renewal");
    };
    assert_eq!((renewal.id, renewal.endpoints.len(), renewal.requeue), (1, 0, true));
    world.pass(Duration::from_secs(3));
    assert_eq!(credits(&world.take()).len(), 0, "it was idle for a second");
}

#[test]
fn every_change_that_could_decide_otherwise_recalls_credit() {
    type Change = fn(&mut World);
    let changes: [Change; 5] = [
        |world| world.handle(Event::Drain(true)),
        |world| world.handle(Event::Settings(Box::new(settings()))),
        |world| {
            world.handle(Event::Settings(Box::new(Settings { pools: Vec::new(), ..settings() })));
        },
        |world| {
            world.handle(Event::Pool(
                "chat".into(),
                PoolEvent::EndpointReady { address: SERVER.into(), ready: false },
            ));
        },
        |world| {
            world.send(1, Message::Register(register(10)));
            world.send(
                1,
                Message::AttemptFailed(wire::AttemptFailed {
                    sequence: 10,
                    endpoint: SERVER.into(),
                    status: 429,
                    pool: "chat".into(),
                    ..Default::default()
                }),
            );
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut world = with_credit();
        change(&mut world);
        assert_eq!(recalls(&world.take()), [1], "change {index}");
        world.send(1, returned(1));
        let pools = world.control.status(world.now).pools;
        assert!(pools.iter().all(|pool| pool.snapshot.credit == 0), "change {index}");
    }
}

#[test]
fn places_of_a_lost_stream_stay_stock_until_the_next_hello() {
    let mut world = with_credit();
    world.close(1);
    assert_eq!(counts(&world), (0, 4));
    let leased = wire::Running { register: Some(register(10)), ..runs(10) };
    world.greet(2, named(2), Vec::new(), vec![leased]);
    assert_eq!(counts(&world), (1, 0), "the Hello lists what runs");
}

#[test]
fn places_of_a_session_that_does_not_come_back_are_released() {
    let mut world = with_credit();
    world.close(1);
    world.pass(Duration::from_secs(6));
    assert_eq!(counts(&world), (0, 0));
}

#[test]
fn a_leased_request_that_is_requeued_is_counted_once_whichever_report_comes_first() {
    for is_admitted_first in [false, true] {
        let mut world = with_credit();
        if is_admitted_first {
            world.report(1, admitted(10, 1));
        }
        let second_pass = wire::Register { credit_endpoint: SERVER.into(), ..again(11, 2, 10) };
        world.send(1, Message::Register(second_pass));
        let taken = world.take();
        assert_eq!((taken.arrived, &taken.outcomes[..]), (1, &[Outcome::Leased][..]));
        assert_eq!((taken.requeued, taken.granted()), (1, vec![]));
        // Its only endpoint has failed it, so it pauses.
        world.pass(Duration::from_millis(200));
        assert_eq!(world.take().granted(), [11]);
        // The first exchange ends after the second, as far as Envoy is concerned.
        world.send(1, completed(11));
        let mut late = admitted(10, 1);
        late.completed = Some(wire::Completed {
            sequence: 10,
            status: 200,
            end: wire::EndReason::Unavailable.into(),
            ..Default::default()
        });
        world.report(1, late);
        assert_eq!(world.take().counts(), (0, 0, 0));
        let given = if is_admitted_first { 3 } else { 4 };
        assert_eq!(counts(&world), (0, given));
    }
}

#[test]
fn an_endpoint_that_fails_leased_requests_is_marked_down() {
    let mut two = settings_of(&[SERVER, SECOND]);
    two.pools[0].credit = settings().pools[0].credit;
    two.pools[0].policy.gate = gate(100);
    let mut world = world(two);
    for (first, second) in [(10, 11), (12, 13)] {
        let second_pass = wire::Register { credit_endpoint: SERVER.into(), ..again(second, 2, first) };
        world.send(1, Message::Register(second_pass));
    }
    assert_eq!(world.take().marked, [(SERVER.into(), true)]);
}

#[test]
fn places_in_use_are_no_foreign_load() {
    let mut world = with_credit();
    world.report(1, admitted(10, 1));
    let scraped = |running| {
        Event::Pool(
            "chat".into(),
            PoolEvent::Scraped {
                address: SERVER.into(),
                scraped: Some(penstock_control::Scraped { running: Some(running), ..Default::default() }),
                adapters: None,
            },
        )
    };
    world.handle(scraped(4));
    let foreign = |world: &World| world.control.status(world.now).pools[0].snapshot.endpoints[0].foreign;
    assert_eq!(foreign(&world), 0, "one is counted by itself, three may run in the places");
    world.handle(scraped(6));
    assert_eq!(foreign(&world), 2);
}

#[test]
fn an_arrival_of_long_ago_is_charged_as_ever() {
    // A report comes at the end of its request, which may be long after its arrival.
    let mut world = with_credit();
    world.now = Instant::ZERO.after(Duration::from_secs(100));
    let mut report = admitted(10, 1);
    if let Some(running) = &mut report.running {
        running.age_us = 90_000_000;
    }
    world.report(1, report);
    assert_eq!(counts(&world), (1, 3));
}
