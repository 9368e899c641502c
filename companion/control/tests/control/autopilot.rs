//! From the filters' messages to a pool's autopilot, and from its budgets to grants.

use std::sync::Arc;
use std::time::Duration;

use penstock_control::{Event, GateSource, Kept, PendingServers, PoolEvent, Settings};
use penstock_engine::policy::Gate;
use penstock_engine::units::Decimal;
use penstock_model::learner::State;
use penstock_model::slo::{Policy as SloPolicy, Source};
use penstock_model::{Parameters, Targets};
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use super::harness::{SECOND, SERVER, World, filter, register, runs_as, settings_of};

const ALPHA_MS: f64 = 4.0;
const BETA_MS: f64 = 0.5;

/// Under `auto`, with a session.
fn world(servers: &[&str]) -> World {
    world_with(servers, SloPolicy::default())
}

fn world_with(servers: &[&str], slo: SloPolicy) -> World {
    let mut settings = settings_of(servers);
    settings.pools[0].slo = slo;
    settings.pools[0].policy.gate = Gate::Auto { initial: Decimal::whole(8) };
    settings.pools[0].policy.queue.total_capacity = 1_000;
    settings.pools[0].policy.queue.flow_capacity = 1_000;
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

/// So many requests at once, at a server whose prompts cost nothing: requests that are granted together are served
/// together, then those that were granted meanwhile.
fn round(world: &mut World, first: u64, n: u64, output: u64) -> Vec<(Arc<str>, String, Kept)> {
    for sequence in first..first + n {
        world.send(1, Message::Register(register(sequence)));
    }
    let mut learned = Vec::new();
    loop {
        let mut taken = world.take();
        learned.append(&mut taken.learned);
        if taken.granted().is_empty() {
            return learned;
        }
        serve(world, &taken.granted(), output);
    }
}

fn serve(world: &mut World, granted: &[u64], output: u64) {
    let itl_ms = ALPHA_MS + BETA_MS * granted.len() as f64;
    let us = |ms: f64| (ms * 1e3) as u64;
    let last_ms = itl_ms * output as f64;
    world.pass(Duration::from_micros(us(last_ms)));
    world.send(1, Message::Heartbeat(wire::Heartbeat::default()));
    for sequence in granted {
        let completed = wire::Completed {
            sequence: *sequence,
            endpoint: SERVER.into(),
            status: 200,
            attempts: 1,
            end: wire::EndReason::Served.into(),
            first_token_us: Some(us(itl_ms)),
            last_byte_us: Some(us(last_ms)),
            prompt_tokens: Some(100),
            cached_tokens: Some(99),
            output_tokens: Some(output),
            output_chunks: output,
            ..wire::Completed::default()
        };
        world.send(1, Message::Completed(completed));
    }
}

#[test]
fn completions_become_a_model_and_the_gate_follows_it() {
    let mut world = world_with(&[SERVER], SloPolicy { multiplier: Some(3.0), explicit: None });
    let status = world.control.status(world.now).pools.swap_remove(0);
    assert_eq!(status.snapshot.upper, 8);
    let (mut sequence, mut learned) = (1, Vec::new());
    for at in 0..400 {
        let n = 1 + at * 3 % 8;
        learned.append(&mut round(&mut world, sequence, n, 20 + at % 7 * 5));
        sequence += n;
        if !learned.is_empty() {
            break;
        }
    }
    world.pass_beating(1, &[1]);
    let status = world.control.status(world.now).pools.swap_remove(0);
    let model = status.model.expect("a pool's servers are looked at");
    let variant = &model.variants[0];
    assert_eq!(variant.state, State::Converged, "{variant:?}");
    let found = variant.parameters.expect("they are known");
    assert!((found.alpha_ms - ALPHA_MS).abs() < 0.4, "{found:?}");
    assert_eq!(learned.len(), 1);
    let (pool, variant, kept) = &learned[0];
    assert_eq!((&**pool, variant.as_str()), ("chat", "default"));
    assert!((kept.parameters.alpha_ms - ALPHA_MS).abs() < 0.4, "{kept:?}");
    assert!(status.snapshot.upper > 8, "its gate is what it takes now: {}", status.snapshot.upper);
}

/// The first token of an answer.
fn begins(sequence: u64) -> Message {
    let endpoint = SERVER.into();
    Message::Started(wire::Started {
        sequence,
        endpoint,
        status: 200,
        first_token: true,
        ..Default::default()
    })
}

#[test]
fn beginnings_of_answers_raise_the_bound_while_requests_wait() {
    let mut world = world(&[SERVER]);
    for sequence in 1..=20 {
        world.send(1, Message::Register(wire::Register { stream: true, ..register(sequence) }));
    }
    assert_eq!(world.take().granted().len(), 8);
    world.pass_beating(1, &[1]);
    for sequence in 1..8 {
        world.send(1, begins(sequence));
    }
    assert!(world.take().granted().is_empty(), "one of them may wait inside the server");
    world.send(1, begins(8));
    world.pass_beating(1, &[1]);
    assert_eq!(world.take().granted(), [9, 10, 11, 12], "half as many more");
    let status = world.control.status(world.now).pools.swap_remove(0);
    let gate = status.model.and_then(|model| model.gate).expect("the gate is auto");
    assert_eq!(gate.source, GateSource::Exploring, "{gate:?}");
}

#[test]
fn a_reload_to_auto_starts_at_its_initial_bound_and_rises() {
    let mut world = World::with(settings_of(&[SERVER]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].policy.gate = Gate::Auto { initial: Decimal::whole(8) };
    settings.pools[0].policy.queue.flow_capacity = 1_000;
    reload(&mut world, settings);
    world.take();
    for sequence in 1..=20 {
        world.send(1, Message::Register(wire::Register { stream: true, ..register(sequence) }));
    }
    assert_eq!(world.take().granted().len(), 8);
    world.pass_beating(1, &[1]);
    for sequence in 1..=8 {
        world.send(1, begins(sequence));
    }
    world.pass_beating(1, &[1]);
    assert_eq!(world.take().granted(), [9, 10, 11, 12], "half as many more");
}

#[test]
fn rejections_by_policy_are_no_load_and_waiting_requests_are() {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].policy.queue.total_capacity = 0;
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    for sequence in 2..10 {
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!(world.take().rejected().len(), 8);
    world.pass_beating(10, &[1]);
    let model = world.control.status(world.now).pools.swap_remove(0).model;
    assert!((model.expect("it is looked at").demand - 0.1).abs() < 0.02);
}

#[test]
fn a_request_that_another_companion_granted_is_load_until_it_ends() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    let running = vec![runs_as(register(1), SERVER), runs_as(register(2), SECOND)];
    world.greet(1, filter(1), Vec::new(), running);
    // In the end it runs elsewhere.
    let ended = |sequence, endpoint: &str| {
        Message::Completed(wire::Completed {
            sequence,
            endpoint: endpoint.into(),
            status: 200,
            end: wire::EndReason::Served.into(),
            output_chunks: 9,
            ..Default::default()
        })
    };
    world.send(1, ended(1, SECOND));
    world.close(1);
    world.pass(wire::limits::SESSION_GRACE);
    assert_eq!(world.stock(), 0);
    world.pass(Duration::from_secs(40));
    let model = world.control.status(world.now).pools.swap_remove(0).model;
    let variant = &model.expect("it is looked at").variants[0];
    assert_eq!((variant.state, variant.current), (State::NoTraffic, 2));
    assert_eq!(world.control.poll_timeout(), None, "nothing runs while nothing happens");
}

/// Endpoints with known parameters, at 10 ms between two tokens.
fn known(servers: &[&str]) -> Settings {
    let mut settings = settings_of(servers);
    let pool = &mut settings.pools[0];
    pool.policy.gate = Gate::Auto { initial: Decimal::whole(8) };
    pool.slo = slo(10.0);
    let parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.0005 };
    let kept = Kept { parameters, ttft_bias: 1.0 };
    pool.kept = vec![("default".into(), kept), ("h100".into(), kept)];
    settings
}

