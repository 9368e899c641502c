//! Progress of long work on stderr: a bar on a terminal, otherwise a line every few seconds. Short work shows nothing.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time until the first line, and between two lines.
const PERIOD: Duration = Duration::from_secs(5);
/// Steps between two checks of the time.
const STRIDE: u64 = 256;

pub(crate) struct Progress {
    label: &'static str,
    /// In the unit of the steps; 0 if unknown.
    total: u64,
    done: u64,
    steps: u64,
    bar: Option<ProgressBar>,
    started: Instant,
    next: Duration,
}

impl Progress {
    /// A task of this size; 0 if unknown.
    pub(crate) fn new(label: &'static str, total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(
                (total > 0).then_some(total),
                ProgressDrawTarget::stderr_with_hz(5),
            );
            let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta:>4}");
            bar.set_style(style.expect("invariant: the template is valid"));
            bar.set_message(label);
            bar
        });
        Self { label, total, done: 0, steps: 0, bar, started: Instant::now(), next: PERIOD }
    }

    /// Records a step of this size.
    pub(crate) fn advance(&mut self, amount: u64) {
        self.done += amount;
        self.steps += 1;
        if !self.steps.is_multiple_of(STRIDE) {
            return;
        }
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.started.elapsed() >= self.next => {
                self.next = self.started.elapsed() + PERIOD;
                eprintln!("{}", self.line());
            }
            None => {}
        }
    }

    fn line(&self) -> String {
        match (self.done * 100).checked_div(self.total) {
            Some(percent) => format!("{}: {} %", self.label, percent.min(100)),
            None => format!("{}: {} so far", self.label, self.done),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_the_percentage_or_the_amount() {
        let mut progress = Progress::new("reading", 400);
        progress.advance(100);
        assert_eq!(progress.line(), "reading: 25 %");
        progress.advance(500);
        assert_eq!(progress.line(), "reading: 100 %");
        let mut progress = Progress::new("reading", 0);
        progress.advance(7);
        assert_eq!(progress.line(), "reading: 7 so far");
    }
}
