//! Metrics of the model servers: requests that the companion didn't grant take room while the metrics report them.

use penstock_control::{Event, PoolEvent, PoolStatus, Scraped, ServerStatus};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// One server that takes three requests at a time, and a session on stream 1.
fn world() -> World {
    world_in(StockUnit::Requests)
}

fn world_in(unit: StockUnit) -> World {
    let mut settings = settings();
    settings.pools[0].policy.gate = Gate::Bounded {
        unit,
        lower: Decimal::whole(3),
        upper: Decimal::whole(3),
        watermark: Decimal::whole(3),
    };
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

fn scraped(running: u64) -> Scraped {
    Scraped { running: Some(running), ..Scraped::default() }
}

fn report(world: &mut World, address: &str, scraped: Option<Scraped>) {
    world.handle(Event::Pool(
        "chat".into(),
        PoolEvent::Scraped { address: address.into(), scraped, adapters: None },
    ));
}

fn pool(world: &World) -> PoolStatus {
    world.control.status(world.now).pools[0].clone()
}

fn granted(world: &mut World) -> Vec<u64> {
    world.take().granted()
}

#[test]
fn foreign_requests_take_room_until_they_are_gone() {
    let mut world = world();
    report(&mut world, SERVER, Some(scraped(2)));
    for sequence in 1..=3 {
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!(granted(&mut world), [1], "two of three places are taken by others");
    assert_eq!(
        pool(&world).servers,
        [ServerStatus {
            variant: "default".into(),
            role: penstock_engine::input::Role::Both,
            scraped: Some(scraped(2)),
            foreign: 2,
            is_asleep: false,
            oldest_running: Some(std::time::Duration::ZERO)
        }]
    );
    assert_eq!(pool(&world).snapshot.endpoints[0].bound, 1);

    // The companion granted one of these.
    report(&mut world, SERVER, Some(scraped(2)));
    assert_eq!(granted(&mut world), [2]);
    assert_eq!(pool(&world).servers[0].foreign, 1);

    report(&mut world, SERVER, None);
    assert_eq!(granted(&mut world), [3], "who says nothing takes nothing");
    let server = &pool(&world).servers[0];
    assert_eq!((server.scraped, server.foreign), (None, 0));
}

#[test]
fn one_request_is_always_granted_whatever_the_metrics() {
    let mut world = world();
    report(&mut world, SERVER, Some(scraped(u64::MAX)));
    world.send(1, Message::Register(register(1)));
    assert_eq!(granted(&mut world), [1]);
}

#[test]
fn missing_metrics_change_nothing() {
    let mut world = world();
    report(&mut world, SERVER, Some(Scraped::default()));
    assert_eq!(pool(&world).servers[0].scraped, Some(Scraped::default()));
    assert_eq!(pool(&world).snapshot.endpoints[0].bound, 3);
}

#[test]
fn metrics_of_unlisted_endpoints_are_ignored() {
    let mut world = world();
    let before = pool(&world).servers;
    report(&mut world, SECOND, Some(scraped(9)));
    world.handle(Event::Pool(
        "nobody".into(),
        PoolEvent::Scraped { address: SERVER.into(), scraped: Some(scraped(9)), adapters: None },
    ));
    assert_eq!(pool(&world).servers, before);
    assert_eq!(pool(&world).snapshot.endpoints[0].bound, 3);
}

#[test]
fn a_sleeping_engine_is_not_ready_until_it_is_awake() {
    let mut world = world();
    let state = |is_asleep| Some(Scraped { is_asleep, ..scraped(0) });
    let seen = |world: &World| {
        let pool = pool(world);
        (pool.snapshot.endpoints[0].ready, pool.servers[0].is_asleep)
    };
    report(&mut world, SERVER, state(None));
    assert_eq!(seen(&world), (true, false));
    report(&mut world, SERVER, state(Some(true)));
    assert_eq!(seen(&world), (false, true));
    world.send(1, Message::Register(register(1)));
    assert_eq!(granted(&mut world), [0_u64; 0]);
    // Neither a page that can't be read nor a health check that passes wakes an engine up.
    report(&mut world, SERVER, None);
    for ready in [false, true] {
        let event = PoolEvent::EndpointReady { address: SERVER.into(), ready };
        world.handle(Event::Pool("chat".into(), event));
        assert_eq!(seen(&world), (false, true));
    }
    report(&mut world, SERVER, state(Some(false)));
    assert_eq!((seen(&world), granted(&mut world)), ((true, false), vec![1]));
    // An engine that is awake isn't ready while its health check fails.
    let event = PoolEvent::EndpointReady { address: SERVER.into(), ready: false };
    world.handle(Event::Pool("chat".into(), event));
    report(&mut world, SERVER, state(Some(false)));
    assert_eq!(seen(&world), (false, false));
}

fn left(sequence: u64) -> Message {
    Message::Completed(wire::Completed {
        sequence,
        endpoint: SERVER.into(),
        end: wire::EndReason::ClientLeft.into(),
        ..Default::default()
    })
}

/// Stock, and the abandoned requests in it.
fn counts(world: &World) -> (u64, u64) {
    let endpoint = pool(world).snapshot.endpoints[0];
    (endpoint.stock, endpoint.abandoned)
}

#[test]
fn a_place_is_free_when_the_metrics_show_that_the_work_of_a_client_that_left_has_ended() {
    let mut world = world();
    report(&mut world, SERVER, Some(scraped(0)));
    for sequence in 1..=5 {
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!(granted(&mut world), [1, 2, 3]);
    world.send(1, left(1));
    world.send(1, completed(2));
    assert_eq!(granted(&mut world), [4], "only the one that was served to its end");
    assert_eq!(counts(&world), (3, 1));
    report(&mut world, SERVER, Some(scraped(3)));
    assert_eq!((granted(&mut world), pool(&world).servers[0].foreign), (vec![], 0));
    report(&mut world, SERVER, Some(scraped(2)));
    assert_eq!(granted(&mut world), [5]);
    assert_eq!(counts(&world), (3, 0));
}

#[test]
fn a_client_that_left_before_a_server_had_its_request_holds_no_place() {
    let mut world = world();
    report(&mut world, SERVER, Some(scraped(0)));
    world.send(1, Message::Register(register(1)));
    world.take();
    let Message::Completed(message) = left(1) else { unreachable!("it is one") };
    world.send(1, Message::Completed(wire::Completed { endpoint: String::new(), ..message }));
    assert_eq!(counts(&world), (0, 0));
}

#[test]
fn registered_sequences_take_places_where_the_stock_counts_them() {
    let mut world = world_in(StockUnit::Sequences);
    let of = |sequence, sequences| wire::Register { sequences, ..register(sequence) };
    for (sequence, sequences) in [(1, 2), (2, 2), (3, 0)] {
        world.send(1, Message::Register(of(sequence, sequences)));
    }
    assert_eq!(granted(&mut world), [1], "the second needs two places, and the third comes after it");
    assert_eq!(counts(&world), (2, 0));
    report(&mut world, SERVER, Some(scraped(2)));
    assert_eq!(pool(&world).servers[0].foreign, 0);
    world.send(1, completed(1));
    assert_eq!(granted(&mut world), [2, 3]);
    assert_eq!(counts(&world), (3, 0));
}