fn slo(itl_ms: f64) -> SloPolicy {
    SloPolicy {
        explicit: Some(Targets { ttft_ms: Some(1_000.0), itl_ms: Some(itl_ms) }),
        ..SloPolicy::default()
    }
}

fn upper(world: &World) -> u64 {
    world.control.status(world.now).pools[0].snapshot.upper
}

fn variants(world: &World) -> Vec<(String, u64, u64, bool)> {
    let pool = world.control.status(world.now).pools.swap_remove(0);
    let model = pool.model.expect("it is looked at");
    let variants = model.variants.into_iter();
    variants
        .map(|variant| (variant.name, variant.current, variant.pending, variant.parameters.is_some()))
        .collect()
}

fn reload(world: &mut World, settings: Settings) {
    world.handle(Event::Settings(Box::new(settings)));
    world.take();
}

#[test]
fn the_model_gates_between_two_reloads() {
    let mut by_count = known(&[SERVER]);
    by_count.pools[0].policy.gate = settings_of(&[SERVER]).pools[0].policy.gate;
    let mut world = World::with(by_count.clone());
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    assert_eq!(upper(&world), 1);
    for _ in 0..2 {
        reload(&mut world, known(&[SERVER]));
        assert!((2..=8).contains(&upper(&world)), "{}", upper(&world));
        assert_eq!(upper(&world), upper(&World::with(known(&[SERVER]))));
        reload(&mut world, by_count.clone());
        assert_eq!(upper(&world), 1);
    }
}

