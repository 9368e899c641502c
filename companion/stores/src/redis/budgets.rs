//! Usage of budgets in redis: a hash for each bucket of each window, whose fields are flows, and an index of these hashes. A reset deletes the
//! fields of its flow, and is remembered for an hour: until then nothing from before it is added any more.
//!
//! A companion adds a batch once, however often it writes it: the number of its last batch stands beside the hashes.

use std::collections::{BTreeMap, HashMap, HashSet};

use ::redis::Cmd;
use penstock_engine::input::{BudgetReset, BudgetUsage};
use penstock_engine::limits::{BUDGET_RESET_KEPT, BUDGET_RESETS_MAX};

use super::entry::reset_times;
use super::{EXCHANGE_KEPT, SLACK, millis};
use crate::BUDGET_FLOWS_MAX;
use crate::budget::{Counter, PeriodCode, time_of};
use crate::budget_buffer::OwnReset;
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

/// The command that reads the remembered resets of the pool, with their times.
pub(super) fn read_resets(pool: &str, now: u64) -> Cmd {
    let mut command = ::redis::cmd("ZRANGEBYSCORE");
    command.arg(resets_key(pool)).arg(format!("({}", oldest_reset(now)));
    command.arg("+inf").arg("WITHSCORES");
    command
}

/// The last reset of each flow of which this companion's engine has heard, by its time. What the engine reports from then on was used after
/// that reset, and so counts at all companions; what it has reported before, it has forgotten.
#[derive(Debug, Default)]
pub(super) struct KnownResets(HashMap<Box<str>, u64>);

impl KnownResets {
    /// Begins with the `resets` that are remembered. Returns those that the engine must hear of: the others are from before this companion
    /// used the store. `opened_at`: the server's time then.
    pub(super) fn begin(&mut self, resets: Vec<(String, u64)>, opened_at: u64) -> Vec<BudgetReset> {
        let mut unknown = Vec::new();
        for (flow, time) in resets {
            if self.knows(&flow, time) {
                continue;
            }
            if time > opened_at {
                unknown.push(BudgetReset::Elsewhere { flow: flow.into(), number: time });
            } else {
                self.hear(flow.into(), time);
            }
        }
        unknown
    }

    /// The engine has heard of a reset.
    pub(super) fn hear(&mut self, flow: Box<str>, time: u64) {
        let last = self.0.entry(flow).or_default();
        *last = time.max(*last);
    }

    /// A batch that was written has these resets of this companion's engine.
    pub(super) fn write(&mut self, resets: &[OwnReset], taken_at: u64, now: u64) {
        for (flow, time) in reset_times(resets, taken_at) {
            self.hear(flow.into(), time.saturating_add(TIMES_DIFFER_MS));
        }
        self.0.retain(|_, time| *time > oldest_reset(now));
    }

    fn knows(&self, flow: &str, time: u64) -> bool {
        self.0.get(flow).is_some_and(|known| *known >= time)
    }

    /// Drops what the batch has of flows with resets that the engine hasn't heard of.
    pub(super) fn drop_unknown(&self, batch: &mut UsageBatch, resets: Vec<(String, u64)>) {
        // A reset in the batch itself may be there already, if an earlier attempt to write the batch wasn't answered.
        let own = batch.budget_resets.clone();
        let is_own = |flow: &str| own.iter().any(|reset| *reset.flow == *flow);
        let unknown = resets.into_iter().filter(|(flow, time)| !self.knows(flow, *time) && !is_own(flow));
        let unknown: HashSet<String> = unknown.map(|(flow, _)| flow).collect();
        if !unknown.is_empty() {
            batch.retain_budgets(|usage| !unknown.contains(&*usage.flow));
        }
    }
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
            amount: 1,
        }
    }

    fn batch(resets: &[&str], flows: &[&str]) -> UsageBatch {
        let minute = BudgetPeriod::Sliding(Duration::from_secs(60));
        let resets =
            resets.iter().map(|&flow| OwnReset { flow: flow.into(), ago: Duration::from_millis(500) });
        let used = flows.iter().map(|flow| used(flow, Counter::Tokens, minute, UsedAt::Ago(Duration::ZERO)));
        UsageBatch {
            number: 1,
            pool: "p".into(),
            window: None,
            taken: Instant::now(),
            used: Arc::default(),
            budget_resets: resets.collect(),
            budgets: used.collect(),
            running: None,
        }
    }

    /// What is written of a batch with usage of these flows, when these resets are remembered.
    fn written(known: &KnownResets, mut batch: UsageBatch, resets: &[(&str, u64)]) -> Vec<String> {
        known.drop_unknown(&mut batch, resets.iter().map(|&(flow, time)| (flow.into(), time)).collect());
        batch.budgets.iter().map(|usage| usage.flow.to_string()).collect()
    }

    #[test]
    fn usage_of_a_flow_is_not_written_until_its_reset_is_heard_of() {
        let mut known = KnownResets::default();
        let resets = [("a", 1_000)];
        let of_all = || batch(&[], &["a", "b"]);
        assert_eq!(written(&known, of_all(), &resets), ["b"]);
        known.hear("a".into(), 1_000);
        known.hear("a".into(), 900);
        assert_eq!(written(&known, of_all(), &resets), ["a", "b"]);
        assert_eq!(written(&known, of_all(), &[("a", 1_001)]), ["b"], "a later one");
    }

    #[test]
    fn own_resets_are_known_however_often_they_are_written() {
        let mut known = KnownResets::default();
        let resets = [("a", 5_000)];
        assert_eq!(written(&known, batch(&["a"], &["a"]), &resets), ["a"], "the second attempt");
        known.write(&batch(&["a"], &[]).budget_resets, 4_900, 5_100);
        assert_eq!(written(&known, batch(&[], &["a"]), &resets), ["a"]);
        known.write(&[], 0, 5_400 + TIMES_DIFFER_MS + BUDGET_RESET_KEPT.as_millis() as u64);
        assert!(known.0.is_empty());
    }

    #[test]
    fn resets_from_before_the_store_was_used_are_known() {
        let mut known = KnownResets::default();
        known.hear("heard".into(), 2_000);
        let resets = [("before", 1_000), ("since", 1_500), ("heard", 2_000)];
        let unknown = known.begin(resets.map(|(flow, time)| (flow.into(), time)).to_vec(), 1_200);
        assert_eq!(unknown, [BudgetReset::Elsewhere { flow: "since".into(), number: 1_500 }]);
        assert_eq!(written(&known, batch(&[], &["before", "since"]), &resets), ["before"]);
    }
}
