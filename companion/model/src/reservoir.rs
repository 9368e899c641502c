//! The observations that a fit rests on: the newest ones of every load, so that a long time at one load doesn't
//! forget the others, and none that is too old.

use std::collections::VecDeque;

use crate::ledger::Decode;
use crate::limits::{AGE_MAX, AGE_MS_MAX, BUCKET, BUCKETS};

/// One observation, and what tells how much it says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Mean time between tokens, and the load.
    pub decode: Decode,
    /// Times between tokens that it is the mean of; above 0.
    pub gaps: f64,
    /// Its number, by order of observation.
    pub number: u64,
    /// When it was made.
    pub at_ms: f64,
}

/// The newest [`BUCKET`] observations of each quarter octave of C, none older than [`AGE_MAX`] observations unless they
/// took less than [`AGE_MS_MAX`].
#[derive(Clone, Debug)]
pub struct Reservoir {
    buckets: Vec<VecDeque<Sample>>,
    /// Observations ever taken.
    taken: u64,
}

impl Default for Reservoir {
    fn default() -> Self {
        Self {
            buckets: vec![VecDeque::new(); BUCKETS],
            taken: 0,
        }
    }
}

impl Reservoir {
    /// Takes one in, in constant time. One that isn't made of finite numbers above 0 isn't taken: `None`; else its number.
    pub fn take(&mut self, at_ms: f64, decode: Decode, gaps: f64, load: f64) -> Option<u64> {
        let sound = |value: f64| value.is_finite() && value > 0.0 && value < 1e12;
        if ![decode.itl_ms, decode.batch, decode.resident, gaps]
            .into_iter()
            .all(sound)
        {
            return None;
        }
        let bucket = self.buckets.get_mut(quarter_octave(load))?;
        while bucket.len() >= BUCKET {
            bucket.pop_front();
        }
        let number = self.taken;
        bucket.push_back(Sample {
            decode,
            gaps,
            number,
            at_ms,
        });
        self.taken += 1;
        Some(number)
    }

    /// Forgets all before that number.
    pub fn forget_before(&mut self, number: u64) {
        for bucket in &mut self.buckets {
            while bucket.front().is_some_and(|sample| sample.number < number) {
                bucket.pop_front();
            }
        }
    }

    /// All that is kept at `now_ms`, after the ones that are too old are forgotten.
    pub fn samples(&mut self, now_ms: f64) -> Vec<Sample> {
        let (number, at_ms) = (self.taken.saturating_sub(AGE_MAX), now_ms - AGE_MS_MAX);
        for bucket in &mut self.buckets {
            while (bucket.front()).is_some_and(|it| it.number < number && it.at_ms < at_ms) {
                bucket.pop_front();
            }
        }
        self.buckets.iter().flatten().copied().collect()
    }

    /// Observations ever taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to BUCKETS - 1 by then"
)]
fn quarter_octave(batch: f64) -> usize {
    (4.0 * batch.log2()).clamp(0.0, BUCKETS as f64 - 1.0) as usize
}