#[test]
fn other_targets_give_other_budgets() {
    let mut world = World::with(known(&[SERVER]));
    let before = upper(&world);
    let mut slower = known(&[SERVER]);
    slower.pools[0].slo = slo(20.0);
    reload(&mut world, slower);
    assert!(upper(&world) > 5 * before, "{} after {before}", upper(&world));
    let mut none = known(&[SERVER]);
    none.pools[0].slo = SloPolicy::default();
    reload(&mut world, none);
    let status = world.control.status(world.now).pools.swap_remove(0);
    let inferred = status.model.expect("it is looked at").slo;
    assert_ne!(inferred.source, Source::Explicit, "nothing is left of them");
}

#[test]
fn servers_that_are_no_endpoints_yet_are_pending_from_the_start_and_after_a_reload() {
    let with_pending = |servers: u64| {
        let mut settings = settings_of(&[SERVER]);
        settings.pools[0].pending = vec![PendingServers { variant: "h100".into(), max_batch: 256, servers }];
        settings
    };
    let expected = |pending| [("default".into(), 1, 0, false), ("h100".into(), 0, pending, false)];
    let mut world = World::with(with_pending(2));
    assert_eq!(variants(&world), expected(2));
    reload(&mut world, with_pending(1));
    assert_eq!(variants(&world), expected(1));
    reload(&mut world, settings_of(&[SERVER]));
    assert_eq!(variants(&world)[..], expected(0)[..1]);
}

#[test]
fn a_new_endpoint_is_gated_by_its_variants_model() {
    let mut world = World::with(known(&[SERVER]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    let one = upper(&world);
    let mut two = known(&[SERVER, SECOND]);
    two.pools[0].endpoints[1].variant = "h100".into();
    let endpoints = two.pools[0].endpoints.clone();
    world.handle(Event::Pool("chat".into(), PoolEvent::Endpoints { endpoints, pending: Vec::new() }));
    assert_eq!(upper(&world), 2 * one);
    assert_eq!(variants(&world), [("default".into(), 1, 0, true), ("h100".into(), 1, 0, true)]);
}

#[test]
fn a_variants_model_outlives_its_last_endpoint() {
    let mut both = known(&[SERVER, SECOND]);
    both.pools[0].endpoints[1].variant = "h100".into();
    let mut world = World::with(both.clone());
    world.greet(1, filter(1), Vec::new(), Vec::new());
    let pinned = wire::Register { pin: SECOND.into(), ..register(1) };
    world.send(1, Message::Register(pinned));
    world.take();
    // The settings of later reloads have no stored parameters.
    let without_kept = |mut settings: Settings| {
        settings.pools[0].kept.clear();
        settings
    };
    reload(&mut world, without_kept(known(&[SERVER])));
    let names = |world: &World| variants(world).into_iter().map(|variant| variant.0).collect::<Vec<_>>();
    // The autopilot follows an endpoint while a request runs there.
    assert_eq!(variants(&world)[1], ("h100".into(), 0, 0, true));
    world.send(
        1,
        Message::Completed(wire::Completed {
            sequence: 1,
            endpoint: SECOND.into(),
            status: 200,
            end: wire::EndReason::Served.into(),
            ..Default::default()
        }),
    );
    world.pass_beating(11, &[1]);
    assert_eq!(names(&world), ["default"]);
    reload(&mut world, without_kept(both));
    assert_eq!(variants(&world)[1], ("h100".into(), 1, 0, true));
}

#[test]
fn an_endpoint_may_become_another_variant() {
    let mut world = World::with(known(&[SERVER]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    let mut other = known(&[SERVER]);
    other.pools[0].endpoints[0].variant = "new".into();
    reload(&mut world, other);
    assert_eq!(variants(&world), [("new".into(), 1, 0, false)]);
    world.send(
        1,
        Message::Completed(wire::Completed {
            sequence: 1,
            endpoint: SERVER.into(),
            status: 200,
            end: wire::EndReason::Served.into(),
            ..Default::default()
        }),
    );
    assert!(world.control.is_idle());
}
