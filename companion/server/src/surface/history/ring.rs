//! The samples, oldest first, within a number and a memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::limits::{BYTES_MAX, SAMPLES_MAX};
use super::sample::Sample;

/// The kept samples. They are numbered from 1.
#[derive(Debug, Default)]
pub(super) struct Ring {
    samples: VecDeque<Arc<Sample>>,
    bytes: usize,
    /// The number of the last sample; 0: there is none.
    last: u64,
    /// The time of the last sample.
    pushed: Option<Instant>,
}

impl Ring {
    /// Appends a sample, and drops the oldest ones beyond the limits.
    pub(super) fn push(&mut self, sample: Sample) {
        self.last += 1;
        self.pushed = Some(Instant::now());
        self.bytes += sample.bytes();
        self.samples.push_back(Arc::new(sample));
        while self.samples.len() > SAMPLES_MAX || (self.bytes > BYTES_MAX && self.samples.len() > 1) {
            if let Some(oldest) = self.samples.pop_front() {
                self.bytes -= oldest.bytes();
            }
        }
    }

    /// The samples with a number above `after`, oldest first, with their numbers.
    pub(super) fn after(&self, after: u64) -> Vec<(u64, Arc<Sample>)> {
        let first = self.last + 1 - self.samples.len() as u64;
        let numbered = (first..).zip(&self.samples);
        let newer = numbered.filter(|(number, _)| *number > after);
        newer.map(|(number, sample)| (number, sample.clone())).collect()
    }

    /// The number of the last sample; 0: there is none.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// The age of the last sample; `None`: there is none.
    pub(super) fn age(&self) -> Option<Duration> {
        self.pushed.map(|pushed| pushed.elapsed())
    }

    /// The memory of the samples.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}
