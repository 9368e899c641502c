//! Usage of budgets in redis: a hash for each bucket of each window, whose fields are flows, and an index of these hashes.
//!
//! A companion adds a batch once, however often it writes it: the number of its last batch stands beside the hashes. A new companion reads
//! all hashes together with the position in the stream up to which they contain everything; from there on it counts entries.

use std::collections::BTreeMap;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError, Value};
use penstock_engine::input::QuotaUsage;
use penstock_engine::policy::CostUnit;

use super::entry::Position;
use super::{EXCHANGE_KEPT, SLACK, millis, used_key};
use crate::stores::quota::{Counted, PeriodCode, time_of};
use crate::stores::write_buffer::UsageBatch;
use crate::stores::{QUOTA_FLOWS_MAX, QUOTA_ROWS_MAX};

/// Keys: the writer's last number, the index, the hashes. Arguments: the batch's number, how long to remember it, the limit of fields;
/// for each hash its name in the index, when it expires, the number of its fields, and each field with what is added.
const ADD: &str = "
local last = redis.call('GET', KEYS[1])
if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local limit, at = tonumber(ARGV[3]), 4
for number = 3, #KEYS do
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

/// Keys: the index, the stream. Arguments: the time, what the names of hashes begin with, the limit of fields in all.
const READ: &str = "
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local position = '0-0'
if newest[1] then position = newest[1][1] end
local found, fields = {}, 0
for _, name in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  if fields >= tonumber(ARGV[3]) then break end
  local hash = redis.call('HGETALL', ARGV[2] .. name)
  fields = fields + #hash / 2
  found[#found + 1] = {name, hash}
end
return {position, found}
";

/// The number of the last batch of a writer that is in the hashes.
fn last_key(pool: &str, writer_id: &str) -> String {
    format!("penstock:1:budgets-last:{pool}:{writer_id}")
}

/// A sorted set of the names of hashes, by the times at which they expire.
fn index_key(pool: &str) -> String {
    format!("penstock:1:budgets:{pool}")
}

/// What the keys of hashes begin with; their names follow.
fn hash_prefix(pool: &str) -> String {
    format!("penstock:1:budget:{pool}:")
}

fn hash_name(period: PeriodCode, bucket: u64) -> String {
    format!("{}:{bucket}", period.number())
}

fn parse_name(name: &str) -> Option<(PeriodCode, u64)> {
    let (period, bucket) = name.split_once(':')?;
    let period = PeriodCode::from_number(period.parse().ok()?)?;
    Some((period, bucket.parse().ok()?))
}

/// A flow's name follows the letter of the unit.
fn field(usage: &QuotaUsage) -> String {
    let letter = match usage.unit {
        CostUnit::Tokens => 't',
        CostUnit::Requests => 'r',
    };
    format!("{letter}{}", usage.flow)
}

fn parse_field(field: &str) -> Option<(CostUnit, &str)> {
    let tokens = field.strip_prefix('t').map(|flow| (CostUnit::Tokens, flow));
    tokens.or_else(|| Some((CostUnit::Requests, field.strip_prefix('r')?)))
}

/// The command that adds the batch's usage of budgets to the hashes; `None`: it has none. `taken_at`: the server's time at which the batch
/// was taken, in milliseconds.
pub(super) fn add(batch: &UsageBatch, writer_id: &str, taken_at: u64) -> Option<Cmd> {
    let mut hashes: BTreeMap<(PeriodCode, u64), BTreeMap<String, u64>> = BTreeMap::new();
    for usage in batch.quotas.iter() {
        let period = PeriodCode::from(usage.period);
        let Some(time) = time_of(usage, taken_at) else {
            continue;
        };
        let hash = hashes.entry((period, period.bucket(time))).or_default();
        let sum = hash.entry(field(usage)).or_default();
        *sum = sum.saturating_add(usage.amount);
    }
    if hashes.is_empty() {
        return None;
    }
    let mut command = ::redis::cmd("EVAL");
    command.arg(ADD).arg(hashes.len() + 2);
    command
        .arg(last_key(&batch.pool, writer_id))
        .arg(index_key(&batch.pool));
    let prefix = hash_prefix(&batch.pool);
    for &(period, bucket) in hashes.keys() {
        command.arg(format!("{prefix}{}", hash_name(period, bucket)));
    }
    command
        .arg(batch.number)
        .arg(millis(EXCHANGE_KEPT))
        .arg(QUOTA_FLOWS_MAX);
    for ((period, bucket), fields) in hashes {
        let expires = bucket.saturating_add(period.kept()).saturating_add(millis(SLACK));
        command
            .arg(hash_name(period, bucket))
            .arg(expires)
            .arg(fields.len());
        for (field, amount) in fields {
            command.arg(field).arg(amount.min(i64::MAX.unsigned_abs()));
        }
    }
    Some(command)
}

/// What was used of the pool's budgets, and the last entry of the stream that it contains. `now` is the server's time in milliseconds.
pub(super) async fn read(
    connection: &mut MultiplexedConnection,
    pool: &str,
    now: u64,
) -> Result<(Vec<QuotaUsage>, Position), RedisError> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(READ).arg(2).arg(index_key(pool)).arg(used_key(pool));
    command.arg(now).arg(hash_prefix(pool)).arg(QUOTA_ROWS_MAX);
    let (position, hashes): (String, Vec<(String, Value)>) = command.query_async(connection).await?;
    let mut past = Vec::new();
    for (name, hash) in hashes {
        let Some((period, bucket)) = parse_name(&name) else {
            continue;
        };
        let fields: Vec<(String, u64)> = ::redis::from_redis_value(hash).unwrap_or_default();
        for (name, amount) in fields {
            if let Some((unit, flow)) = parse_field(&name) {
                let counted = Counted {
                    flow: flow.into(),
                    unit,
                    period,
                    bucket,
                    amount,
                };
                past.push(counted.usage(now));
            }
        }
    }
    Ok((past, super::entry::parse_position(&position).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_engine::input::UsedAt;
    use penstock_engine::policy::QuotaPeriod;

    use super::*;

    #[test]
    fn names_and_fields_are_read_as_they_were_written() {
        for period in [QuotaPeriod::Day, QuotaPeriod::Sliding(Duration::from_secs(5))] {
            let code = PeriodCode::from(period);
            assert_eq!(parse_name(&hash_name(code, 7_000)), Some((code, 7_000)));
        }
        for bad in ["", "5000", "5000:", "x:1", "3:1"] {
            assert_eq!(parse_name(bad), None, "{bad}");
        }
        for unit in [CostUnit::Tokens, CostUnit::Requests] {
            let usage = QuotaUsage {
                flow: "t:é".into(),
                unit,
                period: QuotaPeriod::Day,
                used_at: UsedAt::Since(0),
                amount: 1,
            };
            assert_eq!(parse_field(&field(&usage)), Some((unit, "t:é")));
        }
        assert_eq!((parse_field(""), parse_field("xa")), (None, None));
    }
}
