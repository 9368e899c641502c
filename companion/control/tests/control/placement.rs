//! Placement: taints, clients' constraints and target models, also while endpoints come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_control::{Event, MaxPriority, PoolEvent, Rewrite, Settings};
use penstock_engine::input::Band;
use penstock_engine::policy::FlowKey;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

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
    world.handle(Event::Pool(
        "chat".into(),
        PoolEvent::Endpoints { endpoints: settings.pools[0].endpoints.clone(), pending: Vec::new() },
    ));
    world.take()
}

#[test]
fn a_tainted_endpoint_takes_only_requests_that_tolerate_all_taints() {
    let mut world = world(tainted());
    for (sequence, taints, expected) in [
        (1, &[][..], Some(SERVER)),
        (2, &["spot"][..], None),
        (3, &["gpu"][..], Some(SECOND)),
        (4, &["gpu"][..], None),
        (5, &["spot", "other", "gpu"][..], Some(THIRD)),
    ] {
        world.send(1, Message::Register(tolerating(sequence, taints)));
        let taken = world.take();
        let granted = taken.grants().first().map(|(_, grant)| grant.endpoints.clone());
        assert_eq!(granted, expected.map(|address| vec![address.to_owned()]), "{sequence}");
    }
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [2]);
    world.send(1, completed_at(5, THIRD));
    assert_eq!(world.take().granted(), [0; 0], "the fourth doesn't tolerate `spot`");
}

#[test]
fn where_all_endpoints_are_tainted_a_request_without_tolerations_is_rejected_at_once() {
    let mut settings = tainted();
    settings.pools[0].endpoints.remove(0);
    let mut world = world(settings);
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().rejected(), [(1, "no_endpoints", 503)]);
    let pinned = wire::Register { pin: THIRD.into(), ..tolerating(2, &["gpu"]) };
    world.send(1, Message::Register(pinned));
    assert_eq!(world.take().rejected(), [(2, "no_endpoints", 503)]);
    let listed = wire::Register { subset: vec![SECOND.into(), THIRD.into()], ..tolerating(3, &["gpu"]) };
    world.send(1, Message::Register(listed));
    assert_eq!(world.take().grants()[0].1.endpoints, [SECOND]);
}

#[test]
fn tolerations_without_trust_are_ignored() {
    let mut settings = tainted();
    settings.pools[0].endpoints.remove(0);
    let mut world = world(settings);
    let said =
        wire::Register { untrusted: true, client: "10.0.0.1".into(), ..tolerating(1, &["gpu", "spot"]) };
    world.send(1, Message::Register(said));
    assert_eq!(world.take().rejected(), [(1, "no_endpoints", 503)]);
}

