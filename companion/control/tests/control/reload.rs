//! Reloads while requests wait and run: no request is lost or changes its place, and a removed pool is forgotten when its
//! last request has ended.

use std::time::Duration;

use penstock_control::{Event, PoolEvent, PoolSettings, Settings};
use penstock_engine::Outcome;
use penstock_engine::input::Band;
use penstock_engine::policy::{Class, ClassSet, Discipline, FlowKey, Gate, Order};
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use crate::harness::*;

fn world(servers: &[&str]) -> World {
    let mut world = World::with(settings_of(servers));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

/// The first request runs, the rest wait.
fn with_waiting(servers: &[&str], sequences: std::ops::RangeInclusive<u64>) -> World {
    let mut world = world(servers);
    for sequence in sequences {
        world.send(1, Message::Register(register(sequence)));
    }
    world.take();
    world
}

fn reload(world: &mut World, settings: Settings) -> Taken {
    world.handle(Event::Settings(Box::new(settings)));
    world.take()
}

fn endpoints(world: &mut World, servers: &[&str]) -> Taken {
    let endpoints = settings_of(servers).pools.remove(0).endpoints;
    world.handle(Event::Pool("chat".into(), PoolEvent::Endpoints { endpoints, pending: Vec::new() }));
    world.take()
}

fn pool(name: &str, models: &[&str], servers: &[&str]) -> PoolSettings {
    PoolSettings {
        name: name.into(),
        models: models.iter().map(ToString::to_string).collect(),
        ..settings_of(servers).pools.remove(0)
    }
}

/// The order in which the waiting requests are granted, one at a time.
fn order(world: &mut World, first: u64, server: &str) -> Vec<u64> {
    let (mut order, mut runs) = (Vec::new(), first);
    loop {
        world.send(1, completed_at(runs, server));
        let granted = world.take().granted();
        let [next] = granted[..] else { return order };
        order.push(next);
        runs = next;
    }
}

#[test]
fn the_same_settings_again_change_nothing() {
    let mut world = with_waiting(&[SERVER], 1..=4);
    assert_eq!(reload(&mut world, settings()), Taken::default());
    assert_eq!(order(&mut world, 1, SERVER), [2, 3, 4]);
}

#[test]
fn every_session_gets_a_new_policy_once() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    world.greet(2, filter(5), Vec::new(), Vec::new());
    world.take();
    let mut settings = settings();
    settings.policy.digest = "d2".into();
    let taken = reload(&mut world, settings.clone());
    let told = |conn| (conn, Kind::Policy(settings.policy.clone()));
    assert_eq!(taken.commands, [told(1), told(2)]);
    assert_eq!(reload(&mut world, settings.clone()), Taken::default());
    // A later session gets it with its greeting.
    world.greet(3, filter(6), Vec::new(), Vec::new());
    assert!(world.take().commands.contains(&told(3)));
}

#[test]
fn waiting_requests_keep_their_place_under_any_policy() {
    for discipline in Discipline::ALL {
        let mut world = with_waiting(&[SERVER], 1..=8);
        let mut other = settings();
        other.policy.digest = format!("{discipline:?}");
        let rules = &mut other.pools[0].policy;
        rules.flows.discipline = discipline;
        rules.queue.total_capacity = 2;
        rules.queue.flow_capacity = 1;
        rules.queue.enabled = false;
        rules.per_model = true;
        rules.order = Order::Edf;
        let mut class = Class::new("all", 100);
        class.requests_per_endpoint = Some(1);
        rules.classes = vec![ClassSet { default_family: None, buckets: Vec::new(), classes: vec![class] }];
        other.pools[0].flow_key = vec![FlowKey::User, FlowKey::TargetModel];
        other.pools[0].class_globs = vec!["llama-*".into()];
        let taken = reload(&mut world, other);
        assert_eq!((taken.granted(), taken.outcomes.len()), (vec![], 0));
        assert_eq!(world.waiting(), 7, "{discipline:?}");
        assert_eq!(order(&mut world, 1, SERVER), [2, 3, 4, 5, 6, 7, 8], "{discipline:?}");
        assert!(world.control.is_idle());
    }
}

