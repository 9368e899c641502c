//! What flows used, as rows of the file: by pool, bucket of its window, and whose it is. A bucket is as wide as the window's,
//! so that a window is at most 300 of them for each flow.
//!
//! Times are of the wall's clock. One that was set back leaves rows of the future: they count as of now if they are within
//! the window of it, and are dropped beyond.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::input::{Band, PastUsage};
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle};

use crate::store::ROWS_MAX;
use crate::store::ledger::{Batch, Who};

/// Pool, the bucket's begin in milliseconds, band, class, flow, model.
type Key = (&'static str, u64, u8, &'static str, &'static str, &'static str);
const USED: TableDefinition<'static, Key, u64> = TableDefinition::new("used");
/// The window that a pool had when it was written last, in milliseconds: of one that isn't configured any more, too.
const WINDOWS: TableDefinition<'static, &str, u64> = TableDefinition::new("windows");
/// Buckets in a window, at most, and how narrow they may be.
const BUCKETS_MAX: u64 = 300;
const BUCKET_MIN: u64 = 1_000;

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

/// The begin of the bucket.
fn bucket(at: u64, window: u64) -> u64 {
    let width = window.div_ceil(BUCKETS_MAX).max(BUCKET_MIN);
    at - at % width
}

/// What counts at `now`: from, and before.
fn within(now: u64, window: u64) -> (u64, u64) {
    let from = bucket(now.saturating_sub(window), window);
    (from, now.saturating_add(window))
}

/// What the flows of `pool` used in the window that ends `now`, since the epoch.
pub(super) fn past(
    database: &Database,
    pool: &str,
    window: Duration,
    now: Duration,
) -> Result<Vec<PastUsage>, redb::Error> {
    let reading = database.begin_read()?;
    let is_there = reading.list_tables()?.any(|it| it.name() == USED.name());
    if !is_there {
        return Ok(Vec::new());
    }
    let table = reading.open_table(USED)?;
    let now = millis(now);
    let (from, before) = within(now, millis(window));
    let mut past = Vec::new();
    for row in table.range((pool, from, 0, "", "", "")..(pool, before, 0, "", "", ""))? {
        let (key, cost) = row?;
        let (_, at, band, class, flow, model) = key.value();
        if let Some(band) = band_of(band) {
            let who = Who {
                band,
                class: class.into(),
                flow: flow.into(),
                model: model.into(),
            };
            past.push(who.used(cost.value(), Duration::from_millis(now.saturating_sub(at))));
        }
    }
    Ok(past)
}

/// Adds what was used, and drops what is out of its window at `now`, since the epoch.
pub(super) fn write(
    writing: &redb::WriteTransaction,
    batches: &[Batch],
    windows: &BTreeMap<String, Duration>,
    now: Duration,
) -> Result<(), redb::Error> {
    let now = millis(now);
    let mut used = writing.open_table(USED)?;
    let mut known = writing.open_table(WINDOWS)?;
    for (pool, window) in windows {
        known.insert(pool.as_str(), millis(*window))?;
    }
    let mut gone = Vec::new();
    for entry in known.iter()? {
        let (pool, window) = entry?;
        let (pool, (from, before)) = (pool.value(), within(now, window.value()));
        used.retain_in((pool, 0, 0, "", "", "")..(pool, from, 0, "", "", ""), |_, _| {
            false
        })?;
        let future = (pool, before, 0, "", "", "")..(pool, u64::MAX, u8::MAX, "", "", "");
        used.retain_in(future, |_, _| false)?;
        let nothing_left = used
            .range((pool, 0, 0, "", "", "")..(pool, before, 0, "", "", ""))?
            .next();
        if nothing_left.is_none() && !windows.contains_key(pool) {
            gone.push(pool.to_owned());
        }
    }
    for pool in gone {
        known.remove(pool.as_str())?;
    }
    let mut rows = used.len()?;
    let most = ROWS_MAX.saturating_mul(windows.len() as u64);
    for batch in batches {
        let at = now.saturating_sub(millis(batch.taken.elapsed()));
        let at = bucket(at, millis(batch.window));
        for (who, cost) in batch.used.iter() {
            let key = (
                &*batch.pool,
                at,
                who.band as u8,
                &*who.class,
                &*who.flow,
                &*who.model,
            );
            let before = used.get(key)?.map(|it| it.value());
            rows += u64::from(before.is_none());
            // A file has a limit; what is beyond it isn't known after a restart.
            if before.is_some() || rows <= most {
                used.insert(key, before.unwrap_or(0).saturating_add(*cost))?;
            }
        }
    }
    Ok(())
}

fn band_of(number: u8) -> Option<Band> {
    let bands = [Band::Critical, Band::Default, Band::Sheddable];
    bands.into_iter().find(|band| *band as u8 == number)
}
