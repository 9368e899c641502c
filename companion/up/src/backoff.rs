//! When a child that died is started again: soon the first time, ever later when it keeps dying.

use std::time::Duration;

/// Before the first restart; its start-up fits into the second that is promised.
const FIRST: Duration = Duration::from_millis(20);
/// Before the second in a row; doubles from here.
const SECOND: Duration = Duration::from_secs(2);
/// The longest.
const MOST: Duration = Duration::from_secs(10);
/// A child that ran this long starts with a clean record.
const STEADY: Duration = Duration::from_secs(60);

const _: () = assert!(FIRST.as_millis() < 500 && STEADY.as_secs() > MOST.as_secs());

/// The record of one child.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Deaths in a row, none of them after a steady run.
    deaths: u32,
}

impl Backoff {
    /// It died after having run for `ran`: how long to wait before the next start.
    pub(super) fn died(&mut self, ran: Duration) -> Duration {
        if ran >= STEADY {
            self.deaths = 0;
        }
        self.deaths = self.deaths.saturating_add(1);
        match self.deaths {
            1 => FIRST,
            deaths => SECOND.saturating_mul(1 << (deaths - 2).min(8)).min(MOST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_ten_seconds_and_a_steady_run_forgets_them() {
        let mut record = Backoff::default();
        let at_once = Duration::ZERO;
        let pauses: Vec<u128> = (0..7).map(|_| record.died(at_once).as_millis()).collect();
        assert_eq!(pauses, [20, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]);
        assert_eq!(record.died(STEADY - Duration::from_nanos(1)), MOST);
        assert_eq!(record.died(STEADY), FIRST);
        assert_eq!(record.died(at_once), SECOND);
    }

    #[test]
    fn no_number_of_deaths_overflows() {
        let mut record = Backoff { deaths: u32::MAX - 1 };
        assert_eq!(record.died(Duration::ZERO), MOST);
        assert_eq!(record.died(Duration::ZERO), MOST);
    }
}
