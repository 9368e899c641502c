//! Usage of budgets in redis: a hash for each bucket of each window, whose fields are flows, and an index of these hashes. A reset deletes the
//! fields of its flow, and is remembered for an hour: until then nothing from before it is added any more.
//!
//! A companion adds a batch once, however often it writes it: the number of its last batch stands beside the hashes.

use std::collections::{BTreeMap, HashMap};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError};
use penstock_engine::input::{BudgetReset, BudgetUsage};
use penstock_engine::limits::{BUDGET_RESET_KEPT, BUDGET_RESETS_MAX};

use super::entry::reset_times;
use super::{EXCHANGE_KEPT, SLACK, millis};
use crate::BUDGET_FLOWS_MAX;
use crate::budget::{Counter, PeriodCode, is_before_reset, time_of};
use crate::write_buffer::UsageBatch;

/// Keys: the writer's last number, the index, the resets, the hashes. Arguments: the batch's number, how long to remember it, the limit of
/// fields, what the names of hashes begin with, how long to remember resets, which are too old for that, the limit of resets, their number,
/// and the flow and the time of each; for each hash its name in the index, when it expires, the number of its fields, and each field with
/// what is added.
const ADD: &str = "
local last = redis.call('GET', KEYS[1])
if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local limit, resets, at = tonumber(ARGV[3]), tonumber(ARGV[8]), 9
if resets > 0 then
  local names = redis.call('ZRANGE', KEYS[2], 0, -1)
  for _ = 1, resets do
    local flow = ARGV[at]
    for _, name in ipairs(names) do
      redis.call('HDEL', ARGV[4] .. name, 't' .. flow, 'r' .. flow, 'a' .. flow)
    end
    redis.call('ZADD', KEYS[3], 'GT', ARGV[at + 1], flow)
    at = at + 2
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[6])
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - tonumber(ARGV[7]))
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
end
for number = 4, #KEYS do
  local name, expires, fields = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  at = at + 3
  local size = redis.call('HLEN', KEYS[number])
  for _ = 1, fields do
    if size < limit or redis.call('HEXISTS', KEYS[number], ARGV[at]) == 1 then
      redis.pcall('HINCRBY', KEYS[number], ARGV[at], ARGV[at + 1])
    end
    at = at + 2
  end
  redis.call('PEXPIREAT', KEYS[number], expires)
  redis.call('ZADD', KEYS[2], expires, name)
end
local latest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if latest[2] then redis.call('PEXPIREAT', KEYS[2], latest[2]) end
return 1
";

/// The number of the last batch of a writer that is in the hashes.
fn last_key(pool: &str, writer_id: &str) -> String {
    format!("penstock:1:budgets-last:{pool}:{writer_id}")
}

/// A sorted set of the names of hashes, by the times at which they expire.
pub(super) fn index_key(pool: &str) -> String {
    format!("penstock:1:budgets:{pool}")
}

/// The time of one reset may be computed this differently for two attempts to write it.
const TIMES_DIFFER_MS: u64 = 1_000;

/// A sorted set of the flows that were reset in the last hour, by the times of their resets.
pub(super) fn resets_key(pool: &str) -> String {
    format!("penstock:1:budgets-resets:{pool}")
}

/// What the keys of hashes begin with; their names follow.
pub(super) fn hash_prefix(pool: &str) -> String {
    format!("penstock:1:budget:{pool}:")
}

fn hash_name(period: PeriodCode, bucket: u64) -> String {
    format!("{}:{bucket}", period.number())
}

pub(super) fn parse_name(name: &str) -> Option<(PeriodCode, u64)> {
    let (period, bucket) = name.split_once(':')?;
    let period = PeriodCode::from_number(period.parse().ok()?)?;
    Some((period, bucket.parse().ok()?))
}

const fn letter(counter: Counter) -> char {
    match counter {
        Counter::Tokens => 't',
        Counter::Requests => 'r',
        Counter::TopUps => 'a',
    }
}

