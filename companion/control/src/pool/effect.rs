//! Everything that a pool decides.

use std::sync::Arc;

use penstock_engine::RequestId;
use penstock_wire::limits::CREDIT_TTL;

use super::request::Grant;
use crate::ids::{CreditId, RequestKey};
use crate::labels::Labels;
use crate::observation::Observation;
use crate::rate_limit::RateLimit;
use crate::rejection::Rejection;

/// An effect, to be carried out in order.
#[derive(Debug)]
pub(crate) enum PoolEffect {
    /// The pool has taken the request in.
    Opened { key: RequestKey, id: RequestId, labels: Arc<Labels>, previous_key: Option<RequestKey> },
    /// Send a grant.
    Grant {
        key: RequestKey,
        labels: Arc<Labels>,
        grant: Arc<Grant>,
        /// The rest of the flow's budget; `None`: it has none that decides.
        rate_limit: Option<RateLimit>,
    },
    /// Send a rejection. The request has ended.
    Reject { key: RequestKey, rejection: Rejection },
    /// Ask a filter to end a request that was granted. The request runs on until its filter reports its end.
    Evict { key: RequestKey, rejection: Arc<Rejection> },
    /// Give places to a filter, or renew its credit.
    GiveCredit(GivenCredit),
    /// Ask a filter to give up a credit.
    Recall(CreditId),
    /// The request has ended.
    Ended { key: RequestKey, id: RequestId, labels: Arc<Labels> },
    /// A request has ended that was never opened.
    Counted(RequestKey),
    /// For metrics and logs.
    Observe(Observation),
}

/// A credit for a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenCredit {
    pub(crate) credit: CreditId,
    /// An address and the number of its new places; `None`: the credit is renewed.
    pub(crate) places: Option<(Arc<str>, u64)>,
    /// Requests with a longer prompt ask; 0: no limit.
    pub(crate) prompt_bytes_max: u64,
    pub(crate) saturation_milli: u32,
    /// The filter may requeue requests that it admits.
    pub(crate) may_requeue: bool,
}

impl GivenCredit {
    /// For how long the filter may use it.
    pub(crate) const TTL: core::time::Duration = CREDIT_TTL;
}
