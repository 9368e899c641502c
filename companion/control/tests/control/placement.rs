//! Where a request may go by taints and its client's word, also when endpoints come and go, and what its server is asked
//! for.

use std::collections::BTreeMap;

use penstock_control::{Event, FlowKey, MaxPriority, Rewrite, Settings};
use penstock_engine::input::Band;
use penstock_wire as wire;
use wire::filter_frame::Event as Said;

use crate::harness::*;

/// The second server is tainted `gpu`, the third `gpu` and `spot`.
fn tainted() -> Settings {
    let mut settings = settings_of(&[SERVER, SECOND, THIRD]);
    settings.pools[0].endpoints[1].taints = vec!["gpu".into()];
    settings.pools[0].endpoints[2].taints = vec!["gpu".into(), "spot".into()];
    settings
}

fn world(settings: Settings) -> World {
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

fn tolerating(sequence: u64, taints: &[&str]) -> wire::Register {
    wire::Register {
        tolerations: taints.iter().map(ToString::to_string).collect(),
        fairness_id: format!("t{sequence}"),
        ..register(sequence)
    }
}

fn endpoints(world: &mut World, settings: Settings) -> Taken {
    world.handle(Event::Endpoints {
        pool: "chat".into(),
        endpoints: settings.pools[0].endpoints.clone(),
    });
    world.take()
}

#[test]
fn a_tainted_endpoint_takes_only_what_tolerates_all() {
    let mut world = world(tainted());
    for (sequence, taints, expected) in [
        (1, &[][..], Some(SERVER)),
        (2, &["spot"][..], None),
        (3, &["gpu"][..], Some(SECOND)),
        (4, &["gpu"][..], None),
        (5, &["spot", "other", "gpu"][..], Some(THIRD)),
    ] {
        world.say(1, Said::Register(tolerating(sequence, taints)));
        let taken = world.take();
        let granted = taken.grants().first().map(|(_, grant)| grant.endpoints.clone());
        assert_eq!(granted, expected.map(|it| vec![it.to_owned()]), "{sequence}");
    }
    world.say(1, completed(1));
    assert_eq!(world.take().granted(), [2]);
    world.say(1, completed_at(5, THIRD));
    assert_eq!(
        world.take().granted(),
        [0; 0],
        "the fourth doesn't tolerate `spot`"
    );
}

#[test]
fn where_all_is_tainted_who_tolerates_nothing_is_told_at_once() {
    let mut settings = tainted();
    settings.pools[0].endpoints.remove(0);
    let mut world = world(settings);
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().rejected(), [(1, "no_endpoints", 503)]);
    let pinned = wire::Register {
        pin: THIRD.into(),
        ..tolerating(2, &["gpu"])
    };
    world.say(1, Said::Register(pinned));
    assert_eq!(world.take().rejected(), [(2, "no_endpoints", 503)]);
    let listed = wire::Register {
        subset: vec![SECOND.into(), THIRD.into()],
        ..tolerating(3, &["gpu"])
    };
    world.say(1, Said::Register(listed));
    assert_eq!(world.take().grants()[0].1.endpoints, [SECOND]);
}

#[test]
fn tolerations_of_who_is_not_trusted_count_nothing() {
    let mut settings = tainted();
    settings.pools[0].endpoints.remove(0);
    let mut world = world(settings);
    let said = wire::Register {
        untrusted: true,
        client: "10.0.0.1".into(),
        ..tolerating(1, &["gpu", "spot"])
    };
    world.say(1, Said::Register(said));
    assert_eq!(world.take().rejected(), [(1, "no_endpoints", 503)]);
}

