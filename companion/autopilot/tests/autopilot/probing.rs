//! Probing and exploration: which endpoints have less load, and when.

use penstock_engine::Allowance;

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
fn unknown_variants_are_explored_a_limited_number_of_times() {
    let mut world = World::new(settings(&["default", "default"]));
    let mut said = Vec::new();
    for _ in 0..100 {
        world.round(0, &TRUE, 8, 300, 50);
        world.round(1, &TRUE, 8, 300, 50);
        // A window, or a quarter of one.
        world.close();
        said.push(
            [0, 1]
                .map(|index| world.allowances[index].and_then(|allowance: Allowance| allowance.requests_max)),
        );
    }
    let (early, late) = said.split_at(60);
    assert!(said.iter().flatten().all(|limit| matches!(limit, None | Some(2))), "{said:?}");
    let apart = early.iter().filter(|both| both[0].is_some() != both[1].is_some()).count();
    assert!(apart > 40, "one has less while the other has all: {early:?}");
    for at in [0, 1] {
        let turns = early.windows(2).filter(|two| two[0][at].is_some() != two[1][at].is_some()).count();
        assert!(turns > 20, "{early:?}");
    }
    let least = late.iter().flatten().filter(|limit| limit.is_some()).count();
    assert!(least <= late.len() / 3, "one load won't become two by itself: {late:?}");
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
