//! What every discipline keeps, apart from its own bound.

use std::collections::BTreeMap;

use penstock_engine::input::{Band, EndpointState};
use penstock_engine::policy::{CostUnit, Discipline};
use penstock_engine::snapshot::FlowSnapshot;
use penstock_engine::{Budget, EndpointId, Input, RequestId};

use crate::dice::Dice;
use crate::load::{Ask, Case, Load, Place, endless, some};
use crate::support::SECOND;

/// As many as `slots` run, everything else of `load` waits.
fn loaded(case: &Case, slots: u64, dice: &mut Dice, of_each: usize) -> Load {
    let mut load = Load::new(case.policy(slots), 1);
    for _ in 0..of_each {
        for place in case.places() {
            load.ask(some(dice, &place));
        }
    }
    load
}

#[test]
fn whoever_can_go_goes() {
    for case in Case::all() {
        let mut dice = Dice::new(1);
        let mut load = Load::new(case.policy(4), 2);
        let places = case.places();
        for _ in 0..300 {
            if dice.percent(50) {
                let place = dice.one(&places);
                load.ask(some(&mut dice, &place));
            } else if !load.running.is_empty() {
                load.complete();
            }
            let engine = &load.bench.engine;
            assert!(engine.waiting() == 0 || engine.stock() >= 8, "{case:?}");
            assert_eq!(engine.stock(), load.running.len() as u64);
        }
        while !load.running.is_empty() {
            load.complete();
        }
        assert_eq!(load.bench.engine.waiting(), 0, "{case:?}");
    }
}

/// While others always have more, everybody who waits goes before long, a newcomer as well.
#[test]
fn nobody_starves() {
    // A visit of a heavy flow is 3,072 tokens, 24 requests; the least of all has it once in a hundred.
    const SOON: usize = 4_000;
    for case in Case::all() {
        let mut dice = Dice::new(2);
        let mut load = loaded(&case, 4, &mut dice, 6);
        let places = case.places();
        let mut last: BTreeMap<Place, usize> = places.iter().map(|place| (place.clone(), 0)).collect();
        let mut seen = 0;
        let newcomer = Place::of("newcomer");
        while load.gone.len() < SOON + 500 {
            load.complete();
            while seen < load.gone.len() {
                let place = load.gone[seen].ask.place.clone();
                seen += 1;
                if place != newcomer {
                    load.ask(some(&mut dice, &place));
                }
                let ago = seen - last.insert(place.clone(), seen).unwrap_or(seen);
                assert!(ago <= SOON, "{place:?} waited for {ago} others: {case:?}");
                if seen == 500 {
                    load.ask(some(&mut dice, &newcomer));
                }
            }
        }
        for place in places.iter().chain([&newcomer]) {
            let ago = last.get(place).map(|at| seen - at);
            assert!(
                ago.is_some_and(|ago| ago <= SOON),
                "{place:?} waits for {ago:?} others: {case:?}"
            );
        }
    }
}

/// Long ones among short ones, of which there are always more: an endpoint has room for four short ones, or for one
/// long one and none besides. Nobody goes before it for its size: it doesn't wait for an idle moment.
#[test]
fn nobody_starves_for_its_size() {
    // A part of 0.008 of all tokens is its own where the most share: 900 of 112,000, or every 500th request.
    const SOON: usize = 1_000;
    for case in Case::all().into_iter().filter(|case| case.auto) {
        let mut dice = Dice::new(11);
        let mut load = loaded(&case, 100, &mut dice, 0);
        let sized = Budget {
            kv_tokens_max: Some(1_000),
            ..endless(100)
        };
        let (id, budget) = (EndpointId(1), Some(sized));
        load.say(Input::Budget { id, budget });
        let places = case.places();
        let long = Place {
            band: Band::Default,
            ..Place::of("long")
        };
        let ask = |place: &Place, estimate| Ask {
            place: place.clone(),
            estimate,
            real: estimate,
        };
        for _ in 0..6 {
            for place in &places {
                load.ask(ask(place, 200 + dice.below(50)));
            }
        }
        let (mut seen, mut long_since) = (0, None);
        let mut went = 0;
        while seen < 4_000 {
            if long_since.is_none() {
                load.ask(ask(&long, 900));
                long_since = Some(seen);
            }
            load.complete();
            while seen < load.gone.len() {
                let place = load.gone[seen].ask.place.clone();
                seen += 1;
                if place == long {
                    went += 1;
                    long_since = None;
                } else {
                    load.ask(ask(&place, 200 + dice.below(50)));
                }
                let waits = long_since.map_or(0, |since| seen - since);
                assert!(waits <= SOON, "the long one waits for {waits} others: {case:?}");
            }
        }
        assert!(went >= 4, "{went} long ones: {case:?}");
    }
}