#[test]
fn a_new_taint_counts_for_what_waits() {
    let mut world = world(settings_of(&[SERVER]));
    for sequence in 1..=2 {
        world.say(1, Said::Register(register(sequence)));
    }
    world.say(1, Said::Register(tolerating(3, &["gpu"])));
    world.take();
    let mut other = settings_of(&[SERVER]);
    other.pools[0].endpoints[0].taints = vec!["gpu".into()];
    let taken = endpoints(&mut world, other);
    assert_eq!(taken.rejected(), [(2, "no_endpoints", 503)]);
    world.say(1, completed(1));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn what_waits_may_go_to_an_endpoint_that_comes() {
    let mut world = world(settings_of(&[SERVER]));
    world.say(1, Said::Register(register(1)));
    world.say(
        1,
        Said::Register(wire::Register {
            subset: vec![SERVER.into(), SECOND.into()],
            ..register(2)
        }),
    );
    world.say(
        1,
        Said::Register(wire::Register {
            pin: SERVER.into(),
            ..register(3)
        }),
    );
    world.take();
    let taken = endpoints(&mut world, settings_of(&[SERVER, SECOND]));
    assert_eq!(
        (taken.granted(), taken.grants()[0].1.endpoints.clone()),
        (vec![2], vec![SECOND.to_owned()])
    );
    // And who is left with nowhere to go is told so.
    let taken = endpoints(&mut world, settings_of(&[SECOND]));
    assert_eq!(taken.rejected(), [(3, "no_endpoints", 503)]);
}

#[test]
fn nothing_goes_where_it_may_not_while_a_list_changes() {
    let mut world = world(settings_of(&[]));
    world.say(1, Said::Register(register(1)));
    let pinned = |sequence: u64, pin: &str| {
        Said::Register(wire::Register {
            pin: pin.into(),
            ..register(sequence)
        })
    };
    world.say(1, pinned(2, THIRD));
    world.say(1, pinned(3, SERVER));
    assert_eq!(
        world.take().rejected(),
        [],
        "while there is none it isn't their fault"
    );
    let mut settings = tainted();
    settings.pools[0].endpoints.truncate(2);
    let taken = endpoints(&mut world, settings);
    assert_eq!(taken.rejected(), [(2, "no_endpoints", 503)]);
    assert_eq!(taken.grants()[0].1.endpoints, [SERVER], "not the tainted one");
    assert_eq!(taken.granted(), [1]);
}

#[test]
fn what_is_queued_again_goes_where_it_may_by_then() {
    let mut world = world(settings_of(&[SERVER, SECOND]));
    world.say(
        1,
        Said::Register(wire::Register {
            subset: vec![SECOND.into()],
            ..register(1)
        }),
    );
    world.take();
    endpoints(&mut world, settings_of(&[SERVER]));
    world.say(1, Said::Register(again(2, 1, 1)));
    let taken = world.take();
    assert_eq!(
        (taken.rejected(), taken.requeued),
        (vec![(2, "no_endpoints", 503)], 1)
    );
    world.say(1, Said::Register(register(3)));
    world.take();
    endpoints(&mut world, settings_of(&[THIRD]));
    world.say(1, Said::Register(again(4, 1, 3)));
    assert_eq!(world.take().grants()[0].1.endpoints, [THIRD]);
}

fn rewriting(targets: &[(&str, f64)]) -> Settings {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].rewrite = vec![Rewrite {
        model: "llama-*".into(),
        targets: targets
            .iter()
            .map(|(name, weight)| ((*name).into(), *weight))
            .collect(),
    }];
    settings.pools[0].flow_key = vec![FlowKey::TargetModel];
    settings.pools[0].policy.queue.total_capacity = 1_000;
    settings.pools[0].policy.queue.flow_capacity = 1_000;
    settings
}

fn flows(world: &World) -> Vec<String> {
    let status = world.control.status(world.now);
    let flows = status.pools[0].snapshot.flows.iter();
    flows.map(|it| it.key.to_string()).collect()
}

#[test]
fn the_grant_says_what_the_server_is_asked_for() {
    let mut world = world(rewriting(&[("a", 1.0)]));
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().grants()[0].1.target_model, "a");
    assert_eq!(flows(&world), ["a"]);
    let mut same = world_of_same();
    same.say(1, Said::Register(register(1)));
    assert_eq!(same.take().grants()[0].1.target_model, "", "as it was asked for");
}

fn world_of_same() -> World {
    world(rewriting(&[("llama-8b", 1.0)]))
}

#[test]
fn targets_get_their_shares() {
    let mut world = world(rewriting(&[("a", 90.0), ("b", 10.0)]));
    let mut of_b = 0;
    for sequence in 1..=500 {
        world.say(1, Said::Register(register(sequence)));
        let taken = world.take();
        of_b += usize::from(taken.grants()[0].1.target_model == "b");
        world.say(1, completed(sequence));
    }
    assert!((48..=52).contains(&of_b), "{of_b} of 500");
}

#[test]
fn a_target_stays_what_it_was() {
    let targets = [("a", 1.0), ("b", 1.0)];
    let all_of = |world: &mut World| {
        let mut all = BTreeMap::new();
        loop {
            let taken = world.take();
            let Some((_, grant)) = taken.grants().first().copied() else {
                return all;
            };
            all.insert(grant.sequence, grant.target_model.clone());
            world.say(1, completed(grant.sequence));
        }
    };
    let come = |world: &mut World| {
        for sequence in 1..=9 {
            world.say(1, Said::Register(register(sequence)));
        }
    };
    let mut first = world(rewriting(&targets));
    come(&mut first);
    let expected = all_of(&mut first);
    let of = |target: &str| expected.values().filter(|it| *it == target).count();
    assert!(
        of("a") >= 4 && of("b") >= 4 && expected.len() == 9,
        "{expected:?}"
    );
    // With another companion, it is the same one.
    let mut second = World::with(rewriting(&targets));
    second.greet(1, filter(1), (1..=9).map(register).collect(), Vec::new());
    assert_eq!(all_of(&mut second), expected);
    // Another rule counts for those that come.
    let mut third = world(rewriting(&targets));
    come(&mut third);
    third.handle(Event::Settings(Box::new(rewriting(&[("c", 1.0)]))));
    assert_eq!(all_of(&mut third), expected);
    third.say(1, Said::Register(register(10)));
    assert_eq!(all_of(&mut third), BTreeMap::from([(10, "c".to_owned())]));
}

