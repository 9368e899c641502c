//! Learning from a file of windows: the Kalman filter's answer to each.

use std::io::Write;

use penstock_model::bootstrap::DEFAULTS;
use penstock_model::window_estimator::WindowEstimator;
use penstock_model::workload::Observed;

use super::lines::Window;
use super::plot::{Plot, Thinned};
use super::{Answer, Error, Known, Source, Start, Summary, answer};

/// Learns from each window as it is read, and answers it.
pub(super) fn learn(
    source: &mut Source<'_>,
    start: Start,
    plot: Option<&mut Plot>,
    out: &mut impl Write,
) -> Result<Summary, Error> {
    let mut windows = WindowEstimator::new(match start {
        Start::Bootstrap => None,
        Start::Defaults => Some(DEFAULTS),
        Start::Given(parameters) => Some(parameters),
    });
    let mut seen: Option<Thinned<Observed>> = plot.is_some().then(Thinned::default);
    let mut last = None;
    while let Some(window) = source.next(|line| {
        let window = Window::read(line)?;
        match last {
            Some(before) if window.t < before => Err(format!("t: {} lies before {before}", window.t)),
            _ => Ok(window),
        }
    })? {
        last = Some(window.t);
        let outcome = windows.observe(&window.observed);
        answer(
            out,
            &Answer {
                known: known(&windows),
                nis: outcome.and_then(|it| it.nis),
                accepted: outcome.is_some_and(|it| it.accepted),
                condition: windows.condition(),
            },
        )?;
        if let Some(seen) = &mut seen {
            seen.take(window.observed);
        }
        if source.is_drained() {
            out.flush()?;
        }
    }
    if let (Some(plot), Some(seen)) = (plot, seen) {
        draw(plot, &windows, seen);
    }
    let counts = windows.counts();
    Ok(Summary {
        known: known(&windows),
        accepted: counts.accepted,
        rejected: counts.rejected,
        undefined: counts.undefined,
        restarts: counts.restarts,
    })
}

fn known(windows: &WindowEstimator) -> Known {
    Known::new(windows.parameters(), windows.state())
}

/// What was seen, against what is believed at the end.
fn draw(plot: &mut Plot, windows: &WindowEstimator, seen: Thinned<Observed>) {
    let Some(parameters) = windows.parameters() else {
        return;
    };
    for window in seen.kept {
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
