//! What share of the service each tenant should have had.
//!
//! Weights decide only between those that always had something waiting. Who didn't got all it asked for, so its
//! ideal share is what it had; the backlogged ones divide the rest by weight.

/// A sample of the queue counts as backlog of a tenant when it had something waiting; so much of the time is "kept".
const KEPT: f64 = 0.95;

/// How often a tenant had something waiting, among the looks at the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    looks: u64,
    waiting: u64,
}

impl Backlog {
    pub(super) fn look(&mut self, waiting: bool) {
        self.looks += 1;
        self.waiting += u64::from(waiting);
    }

    /// It had something waiting all the time, as far as was seen; `false` if nobody looked.
    pub(super) fn kept(self) -> bool {
        self.looks > 0 && self.waiting as f64 >= KEPT * self.looks as f64
    }
}

/// One tenant's part in the division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Claim {
    /// Weighted tokens that it got; not negative.
    pub(super) service: f64,
    /// Above 0.
    pub(super) weight: f64,
    /// It kept a backlog.
    pub(super) backlogged: bool,
}

/// Real and ideal share of each, from 0 to 1; `None`: nothing was served at all.
pub(super) fn shares(claims: &[Claim]) -> Option<Vec<(f64, f64)>> {
    let total: f64 = claims.iter().map(|c| c.service).sum();
    if total <= 0.0 {
        return None;
    }
    let backlogged = || claims.iter().filter(|c| c.backlogged);
    let (divided, weights) = backlogged().fold((0.0, 0.0), |(s, w), c| (s + c.service, w + c.weight));
    let share = |c: &Claim| {
        let ideal = if c.backlogged {
            divided * c.weight / weights
        } else {
            c.service
        };
        (c.service / total, ideal / total)
    };
    Some(claims.iter().map(share).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(service: f64, weight: f64, backlogged: bool) -> Claim {
        Claim {
            service,
            weight,
            backlogged,
        }
    }

    #[test]
    fn the_backlogged_divide_what_the_others_left_by_weight() {
        let claims = [
            claim(20.0, 1.0, true),
            claim(70.0, 3.0, true),
            claim(10.0, 1.0, false),
        ];
        let ideal: Vec<f64> = shares(&claims)
            .unwrap()
            .into_iter()
            .map(|(_, ideal)| ideal)
            .collect();
        assert_eq!(ideal, [0.225, 0.675, 0.1]);
    }

    #[test]
    fn nothing_served_has_no_shares() {
        assert_eq!(shares(&[claim(0.0, 1.0, true)]), None);
        assert_eq!(shares(&[]), None);
    }

    #[test]
    fn backlog_is_kept_only_if_it_was_seen() {
        let mut backlog = Backlog::default();
        assert!(!backlog.kept());
        for at in 0..100 {
            backlog.look(at % 20 != 0);
        }
        assert!(backlog.kept());
        backlog.look(false);
        assert!(!backlog.kept());
    }

    proptest! {
        #[test]
        fn real_and_ideal_shares_both_sum_to_one(
            claims in proptest::collection::vec((0.0..1e9_f64, 0.1..100.0_f64, any::<bool>()), 1..8),
        ) {
            let claims: Vec<Claim> = claims.into_iter().map(|(s, w, b)| claim(s, w, b)).collect();
            if let Some(shares) = shares(&claims) {
                let (real, ideal) = shares.iter().fold((0.0, 0.0), |(r, i), s| (r + s.0, i + s.1));
                prop_assert!((real - 1.0).abs() < 1e-9 && (ideal - 1.0).abs() < 1e-9);
            }
        }
    }
}
