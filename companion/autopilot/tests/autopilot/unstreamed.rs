//! Servers whose answers aren't streamed: only their metrics show how long a first token and the next ones take.

use std::time::Duration;

use penstock_autopilot::{DesiredSource, Scraped, Served, Totals};
use penstock_engine::input::EndpointId;
use penstock_model::learner::State;
use penstock_model::slo::Source;
use penstock_model::{Parameters, Targets, Traffic};

use crate::harness::{TRUE, WINDOW, World, known, near, settings};

/// Twice as slow as the servers that were learned before.
const SLOW: Parameters = Parameters { alpha_ms: 2.0 * TRUE.alpha_ms, ..TRUE };

/// A server that counts what it serves, and never streams.
struct Unstreamed {
    world: World,
    totals: Totals,
}

impl Unstreamed {
    fn new(world: World) -> Self {
        Self { world, totals: Totals::default() }
    }

    /// The companion reads the server's metrics.
    fn read(&mut self) {
        let scraped = Scraped { totals: Some(self.totals), ..Scraped::default() };
        self.world.autopilot.scraped(self.world.now, EndpointId(0), Some(scraped));
    }

    /// Requests of this gateway are served inside the window that runs, with these times, which only the server knows.
    fn serve(&mut self, requests: u32, input: u64, output: u64, ttft_ms: f64, itl_ms: f64) {
        let ids: Vec<_> = (0..requests).map(|_| self.world.grant(0, input, output)).collect();
        let seconds = WINDOW / 2;
        self.world.pass(seconds);
        for id in ids {
            let served = Served {
                first: Some(seconds),
                last: Some(seconds),
                prompt: Some(input),
                cached: Some(0),
                output: Some(output),
                ..Served::default()
            };
            self.world.autopilot.served(self.world.now, id, served);
        }
        let decodes = u64::from(requests) * (output - 1);
        self.totals.requests += u64::from(requests);
        self.totals.prompt_tokens += u64::from(requests) * input;
        self.totals.output_tokens += u64::from(requests) * output;
        self.totals.itl_count += decodes;
        self.totals.ttft_s += ttft_ms / 1e3 * f64::from(requests);
        self.totals.itl_s += itl_ms / 1e3 * f64::from(u32::try_from(decodes).expect("small"));
    }

    /// One window of a server with these parameters, at the load number `window` of a cycle of loads.
    fn window_of(&mut self, truth: &Parameters, window: u32) {
        let requests = 4 + window * 7 % 13;
        let input = 500 + u64::from(window * 11 % 7 * 60);
        let traffic = Traffic {
            rate: f64::from(requests) / WINDOW.as_secs_f64(),
            input: f64::from(u32::try_from(input).expect("small")),
            output: 100.0,
        };
        let steady = truth.solve(&traffic).steady.expect("it is stable");
        self.serve(requests, input, 100, steady.ttft_ms, steady.itl_ms);
        self.read();
        self.world.close();
    }

    fn alpha_ms(&self) -> f64 {
        let parameters = self.world.variant("default").parameters;
        parameters.expect("they are known").alpha_ms
    }
}

fn unstreamed() -> Unstreamed {
    let mut settings = settings(&["default"]);
    settings.gates = false;
    Unstreamed::new(World::new(settings))
}

/// [`unstreamed`] after a restart, with the parameters that were stored before.
fn restarted() -> Unstreamed {
    let mut settings = settings(&["default"]);
    settings.gates = false;
    settings.kept = vec![("default".into(), known())];
    Unstreamed::new(World::new(settings))
}

#[test]
fn every_window_shows_the_latencies_of_its_own_time() {
    let mut server = unstreamed();
    server.read();
    for itl_ms in [40.0, 90.0, 200.0, 38.0] {
        server.serve(10, 500, 100, 10.0 * itl_ms, itl_ms);
        server.read();
        server.world.close();
        let slo = server.world.autopilot.status().slo;
        assert_eq!(slo.source, Source::Observed);
        let seen = (slo.targets.ttft_ms.expect("seen"), slo.targets.itl_ms.expect("seen"));
        assert!(
            near(seen.0, 15.0 * itl_ms, 1e-6) && near(seen.1, 1.5 * itl_ms, 1e-6),
            "{itl_ms} ms are seen as {seen:?}"
        );
    }
}

#[test]
fn replicas_follow_latencies_that_change() {
    let mut settings = settings(&["default"]);
    settings.gates = false;
    settings.slo.explicit = Some(Targets { ttft_ms: Some(2_000.0), itl_ms: Some(100.0) });
    let mut server = Unstreamed::new(World::new(settings));
    server.read();
    let desired = [40.0, 90.0, 40.0].map(|itl_ms| {
        server.serve(4, 500, 100, 10.0 * itl_ms, itl_ms);
        server.read();
        server.world.close();
        let desired = server.world.variant("default").desired.expect("a bootstrap");
        assert_eq!(desired.source, DesiredSource::Bootstrap);
        desired.replicas
    });
    assert_eq!(desired, [1, 2, 1]);
}