/// A flow's name follows the letter of what is counted.
pub(super) fn field_of(counter: Counter, flow: &str) -> String {
    format!("{}{flow}", letter(counter))
}

fn field(usage: &BudgetUsage) -> String {
    field_of(Counter::of(usage.unit, usage.kind), &usage.flow)
}

pub(super) fn parse_field(field: &str) -> Option<(Counter, &str)> {
    let mut counters = Counter::ALL.into_iter();
    counters.find_map(|counter| Some((counter, field.strip_prefix(letter(counter))?)))
}

/// The time after which a reset is remembered at `now`.
pub(super) const fn oldest_reset(now: u64) -> u64 {
    now.saturating_sub(BUDGET_RESET_KEPT.as_millis() as u64)
}

/// The remembered resets of the pool.
pub(super) async fn resets(
    connection: &mut MultiplexedConnection,
    pool: &str,
    now: u64,
) -> Result<HashMap<Box<str>, u64>, RedisError> {
    let mut command = ::redis::cmd("ZRANGEBYSCORE");
    command.arg(resets_key(pool)).arg(format!("({}", oldest_reset(now)));
    command.arg("+inf").arg("WITHSCORES");
    let resets: Vec<(String, u64)> = command.query_async(connection).await?;
    Ok(resets.into_iter().map(|(flow, time)| (flow.into(), time)).collect())
}

/// The resets that this companion has written, by flow. Its engine has applied them at once, and counts by its own clock what is later.
#[derive(Debug, Default)]
pub(super) struct OwnResets(HashMap<Box<str>, u64>);

impl OwnResets {
    /// A batch that was written, and has these resets.
    pub(super) fn add(&mut self, resets: &[BudgetReset], taken_at: u64, now: u64) {
        if resets.is_empty() {
            return;
        }
        let written = reset_times(resets, taken_at).map(|(flow, time)| (flow.into(), time));
        self.0.extend(written);
        self.0.retain(|_, time| *time > oldest_reset(now));
    }

    /// Leaves the resets by other companions.
    pub(super) fn remove_from(&self, resets: &mut HashMap<Box<str>, u64>) {
        resets.retain(|flow, time| {
            let own = self.0.get(flow);
            own.is_none_or(|own| *time > own.saturating_add(TIMES_DIFFER_MS))
        });
    }
}

/// Drops what the batch has from before these resets, of which the engine may not have known. `taken_at`: the server's time at which the
/// batch was taken, in milliseconds.
pub(super) fn drop_reset(batch: &mut UsageBatch, resets: &HashMap<Box<str>, u64>, taken_at: u64) {
    batch.retain_budgets(|usage| {
        let reset_at = resets.get(&usage.flow);
        reset_at.is_none_or(|&reset_at| !is_before_reset(usage, taken_at, reset_at))
    });
}

