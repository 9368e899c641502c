//! Analysis of several variants of one model: which variants count for targets, demand and capacity.

use penstock_model::analysis::{Analysis, Error, Variant, analyze};
use penstock_model::slo::{Policy, Source, inferred};
use penstock_model::workload::Observed;
use penstock_model::{Parameters, Targets, Traffic};

const FAST: Parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.000_5 };

const SLOW: Parameters = Parameters { alpha_ms: 16.0, beta_ms: 0.1, gamma_ms: 0.001 };

fn window(rate: f64) -> Observed {
    Observed { traffic: Traffic { rate, input: 512.0, output: 128.0 }, ttft_ms: 60.0, itl_ms: 16.0, busy: 1 }
}

fn variant(name: &str, parameters: Option<Parameters>, rates: &[f64]) -> Variant {
    Variant {
        name: name.to_owned(),
        replicas: rates.len() as u64,
        pending: 0,
        max_batch: Some(256.0),
        parameters,
        sizes_by_bootstrap: false,
        ttft_bias: 1.0,
        windows: rates.iter().map(|rate| window(*rate)).collect(),
    }
}

fn explicit() -> Policy {
    Policy { explicit: Some(Targets { ttft_ms: Some(500.0), itl_ms: Some(50.0) }), ..Policy::default() }
}

fn required(analysis: &Analysis) -> Vec<Option<u64>> {
    analysis.variants.iter().map(|variant| variant.required).collect()
}

#[track_caller]
fn assert_close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{got}, not {expected}");
}

#[test]
fn offered_load_is_divided_in_proportion_to_served_load() {
    let variants = [variant("fast", Some(FAST), &[4.0, 5.0]), variant("slow", Some(SLOW), &[3.0])];
    let analysis = analyze(&explicit(), Some(48.0), &variants);
    assert_eq!(analysis.slo.source, Source::Explicit);
    let [fast, slow] = &analysis.variants[..] else { panic!("two") };
    assert_close(fast.lambda_star, 12.131_395_01);
    assert_close(fast.capacity, 2.0 * fast.lambda_star);
    assert_close(fast.demand, 36.0);
    assert_close(fast.utilization, 36.0 / fast.capacity);
    assert_close(slow.demand, 12.0);
    assert_eq!(fast.required, Some(3));
    assert_eq!(slow.required, Some((12.0 / slow.lambda_star).ceil() as u64));

    let served = analyze(&explicit(), None, &variants);
    assert_close(served.variants[0].demand, 9.0);
    assert_eq!(served.variants[0].required, Some(1));
}

#[test]
fn offered_load_above_served_load_requires_more_replicas() {
    let variants = [variant("only", Some(FAST), &[3.0])];
    let policy = explicit();
    let lambda_star = analyze(&policy, None, &variants).variants[0].lambda_star;
    let analysis = analyze(&policy, Some(4.0 * lambda_star), &variants);
    assert_eq!(required(&analysis), [Some(4)]);
}

#[test]
fn zero_offered_load_gives_no_required_replicas() {
    let analysis = analyze(&explicit(), Some(0.0), &[variant("only", Some(FAST), &[3.0])]);
    assert_eq!(required(&analysis), [None]);
    assert_close(analysis.variants[0].utilization, 0.0);
    assert_eq!(analysis.variants[0].error, None);
}

#[test]
fn a_variant_that_cannot_be_analysed_has_zeros_and_an_error() {
    let variants = [
        variant("good", Some(FAST), &[5.0]),
        variant("unlearned", None, &[5.0]),
        variant("idle", Some(FAST), &[0.0, 0.0]),
        variant("unseen", Some(FAST), &[]),
        variant("broken", Some(Parameters { alpha_ms: f64::NAN, ..FAST }), &[5.0]),
    ];
    let analysis = analyze(&explicit(), Some(30.0), &variants);
    let errors: Vec<_> = analysis.variants.iter().map(|variant| variant.error).collect();
    assert_eq!(
        errors,
        [
            None,
            Some(Error::NoParameters),
            Some(Error::NoTraffic),
            Some(Error::NoMetrics),
            Some(Error::NoParameters),
        ]
    );
    for variant in &analysis.variants[1..] {
        assert_eq!(
            (variant.lambda_star, variant.capacity, variant.demand, variant.utilization),
            (0.0, 0.0, 0.0, 0.0)
        );
        assert_eq!((variant.n_star, variant.required), (None, None));
    }
    assert_close(analysis.variants[0].demand, 10.0);
}

#[test]
fn without_an_analysable_variant_there_are_no_required_replicas() {
    let unlearned = analyze(&explicit(), Some(30.0), &[variant("a", None, &[5.0])]);
    assert_eq!(required(&unlearned), [None]);
    let nothing = analyze(&Policy::default(), None, &[]);
    assert_eq!(nothing.slo.source, Source::None);
    assert_eq!(nothing.slo.targets, Targets::default());
}

