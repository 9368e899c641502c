//! Invariants that every discipline keeps, apart from its fairness bound.

use std::collections::BTreeMap;

use penstock_engine::input::Band;
use penstock_engine::policy::{CostUnit, Discipline};
use penstock_engine::snapshot::FlowSnapshot;
use penstock_engine::{Allowance, EndpointId, Input, RequestId};

use crate::conformance::load::{Case, Job, Load, Place, random_job, unlimited};
use crate::random::Rng;
use crate::support::{SECOND, endpoint_input};

/// A load with `of_each` requests at each place, of which `slots` run and the rest wait.
fn loaded(case: &Case, slots: u64, rng: &mut Rng, of_each: usize) -> Load {
    let mut load = Load::new(case.policy(slots), 1);
    for _ in 0..of_each {
        for place in case.places() {
            load.register(random_job(rng, &place));
        }
    }
    load
}

#[test]
fn no_request_waits_while_a_place_is_free() {
    for case in Case::all() {
        let mut rng = Rng::new(1);
        let mut load = Load::new(case.policy(4), 2);
        let places = case.places();
        for _ in 0..300 {
            if rng.percent(50) {
                let place = rng.choose(&places);
                load.register(random_job(&mut rng, &place));
            } else if !load.running.is_empty() {
                load.complete();
            }
            let engine = &load.harness.engine;
            assert!(engine.waiting() == 0 || engine.stock() >= 8, "{case:?}");
            assert_eq!(engine.stock(), load.running.len() as u64);
        }
        while !load.running.is_empty() {
            load.complete();
        }
        assert_eq!(load.harness.engine.waiting(), 0, "{case:?}");
    }
}

/// While all other flows always have more requests, every waiting request is dispatched soon, also one of a new flow.
#[test]
fn no_flow_starves() {
    // A visit of a heavy flow is 3,072 tokens, or 24 requests; the least favoured flow has one visit in a hundred.
    const SOON: usize = 4_000;
    for case in Case::all() {
        let mut rng = Rng::new(2);
        let mut load = loaded(&case, 4, &mut rng, 6);
        let places = case.places();
        // Under usage a flow may be served in one of its bands and classes alone.
        let shares = places.iter().map(|place| (case.share_of(place), 0));
        let mut last: BTreeMap<Place, usize> = shares.collect();
        let mut counted = 0;
        let newcomer = Place::default_for("newcomer");
        while load.dispatched.len() < SOON + 500 {
            load.complete();
            while counted < load.dispatched.len() {
                let place = load.dispatched[counted].job.place.clone();
                counted += 1;
                if place != newcomer {
                    load.register(random_job(&mut rng, &place));
                }
                let ago = counted - last.insert(case.share_of(&place), counted).unwrap_or(counted);
                assert!(ago <= SOON, "{place:?} waited for {ago} requests: {case:?}");
                if counted == 500 {
                    load.register(random_job(&mut rng, &newcomer));
                }
            }
        }
        for place in places.iter().chain([&newcomer]) {
            let ago = last.get(&case.share_of(place)).map(|position| counted - position);
            assert!(ago.is_some_and(|ago| ago <= SOON), "{place:?} waits for {ago:?} requests: {case:?}");
        }
    }
}

