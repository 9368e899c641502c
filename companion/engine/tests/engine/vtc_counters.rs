//! The discipline `vtc` counts what an identity is served in all bands and classes of the pool; a lift stays in its band
//! and class.

use std::collections::BTreeMap;

use penstock_engine::input::{Band, ClassKey, Prompt, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Input, Policy, Request, RequestId};

use crate::support::{Harness, ShortEffect, gate, policy, request};

/// Classes `x` and `y`, with one request granted by each visit, and places for `slots` requests.
fn vtc(slots: u64) -> Policy {
    let mut policy = policy();
    policy.gate = gate(slots, slots);
    policy.flows.discipline = Discipline::Vtc;
    policy.queue.flow_capacity = 1_000;
    policy.queue.total_capacity = 10_000;
    policy.flows.cost = CostUnit::Tokens;
    policy.classes =
        vec![ClassSet { classes: vec![Class::new("x", 100), Class::new("y", 100)], ..ClassSet::default() }];
    policy
}

/// Requests of 100 tokens of prompt and no output, numbered by arrival.
struct World {
    harness: Harness,
    flows: Vec<&'static str>,
}

impl World {
    fn new(policy: Policy) -> Self {
        Self { harness: Harness::new(policy, 1), flows: Vec::new() }
    }

    /// Registers a request and returns its number.
    fn ask(&mut self, flow: &'static str, band: Band, class: &str) -> u64 {
        self.ask_for(flow, band, class, "m")
    }

    fn ask_for(&mut self, flow: &'static str, band: Band, class: &str, model: &str) -> u64 {
        let id = self.flows.len() as u64;
        self.flows.push(flow);
        let request = Request {
            class: ClassKey::Named(class.into()),
            model: model.into(),
            prompt: Prompt::Tokens(Tokens(100)),
            expected_output: Some(Tokens(0)),
            ..request(id, flow, band)
        };
        self.harness.handle(Input::Register(request));
        id
    }

    fn ask_often(&mut self, flow: &'static str, band: Band, class: &str, count: usize) {
        for _ in 0..count {
            self.ask(flow, band, class);
        }
    }

    fn completed(&mut self, id: u64, service: Service) -> Vec<u64> {
        let id = RequestId(id);
        let effects = self.harness.handle(Input::Completed { id, service });
        let dispatched = effects.into_iter().filter_map(|effect| match effect {
            ShortEffect::Dispatched(id, _) => Some(id),
            _ => None,
        });
        dispatched.collect()
    }

    /// Ends a request that used so many tokens, and returns the requests that are dispatched then.
    fn end(&mut self, id: u64, prompt: u64) -> Vec<u64> {
        self.completed(
            id,
            Service::Served(Usage {
                prompt: Some(Tokens(prompt)),
                cached: Some(Tokens(0)),
                output: Some(Tokens(0)),
            }),
        )
    }

    /// With one place: ends `running` and then what is dispatched, each at its estimate, `count` times. Returns the last
    /// request, which runs, and how many of each flow were dispatched.
    fn serve(&mut self, mut running: u64, count: usize) -> (u64, BTreeMap<&'static str, i64>) {
        let mut served = BTreeMap::new();
        for _ in 0..count {
            running = self.end(running, 100)[0];
            *served.entry(self.flows[running as usize]).or_default() += 1;
        }
        (running, served)
    }
}

#[test]
fn a_tenant_that_spreads_over_classes_gets_no_more_than_one_that_keeps_to_one() {
    let mut world = World::new(vtc(1));
    let first = world.ask("first", Band::Default, "x");
    for (flow, class) in [("spread", "x"), ("spread", "y"), ("plain", "x"), ("other", "y")] {
        world.ask_often(flow, Band::Default, class, 400);
    }
    let (_, served) = world.serve(first, 600);
    // Each class has half, and "spread" takes from both a part that makes it equal to each of the two.
    for (flow, count) in served {
        assert!((count - 200).abs() <= 2, "{flow}: {count}");
    }
}

#[test]
fn a_tenant_that_spreads_over_bands_gets_no_more_than_one_that_keeps_to_one() {
    let mut world = World::new(vtc(1));
    let mut running = world.ask("first", Band::Default, "x");
    for flow in ["spread", "plain"] {
        world.ask_often(flow, Band::Default, "x", 100);
    }
    let mut served = BTreeMap::<_, i64>::new();
    for round in 0..100 {
        if round % 3 == 0 {
            world.ask("spread", Band::Critical, "x");
        }
        let (last, in_round) = world.serve(running, 1);
        running = last;
        for (flow, count) in in_round {
            *served.entry(flow).or_default() += count;
        }
    }
    assert!((served["spread"] - served["plain"]).abs() <= 2, "{served:?}");
}

