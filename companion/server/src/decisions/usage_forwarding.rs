//! Sends usage from the stores to the driver: usage restored at the start or at a reload, and usage that other
//! companions share.

use std::sync::Arc;

use penstock_control::{Event, PoolEvent};
use penstock_engine::input::BudgetUsage;

use crate::base::essential;
use crate::decisions::driver::{Gone, Handle};
use penstock_stores::{Restored, SharedUsage, Stores};

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
        send_history(&restored.pool, restored.past_budgets, driver).await?;
    }
    Ok(())
}

/// Sends what was used of budgets. The engine replays what it gets of a flow at once, so a message has all of its flows.
async fn send_history(pool: &Arc<str>, mut budgets: Vec<BudgetUsage>, driver: &Handle) -> Result<(), Gone> {
    budgets.sort_by(|a, b| a.flow.cmp(&b.flow));
    let mut chunk: Vec<BudgetUsage> = Vec::new();
    for usage in budgets {
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

fn history(pool: &Arc<str>, past: Vec<BudgetUsage>) -> Event {
    Event::Pool(pool.clone(), PoolEvent::BudgetHistory(past))
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
    let SharedUsage { pool, settled, running, budget_resets, past_budgets, budgets, budgets_running } =
        shared;
    if !budget_resets.is_empty() {
        driver.send(Event::Pool(pool.clone(), PoolEvent::BudgetResets(budget_resets))).await?;
    }
    send_history(&pool, past_budgets, driver).await?;
    if !budgets.is_empty() || !budgets_running.is_empty() {
        let event =
            Event::Pool(pool.clone(), PoolEvent::BudgetUsage { settled: budgets, running: budgets_running });
        driver.send(event).await?;
    }
    if !settled.is_empty() || !running.is_empty() {
        driver.add_usage(pool, settled, running).await?;
    }
    Ok(())
}
