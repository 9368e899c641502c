//! How far long work is, on stderr: a bar on a terminal, a line every few seconds elsewhere, nothing for short work.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done by then isn't worth a word; between two lines.
const PERIOD: Duration = Duration::from_secs(5);
/// Steps between two looks at the clock.
const STRIDE: u64 = 256;

/// One piece of work.
pub(super) struct Progress {
    what: &'static str,
    /// In the unit of the steps; 0: not known.
    total: u64,
    done: u64,
    steps: u64,
    bar: Option<ProgressBar>,
    started: Instant,
    next: Duration,
}

impl Progress {
    /// Work of a known size, or of 0.
    pub(super) fn new(what: &'static str, total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(
                (total > 0).then_some(total),
                ProgressDrawTarget::stderr_with_hz(5),
            );
            let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta:>4}");
            bar.set_style(style.expect("invariant: the template is one"));
            bar.set_message(what);
            bar
        });
        Self {
            what,
            total,
            done: 0,
            steps: 0,
            bar,
            started: Instant::now(),
            next: PERIOD,
        }
    }

    /// So much more is done.
    pub(super) fn advance(&mut self, by: u64) {
        self.done += by;
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
            Some(percent) => format!("{}: {} %", self.what, percent.min(100)),
            None => format!("{}: {} so far", self.what, self.done),
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
    fn a_line_says_how_far_it_is() {
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
