//! The observations that a fit rests on: the newest ones of every load level, so that a long time at one load doesn't
//! displace observations of another, and no expired ones.

use std::collections::VecDeque;

use crate::limits::{AGE_MAX, AGE_MS_MAX, BUCKET, BUCKETS};
use crate::observation::Decode;

/// One observation with its weight and age.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Mean time between tokens, and the load.
    pub decode: Decode,
    /// Number of gaps between tokens that the mean is taken over; above 0.
    pub gaps: f64,
    /// Position in the order of observation.
    pub number: u64,
    /// Time of the observation.
    pub at_ms: f64,
}

/// The newest [`BUCKET`] observations of each quarter octave of C, none older than [`AGE_MAX`] observations unless they
/// took less than [`AGE_MS_MAX`].
#[derive(Clone, Debug)]
pub struct Reservoir {
    buckets: Vec<VecDeque<Sample>>,
    /// Observations accepted so far.
    accepted: u64,
}

impl Default for Reservoir {
    fn default() -> Self {
        Self { buckets: vec![VecDeque::new(); BUCKETS], accepted: 0 }
    }
}

impl Reservoir {
    /// Adds an observation in constant time and returns its number. `load` selects the bucket. Returns `None`,
    /// without adding it, unless all its values are finite and above 0.
    pub fn insert(&mut self, at_ms: f64, decode: Decode, gaps: f64, load: f64) -> Option<u64> {
        let is_valid = |value: f64| value.is_finite() && value > 0.0 && value < 1e12;
        if ![decode.itl_ms, decode.batch, decode.resident, gaps].into_iter().all(is_valid) {
            return None;
        }
        let bucket = self.buckets.get_mut(quarter_octave(load))?;
        while bucket.len() >= BUCKET {
            bucket.pop_front();
        }
        let number = self.accepted;
        bucket.push_back(Sample { decode, gaps, number, at_ms });
        self.accepted += 1;
        Some(number)
    }

    /// Discards all observations before observation `number`.
    pub fn discard_before(&mut self, number: u64) {
        for bucket in &mut self.buckets {
            while bucket.front().is_some_and(|sample| sample.number < number) {
                bucket.pop_front();
            }
        }
    }

    /// All observations that haven't expired at `now_ms`.
    pub fn samples(&mut self, now_ms: f64) -> Vec<Sample> {
        let (oldest_number, oldest_ms) = (self.accepted.saturating_sub(AGE_MAX), now_ms - AGE_MS_MAX);
        let is_expired = |sample: &Sample| sample.number < oldest_number && sample.at_ms < oldest_ms;
        for bucket in &mut self.buckets {
            while bucket.front().is_some_and(is_expired) {
                bucket.pop_front();
            }
        }
        self.buckets.iter().flatten().copied().collect()
    }

    /// Observations accepted so far.
    #[must_use]
    pub const fn accepted(&self) -> u64 {
        self.accepted
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=BUCKETS - 1")]
fn quarter_octave(batch: f64) -> usize {
    (4.0 * batch.log2()).clamp(0.0, BUCKETS as f64 - 1.0) as usize
}
