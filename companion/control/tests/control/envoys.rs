//! The bound for requests without a companion: each Envoy's share, announced whenever it changes.

use std::time::Duration;

use penstock_control::{Event, PoolEvent, Settings};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Two servers of 5 each.
fn settings_of_ten() -> Settings {
    let mut settings = settings_of(&[SERVER, SECOND]);
    settings.pools[0].policy.gate = Gate::Bounded {
        unit: StockUnit::Requests,
        lower: Decimal::whole(4),
        upper: Decimal::whole(5),
        watermark: Decimal::whole(5),
    };
    settings
}

const fn of_envoy(epoch: u64, envoy: u64) -> Filter {
    Filter { envoy, ..filter(epoch) }
}

/// The announcements: stream, bound and number of endpoints.
fn announced(world: &mut World) -> Vec<(u64, Option<u64>, usize)> {
    let taken = world.take();
    let endpoints = taken.endpoints().into_iter();
    let mut told: Vec<_> =
        endpoints.map(|(conn, endpoints)| (conn, endpoints.fallback_bound, endpoints.ready.len())).collect();
    told.sort_unstable();
    told
}

#[test]
fn the_bound_is_shared_by_the_envoys() {
    let mut world = World::with(settings_of_ten());
    world.greet(1, of_envoy(1, 8), Vec::new(), Vec::new());
    assert_eq!(announced(&mut world), [(1, Some(10), 2)]);
    world.greet(2, of_envoy(2, 8), Vec::new(), Vec::new());
    assert_eq!(announced(&mut world), [(2, Some(10), 2)], "another worker of the same Envoy");
    world.greet(3, of_envoy(3, 9), Vec::new(), Vec::new());
    assert_eq!(announced(&mut world), [(1, Some(5), 0), (2, Some(5), 0), (3, Some(5), 2)]);
    let down = Event::Pool("chat".into(), PoolEvent::EndpointReady { address: SECOND.into(), ready: false });
    world.handle(down.clone());
    assert_eq!(announced(&mut world), [(1, Some(2), 1), (2, Some(2), 1), (3, Some(2), 1)]);
    world.handle(down);
    assert_eq!(announced(&mut world), [], "no news");
    // An Envoy counts until its last session is released.
    world.send(1, Message::Bye(wire::Bye {}));
    assert_eq!(announced(&mut world), []);
    world.close(2);
    world.pass(Duration::from_millis(4_999));
    assert_eq!(announced(&mut world), []);
    world.pass(Duration::from_millis(1));
    assert_eq!(announced(&mut world), [(3, Some(5), 0)]);
}

#[test]
fn each_of_many_envoys_may_have_one_request() {
    let mut world = World::with(settings_of_ten());
    for conn in 1..=11 {
        world.greet(conn, of_envoy(conn, conn), Vec::new(), Vec::new());
    }
    assert_eq!(announced(&mut world).last(), Some(&(11, Some(1), 2)));
}

#[test]
fn a_filter_without_a_process_number_counts_as_an_envoy() {
    let mut world = World::with(settings_of_ten());
    for conn in [1, 2] {
        world.greet(conn, of_envoy(conn, 0), Vec::new(), Vec::new());
    }
    assert_eq!(announced(&mut world).last(), Some(&(2, Some(5), 2)));
}

#[test]
fn without_a_bound_none_is_announced() {
    let mut settings = settings_of_ten();
    settings.pools[0].policy.gate = Gate::Open;
    let mut world = World::with(settings);
    world.greet(1, of_envoy(1, 8), Vec::new(), Vec::new());
    assert_eq!(announced(&mut world), [(1, None, 2)]);
}
