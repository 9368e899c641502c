//! An answer that a filter gave by itself: a `Refused` message, parsed.

use crate::observation::{Refused, RequestNews};
use core::time::Duration;

use penstock_wire::Code;

/// A filter answered a request by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilterAnswer<'a> {
    /// Envoy's node name.
    pub(crate) node: Box<str>,
    /// An outcome's name.
    pub(crate) outcome: &'a str,
    /// An error code.
    pub(crate) code: Code,
    /// How often the request was requeued, as far as the filter knows.
    pub(crate) requeues: u32,
}

impl FilterAnswer<'_> {
    /// The observation of the answer. `waited`: since the request's arrival, if that is known. `was_granted`: a grant of the request
    /// was observed before.
    pub(crate) fn news(&self, waited: Option<Duration>, was_granted: bool) -> RequestNews {
        RequestNews::Refused(Refused {
            node: self.node.clone(),
            outcome: self.outcome.into(),
            code: self.code,
            waited,
            was_granted,
            requeues: self.requeues,
        })
    }
}
