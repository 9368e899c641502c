use super::*;
use crate::Hardware;
use crate::closed_loop::flight::parameters;
use penstock_model::Targets;
use penstock_model::slo::Policy as SloPolicy;

fn servers(count: usize, request_noise: f64) -> Vec<ServerSetting> {
    let server = ServerSetting {
        variant: "default",
        hardware: Hardware::default(),
        request_noise,
    };
    vec![server; count]
}

fn mean(of: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = of.fold((0.0, 0.0), |(sum, count), it| (sum + it, count + 1.0));
    sum / count
}

#[test]
fn a_full_server_takes_the_time_that_the_closed_form_says() {
    let arrivals = Arrivals::steady(Mix::chat(), 20.0);
    for noise in [0.0, 0.1] {
        let setting = Setting::new(
            servers(1, noise),
            GateBy::Watermark(30.0),
            arrivals.clone(),
            3_000,
        );
        let record = fly(&setting).unwrap();
        let itl = mean(record.finished.iter().map(Finished::itl_ms));
        let predicted = parameters(&Hardware::default()).iteration_ms(&Mix::chat().mean(), 30.0);
        assert!(
            (itl / predicted - 1.0).abs() < 0.02,
            "{itl} ms, not {predicted} at {noise}"
        );
    }
}

#[test]
fn every_request_that_came_is_accounted_for() {
    let arrivals = Arrivals::steady(Mix::mixed(), 20.0);
    let setting = Setting::new(servers(2, 0.05), GateBy::Watermark(9.0), arrivals, 2_000);
    let record = fly(&setting).unwrap();
    let last = record.samples.last().unwrap();
    assert_eq!(record.served, record.finished.len());
    assert!(record.refused > 0 && last.in_flight.iter().all(|n| *n <= 9));
    let under_way = record.arrived - record.served - record.refused;
    assert!(under_way >= last.in_flight.iter().sum::<usize>() && under_way < 2_000);
}

#[test]
fn the_same_seed_flies_the_same() {
    let setting = Setting::new(
        servers(2, 0.1),
        GateBy::Learned,
        Arrivals::steady(Mix::chat(), 20.0),
        1_000,
    );
    let (one, other) = (fly(&setting).unwrap(), fly(&setting).unwrap());
    assert_eq!(one.finished, other.finished);
}

#[test]
fn requests_have_a_pace_of_their_own() {
    let arrivals = Arrivals::Closed {
        clients: 8,
        mix: Mix::chat().uniform(),
    };
    let spread = |noise| {
        let setting = Setting::new(servers(1, noise), GateBy::Nobody, arrivals.clone(), 2_000);
        let record = fly(&setting).unwrap();
        let of = mean(record.finished.iter().map(Finished::itl_ms));
        let square = mean(record.finished.iter().map(|it| (it.itl_ms() / of - 1.0).powi(2)));
        (of, square.sqrt())
    };
    let predicted = parameters(&Hardware::default()).iteration_ms(&Mix::chat().mean(), 8.0);
    for sigma in [0.05, 0.1] {
        let (of, seen) = spread(sigma);
        assert!((seen / sigma - 1.0).abs() < 0.1, "{seen}, not {sigma}");
        assert!((of / predicted - 1.0).abs() < 0.03, "{of}, not {predicted}");
    }
}
