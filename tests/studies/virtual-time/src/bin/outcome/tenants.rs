//! The tenants to which every workload's requests are dealt.

use std::sync::Arc;

use penstock_engine::input::Band;
use penstock_simulate::closed_loop::Tenant;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Tenants with a small part of the requests each.
const SMALL: usize = 14;

/// A kind of tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sends far more than its share when the servers are overloaded.
    Greedy,
    /// Sends less than its share, also at twice the capacity.
    Small,
    /// Like a small one, with high priority where the policy has priorities.
    Urgent,
    /// A batch job, with low priority where the policy has priorities.
    Batch,
}

/// All tenants: the kind, the name, and the part of the requests.
fn all() -> Vec<(Kind, String, f64)> {
    let mut tenants = vec![
        (Kind::Greedy, "greedy-1".to_string(), 0.3),
        (Kind::Greedy, "greedy-2".to_string(), 0.2),
        (Kind::Batch, "batch".to_string(), 0.2),
        (Kind::Urgent, "urgent".to_string(), 0.02),
    ];
    tenants.extend((1..=SMALL).map(|index| (Kind::Small, format!("small-{index}"), 0.02)));
    tenants
}

/// The number of tenants.
pub(crate) fn count() -> usize {
    all().len()
}

/// The kind of a tenant by its name.
pub(crate) fn kind(name: &str) -> Kind {
    match name {
        "batch" => Kind::Batch,
        "urgent" => Kind::Urgent,
        _ if name.starts_with("greedy") => Kind::Greedy,
        _ => Kind::Small,
    }
}

/// The tenants as a policy with priorities sees them, or as one without.
pub(crate) fn listed(has_priorities: bool) -> Arc<[Tenant]> {
    let tenants = all().into_iter().map(|(kind, name, _)| Tenant {
        flow: (*name).into(),
        band: match kind {
            Kind::Urgent if has_priorities => Band::Critical,
            Kind::Batch if has_priorities => Band::Sheddable,
            _ => Band::Default,
        },
        name: name.into(),
    });
    tenants.collect()
}

/// Draws the index of a request's tenant.
pub(crate) fn draw(rng: &mut ChaCha8Rng) -> u32 {
    let mut rest: f64 = rng.random();
    let drawn = all().iter().position(|(_, _, part)| {
        rest -= part;
        rest < 0.0
    });
    drawn.unwrap_or_default() as u32
}
