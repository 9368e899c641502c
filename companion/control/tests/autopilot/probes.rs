//! Who runs at half of what it may, and when.

use penstock_engine::Budget;

use crate::truth::{TRUE, World, known, settings};

/// In each of so many windows: which endpoints are probed.
fn probed(world: &mut World, windows: usize, endpoints: u32) -> Vec<Vec<u32>> {
    let each = (0..windows).map(|_| {
        for endpoint in 0..endpoints {
            world.traffic(endpoint, &TRUE, 12);
        }
        world.close();
        let halved = |budget: &Option<Budget>| budget.is_some_and(|it| it.requests_max < Some(256));
        let all = (0..).zip(&world.budgets);
        all.filter(|(_, budget)| halved(budget))
            .map(|(number, _)| number)
            .collect()
    });
    each.collect()
}

#[test]
fn one_endpoint_in_one_window_of_ten() {
    let mut settings = settings(&["default", "default", "default"]);
    settings.kept = vec![("default".into(), known())];
    let mut world = World::new(settings);
    // Until what was kept is confirmed, more is tried.
    while world.variant("default").state != penstock_model::learner::State::Converged {
        probed(&mut world, 1, 3);
    }
    let windows = probed(&mut world, 60, 3);
    let turns: Vec<(usize, u32)> = (0..)
        .zip(&windows)
        .filter_map(|(at, endpoints)| Some((at, *endpoints.first()?)))
        .collect();
    assert!(
        windows.iter().all(|endpoints| endpoints.len() <= 1),
        "{windows:?}"
    );
    assert_eq!(turns.len(), 6, "{windows:?}");
    assert!(turns.windows(2).all(|two| two[1].0 == two[0].0 + 10), "{turns:?}");
    let mut endpoints: Vec<u32> = turns.iter().map(|(_, endpoint)| *endpoint).collect();
    endpoints.sort_unstable();
    assert_eq!(endpoints, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn a_single_endpoint_is_probed_too_and_none_that_is_not_gated() {
    for (gates, expected) in [(true, 3), (false, 0)] {
        let mut settings = settings(&["default"]);
        settings.kept = vec![("default".into(), known())];
        settings.gates = gates;
        let mut world = World::new(settings);
        while world.variant("default").state != penstock_model::learner::State::Converged {
            probed(&mut world, 1, 1);
        }
        let windows = probed(&mut world, 30, 1);
        assert_eq!(
            windows.iter().filter(|it| !it.is_empty()).count(),
            expected,
            "{windows:?}"
        );
        assert!(world.budgets[0].is_some());
    }
}

#[test]
fn what_is_not_known_is_probed_by_count() {
    let mut world = World::new(settings(&["default"]));
    let mut said = Vec::new();
    for _ in 0..8 {
        for _ in 0..4 {
            world.round(0, &TRUE, 8, 300, 50);
        }
        world.close();
        said.push(world.budgets[0].and_then(|it| it.requests_max));
    }
    assert!(said.contains(&Some(4)) && said.contains(&None), "{said:?}");
    assert!(said.iter().all(|it| matches!(it, None | Some(4))), "{said:?}");
}