#[test]
fn the_seed_decides() {
    for case in Case::all() {
        let run = || {
            let mut dice = Dice::new(3);
            let mut load = loaded(&case, 3, &mut dice, 10);
            while !load.running.is_empty() {
                load.complete();
            }
            load.gone.iter().map(|gone| gone.id).collect::<Vec<_>>()
        };
        assert_eq!(run(), run(), "{case:?}");
    }
}

/// All wait; then one goes and nothing of it is served. The others go as if it hadn't been there.
#[test]
fn what_is_refunded_was_never_charged() {
    for case in Case::all() {
        for seed in 0..8 {
            let run = |without: Option<u64>| {
                let mut dice = Dice::new(seed);
                let mut load = Load::new(case.policy(1), 1);
                let state = |ready| EndpointState {
                    ready,
                    ..EndpointState::default()
                };
                let id = EndpointId(1);
                load.say(Input::Endpoint {
                    id,
                    state: state(false),
                });
                for _ in 0..6 {
                    for place in case.places() {
                        load.ask(some(&mut dice, &place));
                    }
                }
                if let Some(id) = without {
                    load.bench.say(Input::Cancel(RequestId(id)));
                }
                load.say(Input::Endpoint {
                    id,
                    state: state(true),
                });
                let first = load.gone[0].id;
                if without.is_none() {
                    load.refund(first);
                }
                while !load.running.is_empty() {
                    load.complete();
                }
                let order: Vec<u64> = load
                    .gone
                    .iter()
                    .map(|gone| gone.id)
                    .filter(|&id| id != first || without.is_some())
                    .collect();
                (first, order)
            };
            let (first, order) = run(None);
            let (_, expected) = run(Some(first));
            assert_eq!(order, expected, "{first} was refunded: {case:?}, seed {seed}");
        }
    }
}

/// The same for one that never waited.
#[test]
fn what_bypassed_and_is_refunded_was_never_charged() {
    for case in Case::all() {
        let run = |refunded: bool| {
            let mut dice = Dice::new(5);
            let mut load = Load::new(case.policy(1), 1);
            let ask = |place| Ask {
                place,
                estimate: 100,
                real: 100,
            };
            if refunded {
                let first = load.ask(ask(case.places()[0].clone()));
                load.refund(first);
                load.gone.clear();
            } else {
                load.skip();
            }
            // Who holds the place is of neither flow.
            let holds = Place {
                band: Band::Critical,
                ..Place::of("other")
            };
            load.ask(ask(holds));
            for _ in 0..6 {
                for place in case.places() {
                    load.ask(some(&mut dice, &place));
                }
            }
            while !load.running.is_empty() {
                load.complete();
            }
            load.gone.iter().map(|gone| gone.id).collect::<Vec<_>>()
        };
        assert_eq!(run(true), run(false), "{case:?}");
    }
}

#[test]
fn flows_that_go_leave_nothing() {
    for case in Case::all() {
        let mut load = Load::new(case.policy(4), 1);
        let places = case.places();
        let names: Vec<&'static str> = (0..500)
            .map(|number| &*Box::leak(format!("flow {number}").into_boxed_str()))
            .collect();
        let mut dice = Dice::new(6);
        for flow in names {
            let place = Place {
                flow,
                ..dice.one(&places)
            };
            load.ask(some(&mut dice, &place));
            if load.running.len() == 4 {
                load.complete();
            }
        }
        while !load.running.is_empty() {
            load.complete();
        }
        // What is left of each is paid off when virtual time, or the window, has passed it.
        load.bench.at(1_000_000.0);
        for place in &places {
            for real in [2_000_000, 100] {
                load.ask(Ask {
                    place: place.clone(),
                    estimate: real,
                    real,
                });
                load.complete();
            }
        }
        let snapshot = load.bench.engine.snapshot();
        let present = |flow: &&FlowSnapshot| flow.waiting > 0 || flow.in_flight > 0 || flow.finish > 0.0;
        let left: Vec<_> = snapshot.flows.iter().filter(present).collect();
        assert!(left.len() <= places.len(), "{case:?}: {left:?}");
        assert_eq!((snapshot.waiting, snapshot.stock), (0, 0));
    }
}

