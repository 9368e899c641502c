//! Probing and exploration: which endpoints have less load, and when.

use std::time::Duration;

use penstock_engine::Allowance;
use penstock_model::slo::Policy;

use crate::harness::{TRUE, WINDOW, World, known, settings};

/// In each of so many windows: which endpoints are probed.
fn probed(world: &mut World, windows: usize, endpoints: u32) -> Vec<Vec<u32>> {
    let each = (0..windows).map(|_| {
        for endpoint in 0..endpoints {
            world.traffic(endpoint, &TRUE, 12);
        }
        world.close();
        let halved = |allowance: &Option<Allowance>| {
            allowance.is_some_and(|allowance| allowance.requests_max < Some(256))
        };
        let all = (0..).zip(&world.allowances);
        all.filter(|(_, allowance)| halved(allowance)).map(|(number, _)| number).collect()
    });
    each.collect()
}

#[test]
fn one_endpoint_is_probed_in_one_window_of_ten() {
    let mut settings = settings(&["default", "default", "default"]);
    settings.kept = vec![("default".into(), known())];
    let mut world = World::new(settings);
    // Until the stored parameters are confirmed, endpoints are probed more often.
    while world.variant("default").state != penstock_model::learner::State::Converged {
        probed(&mut world, 1, 3);
    }
    let windows = probed(&mut world, 60, 3);
    let turns: Vec<(usize, u32)> =
        (0..).zip(&windows).filter_map(|(window, endpoints)| Some((window, *endpoints.first()?))).collect();
    assert!(windows.iter().all(|endpoints| endpoints.len() <= 1), "{windows:?}");
    assert_eq!(turns.len(), 6, "{windows:?}");
    assert!(turns.windows(2).all(|two| two[1].0 == two[0].0 + 10), "{turns:?}");
    let mut endpoints: Vec<u32> = turns.iter().map(|(_, endpoint)| *endpoint).collect();
    endpoints.sort_unstable();
    assert_eq!(endpoints, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn a_single_endpoint_is_probed_and_without_a_gate_none_is() {
    for (gates, expected) in [(true, 3), (false, 0)] {
        let mut settings = settings(&["default"]);
        settings.kept = vec![("default".into(), known())];
        settings.gates = gates;
        let mut world = World::new(settings);
        while world.variant("default").state != penstock_model::learner::State::Converged {
            probed(&mut world, 1, 1);
        }
        let windows = probed(&mut world, 30, 1);
        assert_eq!(windows.iter().filter(|window| !window.is_empty()).count(), expected, "{windows:?}");
        assert!(world.allowances[0].is_some());
    }
}

#[test]
fn the_bound_of_an_unknown_variant_rises_only_while_requests_wait() {
    for (backlog, expected) in [(0, None), (5, Some(12))] {
        for endpoint in [0, 1] {
            let mut world = World::new(settings(&["default", "default"]));
            world.backlog = backlog;
            let ids: Vec<_> = (0..8).map(|_| world.grant(endpoint, 300, 50)).collect();
            world.pass(Duration::from_millis(100));
            assert_eq!(world.allowances, [None, None], "the answers haven't begun");
            for id in ids {
                world.autopilot.first_token(world.now, id);
            }
            world.pass(Duration::ZERO);
            let limits =
                world.allowances.iter().map(|allowance| allowance.and_then(|limits| limits.requests_max));
            let expected = (0..2).map(|other| expected.filter(|_| other == endpoint));
            assert!(limits.eq(expected), "{:?}", world.allowances);
        }
    }
}

#[test]
fn without_targets_a_model_leaves_out_what_adds_no_throughput() {
    let mut settings = settings(&["default"]);
    settings.slo = Policy::default();
    settings.kept = vec![("default".into(), known())];
    let mut world = World::new(settings);
    world.traffic(0, &TRUE, 40);
    let allowance = world.allowances[0].expect("the parameters are known");
    assert_eq!(allowance.requests_max, Some(8), "measurement hasn't allowed more");
    // Nobody has found how much the server computes at a time, so that is the batch of 256.
    let (n, limit) = (256.0, allowance.iteration_ms_max);
    let mean = world.variant("default");
    let each = |ms: f64| (ms - TRUE.alpha_ms) / limit;
    let full = TRUE.alpha_ms + n * 0.5;
    assert!(limit > TRUE.alpha_ms && limit < 2.0 * full, "{limit} {:?} {}", mean.parameters, each(limit));
    assert!(
        1.0 - TRUE.alpha_ms / limit < 0.97,
        "{limit}: the last three per cent of the throughput are left out"
    );
}

#[test]
fn without_a_gate_no_endpoint_is_explored() {
    let mut settings = settings(&["default"]);
    settings.gates = false;
    let mut world = World::new(settings);
    for _ in 0..20 {
        world.round(0, &TRUE, 8, 300, 50);
        world.close();
        assert_eq!(world.allowances, [None]);
    }
}

#[test]
fn an_endpoint_is_probed_as_long_as_its_requests_last() {
    let mut settings = settings(&["default"]);
    settings.kept = vec![("default".into(), known())];
    let mut world = World::new(settings);
    // Its requests last for twenty seconds, two windows.
    let mut probed = Vec::new();
    for _ in 0..80 {
        for n in [3, 12] {
            world.round(0, &TRUE, n, 200, 1_600);
        }
        world.close();
        probed.push(world.allowances[0].is_some_and(|allowance| allowance.requests_max < Some(256)));
    }
    let runs: Vec<usize> =
        probed.split(|is_probed| !is_probed).map(<[bool]>::len).filter(|len| *len > 0).collect();
    assert!(!runs.is_empty() && runs.len() < 20, "{probed:?}");
    let all: usize = runs.iter().sum();
    assert!(all < probed.len() / 3, "{probed:?}");
}

#[test]
fn no_endpoint_is_probed_in_a_lull() {
    for windows in 1..24 {
        let mut settings = settings(&["default"]);
        settings.kept = vec![("default".into(), known())];
        let mut world = World::new(settings);
        for _ in 0..windows {
            world.round(0, &TRUE, 3, 500, 10);
            world.close();
        }
        world.pass(3 * WINDOW);
        assert_eq!(world.autopilot.poll_timeout(), None);
        let allowance = world.allowances[0].expect("an allowance");
        assert_eq!(allowance.requests_max, Some(256), "after {windows} windows");
        let mut world = World::new(self::settings(&["default"]));
        for _ in 0..windows {
            world.round(0, &TRUE, 8, 500, 10);
            world.close();
        }
        world.pass(3 * WINDOW);
        assert_eq!(world.allowances[0], None, "after {windows} steps");
    }
}
