//! Chooses the tenants of a sample: those with the most use lately. The remaining tenants are summed.
//!
//! The increase of a tenant's served cost is computed from the totals that `/metrics` exports. A private flow has no total there:
//! its cost is a part of the cost of `other`. The engine's own count of that flow is subtracted from that part.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_control::PoolStatus;

use super::limits::PRIVATE_FLOWS_MAX;
use super::sample::{TenantSample, Use};

/// How much of a tenant's recent use is forgotten at each sample: half of it in two minutes.
const FORGOTTEN: f64 = 1.0 / 32.0;

/// The use of one pool by its tenants, at the sample before.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    public: HashMap<Box<str>, Known>,
    private: HashMap<Box<str>, Known>,
    other_served: u64,
}

/// A tenant at the sample before.
#[derive(Clone, Debug)]
struct Known {
    /// Shared by all samples.
    name: Arc<str>,
    /// The served cost of all time.
    served: u64,
    /// Served and waiting cost, the older the less.
    recent: f64,
}

/// A tenant's present state, over all bands.
#[derive(Clone, Copy, Debug, Default)]
struct Present {
    used: Use,
    weight: Option<f64>,
    waiting_cost: u64,
    /// The served cost by the engine, as long as it remembers the flow.
    served: u64,
}

impl Tenants {
    /// The busiest tenants, up to `most` public and `most` private ones, and the sum of the remaining tenants.
    pub(super) fn advance(&mut self, status: &PoolStatus, most: usize) -> (Box<[TenantSample]>, Use) {
        let (mut public, private) = present(status);
        for (flow, served) in &status.served {
            public.entry(flow).or_default().served = *served;
        }
        let mut known = std::mem::take(&mut self.public);
        let mut ranked: Vec<_> = public
            .into_iter()
            .map(|(flow, present)| {
                // A flow that had been idle begins again at 0.
                let before = known.remove(flow).filter(|known| known.served <= present.served);
                let increase = present.served - before.as_ref().map_or(0, |known| known.served);
                ranked(flow, before, present, increase)
            })
            .collect();
        let mut other =
            Use { served: status.other_served.saturating_sub(self.other_served), ..Use::default() };
        self.other_served = status.other_served;
        let mut tenants = Vec::with_capacity(2 * most);
        take(&mut ranked, most, false, &mut tenants, &mut other);
        self.public = remember(ranked, usize::MAX);

        let mut hidden = self.private_by_use(private, other.served);
        let increase: u64 = hidden.iter().map(|tenant| tenant.used.served).sum();
        other.served = other.served.saturating_sub(increase);
        take(&mut hidden, most, true, &mut tenants, &mut other);
        self.private = remember(hidden, PRIVATE_FLOWS_MAX);
        (tenants.into(), other)
    }

    /// The private flows. Together they were served at most `left`, the increase of the cost of `other`.
    fn private_by_use(&mut self, private: HashMap<&str, Present>, mut left: u64) -> Vec<Ranked> {
        let mut known = std::mem::take(&mut self.private);
        let ranked = private.into_iter().map(|(flow, present)| {
            let before = known.remove(flow).filter(|known| known.served <= present.served);
            // Without an earlier total the increase is unknown: it stays in the sum.
            let increase = before.as_ref().map_or(0, |known| present.served - known.served);
            let increase = increase.min(left);
            left -= increase;
            ranked(flow, before, present, increase)
        });
        ranked.collect()
    }
}

/// The public flows and the private flows, each over all bands.
fn present(status: &PoolStatus) -> (HashMap<&str, Present>, HashMap<&str, Present>) {
    let (mut public, mut private) = (HashMap::new(), HashMap::new());
    for flow in &status.snapshot.flows {
        let shown = status.shown(&flow.key);
        let present: &mut Present = if status.public_flows.contains(shown) {
            public.entry(shown).or_default()
        } else {
            private.entry(&*flow.key).or_default()
        };
        let band = flow.band as usize;
        let used = &mut present.used;
        used.waiting[band] = used.waiting[band].saturating_add(requests(flow.waiting));
        used.in_flight[band] = used.in_flight[band].saturating_add(requests(flow.in_flight));
        present.weight = Some(flow.weight);
        present.waiting_cost = present.waiting_cost.saturating_add(flow.waiting_cost.0);
        present.served = present.served.saturating_add(flow.served_tokens.0);
    }
    (public, private)
}

/// A tenant with its use.
#[derive(Debug)]
struct Ranked {
    known: Known,
    used: Use,
    weight: Option<f64>,
}

fn ranked(flow: &str, before: Option<Known>, present: Present, increase: u64) -> Ranked {
    let (name, recent) = before.map_or_else(|| (flow.into(), 0.0), |known| (known.name, known.recent));
    #[expect(clippy::cast_precision_loss, reason = "an order, not a value")]
    let use_now = increase.saturating_add(present.waiting_cost) as f64;
    Ranked {
        known: Known { name, served: present.served, recent: recent * (1.0 - FORGOTTEN) + use_now },
        used: Use { served: increase, ..present.used },
        weight: present.weight,
    }
}

/// Orders the tenants by their recent use, and appends those that aren't idle: the first `most` to `tenants`, the others to `other`.
fn take(
    ranked: &mut [Ranked],
    most: usize,
    is_private: bool,
    tenants: &mut Vec<TenantSample>,
    other: &mut Use,
) {
    ranked.sort_by(|a, b| {
        let by_use = b.known.recent.total_cmp(&a.known.recent);
        by_use.then_with(|| a.known.name.cmp(&b.known.name))
    });
    for (place, tenant) in ranked.iter().enumerate() {
        if tenant.used.is_idle() {
            continue;
        }
        if place < most {
            #[expect(clippy::cast_possible_truncation, reason = "for a chart")]
            tenants.push(TenantSample {
                name: tenant.known.name.clone(),
                is_private,
                weight: tenant.weight.map(|weight| weight as f32),
                used: tenant.used,
            });
        } else {
            other.add(&tenant.used);
        }
    }
}

/// The first `most` tenants, for the next sample.
fn remember(ranked: Vec<Ranked>, most: usize) -> HashMap<Box<str>, Known> {
    let known = ranked.into_iter().take(most).map(|tenant| tenant.known);
    known.map(|known| (Box::from(&*known.name), known)).collect()
}

pub(super) fn requests(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