#[test]
fn a_body_that_is_rewritten_stays_so() {
    let mut world = world(rewriting(&[("a", 1.0)]));
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().grants()[0].1.target_model, "a");
    world.handle(Event::Settings(Box::new(rewriting(&[("b", 1.0)]))));
    // No server took it, and it enters again with the body it has by now.
    let entered = wire::Register {
        target_model: "a".into(),
        ..again(2, 1, 1)
    };
    world.say(1, Said::Register(entered));
    let taken = world.take();
    assert_eq!(
        (taken.granted(), taken.grants()[0].1.target_model.as_str()),
        (vec![2], "")
    );
    assert_eq!(flows(&world), ["a"]);
    // For a companion that never heard of it, too.
    let mut other = World::with(rewriting(&[("b", 1.0)]));
    let waits = wire::Register {
        target_model: "a".into(),
        ..register(1)
    };
    let runs = wire::Register {
        target_model: "c".into(),
        ..register(2)
    };
    other.greet(1, filter(1), vec![waits], vec![runs_as(runs, SERVER)]);
    assert_eq!(flows(&other), ["a", "c"]);
    other.take();
    other.say(1, completed(2));
    assert_eq!(other.take().grants()[0].1.target_model, "");
}

#[test]
fn claims_above_a_tenants_ceiling_are_lowered_and_counted_once() {
    let mut settings = settings_of(&[SERVER]);
    settings.objectives = vec![("gold".into(), Band::Critical)];
    settings.max_priority = MaxPriority {
        default: Some(Band::Default),
        tenants: [
            ("acme".to_owned(), Band::Critical),
            ("cheap".to_owned(), Band::Sheddable),
        ]
        .into_iter()
        .collect(),
    };
    settings.pools[0].flow_key = Vec::new();
    let mut world = world(settings);
    world.say(1, Said::Register(register(1)));
    world.take();
    let cases = [
        // Tenant, claim, trusted, band, counted.
        ("acme", "critical", true, Band::Critical, 0),
        ("acme", "gold", true, Band::Critical, 0),
        ("", "critical", true, Band::Default, 1),
        ("someone", "gold", true, Band::Default, 1),
        ("someone", "low", true, Band::Sheddable, 0),
        ("cheap", "high", true, Band::Sheddable, 1),
        ("cheap", "normal", true, Band::Sheddable, 1),
        ("cheap", "", true, Band::Sheddable, 0),
        ("acme", "critical", false, Band::Default, 1),
        ("cheap", "default", false, Band::Sheddable, 1),
    ];
    for (sequence, (tenant, claim, trusted, band, lowered)) in (2..).zip(cases) {
        let said = wire::Register {
            fairness_id: tenant.into(),
            priority: claim.into(),
            untrusted: !trusted,
            client: "10.0.0.1".into(),
            ..register(sequence)
        };
        world.say(1, Said::Register(said));
        let taken = world.take();
        let waiting = |band: Band| {
            let status = world.control.status(world.now);
            status.pools[0].snapshot.bands[band as usize].waiting
        };
        assert_eq!(
            (waiting(band), taken.lowered),
            (1, lowered),
            "{tenant} {claim} {trusted}"
        );
        world.say(1, Said::Cancel(wire::Cancel { sequence }));
        world.take();
    }
}

#[test]
fn nobody_raises_a_ceiling_by_a_name_that_nobody_checked() {
    let mut settings = settings_of(&[SERVER]);
    settings.max_priority = MaxPriority {
        default: Some(Band::Sheddable),
        tenants: [("acme".to_owned(), Band::Critical)].into_iter().collect(),
    };
    let mut world = world(settings);
    world.say(1, Said::Register(register(1)));
    let said = wire::Register {
        untrusted: true,
        client: "10.0.0.1".into(),
        priority: "critical".into(),
        ..register(2)
    };
    world.say(1, Said::Register(said));
    let status = world.control.status(world.now);
    assert_eq!(
        status.pools[0].snapshot.bands[Band::Sheddable as usize].waiting,
        1
    );
}
