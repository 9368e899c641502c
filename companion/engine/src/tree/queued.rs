//! A request as the tree uses it, and sums over waiting requests.

use crate::arrival::Arrival;
use crate::ids::{ClassId, EligibilityId, FlowId, ModelId};

/// A request, waiting or running.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) flow: FlowId,
    pub(crate) class: ClassId,
    /// The class's threshold and the request's eligible endpoints. The request holds this set.
    pub(crate) eligibility: EligibilityId,
    pub(crate) model: ModelId,
    /// The cost to its flow and its band.
    pub(crate) cost: u64,
    /// The cost to its class.
    pub(crate) class_cost: u64,
    /// Prompt tokens.
    pub(crate) prompt: u64,
    /// The cached part of the prompt.
    pub(crate) cached: u64,
    pub(crate) bytes: u64,
    /// The request can't be dispatched, and blocks no other request.
    pub(crate) suspended: bool,
    /// Higher tiers go first in a flow.
    pub(crate) strict: u8,
    /// Within a tier lower scores go first ([`super::OrderKey::score`]), then earlier arrivals.
    pub(crate) score: u64,
    pub(crate) arrival: Arrival,
}

impl Queued {
    pub(crate) const fn uncached(&self) -> u64 {
        self.prompt - self.cached
    }
}

/// A sum over waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) cost: u64,
}

impl Waiting {
    pub(super) const fn add(&mut self, request: &Queued) {
        self.requests += 1;
        self.bytes += request.bytes;
        self.cost += request.cost;
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
            cost: self.cost + other.cost,
        }
    }

    pub(super) const fn subtract(&mut self, request: &Queued) {
        self.requests -= 1;
        self.bytes -= request.bytes;
        self.cost -= request.cost;
    }
}