#[test]
fn a_wider_gate_grants_at_once_and_a_narrower_one_waits() {
    let gate = |bound| Gate::requests(Decimal::whole(bound));
    let mut world = with_waiting(&[SERVER], 1..=5);
    let mut wider = settings();
    wider.pools[0].policy.gate = gate(3);
    let taken = reload(&mut world, wider);
    assert_eq!(taken.granted(), [2, 3]);
    // The filters share another bound from then on.
    assert_eq!(taken.endpoints()[0].1.fallback_bound, Some(3));
    assert_eq!(reload(&mut world, settings()).granted(), [0; 0]);
    for (sequence, next) in [(1, vec![]), (2, vec![]), (3, vec![4]), (4, vec![5])] {
        world.send(1, completed(sequence));
        assert_eq!(world.take().granted(), next, "after {sequence}");
    }
}

#[test]
fn a_new_ttl_applies_to_waiting_requests() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    let mut shorter = settings();
    shorter.pools[0].policy.queue.ttl = Duration::from_secs(3);
    world.pass_beating(2, &[1]);
    reload(&mut world, shorter);
    world.pass(Duration::from_millis(999));
    assert_eq!(world.waiting(), 1);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.take().rejected(), [(2, "queue_timeout", 503)]);
}

#[test]
fn a_removed_endpoint_gets_no_requests_and_its_running_ones_end() {
    let mut world = with_waiting(&[SERVER, SECOND], 1..=4);
    let taken = endpoints(&mut world, &[SECOND, THIRD]);
    // The third endpoint is new and takes one request; the first keeps its request.
    let granted = taken.grants();
    assert_eq!((granted.len(), granted[0].1.endpoints[0].as_str()), (1, THIRD));
    assert_eq!(taken.endpoints()[0].1.ready, [SECOND, THIRD]);
    let snapshot = |world: &World| world.control.status(world.now).pools[0].snapshot.clone();
    assert_eq!((snapshot(&world).stock, snapshot(&world).draining_stock), (2, 1));
    let id_of = |server: &str| {
        let status = world.control.status(world.now);
        let pool = &status.pools[0];
        let found = pool.snapshot.endpoints.iter().find(|endpoint| pool.address(endpoint.id) == server);
        found.map(|endpoint| endpoint.id)
    };
    assert!(id_of(SERVER).is_some(), "it is shown while something runs there");
    // Whichever of the two ran there.
    let status = world.control.status(world.now);
    assert_eq!(status.pools[0].addresses.len(), 3);
    for sequence in [1, 2] {
        world.send(1, started(sequence, if sequence == 1 { SERVER } else { SECOND }, 1));
    }
    world.take();
    world.send(1, completed_at(1, SERVER));
    assert_eq!(world.take().granted(), [0; 0], "the place is gone with its server");
    assert_eq!(snapshot(&world).draining_stock, 0);
    assert_eq!(order(&mut world, 2, SECOND), [4]);
}

#[test]
fn an_endpoint_number_is_reused_when_it_is_free() {
    let mut world = world(&[SERVER, SECOND]);
    for round in 0..100 {
        let address = format!("10.0.0.1:{round}");
        endpoints(&mut world, &[SERVER, &address]);
    }
    let status = world.control.status(world.now);
    let addresses: Vec<&str> = status.pools[0].addresses.iter().map(|address| &**address).collect();
    assert!(addresses.len() <= 3, "{addresses:?}");
    assert!(addresses.contains(&"10.0.0.1:99") && addresses.contains(&SERVER));
}

#[test]
fn a_kept_endpoint_keeps_its_health_and_a_new_one_has_its_settings_health() {
    let mut world = world(&[SERVER, SECOND]);
    world.handle(Event::Pool(
        "chat".into(),
        PoolEvent::EndpointReady { address: SECOND.into(), ready: false },
    ));
    world.take();
    let mut checked = settings_of(&[SERVER, SECOND, THIRD]);
    for endpoint in &mut checked.pools[0].endpoints {
        endpoint.ready = false;
    }
    assert_eq!(reload(&mut world, checked), Taken::default(), "only the first is ready");
    world.handle(Event::Pool("chat".into(), PoolEvent::EndpointReady { address: THIRD.into(), ready: true }));
    assert_eq!(world.take().endpoints()[0].1.ready, [SERVER, THIRD]);
    // The health is no longer checked.
    let taken = reload(&mut world, settings_of(&[SERVER, SECOND, THIRD]));
    assert_eq!(taken.endpoints()[0].1.ready, [SERVER, SECOND, THIRD]);
}

