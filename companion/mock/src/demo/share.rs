//! The ideal share of each tenant in the service.
//!
//! Weights apply only between tenants that always have a waiting request. A tenant without a backlog gets everything
//! it requests, so its ideal share is its real share. The backlogged tenants divide the rest by weight.

/// A tenant is backlogged if it had a waiting request in at least this part of the samples.
const BACKLOGGED_MIN: f64 = 0.95;

/// Samples of a tenant's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    samples: u64,
    waiting: u64,
}

impl Backlog {
    pub(super) fn sample(&mut self, waiting: bool) {
        self.samples += 1;
        self.waiting += u64::from(waiting);
    }

    /// The samples since an earlier time.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self { samples: self.samples - earlier.samples, waiting: self.waiting - earlier.waiting }
    }

    /// Whether the tenant was backlogged in nearly all samples; `false` without samples.
    pub(super) fn is_persistent(self) -> bool {
        self.samples > 0 && self.waiting as f64 >= BACKLOGGED_MIN * self.samples as f64
    }
}

/// A tenant's service and its entitlement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TenantService {
    /// Served tokens, weighted; not negative.
    pub(super) service: f64,
    /// Above 0.
    pub(super) weight: f64,
    /// The tenant always had a waiting request.
    pub(super) backlogged: bool,
}

/// Real and ideal share of each tenant, from 0 to 1.
pub(super) type Shares = Vec<(f64, f64)>;

/// The shares; `None` if no tokens were served.
pub(super) fn shares(tenants: &[TenantService]) -> Option<Shares> {
    let total: f64 = tenants.iter().map(|tenant| tenant.service).sum();
    if total <= 0.0 {
        return None;
    }
    let backlogged = || tenants.iter().filter(|tenant| tenant.backlogged);
    let divided: f64 = backlogged().map(|tenant| tenant.service).sum();
    let weights: f64 = backlogged().map(|tenant| tenant.weight).sum();
    let share = |tenant: &TenantService| {
        let ideal = if tenant.backlogged { divided * tenant.weight / weights } else { tenant.service };
        (tenant.service / total, ideal / total)
    };
    Some(tenants.iter().map(share).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(service: f64, weight: f64, backlogged: bool) -> TenantService {
        TenantService { service, weight, backlogged }
    }

    #[test]
    fn backlogged_tenants_divide_the_rest_by_weight() {
        let tenants = [tenant(20.0, 1.0, true), tenant(70.0, 3.0, true), tenant(10.0, 1.0, false)];
        let ideal: Vec<f64> = shares(&tenants).unwrap().into_iter().map(|(_, ideal)| ideal).collect();
        assert_eq!(ideal, [0.225, 0.675, 0.1]);
    }

    #[test]
    fn without_service_there_are_no_shares() {
        assert_eq!(shares(&[tenant(0.0, 1.0, true)]), None);
        assert_eq!(shares(&[]), None);
    }

    #[test]
    fn backlog_is_persistent_from_95_percent_of_the_samples_on() {
        let mut backlog = Backlog::default();
        assert!(!backlog.is_persistent());
        for number in 0..100 {
            backlog.sample(number % 20 != 0);
        }
        assert!(backlog.is_persistent());
        backlog.sample(false);
        assert!(!backlog.is_persistent());
    }

    proptest! {
        #[test]
        fn real_and_ideal_shares_both_sum_to_one(
            tenants in proptest::collection::vec((0.0..1e9_f64, 0.1..100.0_f64, any::<bool>()), 1..8),
        ) {
            let tenants: Vec<TenantService> = tenants.into_iter().map(|(s, w, b)| tenant(s, w, b)).collect();
            if let Some(shares) = shares(&tenants) {
                let (real, ideal) = shares.iter().fold((0.0, 0.0), |(r, i), s| (r + s.0, i + s.1));
                prop_assert!((real - 1.0).abs() < 1e-9 && (ideal - 1.0).abs() < 1e-9);
            }
        }
    }
}
