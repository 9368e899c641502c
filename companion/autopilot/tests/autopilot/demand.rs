//! Demand: replica counts follow the load, and no window runs without requests.

use std::time::Duration;

use penstock_autopilot::{AutopilotEndpoint, DesiredSource, PendingServers, Served};
use penstock_engine::input::EndpointId;
use penstock_model::learner::State;
use penstock_model::{Parameters, Targets};

use crate::harness::{TRUE, WINDOW, World, near, replicas, settings, sure};

#[test]
fn replicas_follow_the_offered_load_not_the_served_one() {
    let mut world = World::new(sure(&["default", "default"]));
    world.traffic(0, &TRUE, 200);
    world.pass(WINDOW);
    let one = world.variant("default").lambda_star.expect("it is sized");
    let offer = |world: &mut World, rate: f64| {
        for _ in 0..(rate * WINDOW.as_secs_f64()) as u64 {
            world.autopilot.arrived(world.now);
        }
        world.round(0, &TRUE, 8, 512, 64);
        world.round(1, &TRUE, 8, 512, 64);
        world.close();
        world.variant("default")
    };
    offer(&mut world, one);
    let lambda = world.variant("default").lambda_star.expect("it is sized");
    let twice = offer(&mut world, 4.0 * lambda);
    let needed = twice.demand / twice.lambda_star.expect("it is sized");
    assert!(needed > 3.5, "{twice:?}");
    let desired = twice.desired.expect("it is sized");
    assert_eq!((desired.replicas, desired.source), (needed.ceil() as u64, DesiredSource::Model));
    assert!(near(twice.utilization, needed / 2.0, 1e-6) && twice.current == 2, "{twice:?}");
    let half = offer(&mut world, 0.5 * lambda);
    assert!(replicas(&half) < replicas(&twice) && replicas(&half) >= Some(1), "{half:?}");
    world.backlog = (lambda * 3.0 * 30.0) as u64;
    let waiting = offer(&mut world, 0.5 * lambda);
    assert!(
        replicas(&waiting) >= replicas(&half).map(|replicas| replicas + 2),
        "what waits is to be served: {waiting:?}"
    );
}

#[test]
fn a_short_ttl_does_not_multiply_the_backlog() {
    let demand = |ttl| {
        let mut settings = sure(&["default", "default"]);
        settings.ttl = ttl;
        let mut world = World::new(settings);
        world.traffic(0, &TRUE, 200);
        world.pass(WINDOW);
        world.round(0, &TRUE, 8, 512, 64);
        world.backlog = 40;
        world.close();
        world.variant("default").demand
    };
    let whole = demand(WINDOW);
    assert!(near(demand(WINDOW / 10), whole, 1e-9), "{whole}");
    assert!(demand(10 * WINDOW) < whole - 3.0, "{whole}");
}

/// One window in which both endpoints serve rounds of equal requests, and 60 more requests arrive than are served. Equal
/// requests identify no parameters.
fn overload(world: &mut World) {
    let end = world.now.after(WINDOW);
    for _ in 0..60 {
        world.autopilot.arrived(world.now);
    }
    world.backlog = 40;
    world.round(0, &TRUE, 8, 512, 64);
    world.round(1, &TRUE, 8, 512, 64);
    world.pass(end.since(world.now));
}

#[test]
fn a_steady_overload_asks_for_replicas_before_a_model_is_learned() {
    let mut world = World::new(settings(&["default", "default"]));
    let mut asked = Vec::new();
    for _ in 0..6 {
        overload(&mut world);
        asked.push(world.variant("default").desired);
    }
    assert_eq!(world.variant("default").lambda_star, None, "no model is learned");
    assert!(
        asked[..3].iter().flatten().all(|desired| desired.replicas == 2),
        "bootstrap parameters ask for no fewer than are ready: {asked:?}"
    );
    let last = asked[5].expect("a steady overload");
    assert_eq!(last.source, DesiredSource::Saturation, "{asked:?}");
    let status = world.autopilot.status();
    let served = 16.0 / WINDOW.as_secs_f64();
    assert_eq!(last.replicas, (2.0 * status.demand / served).ceil() as u64, "{status:?}");
}