/// Long requests among ever more short ones: an endpoint has room for four short requests, or for a single long one.
/// A long request is not overtaken because of its size; it doesn't wait for an idle moment.
#[test]
fn a_large_request_does_not_starve() {
    // With the most flows, its share is 0.008 of all tokens: 900 of 112,000, or every 500th request.
    const SOON: usize = 1_000;
    for case in Case::all().into_iter().filter(|case| case.auto) {
        let mut rng = Rng::new(11);
        let mut load = loaded(&case, 100, &mut rng, 0);
        let sized = Allowance { kv_tokens_max: Some(1_000), ..unlimited(100) };
        let (id, allowance) = (EndpointId(1), Some(sized));
        load.handle(Input::Allowance { id, allowance });
        let places = case.places();
        let long = Place { band: Band::Default, ..Place::default_for("long") };
        let job = |place: &Place, estimate| Job { place: place.clone(), estimate, real: estimate };
        for _ in 0..6 {
            for place in &places {
                load.register(job(place, 200 + rng.below(50)));
            }
        }
        let (mut counted, mut long_since) = (0, None);
        let mut dispatched_long = 0;
        while counted < 4_000 {
            if long_since.is_none() {
                load.register(job(&long, 900));
                long_since = Some(counted);
            }
            load.complete();
            while counted < load.dispatched.len() {
                let place = load.dispatched[counted].job.place.clone();
                counted += 1;
                if place == long {
                    dispatched_long += 1;
                    long_since = None;
                } else {
                    load.register(job(&place, 200 + rng.below(50)));
                }
                let waited = long_since.map_or(0, |since| counted - since);
                assert!(waited <= SOON, "the long request waited for {waited} requests: {case:?}");
            }
        }
        assert!(dispatched_long >= 4, "{dispatched_long} long ones: {case:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_order() {
    for case in Case::all() {
        let run = || {
            let mut rng = Rng::new(3);
            let mut load = loaded(&case, 3, &mut rng, 10);
            while !load.running.is_empty() {
                load.complete();
            }
            load.dispatched.iter().map(|dispatched| dispatched.id).collect::<Vec<_>>()
        };
        assert_eq!(run(), run(), "{case:?}");
    }
}

/// All requests wait; then one is granted and refunded. All remaining ones are dispatched as if it had not existed.
#[test]
fn a_refunded_request_leaves_no_charge() {
    for case in Case::all() {
        for seed in 0..8 {
            let run = |without: Option<u64>| {
                let mut rng = Rng::new(seed);
                let mut load = Load::new(case.policy(1), 1);
                load.handle(endpoint_input(1, false));
                for _ in 0..6 {
                    for place in case.places() {
                        load.register(random_job(&mut rng, &place));
                    }
                }
                if let Some(id) = without {
                    load.harness.handle(Input::Cancel(RequestId(id)));
                }
                load.handle(endpoint_input(1, true));
                let first = load.dispatched[0].id;
                if without.is_none() {
                    load.refund(first);
                }
                while !load.running.is_empty() {
                    load.complete();
                }
                let order: Vec<u64> = load
                    .dispatched
                    .iter()
                    .map(|dispatched| dispatched.id)
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

/// A request that bypassed the queue, and is refunded, changes the order of no later ones.
#[test]
fn a_refunded_bypass_leaves_no_charge() {
    for case in Case::all() {
        let run = |refunded: bool| {
            let mut rng = Rng::new(5);
            let mut load = Load::new(case.policy(1), 1);
            let job = |place| Job { place, estimate: 100, real: 100 };
            if refunded {
                let first = load.register(job(case.places()[0].clone()));
                load.refund(first);
                load.dispatched.clear();
            } else {
                load.skip();
            }
            // The request that takes the place belongs to neither flow.
            let occupant = Place { band: Band::Critical, ..Place::default_for("other") };
            load.register(job(occupant));
            for _ in 0..6 {
                for place in case.places() {
                    load.register(random_job(&mut rng, &place));
                }
            }
            while !load.running.is_empty() {
                load.complete();
            }
            load.dispatched.iter().map(|dispatched| dispatched.id).collect::<Vec<_>>()
        };
        assert_eq!(run(true), run(false), "{case:?}");
    }
}

#[test]
fn idle_flows_leave_no_state() {
    for case in Case::all() {
        let mut load = Load::new(case.policy(4), 1);
        let places = case.places();
        let names: Vec<&'static str> =
            (0..500).map(|number| &*Box::leak(format!("flow {number}").into_boxed_str())).collect();
        let mut rng = Rng::new(6);
        for flow in names {
            let place = Place { flow, ..rng.choose(&places) };
            load.register(random_job(&mut rng, &place));
            if load.running.len() == 4 {
                load.complete();
            }
        }
        while !load.running.is_empty() {
            load.complete();
        }
        // Each flow's remaining debt is gone once virtual time, or the usage window, has passed it.
        load.harness.advance_to(1_000_000.0);
        for place in &places {
            for real in [2_000_000, 100] {
                load.register(Job { place: place.clone(), estimate: real, real });
                load.complete();
            }
        }
        let snapshot = load.harness.engine.snapshot();
        let present = |flow: &&FlowSnapshot| flow.waiting > 0 || flow.in_flight > 0 || flow.finish > 0.0;
        let left: Vec<_> = snapshot.flows.iter().filter(present).collect();
        assert!(left.len() <= places.len(), "{case:?}: {left:?}");
        assert_eq!((snapshot.waiting, snapshot.stock), (0, 0));
    }
}

/// The level at which place `b` differs from place `a`.
const LEVELS: [fn(&mut Place); 4] =
    [|b| b.flow = "b", |b| b.class = "batch", |b| b.model = "n", |b| b.band = Band::Sheddable];

/// `b` can't be dispatched during 600 dispatches of `a`. Afterwards its lead over `a` stays below one turn of each.
/// `usage` and `fifo` are excluded: the usage window and the arrival order favour `b` by design.
#[test]
fn a_blocked_flow_saves_up_no_credit() {
    assert_no_credit(lead_after_blocking);
}

/// `b` is suspended during 600 dispatches of `a`. Afterwards its lead over `a` stays below one turn of each.
#[test]
fn a_suspended_flow_saves_up_no_credit() {
    assert_no_credit(lead_after_suspension);
}

fn assert_no_credit(lead: impl Fn(&Case, &Place, &Place) -> f64) {
    for case in Case::all() {
        if matches!(case.discipline, Discipline::Usage | Discipline::Fifo) {
            continue;
        }
        let exists = [true, case.classes, case.per_model, case.weighted_bands];
        for (level, _) in LEVELS.iter().zip(exists).filter(|&(_, exists)| exists) {
            let (a, mut b) = (Place::default_for("a"), Place::default_for("a"));
            level(&mut b);
            let lead = lead(&case, &a, &b);
            // Quanta differ between classes, and weights between bands; one turn of each is below this.
            let turn = match case.unit {
                CostUnit::Tokens => 2.0 * 2_048.0,
                CostUnit::Requests if b.class == "batch" => 2.0 * 2_048.0 / 50.0,
                CostUnit::Requests => 20.0,
            };
            assert!(lead <= turn, "a lead of {lead} exceeds {turn}: {case:?} {b:?}");
        }
    }
}

fn lead_after_suspension(case: &Case, a: &Place, b: &Place) -> f64 {
    let mut rng = Rng::new(8);
    let mut load = Load::new(case.policy(4), 1);
    load.harness.now = penstock_engine::Instant::from_nanos(SECOND);
    for _ in 0..1_400 {
        load.register(random_job(&mut rng, a));
    }
    let waited: Vec<u64> = (0..1_400)
        .map(|_| {
            let id = load.register(random_job(&mut rng, b));
            load.handle(Input::Suspend(RequestId(id)));
            id
        })
        .collect();
    while load.dispatched.len() < 600 {
        load.complete();
    }
    for id in waited {
        load.handle(Input::Continue(RequestId(id)));
    }
    largest_lead(case, &mut load, a, b)
}

/// The largest lead of `b` over `a`, in proportion to their shares.
fn lead_after_blocking(case: &Case, a: &Place, b: &Place) -> f64 {
    let mut rng = Rng::new(8);
    let mut load = Load::new(case.policy(4), 2);
    load.handle(endpoint_input(2, false));
    for number in 0..1_400 {
        load.harness.now = penstock_engine::Instant::from_nanos(SECOND + number);
        load.register(random_job(&mut rng, a));
        let eligible = vec![EndpointId(2)].into_boxed_slice();
        load.register_with(random_job(&mut rng, b), |request| request.eligible = Some(eligible));
    }
    while load.dispatched.len() < 600 {
        load.complete();
    }
    load.handle(endpoint_input(2, true));
    // From here on both compete for the same places.
    load.handle(endpoint_input(1, false));
    largest_lead(case, &mut load, a, b)
}

/// The largest lead from the 600th dispatch on; before it, `b` was not dispatched.
fn largest_lead(case: &Case, load: &mut Load, a: &Place, b: &Place) -> f64 {
    let before = load.dispatched[..600].iter();
    assert_eq!(before.filter(|dispatched| dispatched.job.place == *b).count(), 0);
    let mut most = 0.0_f64;
    for _ in 0..400 {
        load.complete();
        let share = |place: &Place| {
            let class = if case.classes && place.class == "batch" { 4.0 } else { 1.0 };
            let band = if case.weighted_bands && place.band == Band::Sheddable { 0.5 } else { 1.0 };
            load.charged(600, |other| other == place) as f64 / class / band
        };
        most = most.max(share(b) - share(a));
    }
    assert!(load.charged(600, |place| place == b) > 0, "{b:?} was never dispatched: {case:?}");
    most
}
