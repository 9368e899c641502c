//! The values of one moment.

use std::sync::Arc;

use penstock_engine::Outcome;
use penstock_engine::policy::StockUnit;
use serde::Serialize;

/// The reasons for which a request isn't served. A request that its client cancels isn't refused.
pub(super) const REASONS: [Outcome; Outcome::UNSERVED.len()] = Outcome::UNSERVED;

/// Refused requests by the index of their reason.
pub(super) type Refused = [u32; REASONS.len()];

/// Requests by band, the most critical first.
pub(super) type ByBand = [u32; 3];

/// All pools at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// Milliseconds since 1970.
    pub(super) time_ms: u64,
    /// Refused requests that no pool took, since the sample before.
    pub(super) unrouted: Refused,
    pub(super) pools: Box<[PoolSample]>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PoolSample {
    pub(super) name: Arc<str>,
    /// The unit of stock and bounds.
    pub(super) unit: StockUnit,
    pub(super) waiting: ByBand,
    pub(super) in_flight: ByBand,
    pub(super) saturation: f32,
    pub(super) stock: u64,
    /// `None`: no bound.
    pub(super) lower: Option<u64>,
    pub(super) upper: Option<u64>,
    /// Requests granted since the sample before.
    pub(super) granted: u32,
    /// Requests refused since the sample before.
    pub(super) refused: Refused,
    /// The waits of the requests granted in the last minute.
    pub(super) queue: Option<Quantiles>,
    /// The times to the first byte of the responses of the last minute.
    pub(super) ttft: Option<Quantiles>,
    pub(super) replicas: ReplicaCounts,
    pub(super) endpoints: Box<[EndpointSample]>,
    /// Endpoints beyond the limit.
    pub(super) endpoints_left_out: u32,
    /// The tenants with the most use lately.
    pub(super) tenants: Box<[TenantSample]>,
    /// All other tenants as one; without a name and a weight.
    pub(super) other: Use,
}

/// Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Quantiles {
    pub(super) p50: f32,
    pub(super) p99: f32,
}

/// Servers of all variants of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct ReplicaCounts {
    /// `None`: there is no decision.
    pub(super) wanted: Option<u32>,
    pub(super) ready: u32,
    pub(super) pending: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndpointSample {
    pub(super) address: Arc<str>,
    pub(super) ready: bool,
    pub(super) stock: u64,
    /// `None`: no bound.
    pub(super) bound: Option<u64>,
    /// The learned duration of an iteration with the present stock.
    pub(super) iteration_ms: Option<f32>,
    /// The measured mean time between tokens in the last minute.
    pub(super) itl_ms: Option<f32>,
    pub(super) ttft: Option<Quantiles>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TenantSample {
    pub(super) name: Arc<str>,
    /// Only the holder of the admin token may see the name.
    pub(super) is_private: bool,
    pub(super) weight: Option<f32>,
    pub(super) used: Use,
}

/// The use of a pool by one tenant or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Use {
    pub(super) waiting: ByBand,
    pub(super) in_flight: ByBand,
    /// The cost that was settled since the sample before.
    pub(super) served: u64,
}

impl Use {
    pub(super) fn add(&mut self, more: &Self) {
        for (sum, more) in self.waiting.iter_mut().zip(more.waiting) {
            *sum = sum.saturating_add(more);
        }
        for (sum, more) in self.in_flight.iter_mut().zip(more.in_flight) {
            *sum = sum.saturating_add(more);
        }
        self.served = self.served.saturating_add(more.served);
    }

    /// Nothing waits, runs or was served.
    pub(super) fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

impl Sample {
    /// The sample's memory. A name counts in full wherever it is used, though samples share names.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.pools.iter().map(PoolSample::bytes).sum::<usize>()
    }
}

impl PoolSample {
    fn bytes(&self) -> usize {
        let endpoints = self.endpoints.iter().map(|endpoint| endpoint.address.len());
        let tenants = self.tenants.iter().map(|tenant| tenant.name.len());
        size_of::<Self>()
            + self.name.len()
            + size_of_val(&*self.endpoints)
            + size_of_val(&*self.tenants)
            + endpoints.chain(tenants).sum::<usize>()
    }
}
