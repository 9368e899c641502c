//! Usage of budgets, and top-ups, as rows of the file, keyed by pool, window, bucket, counter and flow. Times are those of the file's clock,
//! and days, weeks and months begin by the wall clock. A reset deletes the rows of its flow.
//!
//! A wall clock that was set back leaves days in the future. They count as if they were of the present, and are deleted when they lie
//! further ahead than they are kept. A clock that is set ahead while a companion runs deletes nothing.

use std::collections::HashSet;

use penstock_engine::input::BudgetUsage;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle};
use tokio::time::Instant;

use super::file_clock::Moment;
use crate::budget::{Counted, Counter, PeriodCode, time_of};
use crate::write_buffer::UsageBatch;
use crate::{BUDGET_ROWS_MAX, ROWS_MAX, millis};

/// Pool, the number of the window's period, start of the bucket in milliseconds, the number of the counter, flow.
type Key = (&'static str, u64, u64, u8, &'static str);
const BUDGETS: TableDefinition<'static, Key, u64> = TableDefinition::new("budgets");

/// The time from which the age of rows of a window counts, and the time up to which rows are no mistake, in milliseconds.
fn present(period: PeriodCode, now: Moment) -> (u64, u64) {
    if period.is_calendar() {
        (millis(now.earliest), millis(now.latest))
    } else {
        (millis(now.clock), millis(now.clock))
    }
}

/// What was used of the pool's budgets.
pub(super) fn past(database: &Database, pool: &str, now: Moment) -> Result<Vec<BudgetUsage>, redb::Error> {
    let reading = database.begin_read()?;
    let is_there = reading.list_tables()?.any(|table| table.name() == BUDGETS.name());
    if !is_there {
        return Ok(Vec::new());
    }
    let table = reading.open_table(BUDGETS)?;
    let mut past = Vec::new();
    for row in table.range((pool, 0, 0, 0, "")..=(pool, u64::MAX, u64::MAX, u8::MAX, ""))? {
        let (key, amount) = row?;
        let (_, period, bucket, counter, flow) = key.value();
        let (period, counter) = (PeriodCode::from_number(period), Counter::from_number(counter));
        let (Some(period), Some(counter)) = (period, counter) else {
            continue;
        };
        let (from, _) = present(period, now);
        if bucket.saturating_add(period.kept()) > from && past.len() < BUDGET_ROWS_MAX {
            let counted = Counted { flow: flow.into(), counter, period, bucket, amount: amount.value() };
            past.push(counted.usage(from));
        }
    }
    Ok(past)
}

/// Adds usage, and deletes what was reset and what is no longer kept at `now`. `pools`: so many pools share the file.
pub(super) fn write(
    writing: &redb::WriteTransaction,
    batches: &[UsageBatch],
    pools: usize,
    now: Moment,
) -> Result<(), redb::Error> {
    let mut table = writing.open_table(BUDGETS)?;
    expire(&mut table, now)?;
    let limit = ROWS_MAX.saturating_mul(pools as u64);
    for batch in batches {
        reset(&mut table, batch)?;
        let mut rows = table.len()?;
        let taken_at = time_of_batch(now, batch.taken);
        for usage in batch.budgets.iter() {
            let period = PeriodCode::from(usage.period);
            let Some(time) = time_of(usage, taken_at) else {
                continue;
            };
            let row = (
                &*batch.pool,
                period.number(),
                period.bucket(time),
                Counter::of(usage.unit, usage.kind).number(),
                &*usage.flow,
            );
            let before = table.get(row)?.map(|amount| amount.value());
            rows += u64::from(before.is_none());
            // Rows beyond the limit aren't stored; their usage is unknown after a restart.
            if before.is_some() || rows <= limit {
                table.insert(row, before.unwrap_or(0).saturating_add(usage.amount))?;
            }
        }
    }
    Ok(())
}

