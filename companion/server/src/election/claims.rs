//! Claims: a companion that a pool prefers asks the pool's leader to leave the pool to it.
//!
//! The leader asks back whether the claim is real. So no pool moves to an address where no companion listens, and nobody else can
//! move one.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::companions::Peers;
use crate::decisions::driver::Handle;

/// The claims of one companion, on and by others.
#[derive(Debug)]
pub(super) struct Claims {
    peers: Peers,
    /// The pools for which this companion is asking.
    made: Pools,
    /// The pools for which another companion is being asked back.
    checked: Pools,
    /// The last claim got no answer.
    is_unanswered: AtomicBool,
}

#[derive(Debug, Default)]
struct Pools(Mutex<BTreeSet<Arc<str>>>);

/// A pool's place in a set, which it leaves on drop.
struct Place<'a>(&'a Pools, Arc<str>);

impl Pools {
    /// `None`: the pool is in the set already.
    fn enter(&self, pool: &Arc<str>) -> Option<Place<'_>> {
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.insert(pool.clone()).then(|| Place(self, pool.clone()))
    }

    fn contains(&self, pool: &str) -> bool {
        let pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.contains(pool)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut pools = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.remove(&self.1);
    }
}

impl Claims {
    pub(super) fn new(peers: Peers) -> Self {
        Self {
            peers,
            made: Pools::default(),
            checked: Pools::default(),
            is_unanswered: AtomicBool::new(false),
        }
    }

    /// This companion is asking for the pool.
    pub(super) fn has(&self, pool: &str) -> bool {
        self.made.contains(pool)
    }

    /// Whether the companion at `address` is asking for the pool.
    pub(super) async fn is_real(&self, pool: &Arc<str>, address: SocketAddr) -> bool {
        let Some(_place) = self.checked.enter(pool) else {
            return false;
        };
        self.peers
            .has_claim(pool, address)
            .await
            .unwrap_or_else(|why| {
                tracing::debug!(pool = &**pool, %address, %why, "a companion asks for a pool and can't be asked back");
                false
            })
    }

    /// Asks the leader of a pool, if this companion has a ready endpoint of the pool.
    pub(super) async fn make(&self, pool: Arc<str>, leader: String, driver: Handle) {
        let (name, leader) = (&*pool, &*leader);
        let (Some(_place), Ok(address)) = (self.made.enter(&pool), leader.parse()) else {
            return;
        };
        if !has_ready_endpoint(&driver, name).await {
            tracing::debug!(pool = name, "no endpoint is ready, so the leader isn't asked to leave the pool");
            return;
        }
        let answer = self.peers.claim(name, address).await;
        let was_unanswered = self.is_unanswered.swap(answer.is_err(), Ordering::Relaxed);
        match answer {
            Ok(true) => tracing::info!(pool = name, leader, "the leader leaves the pool to this companion"),
            Ok(false) => tracing::debug!(pool = name, leader, "the leader keeps the pool"),
            Err(why) if was_unanswered => {
                tracing::debug!(pool = name, leader, %why, "the leader doesn't answer");
            }
            Err(why) => tracing::warn!(
                pool = name,
                leader,
                "the leader can't be asked to leave the pool to this companion, which the pool prefers: {why}; pools spread over the \
                 companions again when it answers, and until then the leader keeps them"
            ),
        }
    }
}

async fn has_ready_endpoint(driver: &Handle, pool: &str) -> bool {
    let Ok(status) = driver.status().await else {
        return false;
    };
    let mut endpoints = (status.pools.iter())
        .filter(|status| *status.name == *pool)
        .flat_map(|status| &status.snapshot.endpoints);
    endpoints.any(|endpoint| endpoint.ready)
}