#[test]
fn only_learned_parameters_prove_that_no_load_meets_the_targets() {
    let mut settings = settings(&["default"]);
    settings.slo.explicit = Some(Targets { ttft_ms: Some(1_000.0), itl_ms: Some(TRUE.alpha_ms / 2.0) });
    let mut world = World::new(settings);
    // One request in a window identifies no parameters; those that would explain it miss the targets.
    let itl = Duration::from_secs_f64(0.015_911);
    let first = Duration::from_secs_f64(0.080_48);
    let served = Served {
        first: Some(first),
        last: Some(first + itl * 486),
        streamed: true,
        prompt: Some(1_123),
        cached: Some(0),
        output: Some(487),
    };
    for _ in 0..3 {
        let id = world.grant(0, 1_123, 487);
        world.pass(first + itl * 486);
        world.autopilot.served(world.now, id, served);
        world.pass(WINDOW);
        let variant = world.variant("default");
        assert!(!matches!(variant.state, State::Infeasible | State::Converged), "{variant:?}");
    }
    world.traffic(0, &TRUE, 400);
    world.round(0, &TRUE, 8, 512, 64);
    world.close();
    assert_eq!(world.variant("default").state, State::Infeasible);
}

#[test]
fn a_load_that_is_served_asks_for_no_fewer_replicas_before_a_model_is_learned() {
    let mut world = World::new(settings(&["default", "default", "default"]));
    for _ in 0..6 {
        world.round(0, &TRUE, 2, 512, 64);
        world.pass(WINDOW);
    }
    let desired = world.variant("default").desired.expect("bootstrap parameters");
    assert_eq!((desired.replicas, desired.source), (3, DesiredSource::Bootstrap));
}

#[test]
fn rejections_by_policy_are_no_load() {
    let mut world = World::new(sure(&["default"]));
    for _ in 0..50 {
        world.autopilot.arrived(world.now);
        world.autopilot.refused();
    }
    world.grant(0, 100, 10);
    world.close();
    assert!(near(world.autopilot.status().demand, 0.1, 1e-9));
}

#[test]
fn no_window_runs_while_nothing_happens() {
    let mut world = World::new(sure(&["default"]));
    assert_eq!(world.autopilot.poll_timeout(), None);
    world.traffic(0, &TRUE, 100);
    assert!(world.autopilot.poll_timeout().is_some());
    world.pass(2 * WINDOW);
    world.pass(WINDOW);
    assert_eq!(world.autopilot.poll_timeout(), None);
    let status = world.variant("default");
    assert_eq!((status.state, status.desired, status.capacity), (State::NoTraffic, None, 0.0));
    assert_eq!(
        status.parameters,
        Some(TRUE).filter(|_| status.parameters == Some(TRUE)).or(status.parameters)
    );
    assert_eq!(world.autopilot.status().demand, 0.0);
    world.autopilot.arrived(world.now);
    assert_eq!(world.autopilot.poll_timeout(), Some(world.now.after(WINDOW)));
}

#[test]
fn a_long_response_is_traffic_until_it_ends() {
    let mut world = World::new(sure(&["default"]));
    world.traffic(0, &TRUE, 100);
    world.grant(0, 500, 4_000);
    world.pass(5 * WINDOW);
    assert!(world.autopilot.poll_timeout().is_some());
    assert_ne!(world.variant("default").state, State::NoTraffic);
}

#[test]
fn an_endpoint_that_is_not_ready_is_pending() {
    let mut world = World::new(sure(&["a", "a", "b"]));
    world.autopilot.ready(world.now, EndpointId(1), false);
    let (a, b) = (world.variant("a"), world.variant("b"));
    assert_eq!([(a.current, a.pending), (b.current, b.pending)], [(1, 1), (1, 0)]);
    world.autopilot.ready(world.now, EndpointId(1), true);
    assert_eq!(world.variant("a").current, 2);
}

