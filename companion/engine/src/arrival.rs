//! The order in which requests came.

use crate::time::Instant;

/// When a request first came, and its rank among the requests of that moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) sequence: u64,
}
