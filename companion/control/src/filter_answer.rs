//! An answer that a filter gave by itself: a `Refused` message, parsed.

use core::time::Duration;
use std::sync::Arc;

use crate::event::Observation;
use crate::labels::Labels;

/// A filter answered a request by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilterAnswer<'a> {
    /// Envoy's node name.
    pub(crate) node: Box<str>,
    /// An outcome's name.
    pub(crate) outcome: &'a str,
    /// An error code.
    pub(crate) code: &'a str,
    /// How often the request was requeued, as far as the filter knows.
    pub(crate) requeues: u32,
}

impl FilterAnswer<'_> {
    /// The observation of the answer. `waited`: since the request's arrival, if that is known. `was_granted`: a grant of the request
    /// was observed before.
    pub(crate) fn observation(
        &self,
        labels: Arc<Labels>,
        waited: Option<Duration>,
        was_granted: bool,
    ) -> Observation {
        Observation::Refused {
            node: self.node.clone(),
            labels,
            outcome: self.outcome.into(),
            code: self.code.into(),
            waited,
            was_granted,
            requeues: self.requeues,
        }
    }
}
