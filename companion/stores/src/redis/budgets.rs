//! Usage of budgets in redis: a hash for each bucket of each window, whose fields are flows, and an index of these hashes. A reset deletes the
//! fields of its flow, and is remembered for an hour: until then nothing from before it is added any more.
//!
//! A companion adds a batch once, however often it writes it: the number of its last batch stands beside the hashes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use ::redis::Cmd;
use penstock_engine::input::{BudgetReset, BudgetUsage};
use penstock_engine::limits::{BUDGET_RESET_KEPT, BUDGET_RESETS_MAX};
use tokio::time::Instant;

use super::{EXCHANGE_KEPT, SLACK, millis};
use crate::BUDGET_FLOWS_MAX;
use crate::budget::{Counter, PeriodCode, time_of};
use crate::budget_buffer::OwnReset;
use crate::write_buffer::UsageBatch;

/// Keys: the writer's last number, the index, the resets, the hashes. Arguments: the batch's number, how long to remember it, the limit of
/// fields, what the names of hashes begin with, how long to remember resets, which are too old for that, the limit of resets, how many there are,
/// and the flow and the number of each; for each hash its name in the index, when it expires, the number of its fields, and each field with
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

/// An engine hears of a reset within this, unless it was lost.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// A sorted set of the flows that were reset in the last hour, by the numbers of their resets.
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

/// The last reset of each flow in the last hour, by its number.
pub(super) type Resets = HashMap<String, u64>;

/// The numbers of a companion's resets for all companions: the server's time in milliseconds, but always above that of the flow's reset before.
pub(super) fn number_resets(own: &[OwnReset], resets: &Resets, now: u64) -> Vec<(Box<str>, u64)> {
    let number = |flow: &str| resets.get(flow).map_or(now, |last| now.max(last.saturating_add(1)));
    own.iter().map(|reset| (reset.flow.clone(), number(&reset.flow))).collect()
}

/// The last reset of each flow of which this companion's engine has heard, by its number. What the engine reports from then on was used after
/// that reset, and so counts at all companions.
#[derive(Debug, Default)]
pub(super) struct KnownResets {
    heard: HashMap<Box<str>, u64>,
    /// Resets for which usage was dropped, and since when the engine should have heard of them.
    missed: HashMap<Box<str>, (u64, Instant)>,
}

impl KnownResets {
    /// Begins with the remembered resets. Returns those that the engine must hear of. `opened_at`: the server's time at which this companion
    /// began to use the store, and usage since then isn't written; `None`: there is none.
    pub(super) fn begin(&mut self, resets: Vec<(String, u64)>, opened_at: Option<u64>) -> Vec<BudgetReset> {
        let mut unknown = Vec::new();
        for (flow, number) in resets {
            if self.knows(&flow, number) {
                continue;
            }
            if opened_at.is_some_and(|opened_at| number > opened_at) {
                unknown.push(BudgetReset::Elsewhere { flow: flow.into(), number });
            } else {
                self.hear(flow.into(), number);
            }
        }
        unknown
    }

    /// The engine has heard of a reset.
    pub(super) fn hear(&mut self, flow: Box<str>, number: u64) {
        self.missed.remove(&flow);
        let last = self.heard.entry(flow).or_default();
        *last = number.max(*last);
    }

    /// The engine has made these resets, which are written.
    pub(super) fn hear_all(&mut self, resets: Vec<(Box<str>, u64)>, now: u64) {
        for (flow, number) in resets {
            self.hear(flow, number);
        }
        self.heard.retain(|_, number| *number > oldest_reset(now));
        self.missed.retain(|_, (number, _)| *number > oldest_reset(now));
    }

    fn knows(&self, flow: &str, number: u64) -> bool {
        self.heard.get(flow).is_some_and(|heard| *heard >= number)
    }

