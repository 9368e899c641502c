//! The measured unfairness stays within the documented bounds.

use std::collections::BTreeMap;

use penstock_engine::input::Band;
use penstock_engine::policy::{BandMode, CostUnit, Discipline};
use penstock_engine::{Input, Policy};

use crate::conformance::load::{BAND_WEIGHTS, Case, Dispatched, HEAVY, Job, Load, Place, QUANTA, random_job};
use crate::random::Rng;

const SLOTS: u64 = 4;
const LARGEST: f64 = 200.0;

/// The range of the distance between two flows, from its smallest to its largest value.
#[derive(Clone, Copy, Debug, Default)]
struct DistanceRange {
    least: f64,
    most: f64,
}

impl DistanceRange {
    const fn observe(&mut self, distance: f64) {
        self.least = self.least.min(distance);
        self.most = self.most.max(distance);
    }

    const fn width(self) -> f64 {
        self.most - self.least
    }
}

const fn weight_of(flow: &str) -> f64 {
    if flow.len() == "heavy".len() && flow.as_bytes()[0] == b'h' { HEAVY } else { 1.0 }
}

/// Service received: cost charged to the band and flow, cost charged to the class, and the number of requests.
#[derive(Clone, Copy, Debug, Default)]
struct Service {
    cost: f64,
    class_cost: f64,
    requests: f64,
}

impl Service {
    fn plus(self, other: &Self) -> Self {
        Self {
            cost: self.cost + other.cost,
            class_cost: self.class_cost + other.class_cost,
            requests: self.requests + other.requests,
        }
    }

    fn from_dispatch(case: &Case, request: &Dispatched) -> Self {
        let estimate = request.job.estimate as f64;
        let cost = match case.unit {
            CostUnit::Tokens => estimate,
            CostUnit::Requests => 1.0,
        };
        assert_eq!(request.cost as f64, cost);
        Self { cost, class_cost: estimate, requests: 1.0 }
    }
}

/// The bound of DRR between two children that stay backlogged, with service in proportion to the least quantum.
fn visits_bound(largest: f64, least_quantum: f64) -> f64 {
    2.0 * largest + least_quantum
}

#[derive(Default)]
struct Measured {
    /// Distances between the two flows of one place.
    flows: BTreeMap<Place, DistanceRange>,
    /// Distances between two classes of a band and model.
    classes: BTreeMap<Place, DistanceRange>,
    /// Distances between two models of a band.
    models: BTreeMap<Place, DistanceRange>,
    /// Distances between two bands.
    bands: BTreeMap<Place, DistanceRange>,
}

/// Measures a load in which everything stays backlogged: each dispatched request is replaced by a new one. `before`: the
/// policy under which the load begins; measured is from the change to the case's on.
fn measured(case: &Case, before: Option<Policy>, seed: u64) -> Measured {
    let mut rng = Rng::new(seed);
    let has_changed = before.is_some();
    let mut load = Load::new(before.unwrap_or_else(|| case.policy(SLOTS)), 1);
    let places = case.places();
    for _ in 0..4 {
        for place in &places {
            load.register(random_job(&mut rng, place));
        }
    }
    if has_changed {
        let mut replaced = 0;
        for _ in 0..400 {
            load.complete();
            while replaced < load.dispatched.len() {
                let place = load.dispatched[replaced].job.place.clone();
                load.register(random_job(&mut rng, &place));
                replaced += 1;
            }
        }
        load.handle(Input::Policy(Box::new(case.policy(SLOTS))));
    }
    // The first requests were granted alone, or under the policy before.
    let mut counted = load.dispatched.len();
    let settled_before = load.served.clone();
    let mut received: BTreeMap<Place, Service> = BTreeMap::new();
    let mut measured = Measured::default();
    for _ in 0..1_200 {
        load.complete();
        while counted < load.dispatched.len() {
            let dispatched = load.dispatched[counted].clone();
            let place = dispatched.job.place.clone();
            let sum = received.entry(place.clone()).or_default();
            *sum = sum.plus(&Service::from_dispatch(case, &dispatched));
            load.register(random_job(&mut rng, &place));
            counted += 1;
        }
        let settled = |place: &Place| {
            let sum_at = |sums: &BTreeMap<Place, u64>| sums.get(place).copied().unwrap_or(0);
            (sum_at(&load.served) - sum_at(&settled_before)) as f64
        };
        measured.observe(case, &received, settled);
    }
    measured
}

