//! The wait before a dead process is restarted: short the first time, longer after repeated deaths.

use std::time::Duration;

/// Wait before the first restart. The process' own start still fits into the promised second.
const FIRST: Duration = Duration::from_millis(20);
/// Wait before the second restart in a row; it doubles with each further restart.
const SECOND: Duration = Duration::from_secs(2);
/// The longest wait.
const MAX: Duration = Duration::from_secs(10);
/// After running this long, a process counts as stable, and earlier deaths are forgotten.
const STABLE: Duration = Duration::from_secs(60);

const _: () = assert!(FIRST.as_millis() < 500 && STABLE.as_secs() > MAX.as_secs());

/// The death count of one process.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Deaths in a row without a stable run in between.
    deaths: u32,
}

impl Backoff {
    /// Records a death after the process ran for `ran`. Returns the wait before the restart.
    pub(super) fn after_death(&mut self, ran: Duration) -> Duration {
        if ran >= STABLE {
            self.deaths = 0;
        }
        self.deaths = self.deaths.saturating_add(1);
        match self.deaths {
            1 => FIRST,
            deaths => SECOND.saturating_mul(1 << (deaths - 2).min(8)).min(MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_ten_seconds_and_a_stable_run_resets_them() {
        let mut backoff = Backoff::default();
        let at_once = Duration::ZERO;
        let waits: Vec<u128> = (0..7).map(|_| backoff.after_death(at_once).as_millis()).collect();
        assert_eq!(waits, [20, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]);
        assert_eq!(backoff.after_death(STABLE - Duration::from_nanos(1)), MAX);
        assert_eq!(backoff.after_death(STABLE), FIRST);
        assert_eq!(backoff.after_death(at_once), SECOND);
    }

    #[test]
    fn no_number_of_deaths_overflows() {
        let mut backoff = Backoff { deaths: u32::MAX - 1 };
        assert_eq!(backoff.after_death(Duration::ZERO), MAX);
        assert_eq!(backoff.after_death(Duration::ZERO), MAX);
    }
}
