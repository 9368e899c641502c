//! Hellos whose requests a companion must order exactly, because one difference of clocks compares them.

use penstock_engine::Instant;

use crate::time::{MICRO, MILLI, Nanos, SECOND};

/// Hellos within this time of the first one are surely compared by one difference of clocks.
const COMPARED: Nanos = 9 * SECOND;
/// After this time without a Hello a companion remembers no difference of clocks.
const FORGOTTEN: Nanos = 11 * SECOND;
/// Hellos whose differences of clocks are within this of the first one are surely taken to be of one host.
const SURELY_ONE_HOST: i64 = (40 * MILLI / MICRO).cast_signed();

/// The Hellos that a companion's process receives, in groups whose requests it must order exactly.
#[derive(Debug, Default)]
pub(crate) struct HelloGroups {
    /// The number of the present group.
    number: u64,
    /// When the group's first Hello came, and the difference between the clocks then, in microseconds.
    first: Option<(Instant, i64)>,
    last: Option<Instant>,
    /// A Hello took so much longer than the first one that it may be taken for another host's.
    is_mixed: bool,
}

impl HelloGroups {
    /// The group of a Hello that comes now; `None`: the order of its requests among those of others isn't exact.
    pub(crate) fn group(&mut self, now: Instant, clock_us: u64) -> Option<u64> {
        let nanos = |duration: core::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX);
        let difference = (now.as_nanos() / MICRO).cast_signed() - clock_us.cast_signed();
        let is_first = self.last.is_none_or(|last| nanos(now.since(last)) > FORGOTTEN);
        if is_first {
            *self = Self { number: self.number + 1, first: Some((now, difference)), ..Self::default() };
        }
        self.last = Some(now);
        let (begun, first) = self.first?;
        self.is_mixed |= (difference - first).abs() > SURELY_ONE_HOST;
        (!self.is_mixed && nanos(now.since(begun)) <= COMPARED).then_some(self.number)
    }
}
