//! Stored parameters: what outlives a companion, and how rarely it is written.

use penstock_engine::Instant;
use penstock_model::Parameters;

use crate::harness::{TRUE, WINDOW, World, known, near, settings};

#[test]
fn learned_parameters_are_stored_once_and_again_after_a_change() {
    let mut world = World::new(settings(&["default"]));
    let mut kept = Vec::new();
    for _ in 0..60 {
        world.traffic(0, &TRUE, 100);
        world.pass(WINDOW);
        for one in world.autopilot.take_kept() {
            kept.push(one);
        }
    }
    let minutes = world.now.since(Instant::ZERO).as_secs() / 60;
    assert!(!kept.is_empty() && kept.len() as u64 <= minutes, "{kept:?}");
    assert!(kept.len() <= 5, "it isn't written again and again: {kept:?}");
    let (name, last) = kept.last().expect("it is learned");
    assert_eq!(name, "default");
    assert!(near(last.parameters.alpha_ms, 8.0, 0.05), "{last:?}");
    let slower = Parameters { alpha_ms: 16.0, ..TRUE };
    let mut again = None;
    for _ in 0..60 {
        world.traffic(0, &slower, 100);
        world.pass(WINDOW);
        again = world.autopilot.take_kept().pop().or(again);
    }
    let (_, again) = again.expect("it has changed");
    assert!(near(again.parameters.alpha_ms, 16.0, 0.05), "{again:?}");
}

#[test]
fn a_restart_continues_with_the_stored_parameters() {
    let mut settings = settings(&["default", "other"]);
    settings.kept = vec![("default".into(), known()), ("gone".into(), known())];
    let mut world = World::new(settings);
    assert_eq!(world.variant("default").parameters, Some(TRUE));
    assert!(world.allowances[0].is_some() && world.allowances[1].is_none());
    world.traffic(0, &TRUE, 300);
    world.pass(WINDOW);
    assert!(world.allowances[0].is_some());
}
