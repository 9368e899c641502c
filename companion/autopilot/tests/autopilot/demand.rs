//! Demand: replica counts follow the load, and no window runs without requests.

use std::time::Duration;

use penstock_autopilot::AutopilotSettings;
use penstock_engine::input::EndpointId;
use penstock_model::learner::State;

use crate::harness::{TRUE, WINDOW, World, known, near, settings};

fn sure(variants: &[&str]) -> AutopilotSettings {
    let mut settings = settings(variants);
    settings.kept = variants
        .iter()
        .map(|variant| ((*variant).into(), known()))
        .collect();
    settings
}

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
    assert_eq!(twice.desired, Some(needed.ceil() as u64));
    assert!(
        near(twice.utilization, needed / 2.0, 1e-6) && twice.current == 2,
        "{twice:?}"
    );
    let half = offer(&mut world, 0.5 * lambda);
    assert!(
        half.desired < twice.desired && half.desired >= Some(1),
        "{half:?}"
    );
    world.backlog = (lambda * 3.0 * 30.0) as u64;
    let waiting = offer(&mut world, 0.5 * lambda);
    assert!(
        waiting.desired >= half.desired.map(|replicas| replicas + 2),
        "what waits is to be served: {waiting:?}"
    );
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
    assert_eq!(
        (status.state, status.desired, status.capacity),
        (State::NoTraffic, None, 0.0)
    );
    assert_eq!(
        status.parameters,
        Some(TRUE)
            .filter(|_| status.parameters == Some(TRUE))
            .or(status.parameters)
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