impl Measured {
    fn observe(&mut self, case: &Case, received: &BTreeMap<Place, Service>, settled: impl Fn(&Place) -> f64) {
        for light in case.places().into_iter().filter(|place| place.flow == "light") {
            let heavy = Place { flow: "heavy", ..light.clone() };
            let received_at = |place: &Place| received.get(place).copied().unwrap_or_default();
            let service = |place: &Place| match case.discipline {
                Discipline::Wfq => settled(place),
                Discipline::Usage | Discipline::Vtc => {
                    let share = case.share_of(place);
                    let places = case.places().into_iter();
                    let of_share = places.filter(|other| case.share_of(other) == share);
                    of_share.map(|other| settled(&other)).sum()
                }
                Discipline::Drr => received_at(place).cost,
                Discipline::RoundRobin => received_at(place).requests,
                Discipline::Fifo => 0.0,
            };
            let flows = service(&light) - service(&heavy) / HEAVY;
            let sum = |matches: &dyn Fn(&Place) -> bool| {
                let matching = received.iter().filter(|(place, _)| matches(place));
                matching.fold(Service::default(), |sum, (_, received)| sum.plus(received))
            };
            let tree = (light.band, light.model);
            let class =
                |class| sum(&|place| (place.band, place.model) == tree && place.class == class).class_cost;
            let model = |model| sum(&|place| place.band == light.band && place.model == model).cost;
            let band = |band| sum(&|place| place.band == band).cost / BAND_WEIGHTS[band as usize];
            let classes = class("chat") - class("batch") * QUANTA[0] as f64 / QUANTA[1] as f64;
            let models = model("m") - model("n");
            // In units of the least weight, which is 1.
            let bands = band(light.band) - band(Band::Sheddable);
            let all = [&mut self.flows, &mut self.classes, &mut self.models, &mut self.bands];
            for (ranges, distance) in all.into_iter().zip([flows, classes, models, bands]) {
                ranges.entry(light.clone()).or_default().observe(distance);
            }
        }
    }
}

#[test]
fn no_child_gets_more_than_the_bound() {
    for case in Case::all() {
        for seed in 0..2 {
            check_bounds(&case, &measured(&case, None, seed), "");
        }
    }
}

/// Whatever changes while requests wait and run: the discipline, the unit of costs, weights, quanta, the modes of bands. What was
/// counted before must not give a flow, a band, a class or a model more than the bound afterwards.
#[test]
fn the_bounds_hold_from_a_reload_on() {
    let cases = Case::all();
    for (seed, case) in (0..).zip(&cases) {
        let mut rng = Rng::new(seed);
        let same_gate = cases.iter().filter(|other| other.auto == case.auto);
        let others: Vec<Case> = same_gate.cloned().collect();
        for other in [rng.choose(&others), case.clone()] {
            let mut before = other.policy(SLOTS);
            let mut weights = vec![0.003, 1.0, 1_000.0];
            if case.discipline == Discipline::Usage {
                // Past usage is divided by the weight of the present, so a greater weight is a claim on what is past.
                weights = vec![HEAVY];
            }
            before.flows.weights.insert("heavy".into(), rng.choose(&weights));
            before.weights.input = rng.choose(&[1.0, 1.0, 50.0]);
            if let BandMode::Weighted(bands) = &mut before.bands.mode {
                *bands = rng.choose(&[[1.0, 1.0, 1.0], [0.01, 500.0, 2.0]]);
            }
            for class in before.classes.iter_mut().flat_map(|set| &mut set.classes) {
                class.quantum = rng.choose(&[1, class.quantum, 100_000]);
            }
            check_bounds(case, &measured(case, Some(before.clone()), seed), &format!("after {before:?}"));
        }
    }
}

fn check_bounds(case: &Case, measured: &Measured, when: &str) {
    let (largest, visit) = match case.unit {
        CostUnit::Tokens => (LARGEST, 1_024.0),
        CostUnit::Requests => (1.0, 1.0),
    };
    let virtual_time_bound = |largest: f64| (largest + largest / HEAVY) * (SLOTS as f64 + 1.0);
    let flows = match case.discipline {
        Discipline::Wfq | Discipline::Vtc | Discipline::Usage => virtual_time_bound(largest),
        Discipline::RoundRobin => virtual_time_bound(1.0),
        Discipline::Drr => visits_bound(largest, visit),
        Discipline::Fifo => 0.0,
    };
    let within = |level: &str, ranges: &BTreeMap<Place, DistanceRange>, bound: f64| {
        for (place, range) in ranges {
            assert!(
                range.width() <= bound,
                "{level}: {range:?} is over {bound} at {place:?}, {case:?} {when}"
            );
        }
    };
    within("flows", &measured.flows, flows);
    if case.classes {
        within("classes", &measured.classes, visits_bound(LARGEST, QUANTA[0] as f64));
    }
    if case.per_model {
        within("models", &measured.models, visits_bound(largest, visit));
    }
    if case.weighted_bands {
        let visit = if case.unit == CostUnit::Tokens { 100.0 } else { 1.0 };
        within("bands", &measured.bands, visits_bound(largest, visit));
    }
}

