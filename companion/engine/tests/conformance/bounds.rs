//! Measured unfairness within the bounds that QUEUEING states.

use std::collections::BTreeMap;

use penstock_engine::input::Band;
use penstock_engine::policy::{CostUnit, Discipline};

use crate::dice::Dice;
use crate::load::{Ask, BAND_WEIGHTS, Case, Gone, HEAVY, Load, Place, QUANTA, some};

const SLOTS: u64 = 4;
const LARGEST: f64 = 200.0;

/// The widest that the distance between two got, from its least to its most.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    least: f64,
    most: f64,
}

impl Gap {
    const fn see(&mut self, distance: f64) {
        self.least = self.least.min(distance);
        self.most = self.most.max(distance);
    }

    const fn width(self) -> f64 {
        self.most - self.least
    }
}

const fn weight_of(flow: &str) -> f64 {
    if flow.len() == "heavy".len() && flow.as_bytes()[0] == b'h' {
        HEAVY
    } else {
        1.0
    }
}

/// What somebody got: charged to its band and flow, charged to its class, and how often.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    cost: f64,
    class_cost: f64,
    times: f64,
}

impl Got {
    fn and(self, other: &Self) -> Self {
        Self {
            cost: self.cost + other.cost,
            class_cost: self.class_cost + other.class_cost,
            times: self.times + other.times,
        }
    }

    fn of(case: &Case, gone: &Gone) -> Self {
        let estimate = gone.ask.estimate as f64;
        let cost = match case.unit {
            CostUnit::Tokens => estimate,
            CostUnit::Requests => 1.0,
        };
        assert_eq!(gone.cost as f64, cost);
        Self {
            cost,
            class_cost: estimate,
            times: 1.0,
        }
    }
}

/// DRR: between two that stay backlogged, in multiples of the least quantum.
fn visits_bound(largest: f64, least_quantum: f64) -> f64 {
    2.0 * largest + least_quantum
}

#[derive(Default)]
struct Measured {
    /// Between the two flows of one place.
    flows: BTreeMap<Place, Gap>,
    /// Between two classes of a band and model, two models of a band, two bands.
    classes: BTreeMap<Place, Gap>,
    models: BTreeMap<Place, Gap>,
    bands: BTreeMap<Place, Gap>,
}

/// Everybody is backlogged all the time: who goes is followed by another.
fn measured(case: &Case, seed: u64) -> Measured {
    let mut dice = Dice::new(seed);
    let mut load = Load::new(case.policy(SLOTS), 1);
    let places = case.places();
    for _ in 0..4 {
        for place in &places {
            load.ask(some(&mut dice, place));
        }
    }
    // The first that went did so alone.
    let mut seen = load.gone.len();
    let settled_before = load.served.clone();
    let mut got: BTreeMap<Place, Got> = BTreeMap::new();
    let mut measured = Measured::default();
    for _ in 0..1_200 {
        load.complete();
        while seen < load.gone.len() {
            let gone = load.gone[seen].clone();
            let place = gone.ask.place.clone();
            let sum = got.entry(place.clone()).or_default();
            *sum = sum.and(&Got::of(case, &gone));
            load.ask(some(&mut dice, &place));
            seen += 1;
        }
        let settled = |place: &Place| {
            let of = |sums: &BTreeMap<Place, u64>| sums.get(place).copied().unwrap_or(0);
            (of(&load.served) - of(&settled_before)) as f64
        };
        measured.see(case, &got, settled);
    }
    measured
}

impl Measured {
    fn see(&mut self, case: &Case, got: &BTreeMap<Place, Got>, settled: impl Fn(&Place) -> f64) {
        for light in case.places().into_iter().filter(|place| place.flow == "light") {
            let heavy = Place {
                flow: "heavy",
                ..light.clone()
            };
            let got_of = |place: &Place| got.get(place).copied().unwrap_or_default();
            let of = |place| match case.discipline {
                Discipline::Wfq | Discipline::Vtc | Discipline::Usage => settled(place),
                Discipline::Drr => got_of(place).cost,
                Discipline::RoundRobin => got_of(place).times,
                Discipline::Fifo => 0.0,
            };
            let flows = of(&light) - of(&heavy) / HEAVY;
            let sum = |of: &dyn Fn(&Place) -> bool| {
                let those = got.iter().filter(|(place, _)| of(place));
                those.fold(Got::default(), |sum, (_, got)| sum.and(got))
            };
            let tree = (light.band, light.model);
            let class = |class| sum(&|of| (of.band, of.model) == tree && of.class == class).class_cost;
            let model = |model| sum(&|of| of.band == light.band && of.model == model).cost;
            let band = |band| sum(&|of| of.band == band).cost / BAND_WEIGHTS[band as usize];
            let classes = class("chat") - class("batch") * QUANTA[0] as f64 / QUANTA[1] as f64;
            let models = model("m") - model("n");
            // By the least of the weights, which is 1.
            let bands = band(light.band) - band(Band::Sheddable);
            let all = [
                &mut self.flows,
                &mut self.classes,
                &mut self.models,
                &mut self.bands,
            ];
            for (gaps, distance) in all.into_iter().zip([flows, classes, models, bands]) {
                gaps.entry(light.clone()).or_default().see(distance);
            }
        }
    }
}

