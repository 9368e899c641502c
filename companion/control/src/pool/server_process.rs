//! The process of a model server, by its metrics: a restarted one begins with empty caches.

use penstock_autopilot::{Scraped, Totals};

/// Clocks that step change the start of a process that goes on, as some servers report it, by less.
const STARTED_APART_S: f64 = 1.0;

/// The server's process as the last metrics described it. This outlives metrics that can't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ServerProcess {
    started_s: Option<f64>,
    totals: Option<Totals>,
}

impl ServerProcess {
    /// Takes new metrics. Returns whether another process reports them than the last ones: it started at another time, or its totals are
    /// lower.
    pub(super) fn has_restarted(&mut self, scraped: &Scraped) -> bool {
        let has_other_start = self
            .started_s
            .zip(scraped.started_s)
            .is_some_and(|(before, now)| (before - now).abs() > STARTED_APART_S);
        let has_lower_totals = self.totals.zip(scraped.totals).is_some_and(|(before, now)| {
            now.requests < before.requests
                || now.prompt_tokens < before.prompt_tokens
                || now.output_tokens < before.output_tokens
        });
        self.started_s = scraped.started_s.or(self.started_s);
        self.totals = scraped.totals.or(self.totals);
        has_other_start || has_lower_totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(started_s: Option<f64>, totals: Option<(u64, u64, u64)>) -> Scraped {
        let totals = totals.map(|(requests, prompt_tokens, output_tokens)| Totals {
            requests,
            prompt_tokens,
            output_tokens,
            ..Totals::default()
        });
        Scraped { started_s, totals, ..Scraped::default() }
    }

    #[test]
    fn another_start_or_lower_totals_are_another_process() {
        let started = Some(1_732_056_100.25);
        let mut process = ServerProcess::default();
        let pages = [
            (page(started, Some((5, 100, 50))), false, "the first page"),
            (page(started, Some((5, 100, 50))), false, "nothing has happened"),
            (page(started.map(|seconds| seconds + 0.5), Some((6, 120, 90))), false, "a clock that steps"),
            (page(None, None), false, "values that are missing"),
            (page(started, Some((6, 120, 0))), true, "a total has fallen"),
            (page(started, Some((7, 120, 9))), false, "it goes on from there"),
            (
                page(Some(1_732_060_000.0), Some((9, 200, 90))),
                true,
                "it was restarted, and has served more since",
            ),
            (page(None, Some((9, 200, 90))), false, "it no longer says when it started"),
            (page(None, Some((0, 0, 0))), true, "a restarted server that is idle"),
        ];
        for (scraped, expected, case) in pages {
            assert_eq!(process.has_restarted(&scraped), expected, "{case}");
        }
    }
}
