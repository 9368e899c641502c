//! What was used before: an engine that is told of it decides as one that saw it.

#[path = "random/rng.rs"]
mod rng;
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::input::{Band, PastUsage, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};
use proptest::prelude::*;

use rng::Rng;
use support::{Harness, ShortEffect, gate, policy, request};

const BANDS: [Band; 3] = [Band::Critical, Band::Default, Band::Sheddable];

fn usage(window_s: u64) -> Policy {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.flows.discipline = Discipline::Usage;
    policy.flows.cost = CostUnit::Tokens;
    policy.usage_window = Duration::from_secs(window_s);
    policy
}

fn used(flow: &str, cost: u64, ago_ms: u64) -> PastUsage {
    PastUsage {
        band: Band::Default,
        class: "".into(),
        flow: flow.into(),
        model: "m".into(),
        cost: Tokens(cost),
        ago: Duration::from_millis(ago_ms),
    }
}

/// One runs, and these wait; who goes when it has ended.
fn next_of(harness: &mut Harness, flows: &[&str]) -> ShortEffect {
    harness.register(100, "x", Band::Critical);
    for (id, flow) in (101..).zip(flows) {
        harness.register(id, flow, Band::Default);
    }
    harness.complete(100)[1]
}

#[test]
fn who_used_much_before_goes_last() {
    let mut harness = Harness::new(usage(60), 1);
    assert_eq!(
        harness.handle(Input::PastUsage(vec![used("heavy", 500, 59_000)])),
        []
    );
    assert_eq!(
        next_of(&mut harness, &["heavy", "light"]),
        ShortEffect::Dispatched(102, 1),
        "although it lies before the engine's zero"
    );
}

#[test]
fn what_is_out_of_the_window_or_nothing_leaves_no_flow() {
    let mut harness = Harness::new(usage(60), 1);
    let mut unknown = used("a", 5, 0);
    unknown.class = "unknown".into();
    let past = vec![
        used("b", 5, 61_000),
        used("c", 0, 0),
        unknown,
        used("d", 5, u64::MAX),
    ];
    harness.handle(Input::PastUsage(past));
    assert_eq!(harness.engine.snapshot().flows.len(), 0);
    harness.handle(Input::PastUsage(vec![used("e", 5, 30_000)]));
    assert_eq!(harness.engine.snapshot().flows.len(), 1);
    harness.advance_to(31.0).handle_timeout();
    assert_eq!(
        harness.engine.snapshot().flows.len(),
        0,
        "it is kept as long as it counts"
    );
}

#[test]
fn who_waits_already_is_put_behind_by_what_others_tell() {
    let mut harness = Harness::new(usage(60), 1);
    harness.register(1, "x", Band::Critical);
    harness.register(2, "a", Band::Default);
    harness.register(3, "b", Band::Default);
    harness.handle(Input::PastUsage(vec![used("a", 1, 0)]));
    assert_eq!(harness.complete(1)[1], ShortEffect::Dispatched(3, 1));
}

#[test]
fn past_the_limit_of_flows_what_is_told_makes_none() {
    let mut policy = usage(60);
    policy.flows.identities_max = 2;
    let mut harness = Harness::new(policy, 1);
    let past = (0..50)
        .map(|number| used(&format!("flow {number}"), 5, 0))
        .collect();
    harness.handle(Input::PastUsage(past));
    let flows = harness.engine.snapshot().flows.len();
    assert!(flows <= 2 + penstock_engine::limits::OVERFLOW_FLOWS, "{flows}");
}

#[test]
fn other_disciplines_have_no_window_to_tell_of() {
    for discipline in Discipline::ALL.into_iter().filter(|it| *it != Discipline::Usage) {
        let mut policy = usage(60);
        policy.flows.discipline = discipline;
        let mut harness = Harness::new(policy, 1);
        harness.engine.report_usage(true);
        harness.handle(Input::PastUsage(vec![used("heavy", 500, 0)]));
        assert_eq!(harness.engine.snapshot().flows.len(), 0);
        harness.register(1, "a", Band::Default);
        assert_eq!(
            harness.complete(1).len(),
            1,
            "{discipline:?} has nothing to report"
        );
    }
}

