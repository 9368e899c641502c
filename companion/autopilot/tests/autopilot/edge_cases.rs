//! Impossible and outdated inputs don't disturb the model.

use std::time::Duration;

use penstock_autopilot::{ExpectedUsage, Kept, Scraped, Served, Totals};
use penstock_engine::input::EndpointId;
use penstock_model::Parameters;
use penstock_model::learner::State;

use crate::harness::{TRUE, WINDOW, World, known, near, settings, times};

#[test]
fn an_adopted_request_never_ends_in_the_future() {
    let mut world = World::new(settings(&["default"]));
    for _ in 0..40 {
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
        world.pass(Duration::from_millis(1));
        // From its grant, an hour ago.
        let served = Served {
            first: Some(Duration::from_secs(1)),
            last: Some(Duration::from_secs(3_600)),
            streamed: true,
            prompt: Some(100),
            output: Some(50_000),
            ..Served::default()
        };
        world.autopilot.served(world.now, id, served);
        world.traffic(0, &TRUE, 25);
    }
    world.pass(WINDOW);
    let status = world.variant("default");
    let found = status.parameters.expect("they are known");
    assert_eq!(status.state, State::Converged);
    assert!(near(found.alpha_ms, TRUE.alpha_ms, 0.05), "{found:?}");
}

/// Only the model server knows its cached tokens, which are resident nevertheless.
#[test]
fn cached_prompt_tokens_are_resident() {
    let mut world = World::new(settings(&["default"]));
    for at in 0..120_u64 {
        let (n, prompt, output) = (1 + at * 5 % 11, 500 + at * 3_001 % 9_000, 40 + at * 17 % 60);
        let ids: Vec<_> = (0..n).map(|_| world.name()).collect();
        for id in &ids {
            let granted = ExpectedUsage {
                endpoint: EndpointId(0),
                prompt,
                cached: 0,
                output,
                sequences: 1,
                is_streamed: true,
                is_extra: false,
            };
            world.autopilot.granted(world.now, *id, granted);
        }
        let served = times(&TRUE, n, prompt, output);
        world.pass(served.last.expect("it has ended"));
        for id in ids {
            world.autopilot.served(world.now, id, served);
        }
    }
    world.pass(WINDOW);
    let found = world.variant("default").parameters.expect("they are known");
    assert!(near(found.gamma_ms, TRUE.gamma_ms, 0.05), "{found:?}");
    assert!(near(found.alpha_ms, TRUE.alpha_ms, 0.05), "{found:?}");
}

#[test]
fn metrics_after_a_gap_do_not_count_in_the_next_window() {
    let mut settings = settings(&["ours", "others"]);
    settings.kept = vec![("ours".into(), known()), ("others".into(), known())];
    let mut world = World::new(settings);
    let mut totals =
        Totals { requests: 1_000, prompt_tokens: 1_000_000, output_tokens: 100_000, ..Totals::default() };
    let read = |world: &mut World, totals: Totals| {
        let scraped = Scraped { totals: Some(totals), ..Scraped::default() };
        world.autopilot.scraped(world.now, EndpointId(1), Some(scraped));
    };
    read(&mut world, totals);
    world.autopilot.scraped(world.now, EndpointId(1), None);
    world.pass(Duration::from_secs(3_600));
    // A million requests of an hour, then ten of a window.
    for requests in [1_000_000, 10] {
        totals.requests += requests;
        totals.prompt_tokens += requests * 500;
        totals.output_tokens += requests * 100;
        totals.itl_count += requests * 99;
        totals.ttft_s += 0.04 * requests as f64;
        totals.itl_s += 0.99 * requests as f64;
        read(&mut world, totals);
    }
    for _ in 0..30 {
        world.round(0, &TRUE, 1, 500, 10);
    }
    world.pass(WINDOW);
    let (ours, others) = (world.variant("ours").demand, world.variant("others").demand);
    assert!(ours > 1.0 && others > 0.1, "{ours} and {others} of 3 a second");
}

#[test]
fn impossible_stored_parameters_are_not_used() {
    let bad = [f64::NAN, f64::INFINITY, -1.0, 0.0];
    for value in bad {
        let mut settings = settings(&["default"]);
        let kept = Kept { parameters: Parameters { alpha_ms: value, ..TRUE }, ..known() };
        settings.kept = vec![("default".into(), kept)];
        let world = World::new(settings);
        assert_eq!(world.allowances, [None], "{value}");
        assert_eq!(world.variant("default").parameters, None);
    }
    for value in bad.into_iter().chain([1e300, 1e-300]) {
        let mut settings = settings(&["default"]);
        let kept = Kept { ttft_bias: value, ..known() };
        settings.kept = vec![("default".into(), kept)];
        let world = World::new(settings);
        let bias = world.allowances[0].expect("an allowance").ttft_bias;
        assert!((0.01..=100.0).contains(&bias), "{value}: {bias}");
    }
}