#[test]
fn a_lift_among_high_counters_costs_no_place_among_low_ones() {
    let mut world = World::new(vtc(1));
    let first = world.ask("first", Band::Critical, "x");
    for flow in ["a", "b"] {
        world.ask_often(flow, Band::Critical, "x", 50);
    }
    world.ask_often("low", Band::Sheddable, "x", 30);
    let (running, _) = world.serve(first, 90);
    // The counters are 4,500 in the critical band and 0 in the sheddable one.
    world.ask_often("late", Band::Sheddable, "x", 30);
    world.ask("late", Band::Critical, "x");
    let (running, critical) = world.serve(running, 11);
    assert_eq!(critical.values().sum::<i64>(), 11);
    assert_eq!(critical["late"], 1, "{critical:?}");
    let (_, sheddable) = world.serve(running, 20);
    // One request of 100 tokens was served in the critical band; being lifted there to 4,500 costs nothing here.
    assert!((sheddable["low"] - sheddable["late"] - 1).abs() <= 1, "{sheddable:?}");
}

#[test]
fn a_lift_among_low_counters_gains_no_place_among_high_ones() {
    let mut world = World::new(vtc(1));
    let first = world.ask("first", Band::Critical, "x");
    for flow in ["a", "b"] {
        world.ask_often(flow, Band::Critical, "x", 100);
    }
    world.ask_often("low", Band::Sheddable, "x", 2);
    let (running, _) = world.serve(first, 90);
    world.ask("late", Band::Sheddable, "x");
    world.ask_often("late", Band::Critical, "x", 100);
    let (_, critical) = world.serve(running, 30);
    for (flow, count) in critical {
        assert!((count - 10).abs() <= 1, "{flow}: {count}");
    }
}

#[test]
fn what_a_tenant_used_while_nobody_competed_costs_it_nothing_later() {
    let mut world = World::new(vtc(1));
    let first = world.ask("first", Band::Critical, "x");
    let alone = world.ask("alone", Band::Default, "x");
    let other = world.ask("other", Band::Default, "x");
    assert_eq!(world.end(first, 100), [alone]);
    // This lead counts: "other" waited meanwhile.
    assert_eq!(world.end(alone, 500), [other]);
    assert!(world.end(other, 100).is_empty());
    let first = world.ask("alone", Band::Critical, "x");
    world.ask_often("alone", Band::Critical, "x", 200);
    let (running, _) = world.serve(first, 200);
    for flow in ["newcomer", "alone"] {
        world.ask_often(flow, Band::Default, "x", 20);
    }
    let (_, served) = world.serve(running, 20);
    assert_eq!(served, [("alone", 8), ("newcomer", 12)].into(), "500 against 100");
}

#[test]
fn tokens_that_a_request_elsewhere_used_beyond_its_estimate_count() {
    let mut world = World::new(vtc(1));
    let first = world.ask("first", Band::Default, "y");
    let spread = world.ask("spread", Band::Default, "x");
    let other = world.ask("other", Band::Default, "x");
    let critical = world.ask("spread", Band::Critical, "x");
    assert_eq!(world.end(first, 100), [critical]);
    assert_eq!(world.end(critical, 500), [other], "0 against 500");
    assert_eq!(world.end(other, 600), [spread]);
}

#[test]
fn a_refund_elsewhere_gives_the_place_back() {
    let mut world = World::new(vtc(1));
    let first = world.ask("first", Band::Default, "y");
    let spread = world.ask("spread", Band::Default, "x");
    world.ask("other", Band::Default, "x");
    let critical = world.ask("spread", Band::Critical, "x");
    assert_eq!(world.end(first, 100), [critical]);
    assert_eq!(world.completed(critical, Service::Nothing), [spread]);
}

#[test]
fn a_refund_of_what_did_not_count_is_no_credit() {
    let mut world = World::new(vtc(1));
    // Nothing waits in the default band yet.
    let critical = world.ask("spread", Band::Critical, "x");
    let other = world.ask("other", Band::Default, "x");
    let spread = world.ask("spread", Band::Default, "x");
    assert_eq!(world.completed(critical, Service::Nothing), [other]);
    assert_eq!(world.end(other, 100), [spread]);
}

#[test]
fn with_a_tree_per_model_counters_of_models_are_apart() {
    let mut policy = vtc(1);
    policy.per_model = true;
    let mut world = World::new(policy);
    let first = world.ask_for("first", Band::Default, "y", "m");
    let spread = world.ask_for("spread", Band::Default, "x", "m");
    let other = world.ask_for("other", Band::Default, "x", "m");
    let critical = world.ask_for("spread", Band::Critical, "x", "another");
    assert_eq!(world.end(first, 100), [critical]);
    assert_eq!(world.end(critical, 500), [spread], "nothing of this model");
    assert_eq!(world.end(spread, 500), [other]);
}

#[test]
fn a_running_request_whose_class_is_removed_is_counted_once() {
    let mut world = World::new(vtc(1));
    let first = world.ask("first", Band::Default, "y");
    let moving = world.ask("spread", Band::Default, "y");
    let spread = world.ask("spread", Band::Default, "x");
    for flow in ["spread", "other"] {
        world.ask_often(flow, Band::Default, "x", 10);
    }
    assert_eq!(world.end(first, 100), [spread]);
    assert_eq!(world.end(spread, 100), [moving]);
    let mut policy = vtc(1);
    policy.classes[0].classes.pop();
    world.harness.handle(Input::Policy(Box::new(policy)));
    let mut running = moving;
    for expected in ["other", "other", "spread"] {
        running = world.end(running, 100)[0];
        assert_eq!(world.flows[running as usize], expected, "200 for each then");
    }
}
