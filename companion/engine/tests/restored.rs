//! What was used before: an engine that is told of it decides as one that saw it.

#[path = "random/dice.rs"]
mod dice;
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::input::{Band, PastUsage, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};
use proptest::prelude::*;

use dice::Dice;
use support::{Bench, Said, gate, policy, request};

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
fn next_of(bench: &mut Bench, flows: &[&str]) -> Said {
    bench.register(100, "x", Band::Critical);
    for (id, flow) in (101..).zip(flows) {
        bench.register(id, flow, Band::Default);
    }
    bench.complete(100)[1]
}

#[test]
fn who_used_much_before_goes_last() {
    let mut bench = Bench::new(usage(60), 1);
    assert_eq!(bench.say(Input::PastUsage(vec![used("heavy", 500, 59_000)])), []);
    assert_eq!(
        next_of(&mut bench, &["heavy", "light"]),
        Said::Dispatched(102, 1),
        "although it lies before the engine's zero"
    );
}

#[test]
fn what_is_out_of_the_window_or_nothing_leaves_no_flow() {
    let mut bench = Bench::new(usage(60), 1);
    let mut unknown = used("a", 5, 0);
    unknown.class = "nobody's".into();
    let past = vec![
        used("b", 5, 61_000),
        used("c", 0, 0),
        unknown,
        used("d", 5, u64::MAX),
    ];
    bench.say(Input::PastUsage(past));
    assert_eq!(bench.engine.snapshot().flows.len(), 0);
    bench.say(Input::PastUsage(vec![used("e", 5, 30_000)]));
    assert_eq!(bench.engine.snapshot().flows.len(), 1);
    bench.at(31.0).wait();
    assert_eq!(
        bench.engine.snapshot().flows.len(),
        0,
        "it is kept as long as it counts"
    );
}

#[test]
fn who_waits_already_is_put_behind_by_what_others_tell() {
    let mut bench = Bench::new(usage(60), 1);
    bench.register(1, "x", Band::Critical);
    bench.register(2, "a", Band::Default);
    bench.register(3, "b", Band::Default);
    bench.say(Input::PastUsage(vec![used("a", 1, 0)]));
    assert_eq!(bench.complete(1)[1], Said::Dispatched(3, 1));
}

#[test]
fn past_the_limit_of_flows_what_is_told_makes_none() {
    let mut policy = usage(60);
    policy.flows.identities_max = 2;
    let mut bench = Bench::new(policy, 1);
    let past = (0..50)
        .map(|number| used(&format!("flow {number}"), 5, 0))
        .collect();
    bench.say(Input::PastUsage(past));
    let flows = bench.engine.snapshot().flows.len();
    assert!(flows <= 2 + penstock_engine::limits::OVERFLOW_FLOWS, "{flows}");
}

#[test]
fn other_disciplines_have_no_window_to_tell_of() {
    for discipline in Discipline::ALL.into_iter().filter(|it| *it != Discipline::Usage) {
        let mut policy = usage(60);
        policy.flows.discipline = discipline;
        let mut bench = Bench::new(policy, 1);
        bench.engine.report_usage(true);
        bench.say(Input::PastUsage(vec![used("heavy", 500, 0)]));
        assert_eq!(bench.engine.snapshot().flows.len(), 0);
        bench.register(1, "a", Band::Default);
        assert_eq!(bench.complete(1).len(), 1, "{discipline:?} has nothing to report");
    }
}

#[test]
fn what_is_settled_is_reported_with_its_model_once() {
    let mut policy = usage(60);
    policy.classes = vec![ClassSet {
        classes: vec![Class::new("0.chat", 100)],
        ..ClassSet::default()
    }];
    let mut bench = Bench::new(policy, 1);
    bench.engine.report_usage(true);
    let mut asked = request(1, "acme", Band::Sheddable);
    asked.requested_model = "gpt".into();
    bench.say(Input::Register(asked));
    let service = Service::Served(Usage {
        prompt: Some(Tokens(10)),
        cached: Some(Tokens(4)),
        output: Some(Tokens(20)),
    });
    let id = RequestId(1);
    let cost = Tokens(6 + 2 * 20);
    let said = bench.effects(Input::Settle { id, service });
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
        bench.effects(Input::Completed { id, service }),
        [Effect::Settled { id, band, cost }]
    );
    bench.register(2, "acme", Band::Default);
    let refunded = Input::Completed {
        id: RequestId(2),
        service: Service::Nothing,
    };
    assert_eq!(bench.say(refunded), [Said::Settled(2, 0)]);
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
        life.say(Input::Endpoint {
            id: EndpointId(1),
            state: Default::default(),
        });
        life.say(Input::Ready);
        life
    }

    fn say(&mut self, input: Input) {
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
        self.say(Input::Completed { id, service });
        true
    }

    fn end_all(&mut self, dice: &mut Dice) {
        while self.end_one(1 + dice.below(300)) {}
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
    fn told(&self, dice: &mut Dice) -> Vec<PastUsage> {
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
            told.swap(at, dice.below(at as u64 + 1) as usize);
        }
        told
    }
}