#[test]
fn a_request_whose_granted_endpoint_is_gone_is_requeued() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    world.close(1);
    endpoints(&mut world, &[SECOND]);
    let again = Filter { stream: 2, ..filter(1) };
    world.greet(2, again, vec![register(1), register(2)], Vec::new());
    let taken = world.take();
    assert_eq!((taken.granted(), taken.requeued), (vec![1], 1), "in its old place");
    assert_eq!(taken.grants()[0].1.endpoints, [SECOND]);
}

#[test]
fn without_endpoints_a_request_waits_for_one() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    assert_eq!(endpoints(&mut world, &[]).endpoints()[0].1.ready.len(), 0);
    world.pass_beating(10, &[1]);
    assert_eq!(world.waiting(), 1);
    let taken = endpoints(&mut world, &[THIRD]);
    assert_eq!(taken.grants()[0].1.endpoints, [THIRD]);
    // The request that ran there is still known.
    world.send(1, completed(1));
    world.send(1, completed_at(2, THIRD));
    assert!(world.control.is_idle());
}

#[test]
fn a_removed_endpoint_is_announced_where_no_bound_changes() {
    let mut settings = settings_of(&[SERVER, SECOND]);
    settings.pools[0].policy.gate = Gate::Open;
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    let taken = endpoints(&mut world, &[SERVER]);
    assert_eq!(taken.endpoints()[0].1.ready, [SERVER]);
}

#[test]
fn endpoints_of_an_unknown_pool_are_ignored() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    world.handle(Event::Pool(
        "nobody".into(),
        PoolEvent::Endpoints { endpoints: Vec::new(), pending: Vec::new() },
    ));
    assert_eq!(world.take(), Taken::default());
}

#[test]
fn waiting_requests_of_a_removed_pool_are_rejected_and_running_ones_end() {
    let mut world = with_waiting(&[SERVER], 1..=3);
    let mut other = settings();
    other.pools = vec![pool("code", &["code-*"], &[SECOND])];
    let taken = reload(&mut world, other.clone());
    let not_found = |sequence| (sequence, "model_not_found", 404);
    assert_eq!(taken.rejected(), [not_found(3), not_found(2)]);
    assert!(taken.rejects()[0].message.contains("`chat`"), "{}", taken.rejects()[0].message);
    assert_eq!(taken.outcomes, [Outcome::RejectedInvalid; 2]);
    let names = |world: &World| -> Vec<(String, bool, u64)> {
        let pools = world.control.status(world.now).pools;
        let names = pools.iter().map(|pool| {
            (pool.name.to_string(), pool.retired, pool.snapshot.stock + pool.snapshot.draining_stock)
        });
        names.collect()
    };
    assert_eq!(names(&world), [("code".into(), false, 0), ("chat".into(), true, 1)]);
    world.send(1, Message::Register(register(4)));
    assert_eq!(world.take().rejected(), [not_found(4)]);
    world.send(1, Message::Register(wire::Register { model: "code-1".into(), ..register(5) }));
    assert_eq!(world.take().grants()[0].1.endpoints, [SECOND]);
    world.send(1, completed(1));
    assert_eq!(names(&world), [("code".into(), false, 1)]);
    world.send(1, completed_at(5, SECOND));
    assert!(world.control.is_idle());
}

#[test]
fn a_pool_that_is_configured_again_goes_on() {
    let mut world = with_waiting(&[SERVER], 1..=1);
    let mut without = settings();
    without.pools = vec![pool("code", &["code-*"], &[SECOND])];
    reload(&mut world, without);
    let mut both = settings();
    both.pools = vec![pool("code", &["code-*"], &[SECOND]), pool("chat", &["llama-*"], &[SERVER])];
    reload(&mut world, both);
    world.send(1, Message::Register(register(2)));
    assert_eq!(world.take().granted(), [0; 0], "what ran there still does");
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [2]);
    assert_eq!(world.control.status(world.now).pools.len(), 2);
}

#[test]
fn a_requeued_request_of_a_retired_pool_is_rejected() {
    let mut world = with_waiting(&[SERVER], 1..=1);
    let mut other = settings();
    other.pools = vec![pool("code", &["code-*"], &[SECOND])];
    reload(&mut world, other);
    world.send(1, Message::Register(again(2, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.rejected(), taken.requeued), (vec![(2, "model_not_found", 404)], 1));
    assert!(taken.outcomes.is_empty(), "it keeps its first outcome");
    assert!(world.control.is_idle());
    assert_eq!(world.control.status(world.now).pools.len(), 1);
}

#[test]
fn waiting_requests_for_a_removed_model_are_rejected() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    let mut other = settings();
    other.pools[0].models = vec!["llama-70b".into()];
    assert_eq!(reload(&mut world, other.clone()).rejected(), [(2, "model_not_found", 404)]);
    // A pool before it in the list gets later requests, not those that wait.
    let mut world = with_waiting(&[SERVER], 1..=2);
    let mut first = settings();
    first.pools.insert(0, pool("new", &["llama-8b"], &[SECOND]));
    assert!(reload(&mut world, first).outcomes.is_empty());
    world.send(1, Message::Register(register(3)));
    assert_eq!(world.take().grants()[0].1.pool, "new");
    world.send(1, completed(1));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.grants()[0].1.pool.as_str()), (vec![2], "chat"));
}