/// In what `b` differs from `a`.
const LEVELS: [fn(&mut Place); 4] = [
    |b| b.flow = "b",
    |b| b.class = "batch",
    |b| b.model = "n",
    |b| b.band = Band::Sheddable,
];

/// `b` can't go for 600 dispatches of `a`; when it can, it isn't ahead of `a` by more than what goes while both wait.
/// The window of `usage` remembers what it got, and arrival what `fifo` looks at: they are meant to.
#[test]
fn who_was_held_banked_nothing() {
    nothing_is_banked(lead_after_being_held);
}

/// The same for who was suspended: all that `b` had, and its share of nothing.
#[test]
fn who_was_suspended_banked_nothing() {
    nothing_is_banked(lead_after_being_suspended);
}

fn nothing_is_banked(lead: impl Fn(&Case, &Place, &Place) -> f64) {
    for case in Case::all() {
        if matches!(case.discipline, Discipline::Usage | Discipline::Fifo) {
            continue;
        }
        let there = [true, case.classes, case.per_model, case.weighted_bands];
        for (level, _) in LEVELS.iter().zip(there).filter(|&(_, there)| there) {
            let (a, mut b) = (Place::of("a"), Place::of("a"));
            level(&mut b);
            let lead = lead(&case, &a, &b);
            // Quanta differ between classes, and weights between bands; a turn of each is below this.
            let turn = match case.unit {
                CostUnit::Tokens => 2.0 * 2_048.0,
                CostUnit::Requests if b.class == "batch" => 2.0 * 2_048.0 / 50.0,
                CostUnit::Requests => 20.0,
            };
            assert!(lead <= turn, "{lead} ahead of {turn}: {case:?} {b:?}");
        }
    }
}

fn lead_after_being_suspended(case: &Case, a: &Place, b: &Place) -> f64 {
    let mut dice = Dice::new(8);
    let mut load = Load::new(case.policy(4), 1);
    load.bench.now = penstock_engine::Instant::from_nanos(SECOND);
    for _ in 0..1_400 {
        load.ask(some(&mut dice, a));
    }
    let waits: Vec<u64> = (0..1_400)
        .map(|_| {
            let id = load.ask(some(&mut dice, b));
            load.say(Input::Suspend(RequestId(id)));
            id
        })
        .collect();
    while load.gone.len() < 600 {
        load.complete();
    }
    for id in waits {
        load.say(Input::Continue(RequestId(id)));
    }
    most_of_lead(case, &mut load, a, b)
}

/// What `b` got more than `a`, at most, by what each is due.
fn lead_after_being_held(case: &Case, a: &Place, b: &Place) -> f64 {
    let mut dice = Dice::new(8);
    let mut load = Load::new(case.policy(4), 2);
    let second = EndpointId(2);
    let state = |ready| EndpointState {
        ready,
        ..EndpointState::default()
    };
    load.say(Input::Endpoint {
        id: second,
        state: state(false),
    });
    for number in 0..1_400 {
        load.bench.now = penstock_engine::Instant::from_nanos(SECOND + number);
        load.ask(some(&mut dice, a));
        let only = vec![second].into_boxed_slice();
        load.ask_with(some(&mut dice, b), |request| request.eligible = Some(only));
    }
    while load.gone.len() < 600 {
        load.complete();
    }
    load.say(Input::Endpoint {
        id: second,
        state: state(true),
    });
    // From here on they compete for the same places.
    load.say(Input::Endpoint {
        id: EndpointId(1),
        state: state(false),
    });
    most_of_lead(case, &mut load, a, b)
}

/// From the 600th on, before which `b` got nothing.
fn most_of_lead(case: &Case, load: &mut Load, a: &Place, b: &Place) -> f64 {
    let before = load.gone[..600].iter();
    assert_eq!(before.filter(|gone| gone.ask.place == *b).count(), 0);
    let mut most = 0.0_f64;
    for _ in 0..400 {
        load.complete();
        let share = |place: &Place| {
            let class = if case.classes && place.class == "batch" {
                4.0
            } else {
                1.0
            };
            let band = if case.weighted_bands && place.band == Band::Sheddable {
                0.5
            } else {
                1.0
            };
            load.charged(600, |other| other == place) as f64 / class / band
        };
        most = most.max(share(b) - share(a));
    }
    assert!(
        load.charged(600, |place| place == b) > 0,
        "{b:?} never went: {case:?}"
    );
    most
}
