//! Free ports for servers that are started later, or never.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use penstock_envoy::ports::Ports;

/// The ports that this process has taken.
static RESERVED: Mutex<Ports> = Mutex::new(Ports::new());

/// A port on which nothing listens. A server that sets `SO_REUSEADDR` can. No other socket gets it before this process ends.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner).reserve_any().expect("a free port")
}

/// Several such ports.
///
/// # Panics
/// If there are too few.
#[must_use]
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    (0..count).map(|_| free_address()).collect()
}