#[test]
fn the_window_estimator_learns_from_requests_that_are_not_streamed() {
    let mut server = unstreamed();
    server.read();
    for window in 0..40 {
        server.window_of(&TRUE, window);
    }
    let status = server.world.variant("default");
    assert_eq!(status.state, State::Converged, "{status:?}");
    assert!(near(server.alpha_ms(), TRUE.alpha_ms, 0.1), "{status:?}");
    for window in 0..60 {
        server.window_of(&SLOW, window);
    }
    assert!(near(server.alpha_ms(), SLOW.alpha_ms, 0.1), "{}", server.alpha_ms());
}

#[test]
fn a_window_without_a_reading_teaches_nothing() {
    let mut server = unstreamed();
    server.read();
    for window in 0..12 {
        server.window_of(&TRUE, window);
    }
    let before = server.world.variant("default");
    // More requests come, and nothing shows what became of their times.
    for _ in 0..5 {
        server.serve(40, 500, 100, 1.0, 1.0);
        server.world.close();
    }
    let after = server.world.variant("default");
    assert_eq!((after.nis, after.condition), (before.nis, before.condition));
    assert_eq!(after.state, before.state);
}

#[test]
fn totals_that_are_read_seldom_are_averages_over_the_time_between_the_readings() {
    let mut settings = settings(&["seldom", "ours"]);
    settings.kept = ["seldom", "ours"].map(|name| (name.into(), known())).into();
    let mut server = Unstreamed::new(World::new(settings));
    server.read();
    let mut parts = Vec::new();
    for window in 0..9 {
        // Other clients' requests, as many as this gateway sends to the other server.
        server.totals.requests += 10;
        server.totals.prompt_tokens += 5_000;
        server.totals.output_tokens += 1_000;
        server.totals.itl_count += 990;
        server.totals.ttft_s += 0.4;
        server.totals.itl_s += 9.9;
        for _ in 0..10 {
            server.world.round(1, &TRUE, 1, 500, 10);
        }
        if window % 3 == 2 {
            server.read();
        }
        server.world.close();
        let [seldom, ours] = ["seldom", "ours"].map(|name| server.world.variant(name).demand);
        if window % 3 == 2 {
            parts.push(seldom / (seldom + ours));
        }
    }
    // The first reading is at the start of a window, the others are at the end.
    assert!(parts[1..].iter().all(|part| near(*part, 0.5, 0.01)), "{parts:?}");
}

#[test]
fn what_windows_teach_replaces_stored_parameters() {
    let mut server = restarted();
    assert!(near(server.alpha_ms(), TRUE.alpha_ms, 1e-9));
    server.read();
    for window in 0..60 {
        server.window_of(&SLOW, window);
    }
    assert!(near(server.alpha_ms(), SLOW.alpha_ms, 0.1), "{}", server.alpha_ms());
    let stored = server.world.autopilot.take_kept().pop().expect("they are stored");
    assert!(near(stored.1.parameters.alpha_ms, SLOW.alpha_ms, 0.1), "{stored:?}");
}

#[test]
fn one_streamed_answer_does_not_end_the_learning_from_windows() {
    let mut server = unstreamed();
    server.read();
    for window in 0..100 {
        if window == 20 {
            server.world.round(0, &TRUE, 1, 500, 100);
        }
        server.window_of(if window < 40 { &TRUE } else { &SLOW }, window);
    }
    let status = server.world.variant("default");
    assert_eq!(status.state, State::Converged, "{status:?}");
    assert!(near(server.alpha_ms(), SLOW.alpha_ms, 0.1), "{status:?}");
}

#[test]
fn windows_take_over_when_no_answer_is_streamed_any_more() {
    let mut server = unstreamed();
    server.world.traffic(0, &TRUE, 2_000);
    server.world.pass(WINDOW);
    assert_eq!(server.world.variant("default").state, State::Converged);
    assert!(near(server.alpha_ms(), TRUE.alpha_ms, 0.05));
    server.read();
    for window in 0..100 {
        server.window_of(&SLOW, window);
    }
    let status = server.world.variant("default");
    assert_eq!(status.state, State::Converged, "{status:?}");
    assert!(near(server.alpha_ms(), SLOW.alpha_ms, 0.1), "{status:?}");
    // And back.
    server.world.traffic(0, &TRUE, 2_000);
    server.world.pass(Duration::from_secs(1));
    server.world.close();
    assert!(near(server.alpha_ms(), TRUE.alpha_ms, 0.05), "{}", server.alpha_ms());
}
