//! Learning: from served requests to parameters, states and allowances.

use std::time::Duration;

use penstock_autopilot::{ExpectedUsage, Scraped, Served, Totals};
use penstock_engine::input::EndpointId;
use penstock_model::learner::State;
use penstock_model::slo::{Policy, Source};
use penstock_model::{Targets, Traffic};

use crate::harness::{TRUE, WINDOW, World, known, near, settings};

#[test]
fn served_requests_identify_the_parameters() {
    let mut world = World::new(settings(&["default"]));
    assert_eq!(world.allowances, [None], "nothing is known of it");
    world.traffic(0, &TRUE, 1_000);
    world.pass(WINDOW);
    let status = world.variant("default");
    assert_eq!(status.state, State::Converged);
    let found = status.parameters.expect("they are known");
    assert!(near(found.alpha_ms, 8.0, 0.05) && near(found.beta_ms, 0.5, 0.1), "{found:?}");
    assert_eq!(world.autopilot.status().slo.source, Source::Model);
    let allowance = world.allowances[0].expect("it is known what it may take");
    assert!(near(allowance.iteration_ms_max, 0.9 * 3.0 * 8.0, 0.05), "{allowance:?}");
    assert_eq!(allowance.first_token_ms_max, f64::INFINITY);
    assert!(near(allowance.ttft_bias, status.ttft_bias, 1e-9));
    let n_star = status.n_star.expect("it is sized");
    let margin = (0.9 * 3.0 - 1.0) / (3.0 - 1.0);
    let typical = f64::from(u32::try_from(allowance.typical).expect("small"));
    assert!((typical - n_star * margin).abs() <= 1.0 + 0.05 * n_star, "{n_star} {allowance:?}");
}

#[test]
fn one_variant_is_learned_from_all_of_its_endpoints_and_no_other() {
    let slow = penstock_model::Parameters { alpha_ms: 16.0, beta_ms: 1.0, gamma_ms: 0.002 };
    let mut world = World::new(settings(&["fast", "slow", "fast"]));
    for _ in 0..40 {
        world.traffic(0, &TRUE, 12);
        world.traffic(1, &slow, 25);
        world.traffic(2, &TRUE, 13);
    }
    world.pass(WINDOW);
    for (name, truth) in [("fast", TRUE), ("slow", slow)] {
        let found = world.variant(name).parameters.expect("they are known");
        assert!(near(found.alpha_ms, truth.alpha_ms, 0.1), "{name}: {found:?}");
    }
    let most = |index: usize| world.allowances[index].expect("an allowance").iteration_ms_max;
    assert!(near(most(0), 0.9 * 3.0 * 16.0, 0.1), "targets are the model's, of the slowest");
    assert_eq!((most(0), most(1)), (most(2), most(0)));
    assert!(
        world.allowances[0].map(|allowance| allowance.typical)
            > world.allowances[1].map(|allowance| allowance.typical)
    );
}

#[test]
fn one_load_does_not_identify_the_parameters() {
    let mut world = World::new(settings(&["default"]));
    for _ in 0..200 {
        world.round(0, &TRUE, 4, 300, 50);
    }
    let status = world.variant("default");
    assert_eq!((status.state, status.parameters), (State::Unidentifiable, None), "{status:?}");
    assert_eq!((status.n_star, status.desired, status.capacity), (None, None, 0.0));
}

#[test]
fn explicit_targets_set_the_allowances() {
    let mut settings = settings(&["default"]);
    settings.slo = Policy {
        explicit: Some(Targets { ttft_ms: Some(1_000.0), itl_ms: Some(50.0) }),
        ..Policy::default()
    };
    settings.kept = vec![("default".into(), known())];
    let world = World::new(settings);
    let allowance = world.allowances[0].expect("what was kept is known at once");
    assert_eq!((allowance.iteration_ms_max, allowance.first_token_ms_max), (45.0, 900.0));
    assert_eq!((allowance.requests_max, allowance.rate), (Some(256), None));
}

#[test]
fn metrics_set_the_size_of_the_cache() {
    let mut settings = settings(&["default"]);
    settings.kept = vec![("default".into(), known())];
    let mut world = World::new(settings);
    assert_eq!(world.allowances[0].expect("an allowance").kv_tokens_max, None);
    let scraped = Scraped { kv_tokens: Some(10_000), ..Scraped::default() };
    world.autopilot.scraped(world.now, EndpointId(0), Some(scraped));
    world.traffic(0, &TRUE, 100);
    world.pass(WINDOW);
    assert_eq!(world.allowances[0].expect("an allowance").kv_tokens_max, Some(9_000));
    world.autopilot.scraped(world.now, EndpointId(0), None);
    world.traffic(0, &TRUE, 100);
    world.pass(WINDOW);
    assert_eq!(
        world.allowances[0].expect("an allowance").kv_tokens_max,
        Some(9_000),
        "it holds as much as it did"
    );
}

