//! When an endpoint that is kept away is probed, in words.

use penstock_engine::Instant;

/// `until`: when its pause ends.
pub(crate) fn next_probe(until: Instant, now: Instant) -> String {
    let left = until.since(now);
    if left.is_zero() {
        // Where clients see its failures, it also waits for answers of the others.
        return "the next probe comes after a few more answers of the pool".into();
    }
    format!("next probe in {:.1}s", left.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn a_probe_that_is_due_waits_for_answers() {
        let now = Instant::ZERO.after(Duration::from_secs(9));
        assert_eq!(next_probe(now.after(Duration::from_millis(1_500)), now), "next probe in 1.5s");
        assert_eq!(next_probe(now, now), "the next probe comes after a few more answers of the pool");
    }
}