#[test]
fn a_new_taint_applies_to_waiting_requests() {
    let mut world = world(settings_of(&[SERVER]));
    for sequence in 1..=2 {
        world.send(1, Message::Register(register(sequence)));
    }
    world.send(1, Message::Register(tolerating(3, &["gpu"])));
    world.take();
    let mut other = settings_of(&[SERVER]);
    other.pools[0].endpoints[0].taints = vec!["gpu".into()];
    let taken = endpoints(&mut world, other);
    assert_eq!(taken.rejected(), [(2, "no_endpoints", 503)]);
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn waiting_requests_may_go_to_a_new_endpoint() {
    let mut world = world(settings_of(&[SERVER]));
    world.send(1, Message::Register(register(1)));
    world.send(
        1,
        Message::Register(wire::Register { subset: vec![SERVER.into(), SECOND.into()], ..register(2) }),
    );
    world.send(1, Message::Register(wire::Register { pin: SERVER.into(), ..register(3) }));
    world.take();
    let taken = endpoints(&mut world, settings_of(&[SERVER, SECOND]));
    assert_eq!((taken.granted(), taken.grants()[0].1.endpoints.clone()), (vec![2], vec![SECOND.to_owned()]));
    // A request without an eligible endpoint is rejected.
    let taken = endpoints(&mut world, settings_of(&[SECOND]));
    assert_eq!(taken.rejected(), [(3, "no_endpoints", 503)]);
}

#[test]
fn constraints_hold_while_a_list_changes() {
    let mut world = world(settings_of(&[]));
    world.send(1, Message::Register(register(1)));
    let pinned = |sequence: u64, pin: &str| {
        Message::Register(wire::Register { pin: pin.into(), ..register(sequence) })
    };
    world.send(1, pinned(2, THIRD));
    world.send(1, pinned(3, SERVER));
    assert_eq!(world.take().rejected(), [], "while there is none it isn't their fault");
    let mut settings = tainted();
    settings.pools[0].endpoints.truncate(2);
    let taken = endpoints(&mut world, settings);
    assert_eq!(taken.rejected(), [(2, "no_endpoints", 503)]);
    assert_eq!(taken.grants()[0].1.endpoints, [SERVER], "not the tainted one");
    assert_eq!(taken.granted(), [1]);
}

#[test]
fn a_requeued_request_goes_where_it_may_by_then() {
    let mut world = world(settings_of(&[SERVER, SECOND]));
    world.send(1, Message::Register(wire::Register { subset: vec![SECOND.into()], ..register(1) }));
    world.take();
    endpoints(&mut world, settings_of(&[SERVER]));
    world.send(1, Message::Register(again(2, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.rejected(), taken.requeued), (vec![(2, "no_endpoints", 503)], 1));
    world.send(1, Message::Register(register(3)));
    world.take();
    endpoints(&mut world, settings_of(&[THIRD]));
    world.send(1, Message::Register(again(4, 1, 3)));
    assert_eq!(world.take().grants()[0].1.endpoints, [THIRD]);
}

fn rewriting(targets: &[(&str, f64)]) -> Settings {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].rewrite = vec![Rewrite {
        model: "llama-*".into(),
        targets: targets.iter().map(|(name, weight)| ((*name).into(), *weight)).collect(),
    }];
    settings.pools[0].flow_key = vec![FlowKey::TargetModel];
    settings.pools[0].policy.queue.total_capacity = 1_000;
    settings.pools[0].policy.queue.flow_capacity = 1_000;
    settings
}

fn flows(world: &World) -> Vec<String> {
    let status = world.control.status(world.now);
    let flows = status.pools[0].snapshot.flows.iter();
    flows.map(|flow| flow.key.to_string()).collect()
}

#[test]
fn the_grant_names_the_target_model() {
    let mut world = world(rewriting(&[("a", 1.0)]));
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().grants()[0].1.target_model, "a");
    assert_eq!(flows(&world), ["a"]);
    let mut same = world_of_same();
    same.send(1, Message::Register(register(1)));
    assert_eq!(same.take().grants()[0].1.target_model, "", "as it was asked for");
}

fn world_of_same() -> World {
    world(rewriting(&[("llama-8b", 1.0)]))
}

#[test]
fn target_models_get_their_shares() {
    let mut world = world(rewriting(&[("a", 90.0), ("b", 10.0)]));
    let mut of_b = 0;
    for sequence in 1..=500 {
        world.send(1, Message::Register(register(sequence)));
        let taken = world.take();
        of_b += usize::from(taken.grants()[0].1.target_model == "b");
        world.send(1, completed(sequence));
    }
    assert!((48..=52).contains(&of_b), "{of_b} of 500");
}