/// Deletes the rows of the flows that the batch resets.
fn reset(table: &mut redb::Table<'_, Key, u64>, batch: &UsageBatch) -> Result<(), redb::Error> {
    if batch.budget_resets.is_empty() {
        return Ok(());
    }
    let flows: HashSet<&str> = batch.budget_resets.iter().map(|reset| &*reset.flow).collect();
    let pool = &*batch.pool;
    table.retain_in(
        (pool, 0, 0, 0, "")..(pool, u64::MAX, u64::MAX, u8::MAX, ""),
        |(_, _, _, _, flow), _| !flows.contains(flow),
    )?;
    Ok(())
}

/// An instant in the past by the file's clock, in milliseconds.
fn time_of_batch(now: Moment, past: Instant) -> u64 {
    let age = now.monotonic.saturating_duration_since(past);
    millis(now.clock).saturating_sub(millis(age))
}

fn expire(table: &mut redb::Table<'_, Key, u64>, now: Moment) -> Result<(), redb::Error> {
    let mut next = Some((String::new(), 0));
    while let Some((pool, number)) = next {
        let first = table.range((&*pool, number, 0, 0, "")..)?.next();
        let Some((key, _)) = first.transpose()? else {
            return Ok(());
        };
        let (pool, number) = (key.value().0.to_owned(), key.value().1);
        drop(key);
        let period = PeriodCode::from_number(number);
        let kept = period.map_or(0, PeriodCode::kept);
        let (earliest, latest) = period.map_or((u64::MAX, 0), |period| present(period, now));
        let from = earliest.saturating_add(1).saturating_sub(kept);
        let old = (&*pool, number, 0, 0, "")..(&*pool, number, from, 0, "");
        table.retain_in(old, |_, _| false)?;
        let ahead =
            (&*pool, number, latest.saturating_add(kept), 0, "")..(&*pool, number, u64::MAX, u8::MAX, "");
        table.retain_in(ahead, |_, _| false)?;
        next = number.checked_add(1).map(|number| (pool, number));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use penstock_engine::input::{UsageKind, UsedAt};
    use penstock_engine::policy::{BudgetPeriod, CostUnit};
    use tempfile::TempDir;

    use super::*;
    use crate::budget_buffer::OwnReset;

    const MINUTE: BudgetPeriod = BudgetPeriod::Sliding(Duration::from_secs(60));

    fn database() -> (Database, TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::create(folder.path().join("kept.redb")).expect("new");
        (database, folder)
    }

    /// A time of 2001.
    fn time(seconds: u64) -> Duration {
        Duration::from_secs(1_000_000_020 + seconds)
    }

    fn usage(flow: &str, period: BudgetPeriod, used_at: UsedAt, amount: u64) -> BudgetUsage {
        BudgetUsage {
            flow: flow.into(),
            unit: CostUnit::Tokens,
            period,
            kind: UsageKind::Used,
            used_at,
            amount,
        }
    }

    fn ago(flow: &str, seconds: u64, amount: u64) -> BudgetUsage {
        usage(flow, MINUTE, UsedAt::Ago(Duration::from_secs(seconds)), amount)
    }

    fn write_at(database: &Database, pool: &str, budgets: &[BudgetUsage], wall: Duration) {
        write_both(database, pool, &[], budgets, wall);
    }

    fn write_both(database: &Database, pool: &str, resets: &[&str], budgets: &[BudgetUsage], wall: Duration) {
        let now = Moment::of(wall);
        let batch = UsageBatch {
            number: 1,
            pool: pool.into(),
            window: None,
            taken: now.monotonic,
            used: Arc::default(),
            budget_resets: resets.iter().map(|flow| OwnReset { flow: (*flow).into(), number: 1 }).collect(),
            reset_numbers: Vec::new(),
            budgets: budgets.into(),
            running: None,
        };
        let writing = database.begin_write().expect("one writer");
        write(&writing, &[batch], 1, now).expect("written");
        writing.commit().expect("written");
    }

    fn read(database: &Database, pool: &str, now: Duration) -> Vec<BudgetUsage> {
        past(database, pool, Moment::of(now)).expect("readable")
    }

    #[test]
    fn usage_is_summed_by_flow_unit_window_and_bucket() {
        let (database, _folder) = database();
        assert_eq!(read(&database, "chat", time(0)), []);
        write_at(&database, "chat", &[ago("a", 0, 5), ago("b", 0, 3)], time(0));
        let requests = BudgetUsage { unit: CostUnit::Requests, ..ago("a", 2, 1) };
        let later = [
            ago("a", 2, 7),
            ago("a", 0, 2),
            requests.clone(),
            usage("a", BudgetPeriod::Day, UsedAt::Since(999_993_600), 14),
        ];
        write_at(&database, "chat", &later, time(2));
        write_at(&database, "code", &[ago("c", 0, 9)], time(2));
        // A bucket of a minute's window lasts a second, and counts as if it were used at its end.
        let mut found = read(&database, "chat", time(10));
        found.sort_by_key(|usage| usage.amount);
        let expected = [
            BudgetUsage { used_at: UsedAt::Ago(Duration::from_secs(9)), ..requests },
            ago("a", 7, 2),
            ago("b", 9, 3),
            ago("a", 9, 12),
            usage("a", BudgetPeriod::Day, UsedAt::Since(999_993_600), 14),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn top_ups_are_kept_beside_usage() {
        let (database, _folder) = database();
        let topped_up =
            |seconds, amount| BudgetUsage { kind: UsageKind::ToppedUp, ..ago("a", seconds, amount) };
        let both = [ago("a", 0, 5), topped_up(0, 30), topped_up(0, 2)];
        write_at(&database, "chat", &both, time(0));
        let found = read(&database, "chat", time(10));
        assert_eq!(found, [ago("a", 9, 5), topped_up(9, 32)]);
    }

    #[test]
    fn a_reset_deletes_what_its_flow_used_in_its_pool() {
        let (database, _folder) = database();
        let day = |amount| usage("a", BudgetPeriod::Day, UsedAt::Since(999_993_600), amount);
        let topped_up = BudgetUsage { kind: UsageKind::ToppedUp, ..ago("a", 0, 9) };
        let before = [ago("a", 0, 5), day(5), topped_up, ago("b", 0, 6)];
        write_at(&database, "chat", &before, time(0));
        write_at(&database, "code", &before, time(0));
        write_both(&database, "chat", &["a"], &[day(2)], time(0));
        let mut found = read(&database, "chat", time(0));
        found.sort_by_key(|usage| usage.amount);
        assert_eq!(found, [day(2), ago("b", 0, 6)]);
        assert_eq!(read(&database, "code", time(0)).len(), 4);
    }

    #[test]
    fn usage_is_kept_for_ten_windows() {
        let (database, _folder) = database();
        let both = [ago("a", 0, 5), usage("a", BudgetPeriod::Day, UsedAt::Since(999_993_600), 5)];
        write_at(&database, "chat", &both, time(0));
        assert_eq!(read(&database, "chat", time(599)).len(), 2);
        assert_eq!(read(&database, "chat", time(600)), both[1..], "it isn't read any more");
        write_at(&database, "other", &[], time(599));
        assert_eq!(read(&database, "chat", time(0)).len(), 2);
        write_at(&database, "other", &[], time(600));
        assert_eq!(read(&database, "chat", time(0)).len(), 1, "it is deleted");
        write_at(&database, "other", &[], time(10 * 86_400));
        assert_eq!(read(&database, "chat", time(0)), []);
    }

    #[test]
    fn days_stay_when_the_wall_clock_jumps_ahead() {
        let (database, _folder) = database();
        let today = [usage("a", BudgetPeriod::Day, UsedAt::Since(999_993_600), 5)];
        write_at(&database, "chat", &today, time(0));
        let jumped = Moment { latest: time(400 * 86_400), wall: time(400 * 86_400), ..Moment::of(time(1)) };
        let writing = database.begin_write().expect("one writer");
        write(&writing, &[], 1, jumped).expect("written");
        writing.commit().expect("written");
        assert_eq!(read(&database, "chat", time(1)), today);
    }

    #[test]
    fn rows_far_ahead_of_a_clock_that_was_set_back_are_deleted() {
        let (database, _folder) = database();
        write_at(&database, "chat", &[ago("near", 0, 5)], time(300));
        write_at(&database, "chat", &[ago("far", 0, 5)], time(800));
        write_at(&database, "chat", &[], time(0));
        assert_eq!(read(&database, "chat", time(0)), [ago("near", 0, 5)]);
    }
}