fn starting(variant: &str, servers: u64) -> PendingServers {
    PendingServers { variant: variant.into(), max_batch: 256, servers }
}

#[test]
fn servers_that_are_no_endpoints_yet_are_pending_whether_or_not_their_variant_has_endpoints() {
    let mut settings = sure(&["a", "a"]);
    settings.pending = vec![starting("a", 2), starting("b", 3)];
    let endpoints = settings.endpoints.clone();
    let mut world = World::new(settings);
    world.autopilot.ready(world.now, EndpointId(1), false);
    let counts = |world: &World| {
        let variants = world.autopilot.status().variants.into_iter();
        variants.map(|variant| (variant.name, variant.current, variant.pending)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&world), [("a".into(), 1, 3), ("b".into(), 0, 3)]);
    assert_eq!(world.variant("b").desired, None);
    // One of them has become an endpoint, which isn't ready yet; the rest are gone.
    let new = AutopilotEndpoint { id: EndpointId(2), variant: "b".into(), max_batch: 256, bound_initial: 8 };
    let listed = [endpoints, vec![new]].concat();
    world.autopilot.relist(world.now, &listed, &[]);
    assert_eq!(counts(&world), [("a".into(), 1, 1), ("b".into(), 0, 1)]);
    world.autopilot.ready(world.now, EndpointId(2), true);
    assert_eq!(counts(&world)[1], ("b".into(), 1, 0));
}

#[test]
fn a_variant_keeps_its_need_while_its_only_endpoint_is_pending() {
    let settings = sure(&["default"]);
    let mut world = World::new(settings);
    world.traffic(0, &TRUE, 200);
    world.close();
    let before = world.variant("default");
    assert_eq!(replicas(&before), Some(1));
    world.autopilot.relist(world.now, &[], &[starting("default", 1)]);
    let pending = world.variant("default");
    assert_eq!((pending.current, pending.pending), (0, 1));
    assert_eq!((pending.desired, pending.n_star), (before.desired, before.n_star));
    assert_eq!(pending.state, before.state, "its model stays");
}

#[test]
fn an_endpoint_that_has_just_come_up_is_not_representative() {
    let mut world = World::new(sure(&["default", "default"]));
    world.autopilot.ready(world.now, EndpointId(1), false);
    world.traffic(0, &TRUE, 100);
    world.pass(Duration::from_secs(60));
    world.autopilot.ready(world.now, EndpointId(1), true);
    // Its responses are four times as long, so prompts are fewer.
    let both = |world: &mut World| {
        world.round(0, &TRUE, 150, 100, 20);
        world.round(1, &TRUE, 150, 100, 80);
        world.close();
        world.variant("default").n_star.expect("it is sized")
    };
    both(&mut world);
    let young = both(&mut world);
    world.pass(Duration::from_secs(120));
    both(&mut world);
    let grown = both(&mut world);
    assert!(grown > 1.01 * young, "{young} {grown}");
}

#[test]
fn requests_of_a_young_endpoint_teach_the_model_nothing_while_another_is_established() {
    let alpha_ms = |transient: u64| {
        let mut settings = sure(&["default", "default"]);
        settings.transient = Duration::from_secs(transient);
        let mut world = World::new(settings);
        world.autopilot.ready(world.now, EndpointId(1), false);
        world.traffic(0, &TRUE, 200);
        world.pass(Duration::from_secs(60));
        world.autopilot.ready(world.now, EndpointId(1), true);
        // Cold, it takes four times as long.
        let cold = Parameters {
            alpha_ms: 4.0 * TRUE.alpha_ms,
            beta_ms: 4.0 * TRUE.beta_ms,
            gamma_ms: 4.0 * TRUE.gamma_ms,
        };
        world.traffic(1, &cold, 2_000);
        world.variant("default").parameters.expect("known").alpha_ms
    };
    let (without, with) = (alpha_ms(1), alpha_ms(100_000));
    assert!(near(with, TRUE.alpha_ms, 0.1) && !near(without, TRUE.alpha_ms, 0.2), "{with} {without}");
}