#[test]
fn a_target_model_stays_over_requeues_and_reloads() {
    let targets = [("a", 1.0), ("b", 1.0)];
    let all_of = |world: &mut World| {
        let mut all = BTreeMap::new();
        loop {
            let taken = world.take();
            let Some((_, grant)) = taken.grants().first().copied() else {
                return all;
            };
            all.insert(grant.sequence, grant.target_model.clone());
            world.send(1, completed(grant.sequence));
        }
    };
    let come = |world: &mut World| {
        for sequence in 1..=9 {
            world.send(1, Message::Register(register(sequence)));
        }
    };
    let mut first = world(rewriting(&targets));
    come(&mut first);
    let expected = all_of(&mut first);
    let count = |target: &str| expected.values().filter(|other| *other == target).count();
    assert!(count("a") >= 4 && count("b") >= 4 && expected.len() == 9, "{expected:?}");
    // Another companion chooses the same target.
    let mut second = World::with(rewriting(&targets));
    second.greet(1, filter(1), (1..=9).map(register).collect(), Vec::new());
    assert_eq!(all_of(&mut second), expected);
    // A new rule applies to later requests.
    let mut third = world(rewriting(&targets));
    come(&mut third);
    third.handle(Event::Settings(Box::new(rewriting(&[("c", 1.0)]))));
    assert_eq!(all_of(&mut third), expected);
    third.send(1, Message::Register(register(10)));
    assert_eq!(all_of(&mut third), BTreeMap::from([(10, "c".to_owned())]));
}

#[test]
fn a_rewritten_body_stays_rewritten() {
    let mut world = world(rewriting(&[("a", 1.0)]));
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().grants()[0].1.target_model, "a");
    world.handle(Event::Settings(Box::new(rewriting(&[("b", 1.0)]))));
    // No endpoint took it, and it is requeued with its rewritten body.
    let entered = wire::Register { target_model: "a".into(), ..again(2, 1, 1) };
    world.send(1, Message::Register(entered));
    world.pass(Duration::from_millis(100));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.grants()[0].1.target_model.as_str()), (vec![2], ""));
    assert_eq!(flows(&world), ["a"]);
    // The same at a companion that doesn't know it.
    let mut other = World::with(rewriting(&[("b", 1.0)]));
    let waits = wire::Register { target_model: "a".into(), ..register(1) };
    let runs = wire::Register { target_model: "c".into(), ..register(2) };
    other.greet(1, filter(1), vec![waits], vec![runs_as(runs, SERVER)]);
    assert_eq!(flows(&other), ["a", "c"]);
    other.take();
    other.send(1, completed(2));
    assert_eq!(other.take().grants()[0].1.target_model, "");
}

#[test]
fn claims_above_a_tenants_ceiling_are_lowered_and_counted_once() {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].objectives = vec![("gold".into(), Band::Critical)];
    settings.max_priority = MaxPriority {
        default: Some(Band::Default),
        tenants: [("acme".to_owned(), Band::Critical), ("cheap".to_owned(), Band::Sheddable)]
            .into_iter()
            .collect(),
    };
    settings.pools[0].flow_key = Vec::new();
    let mut world = world(settings);
    world.send(1, Message::Register(register(1)));
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
        world.send(1, Message::Register(said));
        let taken = world.take();
        let waiting = |band: Band| {
            let status = world.control.status(world.now);
            status.pools[0].snapshot.bands[band as usize].waiting
        };
        assert_eq!((waiting(band), taken.lowered), (1, lowered), "{tenant} {claim} {trusted}");
        world.send(1, Message::Cancel(wire::Cancel { sequence }));
        world.take();
    }
}

#[test]
fn an_unverified_identity_cannot_raise_a_ceiling() {
    let mut settings = settings_of(&[SERVER]);
    settings.max_priority = MaxPriority {
        default: Some(Band::Sheddable),
        tenants: [("acme".to_owned(), Band::Critical)].into_iter().collect(),
    };
    let mut world = world(settings);
    world.send(1, Message::Register(register(1)));
    let said = wire::Register {
        untrusted: true,
        client: "10.0.0.1".into(),
        priority: "critical".into(),
        ..register(2)
    };
    world.send(1, Message::Register(said));
    let status = world.control.status(world.now);
    assert_eq!(status.pools[0].snapshot.bands[Band::Sheddable as usize].waiting, 1);
}
