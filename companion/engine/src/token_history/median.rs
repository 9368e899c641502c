//! The median of the last answers. With many flows, most have few answers, so a few values take no memory of their own.

use alloc::boxed::Box;

use crate::limits::OUTPUTS_KEPT;

/// Values that are kept in place.
const FEW: usize = 5;
/// Values of one cache line.
const BLOCK: usize = 16;

const _: () = assert!(OUTPUTS_KEPT.is_multiple_of(BLOCK));

/// The median of the last [`OUTPUTS_KEPT`] values.
#[derive(Debug)]
pub(super) enum Median {
    /// The first `count` of these, in any order.
    Few { count: u8, values: [u32; FEW] },
    /// The median is kept here, because it is read more often than values come, and the window is rarely in a cache.
    Many { median: u32, window: Box<Window> },
}

impl Default for Median {
    fn default() -> Self {
        Self::Few { count: 0, values: [0; FEW] }
    }
}

impl Median {
    pub(super) fn push(&mut self, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        match self {
            Self::Many { median, window } => *median = window.push(value),
            Self::Few { count, values } => match values.get_mut(usize::from(*count)) {
                Some(free) => {
                    *free = value;
                    *count += 1;
                }
                None => {
                    let mut window = Box::new(Window::EMPTY);
                    for &value in &*values {
                        window.push(value);
                    }
                    let median = window.push(value);
                    *self = Self::Many { median, window };
                }
            },
        }
    }

    /// `None`: there is no value yet.
    pub(super) fn value(&self) -> Option<u64> {
        match self {
            Self::Many { median, .. } => Some((*median).into()),
            Self::Few { count: 0, .. } => None,
            Self::Few { count, values } => {
                let mut values = *values;
                let sorted = &mut values[..usize::from(*count)];
                sorted.sort_unstable();
                Some(median_of(sorted).into())
            }
        }
    }
}

/// The median of sorted values, of which there is one at least; of an even number of values the mean of the middle two,
/// rounded down.
const fn median_of(sorted: &[u32]) -> u32 {
    let count = sorted.len();
    sorted[(count - 1) / 2].midpoint(sorted[count / 2])
}

/// The last [`OUTPUTS_KEPT`] values.
#[derive(Debug)]
pub(super) struct Window {
    /// The values, sorted, and `u32::MAX` in the places behind them.
    sorted: [u32; OUTPUTS_KEPT],
    /// The values as they came, from `oldest` around.
    ring: [u32; OUTPUTS_KEPT],
    count: usize,
    oldest: usize,
}

impl Window {
    const EMPTY: Self =
        Self { sorted: [u32::MAX; OUTPUTS_KEPT], ring: [0; OUTPUTS_KEPT], count: 0, oldest: 0 };

    /// Adds a value, and returns the median.
    fn push(&mut self, value: u32) -> u32 {
        let to = count_below(&self.sorted, value);
        if self.count < OUTPUTS_KEPT {
            self.ring[self.count] = value;
            self.sorted.copy_within(to..self.count, to + 1);
            self.sorted[to] = value;
            self.count += 1;
            return median_of(&self.sorted[..self.count]);
        }
        let old = core::mem::replace(&mut self.ring[self.oldest], value);
        self.oldest = (self.oldest + 1) % OUTPUTS_KEPT;
        let from = count_below(&self.sorted, old);
        if from < to {
            self.sorted.copy_within(from + 1..to, from);
            self.sorted[to - 1] = value;
        } else {
            self.sorted.copy_within(to..from, to + 1);
            self.sorted[to] = value;
        }
        median_of(&self.sorted)
    }
}

/// How many of these values, which are sorted, are below `value`. A binary search would wait for one cache line after the
/// other; this one loads all lines at once.
fn count_below(sorted: &[u32; OUTPUTS_KEPT], value: u32) -> usize {
    let (blocks, _) = sorted.as_chunks::<BLOCK>();
    let whole = blocks.iter().filter(|block| block[BLOCK - 1] < value).count();
    let rest =
        blocks.get(whole).map_or(0, |block| block.iter().map(|&other| usize::from(other < value)).sum());
    whole * BLOCK + rest
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn only_the_last_outputs_count() {
        let mut median = Median::default();
        for value in [1_000; OUTPUTS_KEPT].into_iter().chain([5; 65]) {
            median.push(value);
        }
        assert_eq!(median.value(), Some(5));
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
            let (lower, upper) = (kept[(kept.len() - 1) / 2], kept[kept.len() / 2]);
            assert_eq!(median.value(), Some(u64::from(lower + upper) / 2));
            if let Median::Many { window, .. } = &median {
                assert_eq!(kept, window.sorted[..window.count]);
            }
        }
    }

    #[test]
    fn values_below_another_are_counted_in_every_block() {
        let mut sorted = [u32::MAX; OUTPUTS_KEPT];
        for count in 0..=OUTPUTS_KEPT {
            for value in (0..90).chain([u32::MAX]) {
                let below = sorted[..count].iter().filter(|&&other| other < value).count();
                assert_eq!(count_below(&sorted, value), below, "below {value} of {count}");
            }
            if let Some(next) = sorted.get_mut(count) {
                *next = count as u32 / 3 * 2;
            }
        }
    }
}
