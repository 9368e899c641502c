//! Everything that a pool decides.

use std::sync::Arc;

use penstock_engine::RequestId;

use super::credits::CreditId;
use super::lending::LentCredit;
use super::request::Grant;
use crate::event::Observation;
use crate::ids::RequestKey;
use crate::labels::Labels;
use crate::rejection::Rejection;

/// An effect, to be carried out in order.
#[derive(Debug)]
pub(crate) enum PoolEffect {
    /// The pool has taken the request in.
    Opened {
        key: RequestKey,
        id: RequestId,
        labels: Arc<Labels>,
        previous_key: Option<RequestKey>,
    },
    /// Send a grant.
    Grant {
        key: RequestKey,
        labels: Arc<Labels>,
        grant: Arc<Grant>,
    },
    /// Send a rejection. The request has ended.
    Reject { key: RequestKey, rejection: Rejection },
    /// Lend places to a filter, or renew what it was lent.
    Lend(LentCredit),
    /// Ask a filter to give up a credit.
    Recall(CreditId),
    /// The request has ended.
    Ended {
        key: RequestKey,
        id: RequestId,
        labels: Arc<Labels>,
    },
    /// For metrics and logs.
    Observe(Observation),
}
