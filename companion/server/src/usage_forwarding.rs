//! Sends usage from the stores to the driver: usage restored at the start or at a reload, and usage that other
//! companions share.

use crate::driver::{Gone, Handle};
use crate::essential;
use crate::stores::{Restored, Stores};

/// Usage records in one message to the driver.
const CHUNK: usize = 16_384;

/// Sends restored usage.
///
/// # Errors
/// When the driver has ended.
pub async fn send_restored(restored: Restored, driver: &Handle) -> Result<(), Gone> {
    for (pool, past) in restored.into_past_usage() {
        let mut past = past.into_iter().peekable();
        while past.peek().is_some() {
            let chunk = past.by_ref().take(CHUNK).collect();
            driver.add_usage(pool.clone(), chunk, Vec::new()).await?;
        }
    }
    Ok(())
}

/// Forwards the past and running usage of other companions as it arrives. Only the first call for `stores` has an effect.
pub fn forward_shared(stores: &mut Stores, driver: Handle) {
    if let Some(mut inbox) = stores.take_shared_usage() {
        essential::spawn("usage of other companions", async move {
            while let Some(shared) = inbox.recv().await {
                let sent = driver.add_usage(shared.pool, shared.settled, shared.running);
                if sent.await.is_err() {
                    return;
                }
            }
        });
    }
}
