//! Sends usage from the stores to the driver: usage restored at the start or at a reload, and usage that other
//! companions share.

use std::sync::Arc;

use penstock_control::{Event, PoolEvent};
use penstock_engine::input::{QuotaReset, QuotaUsage};

use crate::base::essential;
use crate::decisions::driver::{Gone, Handle};
use crate::stores::{Restored, SharedUsage, Stores};

/// Usage records in one message to the driver.
const CHUNK: usize = 16_384;

/// Sends restored usage.
///
/// # Errors
/// When the driver has ended.
pub(crate) async fn send_restored(restored: Restored, driver: &Handle) -> Result<(), Gone> {
    for restored in restored.into_past_usage() {
        let mut past = restored.settled.into_iter().peekable();
        while past.peek().is_some() {
            let chunk = past.by_ref().take(CHUNK).collect();
            driver.add_usage(restored.pool.clone(), chunk, Vec::new()).await?;
        }
        send_resets(&restored.pool, restored.quota_resets, driver).await?;
        send_history(&restored.pool, restored.past_quotas, driver).await?;
    }
    Ok(())
}

async fn send_resets(pool: &Arc<str>, resets: Vec<QuotaReset>, driver: &Handle) -> Result<(), Gone> {
    if resets.is_empty() {
        return Ok(());
    }
    let pool = pool.clone();
    driver.send(Event::Pool(pool, PoolEvent::QuotaResets(resets))).await
}

/// Sends what was used of budgets. The engine replays what it gets of a flow at once, so a message has all of its flows.
async fn send_history(pool: &Arc<str>, mut quotas: Vec<QuotaUsage>, driver: &Handle) -> Result<(), Gone> {
    quotas.sort_by(|a, b| a.flow.cmp(&b.flow));
    let mut chunk: Vec<QuotaUsage> = Vec::new();
    for usage in quotas {
        let is_next_flow = chunk.last().is_some_and(|last| last.flow != usage.flow);
        if is_next_flow && chunk.len() >= CHUNK {
            let full = std::mem::take(&mut chunk);
            driver.send(history(pool, full)).await?;
        }
        chunk.push(usage);
    }
    if chunk.is_empty() {
        return Ok(());
    }
    driver.send(history(pool, chunk)).await
}

fn history(pool: &Arc<str>, past: Vec<QuotaUsage>) -> Event {
    Event::Pool(pool.clone(), PoolEvent::QuotaHistory(past))
}

/// Forwards the past and running usage of other companions as it arrives. Only the first call for `stores` has an effect.
pub(crate) fn forward_shared(stores: &mut Stores, driver: Handle) {
    if let Some(mut inbox) = stores.take_shared_usage() {
        essential::spawn("usage of other companions", async move {
            while let Some(shared) = inbox.recv().await {
                if forward(shared, &driver).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn forward(shared: SharedUsage, driver: &Handle) -> Result<(), Gone> {
    let SharedUsage { pool, settled, running, quota_resets, past_quotas, quotas, quotas_running } = shared;
    send_resets(&pool, quota_resets, driver).await?;
    send_history(&pool, past_quotas, driver).await?;
    if !quotas.is_empty() || !quotas_running.is_empty() {
        let event =
            Event::Pool(pool.clone(), PoolEvent::QuotaUsage { settled: quotas, running: quotas_running });
        driver.send(event).await?;
    }
    if !settled.is_empty() || !running.is_empty() {
        driver.add_usage(pool, settled, running).await?;
    }
    Ok(())
}
