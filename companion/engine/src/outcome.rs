//! How requests leave the queue, and what each way means to alerts, dashboards and pages.
//!
//! [`Outcome::meaning`] is the one place that sorts outcomes. docs/alerts.yaml and docs/alerts.md repeat it, and a test of the
//! repository compares them with it.

/// What an outcome means to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meaning {
    /// Granted. How the endpoint answered is another question.
    Served,
    /// Turned away by a rule that the operator set to protect other requests. The gateway works as it was told to.
    Refused,
    /// The gateway should have had the request served, and could not. Only these use up an error budget.
    Failed,
    /// Ended by its client, or not a request that any gateway could serve.
    Client,
}

impl Meaning {
    /// All meanings.
    pub const ALL: [Self; 4] = [Self::Served, Self::Refused, Self::Failed, Self::Client];

    /// The name in pages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Client => "client",
        }
    }
}

/// How a request left the queue, or why it never entered it. Every request has one; one that was granted may have a second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Dispatched at its arrival.
    Bypassed,
    /// Admitted by the filter itself.
    Leased,
    /// Dispatched from the queue.
    Dispatched,
    /// Rejected: the queue is full, and nothing of its flow waits.
    RejectedTooManyFlows,
    /// Rejected: the queue is full, and its flow waits already.
    RejectedQueueFull,
    /// Rejected: its flow's part of the queue is full.
    RejectedFlowCapacity,
    /// Rejected: its class reached a limit.
    RejectedClassCapacity,
    /// Rejected: the policy lets no request of its kind wait.
    RejectedPolicy,
    /// Rejected: predicted to miss its deadline.
    RejectedUnmeetable,
    /// Rejected: its flow has used up its budget.
    RejectedBudget,
    /// Rejected: malformed, or for no pool.
    RejectedInvalid,
    /// A more critical request took its place in the queue.
    Displaced,
    /// It ran, its answer hadn't begun, and a critical request waited for its place.
    Evicted,
    /// The request waited longer than the ttl.
    ExpiredTtl,
    /// The client's own deadline passed.
    DeadlineExceeded,
    /// The client disconnected while the request waited.
    Cancelled,
    /// No endpoint was ready for too long, or none is eligible.
    NoEndpoints,
    /// The companion shuts down.
    ShuttingDown,
    /// The companion was unavailable.
    GatewayUnavailable,
    /// A decision failed.
    Internal,
}

impl Outcome {
    /// All outcomes, in the order of the metric's documentation.
    pub const ALL: [Self; 20] = [
        Self::Bypassed,
        Self::Leased,
        Self::Dispatched,
        Self::RejectedTooManyFlows,
        Self::RejectedQueueFull,
        Self::RejectedFlowCapacity,
        Self::RejectedClassCapacity,
        Self::RejectedPolicy,
        Self::RejectedUnmeetable,
        Self::RejectedBudget,
        Self::RejectedInvalid,
        Self::Displaced,
        Self::Evicted,
        Self::ExpiredTtl,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::NoEndpoints,
        Self::ShuttingDown,
        Self::GatewayUnavailable,
        Self::Internal,
    ];

    /// The outcomes of requests that aren't served and that their clients didn't cancel, in the order of [`ALL`](Self::ALL).
    pub const UNSERVED: [Self; 16] = Self::unserved();

    const fn unserved() -> [Self; 16] {
        let mut unserved = [Self::Internal; 16];
        let (mut count, mut index) = (0, 0);
        while index < Self::ALL.len() {
            let outcome = Self::ALL[index];
            if !outcome.is_grant() && !matches!(outcome, Self::Cancelled) {
                unserved[count] = outcome;
                count += 1;
            }
            index += 1;
        }
        assert!(count == unserved.len(), "the length says how many there are");
        unserved
    }

    /// The name in headers, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bypassed => "bypassed",
            Self::Leased => "leased",
            Self::Dispatched => "dispatched",
            Self::RejectedTooManyFlows => "rejected_too_many_flows",
            Self::RejectedQueueFull => "rejected_queue_full",
            Self::RejectedFlowCapacity => "rejected_flow_capacity",
            Self::RejectedClassCapacity => "rejected_class_capacity",
            Self::RejectedPolicy => "rejected_policy",
            Self::RejectedUnmeetable => "rejected_unmeetable",
            Self::RejectedBudget => "rejected_budget",
            Self::RejectedInvalid => "rejected_invalid",
            Self::Displaced => "displaced",
            Self::Evicted => "evicted",
            Self::ExpiredTtl => "expired_ttl",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::NoEndpoints => "no_endpoints",
            Self::ShuttingDown => "shutting_down",
            Self::GatewayUnavailable => "gateway_unavailable",
            Self::Internal => "internal",
        }
    }

    /// The outcome with this [name](Self::as_str).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == name)
    }

    /// What the outcome means to the operator.
    #[must_use]
    pub const fn meaning(self) -> Meaning {
        match self {
            Self::Bypassed | Self::Leased | Self::Dispatched => Meaning::Served,
            // A displaced request is the one that `queue.overflow` picks, so that a more critical one may wait.
            Self::RejectedFlowCapacity
            | Self::RejectedClassCapacity
            | Self::RejectedPolicy
            | Self::RejectedUnmeetable
            | Self::RejectedBudget
            | Self::Displaced
            | Self::Evicted => Meaning::Refused,
            // A drain that lasts turns every client away, so it must not look healthy.
            Self::RejectedTooManyFlows
            | Self::RejectedQueueFull
            | Self::ExpiredTtl
            | Self::DeadlineExceeded
            | Self::NoEndpoints
            | Self::ShuttingDown
            | Self::GatewayUnavailable
            | Self::Internal => Meaning::Failed,
            Self::RejectedInvalid | Self::Cancelled => Meaning::Client,
        }
    }

    /// More servers would change nothing: the policy refuses the request, or no server can take it. The opposite is a request that room at
    /// an endpoint would have let go, and so counts as demand.
    #[must_use]
    pub const fn is_no_demand(self) -> bool {
        matches!(self, Self::RejectedPolicy | Self::RejectedBudget | Self::RejectedInvalid)
    }

    /// The request was granted.
    #[must_use]
    pub const fn is_grant(self) -> bool {
        matches!(self.meaning(), Meaning::Served)
    }

    /// A limit of waiting requests turned the request away: that of the pool, of its flow or of its class.
    #[must_use]
    pub const fn is_by_queue_limit(self) -> bool {
        self.is_for_full_queue() || matches!(self, Self::RejectedFlowCapacity | Self::RejectedClassCapacity)
    }

    /// The request lost its place, or got none, because the pool's queue was full.
    #[must_use]
    pub const fn is_for_full_queue(self) -> bool {
        matches!(self, Self::RejectedTooManyFlows | Self::RejectedQueueFull | Self::Displaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_finds_its_outcome() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::from_name(outcome.as_str()), Some(outcome));
        }
        assert_eq!(Outcome::from_name("served"), None);
    }
}
