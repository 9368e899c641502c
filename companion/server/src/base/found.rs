//! What discovery finds.

use std::sync::Arc;

use penstock_config::{Discovered, Discovery};

/// The discovered servers of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The pool's name.
    pub(crate) pool: Arc<str>,
    /// The discovery that found them; outdated if the pool has another one by now.
    pub(crate) discovery: Discovery,
    /// All of them, each address once.
    pub(crate) discovered: Discovered,
}
