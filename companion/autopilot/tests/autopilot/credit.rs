//! Requests that filters admit by credit: they are demand, and nothing is learned from times beside them.

use penstock_autopilot::ExpectedUsage;
use penstock_engine::RequestId;
use penstock_engine::input::EndpointId;
use penstock_model::Parameters;

use crate::harness::{COMPUTED, TRUE, WINDOW, World, near, settings, sure, times};

/// Three times as slow.
const SLOW: Parameters =
    Parameters { alpha_ms: 3.0 * TRUE.alpha_ms, beta_ms: 3.0 * TRUE.beta_ms, gamma_ms: 3.0 * TRUE.gamma_ms };

fn alpha_ms(world: &World) -> f64 {
    world.variant("default").parameters.expect("they are known").alpha_ms
}

/// Reports `n` requests of that size, which a filter admitted by itself, at their end.
fn leased(world: &mut World, endpoint: u32, n: u64, prompt: u64, output: u64) {
    let served = times(&TRUE, n, prompt, output);
    let ids: Vec<RequestId> = (0..n).map(|_| world.name()).collect();
    for id in ids {
        world.autopilot.arrived(world.now);
        let granted = ExpectedUsage {
            endpoint: EndpointId(endpoint),
            prompt,
            cached: prompt - COMPUTED,
            output,
            sequences: 1,
            is_streamed: true,
            is_extra: false,
        };
        world.autopilot.admitted_by_credit(world.now, id, granted);
        world.autopilot.served(world.now, id, served);
    }
}

#[test]
fn nothing_is_learned_from_times_while_filters_may_run_unknown_requests() {
    for has_credit in [false, true] {
        let mut world = World::new(sure(&["default"]));
        world.traffic(0, &TRUE, 500);
        assert!(near(alpha_ms(&world), TRUE.alpha_ms, 0.05));
        world.autopilot.set_credit(world.now, EndpointId(0), has_credit);
        world.traffic(0, &SLOW, 1_500);
        world.pass(WINDOW);
        let has_learned = !near(alpha_ms(&world), TRUE.alpha_ms, 0.2);
        assert_eq!(has_learned, !has_credit, "{}", alpha_ms(&world));
    }
}

#[test]
fn learning_goes_on_with_the_requests_that_are_granted_after_the_credit_has_come_back() {
    let mut world = World::new(sure(&["default"]));
    world.traffic(0, &TRUE, 500);
    world.autopilot.set_credit(world.now, EndpointId(0), true);
    world.traffic(0, &SLOW, 500);
    world.autopilot.set_credit(world.now, EndpointId(0), false);
    world.traffic(0, &SLOW, 1_500);
    world.pass(WINDOW);
    assert!(!near(alpha_ms(&world), TRUE.alpha_ms, 0.2), "{}", alpha_ms(&world));
}

#[test]
fn a_leased_request_is_as_much_demand_as_a_granted_one() {
    let mut world = World::new(sure(&["asked", "leased"]));
    for _ in 0..8 {
        leased(&mut world, 1, 8, 512, 64);
        world.round(0, &TRUE, 8, 512, 64);
    }
    world.close();
    let (asked, leased) = (world.variant("asked"), world.variant("leased"));
    assert!(asked.demand > 0.0);
    assert!(near(leased.demand, asked.demand, 0.01), "{} {}", asked.demand, leased.demand);
}

#[test]
fn an_endpoint_is_kept_until_its_credit_has_come_back() {
    let mut world = World::new(sure(&["default", "default"]));
    world.autopilot.set_credit(world.now, EndpointId(1), true);
    let one = &settings(&["default"]).endpoints;
    world.autopilot.relist(world.now, one, &[]);
    world.autopilot.forget_unlisted();
    leased(&mut world, 1, 1, 512, 64);
    let id = world.name();
    let granted = ExpectedUsage {
        endpoint: EndpointId(1),
        prompt: 512,
        cached: 0,
        output: 64,
        sequences: 1,
        is_streamed: true,
        is_extra: false,
    };
    world.autopilot.admitted_by_credit(world.now, id, granted);
    assert_eq!(world.autopilot.in_flight().count(), 1);
    world.autopilot.dropped(world.now, id);
    world.autopilot.set_credit(world.now, EndpointId(1), false);
    world.autopilot.forget_unlisted();
    world.autopilot.admitted_by_credit(world.now, id, granted);
    assert_eq!(world.autopilot.in_flight().count(), 0, "it is unknown");
}