fn ask(dice: &mut Dice, id: u64) -> Request {
    let flow = dice.one(&["a", "b", "c", "d", "e", ""]);
    let mut request = request(id, flow, dice.one(&BANDS));
    request.requested_model = dice.one(&["m", "n"]).into();
    request
}

fn drawn(dice: &mut Dice) -> Policy {
    let mut policy = usage(dice.one(&[3, 20, 300, 900]));
    policy.gate = gate(1 + dice.below(3), 3);
    policy.per_model = dice.percent(30);
    policy.queue.ttl = Duration::from_secs(100_000);
    policy.flows.weights.insert("b".into(), 4.0);
    policy.bands.mode = dice.one(&[
        penstock_engine::policy::BandMode::Strict,
        penstock_engine::policy::BandMode::Weighted([70.0, 20.0, 10.0]),
    ]);
    if dice.percent(50) {
        policy.gate = support::gate(1, 1);
    }
    policy
}

/// The same requests to both: they go in the same order, while the windows slide.
fn go_alike(mut lives: [Life; 2], dice: &mut Dice) -> Result<(), TestCaseError> {
    for life in &mut lives {
        life.gone.clear();
    }
    let mut next = 1_000_000;
    for _ in 0..60 {
        let step = Duration::from_millis(dice.one(&[0, 0, 100, 900, 4_000, 60_000]));
        for life in &mut lives {
            life.now = life.now.after(step);
        }
        if dice.percent(60) {
            next += 1;
            let of_all = ask(dice, next);
            for life in &mut lives {
                let mut request = of_all.clone();
                request.arrived = life.now;
                life.say(Input::Register(request));
            }
        } else {
            let output = 1 + dice.below(300);
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
        let mut dice = Dice::new(seed);
        let policy = evened(&drawn(&mut dice));
        let mut life = Life::begin(policy.clone(), Instant::from_nanos(10_000_000_000_000));
        for id in 0..dice.below(80) {
            life.now = life.now.after(Duration::from_millis(dice.one(&[0, 10, 700, 5_000, 40_000])));
            let mut request = ask(&mut dice, id);
            request.arrived = life.now;
            life.say(Input::Register(request));
            if dice.percent(60) {
                life.end_one(1 + dice.below(300));
            }
        }
        life.end_all(&mut dice);
        // Buckets of the restored one begin at other times of its own clock, and at the same of the wall's.
        let width = 1_000_000_000_u64.max(policy.usage_window.as_nanos() as u64 / 300);
        let begun = Instant::from_nanos(life.now.as_nanos() % width);
        let mut again = Life::begin(policy, begun);
        again.say(Input::PastUsage(life.told(&mut dice)));
        let [before, after] = [&life, &again].map(Life::windows);
        prop_assert_eq!(after, before);
        go_alike([life, again], &mut dice)?;
    }

    #[test]
    fn two_that_tell_each_other_know_what_one_alone_would(seed in any::<u64>()) {
        let mut dice = Dice::new(seed);
        let policy = evened(&drawn(&mut dice));
        let start = Instant::from_nanos(1_000_000_000);
        let [mut alone, mut here, mut there] = [(); 3].map(|()| Life::begin(policy.clone(), start));
        for id in 0..dice.below(60) {
            let step = Duration::from_millis(dice.one(&[0, 10, 700, 5_000]));
            for life in [&mut alone, &mut here, &mut there] {
                life.now = life.now.after(step);
            }
            let mut request = ask(&mut dice, id);
            request.arrived = alone.now;
            let output = 1 + dice.below(300);
            let one_of_two = if dice.percent(50) { &mut here } else { &mut there };
            for life in [&mut alone, one_of_two] {
                life.say(Input::Register(request.clone()));
                life.end_one(output);
            }
        }
        let told = there.told(&mut dice);
        here.say(Input::PastUsage(told));
        go_alike([alone, here], &mut dice)?;
    }
}