#[test]
fn targets_that_cannot_be_met_are_infeasible() {
    let policy =
        Policy { explicit: Some(Targets { ttft_ms: Some(30.0), itl_ms: Some(50.0) }), ..Policy::default() };
    let analysis = analyze(&policy, None, &[variant("a", Some(FAST), &[5.0])]);
    let variant = &analysis.variants[0];
    assert_eq!(variant.error, Some(Error::Infeasible));
    assert_eq!((variant.n_star, variant.lambda_star, variant.required), (Some(0.0), 0.0, None));
}

#[test]
fn an_error_of_bootstrap_parameters_is_marked_as_theirs() {
    let policy =
        Policy { explicit: Some(Targets { ttft_ms: Some(0.1), itl_ms: Some(0.1) }), ..Policy::default() };
    let unlearned =
        Variant { sizes_by_bootstrap: true, windows: vec![EXPLAINED], ..variant("a", None, &[5.0]) };
    let analysis = analyze(&policy, None, &[unlearned, variant("b", Some(FAST), &[5.0])]);
    let errors = analysis.variants.iter();
    let errors: Vec<_> = errors.map(|variant| (variant.error, variant.is_bootstrapped)).collect();
    let infeasible = Some(Error::Infeasible);
    assert_eq!(errors, [(infeasible, true), (infeasible, false)]);
}

#[test]
fn inferred_targets_are_the_largest_of_the_learned_variants() {
    let traffic = window(0.0).traffic;
    let slow = inferred(&SLOW, &traffic, 3.0);
    let policy = Policy::default();
    for idle in [0.0, 5.0] {
        let variants = [
            variant("fast", Some(FAST), &[5.0]),
            variant("slow", Some(SLOW), &[idle]),
            variant("unlearned", None, &[1.0]),
        ];
        let analysis = analyze(&policy, None, &variants);
        assert_eq!(analysis.slo.source, Source::Model);
        assert_eq!(analysis.slo.targets, slow, "an idle variant counts, so that targets don't jump");
    }
    let alone = analyze(&policy, None, &[variant("fast", Some(FAST), &[5.0])]);
    assert_close(alone.variants[0].lambda_star, 9.640_598_488);
}

#[test]
fn every_variant_is_feasible_within_inferred_targets() {
    let long = Observed { traffic: Traffic { rate: 1.0, input: 8_000.0, output: 150.0 }, ..window(1.0) };
    let mut variants = [variant("chat", Some(FAST), &[9.0]), variant("long", Some(FAST), &[])];
    variants[1].windows.push(long);
    variants[1].replicas = 1;
    for bias in [1.0, 1.6, 0.9, 0.0] {
        variants[1].ttft_bias = bias;
        let analysis = analyze(&Policy::default(), None, &variants);
        assert!(analysis.variants.iter().all(|variant| variant.error.is_none()), "bias {bias}");
        let n_star = analysis.variants[1].n_star.expect("limited");
        assert_close(n_star, 2.0 * 8.0 / FAST.delta_ms(&long.traffic));
    }
}

#[test]
fn without_parameters_targets_come_from_measured_latencies() {
    let analysis = analyze(&Policy::default(), None, &[variant("a", None, &[5.0, 5.0])]);
    assert_eq!(analysis.slo.source, Source::Observed);
    assert_eq!(analysis.slo.targets, Targets { ttft_ms: Some(90.0), itl_ms: Some(24.0) });
    assert_eq!(analysis.variants[0].error, Some(Error::NoParameters));
    let without_ttft = Observed { ttft_ms: 0.0, ..window(5.0) };
    let without_latency = Variant { windows: vec![without_ttft], ..variant("a", None, &[]) };
    assert_eq!(analyze(&Policy::default(), None, &[without_latency]).slo.source, Source::None);
}

/// A window that parameters explain.
const EXPLAINED: Observed = Observed {
    traffic: Traffic { rate: 0.1, input: 1_123.0, output: 487.0 },
    ttft_ms: 80.48,
    itl_ms: 15.911,
    busy: 1,
};

#[test]
fn bootstrap_is_reported_with_and_without_learned_parameters() {
    for parameters in [None, Some(FAST)] {
        let variants = [Variant { windows: vec![EXPLAINED], ..variant("a", parameters, &[]) }];
        let found = analyze(&explicit(), None, &variants).variants[0].bootstrap;
        assert_close(found.expect("the window has a bootstrap").alpha_ms, 14.319_9);
    }
}

#[test]
fn without_replicas_capacity_is_zero_and_one_is_required() {
    let starting = Variant { replicas: 0, pending: 2, ..variant("a", Some(FAST), &[5.0]) };
    let variant = &analyze(&explicit(), None, &[starting]).variants[0];
    assert_eq!((variant.capacity, variant.utilization, variant.required), (0.0, 0.0, Some(1)));
}