#[test]
fn a_new_pool_starts_and_drains_like_the_rest() {
    // Before dispatch begins, its requests wait too.
    let mut world = World::new();
    let mut both = settings();
    both.pools.push(pool("code", &["code-*"], &[SECOND]));
    reload(&mut world, both.clone());
    assert!(!world.control.status(world.now).started);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    let code = |sequence| Message::Register(wire::Register { model: "code-1".into(), ..register(sequence) });
    world.send(1, code(1));
    assert_eq!(world.take().granted(), [1]);
    // While the companion drains, it rejects too.
    world.handle(Event::Drain(true));
    both.pools.push(pool("more", &["more-*"], &[THIRD]));
    reload(&mut world, both);
    world.send(1, Message::Register(wire::Register { model: "more-1".into(), ..register(2) }));
    assert_eq!(world.take().rejected(), [(2, "shutting_down", 503)]);
    world.handle(Event::Drain(false));
    world.send(1, Message::Register(wire::Register { model: "more-1".into(), ..register(3) }));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn a_reload_to_fewer_expected_sessions_may_start_dispatch() {
    let mut expecting = settings();
    expecting.sessions_expected = Some(2);
    let mut world = World::with(expecting);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [0; 0]);
    assert_eq!(reload(&mut world, settings()).granted(), [1]);
}

#[test]
fn new_claim_rules_apply_to_later_requests() {
    let mut world = with_waiting(&[SERVER], 1..=1);
    let gold = |sequence| {
        Message::Register(wire::Register {
            priority: "gold".into(),
            fairness_id: format!("t{sequence}"),
            ..register(sequence)
        })
    };
    world.send(1, gold(2));
    let mut objectives = settings();
    objectives.pools[0].objectives = vec![("gold".into(), Band::Critical)];
    reload(&mut world, objectives);
    world.send(1, gold(3));
    let status = world.control.status(world.now);
    let bands = &status.pools[0].snapshot.bands;
    let waiting: Vec<u64> = bands.iter().map(|band| band.waiting).collect();
    assert_eq!(waiting, [1, 1, 0]);
    assert_eq!(order(&mut world, 1, SERVER), [3, 2]);
}

#[test]
fn a_new_flow_key_applies_to_later_requests() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    let shown = |world: &World| {
        let pool = world.control.status(world.now).pools.remove(0);
        let flows = pool.snapshot.flows.iter().map(|flow| flow.key.to_string());
        (flows.collect::<Vec<_>>(), pool.shown("acme").to_owned())
    };
    assert_eq!(shown(&world), (vec!["acme".to_owned()], "acme".to_owned()));
    let mut by_user = settings();
    by_user.pools[0].flow_key = vec![FlowKey::User];
    reload(&mut world, by_user);
    world.send(1, Message::Register(wire::Register { user: "joe".into(), ..register(3) }));
    let (flows, acme) = shown(&world);
    assert_eq!(flows, ["acme", "joe"]);
    assert_eq!(acme, "other", "it may be a user's name by now");
}

#[test]
fn queue_places_are_kept_over_many_reloads() {
    let mut world = with_waiting(&[SERVER], 1..=10);
    for number in 0..100_u64 {
        let mut other = settings();
        other.policy.digest = format!("d{number}");
        other.pools[0].policy.flows.default_weight = 1.0 + number as f64;
        other.pools[0].policy.flows.discipline = Discipline::ALL[usize::try_from(number % 6).expect("small")];
        if number.is_multiple_of(3) {
            other.pools.insert(0, pool(&format!("p{number}"), &["x"], &[SECOND]));
        }
        let taken = reload(&mut world, other);
        assert!(taken.outcomes.is_empty() && taken.grants().is_empty());
    }
    assert_eq!(order(&mut world, 1, SERVER), [2, 3, 4, 5, 6, 7, 8, 9, 10]);
}