/// The command that applies the batch's resets to the hashes, and adds its usage of budgets; `None`: it has none. `taken_at`: the server's
/// time at which the batch was taken, in milliseconds, and `now` that of the write.
pub(super) fn add(batch: &UsageBatch, writer_id: &str, taken_at: u64, now: u64) -> Option<Cmd> {
    let mut hashes: BTreeMap<(PeriodCode, u64), BTreeMap<String, u64>> = BTreeMap::new();
    for usage in batch.budgets.iter() {
        let period = PeriodCode::from(usage.period);
        let Some(time) = time_of(usage, taken_at) else {
            continue;
        };
        let hash = hashes.entry((period, period.bucket(time))).or_default();
        let sum = hash.entry(field(usage)).or_default();
        *sum = sum.saturating_add(usage.amount);
    }
    if hashes.is_empty() && batch.budget_resets.is_empty() {
        return None;
    }
    let mut command = ::redis::cmd("EVAL");
    command.arg(ADD).arg(hashes.len() + 3);
    command.arg(last_key(&batch.pool, writer_id)).arg(index_key(&batch.pool)).arg(resets_key(&batch.pool));
    let prefix = hash_prefix(&batch.pool);
    for &(period, bucket) in hashes.keys() {
        command.arg(format!("{prefix}{}", hash_name(period, bucket)));
    }
    command.arg(batch.number).arg(millis(EXCHANGE_KEPT)).arg(BUDGET_FLOWS_MAX).arg(prefix);
    command
        .arg(millis(BUDGET_RESET_KEPT))
        .arg(oldest_reset(now))
        .arg(BUDGET_RESETS_MAX)
        .arg(batch.budget_resets.len());
    for (flow, time) in reset_times(&batch.budget_resets, taken_at) {
        command.arg(flow).arg(time);
    }
    for ((period, bucket), fields) in hashes {
        // A day, a week or a month began by the clock of this gateway, and the hash expires by that of the server. If they differ, it is kept at
        // least as long as its window.
        let expires = bucket.saturating_add(period.kept());
        let expires = expires.max(now.saturating_add(period.length()));
        let expires = expires.saturating_add(millis(SLACK));
        command.arg(hash_name(period, bucket)).arg(expires).arg(fields.len());
        for (field, amount) in fields {
            command.arg(field).arg(amount.min(i64::MAX.unsigned_abs()));
        }
    }
    Some(command)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use penstock_engine::input::UsedAt;
    use penstock_engine::policy::BudgetPeriod;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn names_and_fields_are_read_as_they_were_written() {
        for period in [BudgetPeriod::Day, BudgetPeriod::Sliding(Duration::from_secs(5))] {
            let code = PeriodCode::from(period);
            assert_eq!(parse_name(&hash_name(code, 7_000)), Some((code, 7_000)));
        }
        for bad in ["", "5000", "5000:", "x:1", "4:1"] {
            assert_eq!(parse_name(bad), None, "{bad}");
        }
        for counter in Counter::ALL {
            let usage = used("t:é", counter, BudgetPeriod::Day, UsedAt::Since(0));
            assert_eq!(parse_field(&field(&usage)), Some((counter, "t:é")));
        }
        assert_eq!((parse_field(""), parse_field("xa")), (None, None));
    }

    fn used(flow: &str, counter: Counter, period: BudgetPeriod, used_at: UsedAt) -> BudgetUsage {
        BudgetUsage {
            flow: flow.into(),
            unit: counter.unit(),
            period,
            kind: counter.kind(),
            used_at,
            settled_ago: Duration::ZERO,
            amount: 1,
        }
    }

    #[test]
    fn what_was_settled_or_dispatched_before_a_reset_is_not_added() {
        let minute = BudgetPeriod::Sliding(Duration::from_secs(60));
        let ago = |flow, seconds| {
            let used_at = UsedAt::Ago(Duration::from_secs(seconds));
            used(flow, Counter::Tokens, minute, used_at)
        };
        let today = |flow| used(flow, Counter::TopUps, BudgetPeriod::Day, UsedAt::Since(0));
        let mut batch = UsageBatch {
            number: 1,
            pool: "p".into(),
            window: None,
            taken: Instant::now(),
            used: Arc::default(),
            budget_resets: Arc::default(),
            budgets: [
                ago("later", 0),
                today("later"),
                ago("earlier", 5),
                ago("earlier", 3),
                today("earlier"),
                ago("never", 60),
            ]
            .into(),
            running: None,
        };
        let resets = HashMap::from([("later".into(), 100_001), ("earlier".into(), 97_200)]);
        let mut of_others = resets.clone();
        let mut own = OwnResets::default();
        own.add(&[BudgetReset { flow: "later".into(), ago: Duration::from_millis(500) }], 100_001, 100_001);
        own.remove_from(&mut of_others);
        assert_eq!(of_others.len(), 1, "its own isn't one of them");
        drop_reset(&mut batch, &resets, 100_000);
        let kept = [ago("earlier", 3), today("earlier"), ago("never", 60)];
        assert_eq!(*batch.budgets, kept);
    }
}