#[test]
fn what_is_settled_is_reported_with_its_model_once() {
    let mut policy = usage(60);
    policy.classes = vec![ClassSet {
        classes: vec![Class::new("0.chat", 100)],
        ..ClassSet::default()
    }];
    let mut harness = Harness::new(policy, 1);
    harness.engine.report_usage(true);
    let mut asked = request(1, "acme", Band::Sheddable);
    asked.requested_model = "gpt".into();
    harness.handle(Input::Register(asked));
    let service = Service::Served(Usage {
        prompt: Some(Tokens(10)),
        cached: Some(Tokens(4)),
        output: Some(Tokens(20)),
    });
    let id = RequestId(1);
    let cost = Tokens(6 + 2 * 20);
    let said = harness.effects(Input::Settle { id, service });
    let expected = Effect::UsageSettled {
        band: Band::Sheddable,
        class: "0.chat".into(),
        flow: "acme".into(),
        model: "gpt".into(),
        cost,
    };
    assert_eq!(said, [expected]);
    let band = Band::Sheddable;
    assert_eq!(
        harness.effects(Input::Completed { id, service }),
        [Effect::Settled { id, band, cost }]
    );
    harness.register(2, "acme", Band::Default);
    let refunded = Input::Completed {
        id: RequestId(2),
        service: Service::Nothing,
    };
    assert_eq!(harness.handle(refunded), [ShortEffect::Settled(2, 0)]);
}

/// One that remembers what it reported, and when.
struct Life {
    engine: Engine,
    now: Instant,
    reported: Vec<(Instant, PastUsage)>,
    running: Vec<RequestId>,
    gone: Vec<RequestId>,
}

impl Life {
    fn begin(policy: Policy, now: Instant) -> Self {
        let mut engine = Engine::new(policy, 7, now);
        engine.report_usage(true);
        let mut life = Self {
            engine,
            now,
            reported: Vec::new(),
            running: Vec::new(),
            gone: Vec::new(),
        };
        life.handle(Input::Endpoint {
            id: EndpointId(1),
            state: Default::default(),
        });
        life.handle(Input::Ready);
        life
    }

    fn handle(&mut self, input: Input) {
        self.engine.handle(self.now, input);
        self.engine.audit().expect("all invariants hold");
        while let Some(effect) = self.engine.poll_effect() {
            match effect {
                Effect::Grant { id, .. } => {
                    self.running.push(id);
                    self.gone.push(id);
                }
                Effect::UsageSettled {
                    band,
                    class,
                    flow,
                    model,
                    cost,
                } => {
                    let ago = Duration::ZERO;
                    let past = PastUsage {
                        band,
                        class,
                        flow,
                        model,
                        cost,
                        ago,
                    };
                    self.reported.push((self.now, past));
                }
                Effect::Reject { id, .. } => panic!("{id:?} is refused"),
                Effect::Settled { .. } | Effect::Cancelled { .. } | Effect::Traced { .. } => {}
            }
        }
    }

    fn end_one(&mut self, output: u64) -> bool {
        let Some(id) = self.running.pop() else {
            return false;
        };
        let service = Service::Served(Usage {
            output: Some(Tokens(output)),
            ..Usage::default()
        });
        self.handle(Input::Completed { id, service });
        true
    }

    fn end_all(&mut self, rng: &mut Rng) {
        while self.end_one(1 + rng.below(300)) {}
    }

    /// What is in the window of each flow, per weight.
    fn windows(&self) -> Vec<(Band, Box<str>, u64)> {
        let flows = self.engine.snapshot().flows;
        let mut windows: Vec<_> = flows
            .into_iter()
            .filter(|flow| flow.finish > 0.0)
            .map(|flow| (flow.band, flow.key, flow.finish as u64))
            .collect();
        windows.sort();
        windows
    }

    /// All that it reported, as somebody tells it who summed up what came together, in any order.
    fn told(&self, rng: &mut Rng) -> Vec<PastUsage> {
        let mut sums: BTreeMap<_, u64> = BTreeMap::new();
        for (at, past) in &self.reported {
            let who = (
                past.band,
                past.class.clone(),
                past.flow.clone(),
                past.model.clone(),
            );
            *sums.entry((*at, who)).or_default() += past.cost.0;
        }
        let mut told: Vec<PastUsage> = sums
            .into_iter()
            .map(|((at, (band, class, flow, model)), cost)| PastUsage {
                band,
                class,
                flow,
                model,
                cost: Tokens(cost),
                ago: self.now.since(at),
            })
            .collect();
        for at in (1..told.len()).rev() {
            told.swap(at, rng.below(at as u64 + 1) as usize);
        }
        told
    }
}