#[test]
fn without_streams_the_servers_totals_show_the_times() {
    let mut world = World::new(settings(&["default"]));
    let mut totals = Totals::default();
    for _ in 0..3 {
        let id = world.grant(0, 500, 100);
        totals.requests += 10;
        totals.prompt_tokens += 5_000;
        totals.output_tokens += 1_000;
        totals.ttft_s += 0.4;
        totals.itl_count += 990;
        totals.itl_s += 9.9;
        let scraped = Scraped { totals: Some(totals), ..Scraped::default() };
        world.pass(Duration::from_secs(5));
        world.autopilot.scraped(world.now, EndpointId(0), Some(scraped));
        let served = Served {
            last: Some(Duration::from_secs(5)),
            first: Some(Duration::from_secs(5)),
            prompt: Some(500),
            output: Some(100),
            ..Served::default()
        };
        world.autopilot.served(world.now, id, served);
        world.pass(Duration::from_secs(6));
    }
    let slo = world.autopilot.status().slo;
    assert_eq!(slo.source, Source::Observed);
    let (ttft_ms, itl_ms) = (slo.targets.ttft_ms.expect("seen"), slo.targets.itl_ms.expect("seen"));
    assert!(near(ttft_ms, 60.0, 1e-6) && near(itl_ms, 15.0, 1e-6), "{slo:?}");
    assert!(
        world.allowances[0].is_none_or(|allowance| allowance.iteration_ms_max.is_infinite()),
        "no gate for that"
    );
}

#[test]
fn requests_that_were_not_observed_whole_are_not_learned_from() {
    let mut world = World::new(settings(&["default", "other"]));
    let strange = Served {
        first: Some(Duration::from_secs(1)),
        last: Some(Duration::from_secs(9)),
        streamed: true,
        prompt: Some(100),
        output: Some(50),
        ..Served::default()
    };
    for _ in 0..100 {
        let id = world.name();
        let granted = ExpectedUsage {
            endpoint: EndpointId(0),
            prompt: 100,
            cached: 0,
            output: 50,
            sequences: 1,
            is_streamed: true,
            is_extra: false,
        };
        world.autopilot.adopted(world.now, id, granted);
        world.pass(Duration::from_millis(100));
        world.autopilot.served(world.now, id, strange);
        let id = world.grant(1, 100, 50);
        world.autopilot.moved(world.now, id, EndpointId(0));
        world.pass(Duration::from_millis(100));
        world.autopilot.served(world.now, id, strange);
        let id = world.grant(0, 100, 50);
        world.autopilot.dropped(world.now, id);
        world.autopilot.served(world.now, id, strange);
    }
    world.pass(WINDOW);
    assert_eq!(world.variant("default").condition, None);
    world.traffic(0, &TRUE, 1_000);
    world.pass(WINDOW);
    let found = world.variant("default").parameters.expect("they are known");
    assert!(near(found.alpha_ms, 8.0, 0.05), "{found:?}");
}

/// Windows of one server of which only metrics are read. `beside`: another server without metrics gets requests too.
fn only_windows(beside: bool) -> World {
    let mut settings = settings(if beside { &["default", "default"] } else { &["default"] });
    // Without a gate to explore, windows are all that happens.
    settings.gates = false;
    let mut world = World::new(settings);
    let (input, output) = (500.0, 100.0);
    let mut totals = Totals::default();
    let mut ms = (0.0, 0.0);
    for window in 0..40_u32 {
        let requests = u64::from(4 + window * 7 % 13);
        let traffic =
            Traffic { rate: requests as f64 / 10.0, input: input + f64::from(window * 11 % 7 * 60), output };
        let steady = TRUE.solve(&traffic).steady.expect("it is stable");
        totals.requests += requests;
        totals.prompt_tokens += requests * traffic.input as u64;
        totals.output_tokens += requests * 100;
        totals.itl_count += requests * 99;
        ms.0 += steady.ttft_ms * requests as f64;
        ms.1 += steady.itl_ms * 99.0 * requests as f64;
        (totals.ttft_s, totals.itl_s) = (ms.0 / 1e3, ms.1 / 1e3);
        let scraped = Scraped { totals: Some(totals), ..Scraped::default() };
        world.autopilot.scraped(world.now, EndpointId(0), Some(scraped));
        for _ in 0..if beside { 10 } else { 0 } {
            let id = world.grant(1, 500, 100);
            let served = Served { output: Some(100), ..Served::default() };
            world.autopilot.served(world.now, id, served);
        }
        if world.autopilot.poll_timeout().is_some() {
            world.close();
        }
    }
    world
}

#[test]
fn variants_without_streams_are_learned_from_windows() {
    let mut world = only_windows(false);
    let status = world.variant("default");
    assert!(status.nis.is_some(), "{status:?}");
    assert_eq!(status.state, State::Converged, "{status:?}");
    let found = status.parameters.expect("they are known");
    assert!(near(found.alpha_ms, TRUE.alpha_ms, 0.1), "{found:?}");
    assert!(world.allowances[0].is_some_and(|allowance| allowance.iteration_ms_max.is_finite()));
    for n in [1, 2] {
        world.round(0, &TRUE, n, 500, 10);
        world.close();
        assert!(world.allowances[0].is_some(), "one that streams takes nothing away of what is known");
    }
    world.traffic(0, &TRUE, 1_000);
    world.close();
    let found = world.variant("default").parameters.expect("single requests know better");
    assert!(near(found.alpha_ms, TRUE.alpha_ms, 0.02), "{found:?}");
}

#[test]
fn unknown_times_are_not_zero() {
    let found = only_windows(true).variant("default").parameters;
    let found = found.expect("one of the two is seen");
    assert!(near(found.alpha_ms, TRUE.alpha_ms, 0.1), "{found:?}");
}
