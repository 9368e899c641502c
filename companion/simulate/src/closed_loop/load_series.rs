//! How many requests waited and ran over the time of a run.

use std::time::Duration;

use crate::limits::PARTS;

/// The most requests at one time within a part of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that waited.
    pub waiting: usize,
    /// Requests at the servers.
    pub running: usize,
}

/// The load in [`PARTS`] equal parts of a run. What happens after the last part is not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadSeries {
    /// The length of a part; zero: nothing is recorded.
    pub part: Duration,
    /// By part.
    pub parts: Vec<Load>,
    current: Load,
}

impl LoadSeries {
    pub(super) fn new(part: Duration) -> Self {
        Self { part, ..Self::default() }
    }

    /// From this time on, the load is this.
    pub(super) fn record(&mut self, elapsed: Duration, load: Load) {
        if self.part.is_zero() {
            return;
        }
        let index = usize::try_from(elapsed.as_nanos() / self.part.as_nanos()).unwrap_or(usize::MAX);
        // The load before holds up to this moment, also in parts without any event.
        self.fill(index.saturating_add(1));
        if let Some(part) = self.parts.get_mut(index) {
            part.waiting = part.waiting.max(load.waiting);
            part.running = part.running.max(load.running);
        }
        self.current = load;
    }

    /// The run has ended.
    pub(super) fn finish(&mut self) {
        if !self.part.is_zero() {
            self.fill(PARTS);
        }
    }

    fn fill(&mut self, parts: usize) {
        let parts = parts.min(PARTS);
        if self.parts.len() < parts {
            self.parts.resize(parts, self.current);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn load(waiting: usize, running: usize) -> Load {
        Load { waiting, running }
    }

    #[test]
    fn parts_have_the_most_of_their_time_and_parts_without_events_the_load_before() {
        let mut series = LoadSeries::new(Duration::from_secs(10));
        for (secs, waiting, running) in [(1, 2, 1), (2, 0, 3), (35, 0, 0), (36, 1, 1), (100_000, 9, 9)] {
            series.record(Duration::from_secs(secs), load(waiting, running));
        }
        series.finish();
        assert_eq!(series.parts.len(), PARTS);
        let expected = [load(2, 3), load(0, 3), load(0, 3), load(1, 3), load(1, 1)];
        assert_eq!(series.parts[..5], expected);
        assert_eq!(series.parts[PARTS - 1], load(1, 1));
    }
}