#[test]
fn fifo_dispatches_by_arrival() {
    for case in Case::all().into_iter().filter(|case| case.discipline == Discipline::Fifo) {
        let mut rng = Rng::new(4);
        let mut load = Load::new(case.policy(2), 1);
        for _ in 0..200 {
            let place = rng.choose(&case.places());
            load.register(random_job(&mut rng, &place));
        }
        while !load.running.is_empty() {
            load.complete();
        }
        let mut last: BTreeMap<_, u64> = BTreeMap::new();
        for dispatched in &load.dispatched {
            let place = &dispatched.job.place;
            let last = last.entry((place.band, place.class, place.model)).or_default();
            assert!(*last <= dispatched.id, "{} before {last}: {case:?}", dispatched.id);
            *last = dispatched.id;
        }
    }
}

/// 500 requests of each flow wait; the real cost of one flow's requests is ten times the estimate.
#[test]
fn a_flow_underestimated_tenfold_gains_no_more_than_the_bound() {
    for discipline in [Discipline::Wfq, Discipline::Vtc, Discipline::Usage] {
        let case = Case {
            discipline,
            unit: CostUnit::Tokens,
            weighted_bands: false,
            classes: false,
            per_model: false,
            auto: false,
        };
        let mut load = Load::new(case.policy(SLOTS), 1);
        for _ in 0..500 {
            for (flow, real) in [("light", 1_000), ("heavy", 100)] {
                load.register(Job { place: Place::default_for(flow), estimate: 100, real });
            }
        }
        let bound = (1_000.0 + 100.0 / HEAVY) * (SLOTS as f64 + 1.0);
        let mut left = 1;
        while left > 0 {
            load.complete();
            let served = |flow| {
                load.served.get(&Place::default_for(flow)).copied().unwrap_or(0) as f64 / weight_of(flow)
            };
            let range = (served("light") - served("heavy")).abs();
            assert!(range <= bound, "{range} is over {bound} by {discipline:?}");
            let dispatched =
                |flow| load.dispatched.iter().filter(|dispatched| dispatched.job.place.flow == flow).count();
            left = 500 - dispatched("light").max(dispatched("heavy"));
        }
    }
}

/// Two classes of equal quanta. One of them tries to gain service with strict requests that arrive during its visits
/// or just before them.
#[test]
fn strict_arrivals_around_visits_gain_nothing() {
    for cheap in [false, true] {
        let case = Case {
            discipline: Discipline::Fifo,
            unit: CostUnit::Tokens,
            weighted_bands: false,
            classes: true,
            per_model: false,
            auto: false,
        };
        let mut policy = case.policy(1);
        for class in &mut policy.classes[0].classes {
            class.quantum = 1_000;
        }
        let mut load = Load::new(policy, 1);
        let job = |class, estimate| Job {
            place: Place { class, ..Place::default_for("light") },
            estimate,
            real: estimate,
        };
        for _ in 0..4 {
            load.register(job("chat", 100));
            load.register(job("batch", 100));
        }
        let start = load.dispatched.len();
        let mut range = DistanceRange::default();
        let mut sums = [0_u64; 2];
        let mut counted = start;
        let mut strict: Option<u64> = None;
        for _ in 0..10_000 {
            load.complete();
            while counted < load.dispatched.len() {
                let (id, class) = (load.dispatched[counted].id, load.dispatched[counted].job.place.class);
                sums[usize::from(class == "batch")] += load.dispatched[counted].job.estimate;
                counted += 1;
                if Some(id) == strict {
                    strict = None;
                } else {
                    load.register(job(class, 100));
                }
                // During its visit an expensive request; or, whenever the other class is served, and so before its
                // visit, a cheap one.
                if strict.is_none() && cheap == (class == "batch") {
                    let estimate = if cheap { 1 } else { 900 };
                    strict = Some(load.register_with(job("chat", estimate), |request| request.strict = 1));
                }
            }
            range.observe(sums[0] as f64 - sums[1] as f64);
        }
        let bound = visits_bound(900.0, 1_000.0);
        assert!(range.width() <= bound, "{range:?} is over {bound} with {sums:?}");
        assert!(sums[0] > 300_000 && sums[1] > 300_000, "{sums:?}");
    }
}
