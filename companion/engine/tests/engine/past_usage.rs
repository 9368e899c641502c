//! Past usage: an engine that receives the usage of an earlier or another engine decides as if it had served it.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::effect::{Grant, Reject};
use penstock_engine::input::{Band, PastUsage, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};
use proptest::prelude::*;

use crate::random::Rng;
use crate::support::{Harness, ShortEffect, gate, policy, request};

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

/// Lets one request run and these flows wait; returns the effect that follows its completion.
fn next_after_completion(harness: &mut Harness, flows: &[&str]) -> ShortEffect {
    harness.register(100, "x", Band::Critical);
    for (id, flow) in (101..).zip(flows) {
        harness.register(id, flow, Band::Default);
    }
    harness.complete(100)[1]
}

#[test]
fn a_flow_with_much_past_usage_goes_last() {
    let mut harness = Harness::new(usage(60), 1);
    assert_eq!(harness.handle(Input::PastUsage(vec![used("heavy", 500, 59_000)])), []);
    assert_eq!(
        next_after_completion(&mut harness, &["heavy", "light"]),
        ShortEffect::Dispatched(102, 1),
        "also for usage from before the engine's time zero"
    );
}

#[test]
fn usage_outside_the_window_or_of_zero_cost_creates_no_flow() {
    let mut harness = Harness::new(usage(60), 1);
    let mut unknown = used("a", 5, 0);
    unknown.class = "unknown".into();
    let past = vec![used("b", 5, 61_000), used("c", 0, 0), unknown, used("d", 5, u64::MAX)];
    harness.handle(Input::PastUsage(past));
    assert_eq!(harness.engine.snapshot().flows.len(), 0);
    harness.handle(Input::PastUsage(vec![used("e", 5, 30_000)]));
    assert_eq!(harness.engine.snapshot().flows.len(), 1);
    harness.advance_to(31.0).handle_timeout();
    assert_eq!(harness.engine.snapshot().flows.len(), 0, "a flow is kept while its usage counts");
}

#[test]
fn past_usage_reorders_flows_that_already_wait() {
    let mut harness = Harness::new(usage(60), 1);
    harness.register(1, "x", Band::Critical);
    harness.register(2, "a", Band::Default);
    harness.register(3, "b", Band::Default);
    harness.handle(Input::PastUsage(vec![used("a", 1, 0)]));
    assert_eq!(harness.complete(1)[1], ShortEffect::Dispatched(3, 1));
}

#[test]
fn past_usage_creates_no_flows_beyond_the_limit() {
    let mut policy = usage(60);
    policy.flows.identities_max = 2;
    let mut harness = Harness::new(policy, 1);
    let past = (0..50).map(|number| used(&format!("flow {number}"), 5, 0)).collect();
    harness.handle(Input::PastUsage(past));
    let flows = harness.engine.snapshot().flows.len();
    assert!(flows <= 2 + penstock_engine::limits::OVERFLOW_FLOWS, "{flows}");
}

#[test]
fn other_disciplines_ignore_and_report_no_usage() {
    for discipline in Discipline::ALL.into_iter().filter(|discipline| *discipline != Discipline::Usage) {
        let mut policy = usage(60);
        policy.flows.discipline = discipline;
        let mut harness = Harness::new(policy, 1);
        harness.engine.report_usage(true);
        harness.handle(Input::PastUsage(vec![used("heavy", 500, 0)]));
        assert_eq!(harness.engine.snapshot().flows.len(), 0);
        harness.register(1, "a", Band::Default);
        assert_eq!(harness.complete(1).len(), 1, "{discipline:?} has nothing to report");
    }
}

