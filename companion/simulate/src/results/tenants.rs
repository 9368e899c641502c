//! The results by tenant.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::input::Band;

use super::percentiles::Percentiles;
use super::{first_token, tokens};
use crate::closed_loop::{Planned, Record, Tenant};

/// The results of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantResults {
    /// The tenant's name.
    pub name: Arc<str>,
    /// Requests that were served.
    pub served: usize,
    /// Requests that were rejected or expired.
    pub refused: usize,
    /// The tenant's part of all served tokens, from 0 to 1.
    pub share: f64,
    /// The tenant's weight.
    pub weight: f64,
    /// From the arrival to the first token, for served requests.
    pub ttft_ms: Percentiles,
}

#[derive(Clone, Debug, Default)]
pub(super) struct TenantTokens {
    /// Of all its requests.
    pub(super) asked: u64,
    /// Of those that were served.
    pub(super) served: u64,
    pub(super) weight: f64,
    pub(super) band: Band,
    refused: usize,
    ttft: Vec<Duration>,
}

#[cfg(test)]
impl TenantTokens {
    pub(super) fn new(asked: u64, served: u64, weight: f64, band: Band) -> Self {
        Self { asked, served, weight, band, ..Self::default() }
    }
}

/// By tenant, in the order of `tenants`.
pub(super) fn count(
    requests: &[Planned],
    tenants: &[Tenant],
    record: &Record,
    weight: impl Fn(&Tenant) -> f64,
) -> Vec<TenantTokens> {
    let index: HashMap<&str, usize> = (0..).zip(tenants).map(|(i, tenant)| (&*tenant.name, i)).collect();
    let mut counts: Vec<TenantTokens> = tenants
        .iter()
        .map(|tenant| TenantTokens { weight: weight(tenant), band: tenant.band, ..TenantTokens::default() })
        .collect();
    for request in requests {
        counts[request.tenant as usize].asked += request.input + request.output;
    }
    for finished in &record.finished {
        let tenant = &mut counts[index[&*finished.kind]];
        tenant.served += tokens(finished);
        tenant.ttft.push(first_token(finished));
    }
    for refused in &record.refused {
        counts[index[&*refused.kind]].refused += 1;
    }
    counts
}

/// The results of tenants that sent requests, the one with the most tokens first.
pub(super) fn results(tenants: &[Tenant], counts: Vec<TenantTokens>) -> Vec<TenantResults> {
    let all: u64 = counts.iter().map(|tenant| tenant.served).sum();
    let mut ordered: Vec<_> = tenants.iter().zip(counts).collect();
    ordered.retain(|(_, counts)| counts.asked > 0);
    // The sort is stable: equal tenants stay in their order.
    ordered.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.asked));
    let results = ordered.into_iter().map(|(tenant, counts)| TenantResults {
        name: tenant.name.clone(),
        served: counts.ttft.len(),
        refused: counts.refused,
        share: counts.served as f64 / all.max(1) as f64,
        weight: counts.weight,
        ttft_ms: Percentiles::of(counts.ttft),
    });
    results.collect()
}
