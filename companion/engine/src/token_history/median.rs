//! The median of the last answers. With many flows, most have few answers, so a few values take no memory of their own.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::OUTPUTS_KEPT;

/// Values that are kept in place.
const FEW: usize = 5;

/// The median of the last [`OUTPUTS_KEPT`] values.
#[derive(Debug)]
pub(super) enum Median {
    /// The first `count` of these, in any order.
    Few {
        count: u8,
        values: [u32; FEW],
    },
    Many(Box<Window>),
}

impl Default for Median {
    fn default() -> Self {
        Self::Few {
            count: 0,
            values: [0; FEW],
        }
    }
}

impl Median {
    pub(super) fn push(&mut self, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        match self {
            Self::Many(window) => window.push(value),
            Self::Few { count, values } => match values.get_mut(usize::from(*count)) {
                Some(free) => {
                    *free = value;
                    *count += 1;
                }
                None => {
                    let mut window = Window::default();
                    for &value in &*values {
                        window.push(value);
                    }
                    window.push(value);
                    *self = Self::Many(Box::new(window));
                }
            },
        }
    }

    pub(super) fn value(&self) -> Option<u64> {
        match self {
            Self::Many(window) => median_of(&window.sorted),
            Self::Few { count, values } => {
                let mut values = *values;
                let sorted = &mut values[..usize::from(*count)];
                sorted.sort_unstable();
                median_of(sorted)
            }
        }
    }
}

/// The median of sorted values; of an even number of values the mean of the middle two, rounded down.
fn median_of(sorted: &[u32]) -> Option<u64> {
    let count = sorted.len();
    let upper = u64::from(*sorted.get(count / 2)?);
    let lower = u64::from(sorted[(count - 1) / 2]);
    Some((lower + upper) / 2)
}

/// The last [`OUTPUTS_KEPT`] values: a ring, and the same values sorted.
#[derive(Debug, Default)]
pub(super) struct Window {
    ring: Vec<u32>,
    oldest: usize,
    sorted: Vec<u32>,
}

impl Window {
    fn push(&mut self, value: u32) {
        let below = |sorted: &[u32], value| sorted.partition_point(|&other| other < value);
        let to = below(&self.sorted, value);
        if self.ring.len() < OUTPUTS_KEPT {
            self.ring.push(value);
            self.sorted.insert(to, value);
            return;
        }
        let old = core::mem::replace(&mut self.ring[self.oldest], value);
        self.oldest = (self.oldest + 1) % OUTPUTS_KEPT;
        let from = below(&self.sorted, old);
        if from < to {
            self.sorted.copy_within(from + 1..to, from);
            self.sorted[to - 1] = value;
        } else {
            self.sorted.copy_within(to..from, to + 1);
            self.sorted[to] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_outputs_count() {
        let mut median = Median::default();
        for value in [1_000; OUTPUTS_KEPT].into_iter().chain([5; 65]) {
            median.push(value);
        }
        assert_eq!(median.value(), Some(5));
        let Median::Many(window) = median else {
            panic!("more than {FEW} values");
        };
        assert_eq!(
            (window.ring.len(), window.sorted.len()),
            (OUTPUTS_KEPT, OUTPUTS_KEPT)
        );
    }

    #[test]
    fn a_median_is_that_of_the_kept_values() {
        let mut median = Median::default();
        let mut values = Vec::new();
        let mut random = 1_u32;
        for _ in 0..1_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            values.push(random >> 26);
            median.push(u64::from(random >> 26));
            let mut kept = values[values.len().saturating_sub(OUTPUTS_KEPT)..].to_vec();
            kept.sort_unstable();
            assert_eq!(median.value(), median_of(&kept));
            if let Median::Many(window) = &median {
                assert_eq!(kept, window.sorted);
            }
        }
    }
}