#[test]
fn settled_usage_is_reported_once_with_its_model() {
    let mut policy = usage(60);
    policy.classes = vec![ClassSet { classes: vec![Class::new("0.chat", 100)], ..ClassSet::default() }];
    let mut harness = Harness::new(policy, 1);
    harness.engine.report_usage(true);
    let mut request = request(1, "acme", Band::Sheddable);
    request.model.requested = "gpt".into();
    harness.handle(Input::Register(request));
    let service = Service::Served(Usage {
        prompt: Some(Tokens(10)),
        cached: Some(Tokens(4)),
        output: Some(Tokens(20)),
    });
    let id = RequestId(1);
    let cost = Tokens(6 + 2 * 20);
    let effects = harness.effects(Input::Settle { id, service });
    let expected = Effect::UsageSettled(PastUsage {
        band: Band::Sheddable,
        class: "0.chat".into(),
        flow: "acme".into(),
        model: "gpt".into(),
        cost,
        ago: Duration::ZERO,
    });
    assert_eq!(effects, [expected]);
    let band = Band::Sheddable;
    assert_eq!(harness.effects(Input::Completed { id, service }), [Effect::Settled { id, band, cost }]);
    harness.register(2, "acme", Band::Default);
    let refunded = Input::Completed { id: RequestId(2), service: Service::Nothing };
    assert_eq!(harness.handle(refunded), [ShortEffect::Settled(2, 0)]);
}

/// An engine with a record of the usage that it reported.
struct Recorder {
    engine: Engine,
    now: Instant,
    reported: Vec<(Instant, PastUsage)>,
    running: Vec<RequestId>,
    granted: Vec<RequestId>,
}

impl Recorder {
    fn start(policy: Policy, now: Instant) -> Self {
        let mut engine = Engine::new(policy, 7, now);
        engine.report_usage(true);
        let mut recorder =
            Self { engine, now, reported: Vec::new(), running: Vec::new(), granted: Vec::new() };
        recorder.handle(Input::Endpoint { id: EndpointId(1), state: Default::default() });
        recorder.handle(Input::Ready);
        recorder
    }

    fn handle(&mut self, input: Input) {
        self.engine.handle(self.now, input);
        self.engine.audit().expect("all invariants hold");
        while let Some(effect) = self.engine.poll_effect() {
            match effect {
                Effect::Grant(Grant { id, .. }) => {
                    self.running.push(id);
                    self.granted.push(id);
                }
                Effect::UsageSettled(past) => self.reported.push((self.now, past)),
                Effect::Reject(Reject { id, .. }) => panic!("{id:?} is rejected"),
                Effect::Settled { .. }
                | Effect::Evict(_)
                | Effect::Cancelled { .. }
                | Effect::Traced(_)
                | Effect::UsageRunning(_)
                | Effect::Budget(_) => {}
            }
        }
    }

    fn end_one(&mut self, output: u64) -> bool {
        let Some(id) = self.running.pop() else {
            return false;
        };
        let service = Service::Served(Usage { output: Some(Tokens(output)), ..Usage::default() });
        self.handle(Input::Completed { id, service });
        true
    }

    fn end_all(&mut self, rng: &mut Rng) {
        while self.end_one(1 + rng.below(300)) {}
    }

    /// The usage in the window of each flow, per weight.
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

    /// All reported usage, summed up by time and flow, in random order.
    fn shuffled_usage(&self, rng: &mut Rng) -> Vec<PastUsage> {
        let mut sums: BTreeMap<_, u64> = BTreeMap::new();
        for (time, past) in &self.reported {
            let key = (past.band, past.class.clone(), past.flow.clone(), past.model.clone());
            *sums.entry((*time, key)).or_default() += past.cost.0;
        }
        let mut shuffled_usage: Vec<PastUsage> = sums
            .into_iter()
            .map(|((time, (band, class, flow, model)), cost)| PastUsage {
                band,
                class,
                flow,
                model,
                cost: Tokens(cost),
                ago: self.now.since(time),
            })
            .collect();
        for index in (1..shuffled_usage.len()).rev() {
            shuffled_usage.swap(index, rng.below(index as u64 + 1) as usize);
        }
        shuffled_usage
    }
}