#[test]
fn nobody_gets_more_than_the_bound() {
    for case in Case::all() {
        for seed in 0..2 {
            let measured = measured(&case, seed);
            let (largest, visit) = match case.unit {
                CostUnit::Tokens => (LARGEST, 1_024.0),
                CostUnit::Requests => (1.0, 1.0),
            };
            let tags = |largest: f64| (largest + largest / HEAVY) * (SLOTS as f64 + 1.0);
            let flows = match case.discipline {
                Discipline::Wfq | Discipline::Vtc | Discipline::Usage => tags(largest),
                Discipline::RoundRobin => tags(1.0),
                Discipline::Drr => visits_bound(largest, visit),
                Discipline::Fifo => 0.0,
            };
            let within = |what: &str, gaps: &BTreeMap<Place, Gap>, bound: f64| {
                for (place, gap) in gaps {
                    assert!(
                        gap.width() <= bound,
                        "{what}: {gap:?} is over {bound} at {place:?}, {case:?}"
                    );
                }
            };
            within("flows", &measured.flows, flows);
            if case.classes {
                within(
                    "classes",
                    &measured.classes,
                    visits_bound(LARGEST, QUANTA[0] as f64),
                );
            }
            if case.per_model {
                within("models", &measured.models, visits_bound(largest, visit));
            }
            if case.weighted_bands {
                let visit = if case.unit == CostUnit::Tokens { 100.0 } else { 1.0 };
                within("bands", &measured.bands, visits_bound(largest, visit));
            }
        }
    }
}

#[test]
fn fifo_goes_by_arrival() {
    for case in Case::all()
        .into_iter()
        .filter(|case| case.discipline == Discipline::Fifo)
    {
        let mut dice = Dice::new(4);
        let mut load = Load::new(case.policy(2), 1);
        for _ in 0..200 {
            let place = dice.one(&case.places());
            load.ask(some(&mut dice, &place));
        }
        while !load.running.is_empty() {
            load.complete();
        }
        let mut last: BTreeMap<_, u64> = BTreeMap::new();
        for gone in &load.gone {
            let place = &gone.ask.place;
            let last = last.entry((place.band, place.class, place.model)).or_default();
            assert!(*last <= gone.id, "{} before {last}: {case:?}", gone.id);
            *last = gone.id;
        }
    }
}

/// 500 of each wait; one's real cost is ten times what was thought.
#[test]
fn who_is_underestimated_tenfold_gains_no_more_than_the_bound() {
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
                load.ask(Ask {
                    place: Place::of(flow),
                    estimate: 100,
                    real,
                });
            }
        }
        let bound = (1_000.0 + 100.0 / HEAVY) * (SLOTS as f64 + 1.0);
        let mut left = 1;
        while left > 0 {
            load.complete();
            let served =
                |flow| load.served.get(&Place::of(flow)).copied().unwrap_or(0) as f64 / weight_of(flow);
            let gap = (served("light") - served("heavy")).abs();
            assert!(gap <= bound, "{gap} is over {bound} by {discipline:?}");
            let gone = |flow| {
                load.gone
                    .iter()
                    .filter(|gone| gone.ask.place.flow == flow)
                    .count()
            };
            left = 500 - gone("light").max(gone("heavy"));
        }
    }
}

/// Two classes of equal quanta, and one that tries to get more by what arrives in its visits, or before them.
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
        let ask = |class, estimate| Ask {
            place: Place {
                class,
                ..Place::of("light")
            },
            estimate,
            real: estimate,
        };
        for _ in 0..4 {
            load.ask(ask("chat", 100));
            load.ask(ask("batch", 100));
        }
        let start = load.gone.len();
        let mut gap = Gap::default();
        let mut sums = [0_u64; 2];
        let mut seen = start;
        let mut strict: Option<u64> = None;
        for _ in 0..10_000 {
            load.complete();
            while seen < load.gone.len() {
                let (id, class) = (load.gone[seen].id, load.gone[seen].ask.place.class);
                sums[usize::from(class == "batch")] += load.gone[seen].ask.estimate;
                seen += 1;
                if Some(id) == strict {
                    strict = None;
                } else {
                    load.ask(ask(class, 100));
                }
                // In its visit a dear one; or whenever the other goes, so before its own visit, a cheap one.
                if strict.is_none() && cheap == (class == "batch") {
                    let estimate = if cheap { 1 } else { 900 };
                    strict = Some(load.ask_with(ask("chat", estimate), |request| request.strict = 1));
                }
            }
            gap.see(sums[0] as f64 - sums[1] as f64);
        }
        let bound = visits_bound(900.0, 1_000.0);
        assert!(gap.width() <= bound, "{gap:?} is over {bound} with {sums:?}");
        assert!(sums[0] > 300_000 && sums[1] > 300_000, "{sums:?}");
    }
}
