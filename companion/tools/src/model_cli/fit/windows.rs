//! Learning from a file of windows with the Kalman filter.

use std::io::Write;

use penstock_model::bootstrap::DEFAULTS;
use penstock_model::window_estimator::WindowEstimator;
use penstock_model::workload::Observed;

use super::lines::Window;
use super::plot::{Plot, Thinned};
use super::{Answer, Error, Learned, Source, Start, Summary, print};

/// Learns from each window when it is read, and prints the result.
pub(super) fn learn(
    source: &mut Source<'_>,
    start: Start,
    plot: Option<&mut Plot>,
    out: &mut impl Write,
) -> Result<Summary, Error> {
    let mut estimator = WindowEstimator::new(match start {
        Start::Bootstrap => None,
        Start::Defaults => Some(DEFAULTS),
        Start::Given(parameters) => Some(parameters),
    });
    let mut observed: Option<Thinned<Observed>> = plot.is_some().then(Thinned::default);
    let mut last = None;
    while let Some(window) = source.next(|line| {
        let window = Window::parse(line)?;
        match last {
            Some(before) if window.t < before => Err(format!("t: {} is before {before}", window.t)),
            _ => Ok(window),
        }
    })? {
        last = Some(window.t);
        let outcome = estimator.observe(&window.observed);
        print(
            out,
            &Answer {
                learned: learned(&estimator),
                nis: outcome.and_then(|outcome| outcome.nis),
                accepted: outcome.is_some_and(|outcome| outcome.accepted),
                condition: estimator.condition(),
            },
        )?;
        if let Some(observed) = &mut observed {
            observed.push(window.observed);
        }
        if source.is_drained() {
            out.flush()?;
        }
    }
    if let (Some(plot), Some(observed)) = (plot, observed) {
        draw(plot, &estimator, observed);
    }
    let counts = estimator.counts();
    Ok(Summary {
        learned: learned(&estimator),
        accepted: counts.accepted,
        rejected: counts.rejected,
        undefined: counts.undefined,
        restarts: counts.restarts,
    })
}

fn learned(estimator: &WindowEstimator) -> Learned {
    Learned::new(estimator.parameters(), estimator.state())
}

/// Adds the observed values and those of the final parameters to the plot.
fn draw(plot: &mut Plot, estimator: &WindowEstimator, observed: Thinned<Observed>) {
    let Some(parameters) = estimator.parameters() else {
        return;
    };
    for window in observed.kept {
        let Some(steady) = parameters.solve(&window.traffic).steady else {
            continue;
        };
        if window.itl_ms > 0.0 {
            plot.itl(window.itl_ms, steady.itl_ms);
        }
        if window.ttft_ms > 0.0 {
            plot.ttft(window.ttft_ms, steady.ttft_ms);
        }
    }
}