fn random_request(rng: &mut Rng, id: u64) -> Request {
    let flow = rng.choose(&["a", "b", "c", "d", "e", ""]);
    let mut request = request(id, flow, rng.choose(&BANDS));
    request.model.requested = rng.choose(&["m", "n"]).into();
    request
}

fn random_policy(rng: &mut Rng) -> Policy {
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
        policy.gate = crate::support::gate(1, 1);
    }
    policy
}

/// Sends the same requests to both engines, which must grant them in the same order while the windows slide.
fn assert_same_order(mut recorders: [Recorder; 2], rng: &mut Rng) -> Result<(), TestCaseError> {
    for recorder in &mut recorders {
        recorder.granted.clear();
    }
    let mut next = 1_000_000;
    for _ in 0..60 {
        let step = Duration::from_millis(rng.choose(&[0, 0, 100, 900, 4_000, 60_000]));
        for recorder in &mut recorders {
            recorder.now = recorder.now.after(step);
        }
        if rng.percent(60) {
            next += 1;
            let shared = random_request(rng, next);
            for recorder in &mut recorders {
                let mut request = shared.clone();
                request.arrived = recorder.now;
                recorder.handle(Input::Register(request));
            }
        } else {
            let output = 1 + rng.below(300);
            for recorder in &mut recorders {
                recorder.end_one(output);
            }
        }
        prop_assert_eq!(&recorders[0].granted, &recorders[1].granted);
    }
    Ok(())
}

/// The policy without weighted bands and models. Their turns aren't reported, so two engines may differ in them.
fn without_turns(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    policy.bands.mode = penstock_engine::policy::BandMode::Strict;
    policy.per_model = false;
    policy
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_restarted_engine_with_past_usage_decides_like_the_original(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let policy = without_turns(&random_policy(&mut rng));
        let mut recorder = Recorder::start(policy.clone(), Instant::from_nanos(10_000_000_000_000));
        for id in 0..rng.below(80) {
            recorder.now = recorder.now.after(Duration::from_millis(rng.choose(&[0, 10, 700, 5_000, 40_000])));
            let mut request = random_request(&mut rng, id);
            request.arrived = recorder.now;
            recorder.handle(Input::Register(request));
            if rng.percent(60) {
                recorder.end_one(1 + rng.below(300));
            }
        }
        recorder.end_all(&mut rng);
        // The restored engine starts at another time of its clock, so that buckets begin at the same wall-clock
        // times.
        let width = 1_000_000_000_u64.max(policy.usage_window.as_nanos() as u64 / 300);
        let start = Instant::from_nanos(recorder.now.as_nanos() % width);
        let mut restarted = Recorder::start(policy, start);
        restarted.handle(Input::PastUsage(recorder.shuffled_usage(&mut rng)));
        let [before, after] = [&recorder, &restarted].map(Recorder::windows);
        prop_assert_eq!(after, before);
        assert_same_order([recorder, restarted], &mut rng)?;
    }

    #[test]
    fn an_engine_with_reported_usage_decides_like_one_that_served_all(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let policy = without_turns(&random_policy(&mut rng));
        let start = Instant::from_nanos(1_000_000_000);
        let [mut alone, mut here, mut there] = [(); 3].map(|()| Recorder::start(policy.clone(), start));
        for id in 0..rng.below(60) {
            let step = Duration::from_millis(rng.choose(&[0, 10, 700, 5_000]));
            for recorder in [&mut alone, &mut here, &mut there] {
                recorder.now = recorder.now.after(step);
            }
            let mut request = random_request(&mut rng, id);
            request.arrived = alone.now;
            let output = 1 + rng.below(300);
            let one_of_two = if rng.percent(50) { &mut here } else { &mut there };
            for recorder in [&mut alone, one_of_two] {
                recorder.handle(Input::Register(request.clone()));
                recorder.end_one(output);
            }
        }
        let shuffled_usage = there.shuffled_usage(&mut rng);
        here.handle(Input::PastUsage(shuffled_usage));
        assert_same_order([alone, here], &mut rng)?;
    }
}
