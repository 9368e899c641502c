//! Usage as rows of the file, keyed by pool, bucket of the window, and usage key. A bucket's width grows with the
//! window, so that a window has at most 300 rows for each usage key.
//!
//! Times are those of the file's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::input::{Band, PastUsage};
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle};

use super::file_clock::Moment;
use crate::write_buffer::{UsageBatch, UsageKey};
use crate::{ROWS_MAX, millis};

/// Pool, start of the bucket in milliseconds, band, class, flow, model.
type Key = (&'static str, u64, u8, &'static str, &'static str, &'static str);
const USED: TableDefinition<'static, Key, u64> = TableDefinition::new("used");
/// The last known window of each pool with rows, in milliseconds, including pools that left the configuration.
const WINDOWS: TableDefinition<'static, &str, u64> = TableDefinition::new("windows");
/// Buckets in a window, at most.
const BUCKETS_MAX: u64 = 300;
/// The smallest width of a bucket, in milliseconds.
const BUCKET_MIN: u64 = 1_000;

/// The start of the bucket that contains `time`.
fn bucket(time: u64, window: u64) -> u64 {
    let width = window.div_ceil(BUCKETS_MAX).max(BUCKET_MIN);
    time - time % width
}

/// The times that count at `now`: the first that does, and the first that no longer does.
fn within(now: u64, window: u64) -> (u64, u64) {
    let from = bucket(now.saturating_sub(window), window);
    (from, now.saturating_add(window))
}

/// Usage of the pool's flows in the window that ends at `now`, by the file's clock.
pub(super) fn past_usage(
    database: &Database,
    pool: &str,
    window: Duration,
    now: Duration,
) -> Result<Vec<PastUsage>, redb::Error> {
    let reading = database.begin_read()?;
    let is_there = reading.list_tables()?.any(|table| table.name() == USED.name());
    if !is_there {
        return Ok(Vec::new());
    }
    let table = reading.open_table(USED)?;
    let now = millis(now);
    let (from, before) = within(now, millis(window));
    let mut past = Vec::new();
    for row in table.range((pool, from, 0, "", "", "")..(pool, before, 0, "", "", ""))? {
        let (key, cost) = row?;
        let (_, start, band, class, flow, model) = key.value();
        if let Some(band) = band_from_number(band) {
            let key = UsageKey { band, class: class.into(), flow: flow.into(), model: model.into() };
            past.push(key.used(cost.value(), Duration::from_millis(now.saturating_sub(start))));
        }
    }
    Ok(past)
}

/// Adds usage, and deletes what is outside its window at `now`.
pub(super) fn write(
    writing: &redb::WriteTransaction,
    batches: &[UsageBatch],
    windows: &BTreeMap<String, Duration>,
    now: Moment,
) -> Result<(), redb::Error> {
    let Moment { clock, monotonic, .. } = now;
    let now = millis(clock);
    let mut used = writing.open_table(USED)?;
    let mut known = writing.open_table(WINDOWS)?;
    for (pool, window) in windows {
        known.insert(pool.as_str(), millis(*window))?;
    }
    let mut expired = Vec::new();
    for entry in known.iter()? {
        let (pool, window) = entry?;
        let (pool, (from, before)) = (pool.value(), within(now, window.value()));
        used.retain_in((pool, 0, 0, "", "", "")..(pool, from, 0, "", "", ""), |_, _| false)?;
        let future = (pool, before, 0, "", "", "")..(pool, u64::MAX, u8::MAX, "", "", "");
        used.retain_in(future, |_, _| false)?;
        let first_row = used.range((pool, 0, 0, "", "", "")..(pool, before, 0, "", "", ""))?.next();
        if first_row.is_none() && !windows.contains_key(pool) {
            expired.push(pool.to_owned());
        }
    }
    for pool in expired {
        known.remove(pool.as_str())?;
    }
    let mut rows = used.len()?;
    let limit = ROWS_MAX.saturating_mul(windows.len() as u64);
    for batch in batches {
        let Some(window) = batch.window else { continue };
        let time = now.saturating_sub(millis(monotonic.saturating_duration_since(batch.taken)));
        let start = bucket(time, millis(window));
        for (key, cost) in batch.used.iter() {
            let row = (&*batch.pool, start, key.band as u8, &*key.class, &*key.flow, &*key.model);
            let before = used.get(row)?.map(|cost| cost.value());
            rows += u64::from(before.is_none());
            // Rows beyond the limit aren't stored; their usage is unknown after a restart.
            if before.is_some() || rows <= limit {
                used.insert(row, before.unwrap_or(0).saturating_add(*cost))?;
            }
        }
    }
    Ok(())
}

fn band_from_number(number: u8) -> Option<Band> {
    Band::ALL.into_iter().find(|band| *band as u8 == number)
}
