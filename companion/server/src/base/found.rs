//! What discovery finds.

use std::sync::Arc;

use penstock_config::{Discovered, Discovery};

/// The discovered servers of a pool.
#[derive(Clone, Debug)]
pub struct Found {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The discovery that found them; outdated if the pool has another one by now.
    pub discovery: Discovery,
    /// All of them, each address once.
    pub discovered: Discovered,
}
