//! How near the tenants' service is to their max-min fair parts.
//!
//! A tenant that asks for less than its weighted part gets all it asks for; the others share the rest by weight. A policy that serves each
//! tenant exactly this much of the tokens that it serves in total has an index of 1. Without the comparison with what a tenant asked for, a small
//! tenant that is served completely would count as unfairness. Between bands the policy decides, so tenants are compared with those of
//! their own band.

use std::collections::BTreeSet;

use penstock_engine::input::Band;

use super::tenants::TenantTokens;

/// Served tokens over the max-min fair part, by tenant. Tenants that asked for nothing, and those of a band that was served
/// nothing, are left out.
pub(super) fn parts(tenants: &[TenantTokens]) -> Vec<f64> {
    let bands: BTreeSet<Band> = tenants.iter().map(|tenant| tenant.band).collect();
    let of_band = |band| tenants.iter().filter(move |tenant| tenant.band == band);
    bands.into_iter().flat_map(|band| parts_of(&of_band(band).collect::<Vec<_>>())).collect()
}

/// Served tokens over the max-min fair part, of tenants of one band.
fn parts_of(tenants: &[&TenantTokens]) -> Vec<f64> {
    let total = tenants.iter().map(|tenant| tenant.served).sum::<u64>() as f64;
    let demands: Vec<(f64, f64)> =
        tenants.iter().map(|tenant| (tenant.asked as f64, tenant.weight)).collect();
    let fair = max_min(&demands, total);
    let parts = tenants.iter().zip(fair).filter(|(_, fair)| *fair > 0.0);
    parts.map(|(tenant, fair)| tenant.served as f64 / fair).collect()
}

/// Divides `total` among demands with weights: each gets at most its demand, and what is left is shared by weight.
fn max_min(demands: &[(f64, f64)], total: f64) -> Vec<f64> {
    let mut by_need: Vec<usize> = (0..demands.len()).collect();
    let need = |index: &usize| demands[*index].0 / demands[*index].1;
    by_need.sort_by(|left, right| need(left).total_cmp(&need(right)));
    let mut left = total;
    let mut weights: f64 = demands.iter().map(|(_, weight)| weight).sum();
    let mut parts = vec![0.0; demands.len()];
    for index in by_need {
        let (demand, weight) = demands[index];
        let part = (left * weight / weights).min(demand);
        parts[index] = part;
        left -= part;
        weights -= weight;
    }
    parts
}

/// Jain's index: the square of the sum over the sum of the squares and the number. 1 without values.
pub(super) fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (squares * values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_demands_are_met_and_the_rest_is_shared_by_weight() {
        assert_eq!(max_min(&[(10.0, 1.0), (100.0, 1.0), (100.0, 2.0)], 100.0), [10.0, 30.0, 60.0]);
        assert_eq!(max_min(&[(10.0, 1.0), (20.0, 1.0)], 30.0), [10.0, 20.0]);
        assert_eq!(max_min(&[(50.0, 1.0), (50.0, 1.0)], 0.0), [0.0, 0.0]);
    }

    #[test]
    fn tenants_are_compared_within_their_band() {
        let tenant = |band, served| TenantTokens::new(100, served, 1.0, band);
        let critical = [Band::Critical; 2].map(|band| tenant(band, 90));
        let rest = [tenant(Band::Default, 5), tenant(Band::Default, 15), tenant(Band::Sheddable, 0)];
        let all = [&critical[..], &rest].concat();
        assert_eq!(parts(&all), [1.0, 1.0, 0.5, 1.5]);
    }

    #[test]
    fn jains_index_is_one_for_equal_parts_and_falls_with_the_number_of_the_starved() {
        assert_eq!(jain(&[1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[2.0, 0.0]), 0.5);
        assert_eq!(jain(&[]), 1.0);
    }
}