    /// Drops what the batch has of flows with resets that the engine hasn't heard of. Returns those that it should have heard of by now: it may
    /// have lost them while the pool's settings changed.
    pub(super) fn drop_unknown(
        &mut self,
        batch: &mut UsageBatch,
        resets: &Resets,
        now: Instant,
    ) -> Vec<BudgetReset> {
        // The companion's own reset in the batch comes after all of these.
        let own: HashSet<Box<str>> = batch.budget_resets.iter().map(|reset| reset.flow.clone()).collect();
        let unknown = |flow: &str| {
            let number = *resets.get(flow)?;
            (!self.knows(flow, number) && !own.contains(flow)).then_some(number)
        };
        let dropped: HashMap<Box<str>, u64> = batch
            .budgets
            .iter()
            .filter_map(|usage| Some((usage.flow.clone(), unknown(&usage.flow)?)))
            .collect();
        if dropped.is_empty() {
            return Vec::new();
        }
        batch.retain_budgets(|usage| !dropped.contains_key(&usage.flow));
        let mut late = Vec::new();
        for (flow, number) in dropped {
            let (_, since) = self.missed.entry(flow.clone()).or_insert((number, now));
            if now.saturating_duration_since(*since) > HEARD_WITHIN {
                *since = now;
                late.push(BudgetReset::Elsewhere { flow, number });
            }
        }
        late
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
    for (flow, number) in &batch.reset_numbers {
        command.arg(&**flow).arg(*number);
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

    use penstock_engine::input::UsedAt;
    use penstock_engine::policy::BudgetPeriod;

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
        let resets = resets.iter().map(|&flow| OwnReset { flow: flow.into(), number: 1 });
        let used = flows.iter().map(|flow| used(flow, Counter::Tokens, minute, UsedAt::Ago(Duration::ZERO)));
        UsageBatch {
            number: 1,
            pool: "p".into(),
            window: None,
            taken: Instant::now(),
            used: Arc::default(),
            budget_resets: resets.collect(),
            reset_numbers: Vec::new(),
            budgets: used.collect(),
            running: None,
        }
    }

    fn resets(resets: &[(&str, u64)]) -> Resets {
        resets.iter().map(|&(flow, number)| (flow.into(), number)).collect()
    }

    /// What is written of a batch with usage of these flows, when these resets are remembered.
    fn written(known: &mut KnownResets, mut batch: UsageBatch, remembered: &[(&str, u64)]) -> Vec<String> {
        assert_eq!(known.drop_unknown(&mut batch, &resets(remembered), Instant::now()), []);
        batch.budgets.iter().map(|usage| usage.flow.to_string()).collect()
    }

    #[test]
    fn usage_of_a_flow_is_not_written_until_its_reset_is_heard_of() {
        let mut known = KnownResets::default();
        let remembered = [("a", 1_000)];
        let of_all = || batch(&[], &["a", "b"]);
        assert_eq!(written(&mut known, of_all(), &remembered), ["b"]);
        known.hear("a".into(), 1_000);
        known.hear("a".into(), 900);
        assert_eq!(written(&mut known, of_all(), &remembered), ["a", "b"]);
        assert_eq!(written(&mut known, of_all(), &[("a", 1_001)]), ["b"], "a later one");
    }

    #[test]
    fn a_reset_of_the_batch_itself_comes_after_those_of_others() {
        let mut known = KnownResets::default();
        let remembered = [("a", 5_000)];
        let own = batch(&["a", "b"], &["a"]);
        let numbers = number_resets(&own.budget_resets, &resets(&remembered), 4_900);
        assert_eq!(numbers, [("a".into(), 5_001), ("b".into(), 4_900)], "also by a clock that is behind");
        assert_eq!(written(&mut known, own, &remembered), ["a"]);
        known.hear_all(numbers, 5_100);
        assert_eq!(written(&mut known, batch(&[], &["a"]), &[("a", 5_001)]), ["a"]);
        known.hear_all(Vec::new(), 5_400 + BUDGET_RESET_KEPT.as_millis() as u64);
        assert!(known.heard.is_empty());
    }

    #[test]
    fn resets_from_before_the_store_was_used_are_known() {
        let remembered = [("before", 1_000), ("since", 1_500), ("heard", 2_000)];
        let begin = |opened_at| {
            let mut known = KnownResets::default();
            known.hear("heard".into(), 2_000);
            let resets = remembered.map(|(flow, number)| (flow.into(), number)).to_vec();
            let unknown = known.begin(resets, opened_at);
            (known, unknown)
        };
        let (mut known, unknown) = begin(Some(1_200));
        assert_eq!(unknown, [BudgetReset::Elsewhere { flow: "since".into(), number: 1_500 }]);
        assert_eq!(written(&mut known, batch(&[], &["before", "since"]), &remembered), ["before"]);
        let (mut known, unknown) = begin(None);
        assert_eq!(unknown, [], "the engine has used nothing");
        assert_eq!(written(&mut known, batch(&[], &["since"]), &remembered), ["since"]);
    }

    #[test]
    fn a_reset_that_the_engine_has_lost_is_delivered_again() {
        let mut known = KnownResets::default();
        let (remembered, begun) = (resets(&[("a", 1_000)]), Instant::now());
        let mut missed_after = |seconds| {
            let now = begun + Duration::from_secs(seconds);
            known.drop_unknown(&mut batch(&[], &["a"]), &remembered, now)
        };
        let late = [BudgetReset::Elsewhere { flow: "a".into(), number: 1_000 }];
        assert_eq!([0, 5].map(&mut missed_after), [[], []]);
        assert_eq!([6, 11, 12].map(&mut missed_after), [late.to_vec(), Vec::new(), late.to_vec()]);
        known.hear("a".into(), 1_000);
        assert!(known.missed.is_empty());
    }
}