fn ask(rng: &mut Rng, id: u64) -> Request {
    let flow = rng.choose(&["a", "b", "c", "d", "e", ""]);
    let mut request = request(id, flow, rng.choose(&BANDS));
    request.requested_model = rng.choose(&["m", "n"]).into();
    request
}

fn drawn(rng: &mut Rng) -> Policy {
    let mut policy = usage(rng.choose(&[3, 20, 300, 900]));
    policy.gate = gate(1 + rng.below(3), 3);
    policy.per_model = rng.percent(30);
    policy.queue.ttl = Duration::from_secs(100_000);
    policy.flows.weights.insert("b".into(), 4.0);
    policy.bands.mode = rng.choose(&[
        penstock_engine::policy::BandMode::Strict,
        penstock_engine::policy::BandMode::Weighted([70.0, 20.0, 10.0]),
    ]);
    if rng.percent(50) {
        policy.gate = support::gate(1, 1);
    }
    policy
}

/// The same requests to both: they go in the same order, while the windows slide.
fn go_alike(mut lives: [Life; 2], rng: &mut Rng) -> Result<(), TestCaseError> {
    for life in &mut lives {
        life.gone.clear();
    }
    let mut next = 1_000_000;
    for _ in 0..60 {
        let step = Duration::from_millis(rng.choose(&[0, 0, 100, 900, 4_000, 60_000]));
        for life in &mut lives {
            life.now = life.now.after(step);
        }
        if rng.percent(60) {
            next += 1;
            let of_all = ask(rng, next);
            for life in &mut lives {
                let mut request = of_all.clone();
                request.arrived = life.now;
                life.handle(Input::Register(request));
            }
        } else {
            let output = 1 + rng.below(300);
            for life in &mut lives {
                life.end_one(output);
            }
        }
        prop_assert_eq!(&lives[0].gone, &lives[1].gone);
    }
    Ok(())
}

/// Bands and models by weight take turns, and where a turn was nobody reports: one that lived on is brought to where a
/// new one begins.
fn evened(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    policy.bands.mode = penstock_engine::policy::BandMode::Strict;
    policy.per_model = false;
    policy
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn one_that_was_restarted_goes_on_like_one_that_was_not(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let policy = evened(&drawn(&mut rng));
        let mut life = Life::begin(policy.clone(), Instant::from_nanos(10_000_000_000_000));
        for id in 0..rng.below(80) {
            life.now = life.now.after(Duration::from_millis(rng.choose(&[0, 10, 700, 5_000, 40_000])));
            let mut request = ask(&mut rng, id);
            request.arrived = life.now;
            life.handle(Input::Register(request));
            if rng.percent(60) {
                life.end_one(1 + rng.below(300));
            }
        }
        life.end_all(&mut rng);
        // Buckets of the restored one begin at other times of its own clock, and at the same of the wall's.
        let width = 1_000_000_000_u64.max(policy.usage_window.as_nanos() as u64 / 300);
        let begun = Instant::from_nanos(life.now.as_nanos() % width);
        let mut again = Life::begin(policy, begun);
        again.handle(Input::PastUsage(life.told(&mut rng)));
        let [before, after] = [&life, &again].map(Life::windows);
        prop_assert_eq!(after, before);
        go_alike([life, again], &mut rng)?;
    }

    #[test]
    fn two_that_tell_each_other_know_what_one_alone_would(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let policy = evened(&drawn(&mut rng));
        let start = Instant::from_nanos(1_000_000_000);
        let [mut alone, mut here, mut there] = [(); 3].map(|()| Life::begin(policy.clone(), start));
        for id in 0..rng.below(60) {
            let step = Duration::from_millis(rng.choose(&[0, 10, 700, 5_000]));
            for life in [&mut alone, &mut here, &mut there] {
                life.now = life.now.after(step);
            }
            let mut request = ask(&mut rng, id);
            request.arrived = alone.now;
            let output = 1 + rng.below(300);
            let one_of_two = if rng.percent(50) { &mut here } else { &mut there };
            for life in [&mut alone, one_of_two] {
                life.handle(Input::Register(request.clone()));
                life.end_one(output);
            }
        }
        let told = there.told(&mut rng);
        here.handle(Input::PastUsage(told));
        go_alike([alone, here], &mut rng)?;
    }
}
