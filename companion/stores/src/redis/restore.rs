//! Restores what was used of a pool's budgets, in chunks that each take a few milliseconds of the server. Between two of them the companion
//! writes its own usage and hears of that of others, as if everything were restored already.
//!
//! First comes the position in the stream, at which everything begins: from there on, entries count as they come. The hashes are read
//! later, some fields at a time, and so contain entries after that position. Each chunk also reads how far the stream is then, in one
//! transaction. When all fields are read, the entries between the first position and a field's own are deducted from it. So what is restored
//! is what had been used at the first position, and nothing counts twice.
//!
//! The stream keeps its entries for an hour. A restore that isn't finished in half of that reads the hashes anew. The first position
//! stays, because the engine has counted all entries since then: they are gathered before the stream loses them, and deducted from the fields
//! that are read later.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::streams::{StreamId, StreamRangeReply};
use ::redis::{RedisError, Value};
use penstock_engine::input::BudgetUsage;
use tokio::time::Instant;

use super::budgets::{self, field_of, hash_prefix, index_key, parse_field, parse_name};
use super::entry::{self, DuplicateFilter, Entry, Position};
use super::{EXCHANGE_KEPT, used_key};
use crate::BUDGET_ROWS_MAX;
use crate::budget::{Counted, PeriodCode};

/// Fields in one answer of the server, about.
const FIELDS_MAX: usize = 10_000;
/// Fields in one answer after the server didn't answer in time.
const FIELDS_MIN: usize = 500;
/// Hashes that are read in one chunk.
const HASHES_MAX: usize = 64;
/// Names of hashes in one answer.
const NAMES_MAX: usize = 1_000;
/// Entries of the stream in one answer.
const ENTRIES_MAX: usize = 64;
/// Between two lines in the log.
const PROGRESS: Duration = Duration::from_secs(5);

/// A hash: the window, and the beginning of the bucket in milliseconds.
type Bucket = (PeriodCode, u64);

/// An unfinished restore.
#[derive(Debug)]
pub(super) struct Restore {
    begun: Instant,
    logged: Instant,
    /// Entries of the stream after this one count as they come.
    position: Position,
    /// The last entry that a field may contain.
    latest: Position,
    names: Names,
    /// Hashes to read: the name, and where to go on within it.
    pending: VecDeque<(String, u64)>,
    fields: BTreeMap<Bucket, HashMap<String, Field>>,
    count: usize,
    fields_max: usize,
    deducted: Deducted,
    gathered: Gathered,
}

/// What entries of the stream have, up to a position, before the first field is read.
#[derive(Debug, Default)]
struct Gathered {
    /// The stream is being read.
    is_running: bool,
    amounts: BTreeMap<Bucket, HashMap<String, u64>>,
    /// What is deducted then, with the position.
    deducted: Deducted,
}

/// The names of hashes that have been read, those with the newest buckets first.
#[derive(Debug, Default)]
struct Names {
    seen: HashSet<String>,
    rank: usize,
    is_complete: bool,
}

/// A field of a hash, and the last entry of the stream that it may contain.
#[derive(Clone, Copy, Debug)]
struct Field {
    amount: u64,
    position: Position,
}

/// How far entries have been deducted.
#[derive(Clone, Debug, Default)]
struct Deducted {
    to: Position,
    duplicates: DuplicateFilter,
    /// Flows that were reset in one of the entries. Their resets come with the stream.
    flows: HashSet<Box<str>>,
}

/// The fields of some hashes with the cursors of their next ones, and the newest entry of the stream.
type Chunk = (Vec<(u64, Value)>, Vec<StreamId>);

fn newest(entries: &[StreamId]) -> Position {
    let newest = entries.first().and_then(|entry| entry::parse_position(&entry.id));
    newest.unwrap_or_default()
}

impl Restore {
    /// Begins with the present position in the pool's stream. `now`: the server's time in milliseconds. Returns the remembered resets as of
    /// then, too.
    pub(super) async fn begin(
        connection: &mut MultiplexedConnection,
        pool: &str,
        now: u64,
    ) -> Result<(Self, Vec<(String, u64)>), RedisError> {
        let mut pipe = ::redis::pipe();
        pipe.atomic();
        pipe.cmd("ZREMRANGEBYSCORE").arg(index_key(pool));
        pipe.arg("-inf").arg(now).ignore();
        pipe.cmd("XREVRANGE").arg(used_key(pool)).arg("+").arg("-");
        pipe.arg("COUNT").arg(1);
        pipe.add_command(budgets::read_resets(pool, now));
        let (newest_entry, resets): (StreamRangeReply, Vec<(String, u64)>) =
            pipe.query_async(connection).await?;
        let position = newest(&newest_entry.ids);
        let begun = Self {
            begun: Instant::now(),
            logged: Instant::now(),
            position,
            latest: position,
            names: Names::default(),
            pending: VecDeque::new(),
            fields: BTreeMap::new(),
            count: 0,
            fields_max: FIELDS_MAX,
            deducted: Deducted { to: position, ..Deducted::default() },
            gathered: Gathered {
                deducted: Deducted { to: position, ..Deducted::default() },
                ..Gathered::default()
            },
        };
        Ok((begun, resets))
    }

    /// Entries of the stream after this one count as they come.
    pub(super) const fn position(&self) -> Position {
        self.position
    }

    /// It has taken so long that the stream may have lost entries that must be deducted.
    pub(super) fn is_too_old(&self) -> bool {
        self.begun.elapsed() > EXCHANGE_KEPT / 2
    }

    /// Begins to read the hashes anew.
    pub(super) fn restart(&mut self) {
        (self.begun, self.logged) = (Instant::now(), Instant::now());
        self.names = Names::default();
        self.pending.clear();
        self.fields.clear();
        self.count = 0;
        self.gathered.is_running = true;
    }

    /// The server didn't answer in time: it is asked for less.
    pub(super) fn failed(&mut self) {
        self.fields_max = (self.fields_max / 2).max(FIELDS_MIN);
    }

    /// Reads the next chunk; whether everything is read. After an error the same chunk is read again.
    pub(super) async fn next_chunk(
        &mut self,
        connection: &mut MultiplexedConnection,
        pool: &str,
    ) -> Result<bool, RedisError> {
        self.log_progress(pool);
        if self.gathered.is_running {
            self.gather(connection, pool).await?;
            return Ok(false);
        }
        if self.pending.len() < HASHES_MAX && !self.names.is_complete {
            self.read_names(connection, pool).await?;
        }
        if self.pending.is_empty() && self.names.is_complete {
            return self.deduct(connection, pool).await;
        }
        self.read_fields(connection, pool).await?;
        Ok(false)
    }

    fn log_progress(&mut self, pool: &str) {
        if self.logged.elapsed() >= PROGRESS {
            self.logged = Instant::now();
            tracing::info!(
                pool,
                rows = self.count,
                hashes = self.fields.len(),
                "usage.store: budgets are being restored; {} hashes are left",
                self.names.seen.len().saturating_sub(self.fields.len())
            );
        }
    }

    async fn read_names(
        &mut self,
        connection: &mut MultiplexedConnection,
        pool: &str,
    ) -> Result<(), RedisError> {
        let last = self.names.rank + NAMES_MAX - 1;
        let mut command = ::redis::cmd("ZREVRANGE");
        command.arg(index_key(pool)).arg(self.names.rank).arg(last);
        let names: Vec<String> = command.query_async(connection).await?;
        self.names.is_complete = names.len() < NAMES_MAX;
        self.names.rank += names.len();
        // New hashes come first, and move the others: some are read twice.
        let new = names.into_iter().filter(|name| self.names.seen.insert(name.clone()));
        self.pending.extend(new.map(|name| (name, 0)));
        Ok(())
    }

    async fn read_fields(
        &mut self,
        connection: &mut MultiplexedConnection,
        pool: &str,
    ) -> Result<(), RedisError> {
        let hashes = self.pending.len().min(HASHES_MAX);
        let prefix = hash_prefix(pool);
        let mut pipe = ::redis::pipe();
        pipe.atomic();
        for (name, cursor) in self.pending.iter().take(hashes) {
            pipe.cmd("HSCAN").arg(format!("{prefix}{name}")).arg(cursor);
            pipe.arg("COUNT").arg((self.fields_max / hashes).max(1));
        }
        pipe.cmd("XREVRANGE").arg(used_key(pool)).arg("+").arg("-");
        pipe.arg("COUNT").arg(1);
        let mut answers: Vec<Value> = pipe.query_async(connection).await?;
        let stream = answers.pop().unwrap_or(Value::Nil);
        let stream: StreamRangeReply = ::redis::from_redis_value(stream)?;
        let answers: Result<Vec<(u64, Value)>, _> =
            answers.into_iter().map(::redis::from_redis_value).collect();
        self.add((answers?, stream.ids), hashes);
        Ok(())
    }

    fn add(&mut self, (answers, stream): Chunk, hashes: usize) {
        let position = newest(&stream).max(self.position);
        self.latest = self.latest.max(position);
        let read: Vec<(String, u64)> = self.pending.drain(..hashes).collect();
        for ((name, _), (next, fields)) in read.into_iter().zip(answers).rev() {
            let fields: Vec<(String, u64)> = ::redis::from_redis_value(fields).unwrap_or_default();
            if let Some(bucket) = parse_name(&name) {
                let hash = self.fields.entry(bucket).or_default();
                for (field, amount) in fields {
                    let before = hash.insert(field, Field { amount, position });
                    self.count += usize::from(before.is_none());
                }
            }
            if next != 0 {
                self.pending.push_front((name, next));
            }
        }
        if self.count >= BUDGET_ROWS_MAX {
            tracing::warn!(
                rows = self.count,
                "usage.store: the pool has more rows of budgets than are restored; older ones are left out"
            );
            self.pending.clear();
            self.names.is_complete = true;
        }
    }

    /// Deducts the next entries of the stream; whether there are no more.
    async fn deduct(
        &mut self,
        connection: &mut MultiplexedConnection,
        pool: &str,
    ) -> Result<bool, RedisError> {
        if self.deducted.to >= self.latest {
            return Ok(true);
        }
        let entries = entries_after(connection, pool, self.deducted.to).await?;
        if entries.is_empty() {
            return Ok(true);
        }
        for id in &entries {
            let Some(position) = entry::parse_position(&id.id) else {
                continue;
            };
            self.deducted.to = position;
            if let Some(entry) = entry::parse(id)
                && position <= self.latest
                && self.deducted.duplicates.is_new(&entry)
            {
                self.deduct_entry(&entry, position);
            }
        }
        Ok(false)
    }

    /// Gathers the next entries of the stream.
    async fn gather(&mut self, connection: &mut MultiplexedConnection, pool: &str) -> Result<(), RedisError> {
        let entries = entries_after(connection, pool, self.gathered.deducted.to).await?;
        for id in &entries {
            if let Some(position) = entry::parse_position(&id.id) {
                self.gather_entry(entry::parse(id).as_ref(), position);
            }
        }
        if entries.is_empty() {
            self.end_gathering();
        }
        Ok(())
    }

    fn gather_entry(&mut self, entry: Option<&Entry>, position: Position) {
        let Gathered { amounts, deducted, .. } = &mut self.gathered;
        deducted.to = position;
        let Some(entry) = entry.filter(|entry| deducted.duplicates.is_new(entry)) else {
            return;
        };
        deducted.flows.extend(entry.resets.iter().map(|reset| reset.flow.clone()));
        for counted in &entry.budgets {
            let bucket = (counted.period, counted.period.bucket(counted.bucket));
            let field = field_of(counted.counter, &counted.flow);
            let amount = amounts.entry(bucket).or_default().entry(field).or_default();
            *amount = amount.saturating_add(counted.amount);
        }
    }

    /// All entries so far are gathered: the hashes are read from now on, and contain them.
    fn end_gathering(&mut self) {
        self.gathered.is_running = false;
        self.deducted = self.gathered.deducted.clone();
        self.latest = self.latest.max(self.deducted.to);
    }

    fn deduct_entry(&mut self, entry: &Entry, position: Position) {
        self.deducted.flows.extend(entry.resets.iter().map(|reset| reset.flow.clone()));
        for counted in &entry.budgets {
            let bucket = (counted.period, counted.period.bucket(counted.bucket));
            let hash = self.fields.get_mut(&bucket);
            let field = hash.and_then(|hash| hash.get_mut(&field_of(counted.counter, &counted.flow)));
            if let Some(field) = field.filter(|field| field.position >= position) {
                field.amount = field.amount.saturating_sub(counted.amount);
            }
        }
    }

    /// What was used before the first position. `now`: the server's time in milliseconds.
    pub(super) fn finish(self, pool: &str, now: u64) -> Vec<BudgetUsage> {
        let mut past = Vec::new();
        for ((period, bucket), hash) in self.fields {
            let gathered = self.gathered.amounts.get(&(period, bucket));
            let rows = hash.into_iter().filter_map(|(name, field)| {
                let gathered = gathered.and_then(|hash| hash.get(&name)).copied().unwrap_or(0);
                let amount = field.amount.checked_sub(gathered).filter(|amount| *amount > 0)?;
                let (counter, flow) = parse_field(&name)?;
                let counted = Counted { flow: flow.into(), counter, period, bucket, amount };
                (!self.deducted.flows.contains(flow)).then(|| counted.usage(now))
            });
            past.extend(rows);
        }
        tracing::info!(
            pool,
            rows = past.len(),
            seconds = self.begun.elapsed().as_secs_f64(),
            "usage.store: budgets restored"
        );
        past
    }
}

/// The next entries of a pool's stream after a position; empty: there are none.
async fn entries_after(
    connection: &mut MultiplexedConnection,
    pool: &str,
    (millis, number): Position,
) -> Result<Vec<StreamId>, RedisError> {
    let mut command = ::redis::cmd("XRANGE");
    command.arg(used_key(pool)).arg(format!("({millis}-{number}")).arg("+");
    command.arg("COUNT").arg(ENTRIES_MAX);
    let entries: StreamRangeReply = command.query_async(connection).await?;
    Ok(entries.ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Counter;
    use crate::redis::entry::Reset;

    const MINUTE: u64 = 60_000;

    fn period() -> PeriodCode {
        PeriodCode::from_number(MINUTE).expect("a window")
    }

    fn restore(position: Position) -> Restore {
        Restore {
            begun: Instant::now(),
            logged: Instant::now(),
            position,
            latest: position,
            names: Names::default(),
            pending: VecDeque::new(),
            fields: BTreeMap::new(),
            count: 0,
            fields_max: FIELDS_MAX,
            deducted: Deducted::default(),
            gathered: Gathered::default(),
        }
    }

    fn chunk(next: u64, fields: &[(&str, u64)], newest: &str) -> Chunk {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let fields = fields.iter().flat_map(|(name, amount)| [text(name), text(&amount.to_string())]);
        let entry = StreamId { id: newest.into(), ..StreamId::default() };
        (vec![(next, Value::Array(fields.collect()))], vec![entry])
    }

    fn entry(number: u64, used: &[(&str, u64)], resets: &[&str]) -> Entry {
        let counted = used.iter().map(|&(flow, amount)| Counted {
            flow: flow.into(),
            counter: Counter::Tokens,
            period: period(),
            bucket: 120_500,
            amount,
        });
        Entry {
            writer_id: "w".into(),
            number,
            time: 0,
            used: Vec::new(),
            companion: None,
            resets: resets
                .iter()
                .map(|&flow| Reset { flow: flow.into(), number: 0, own_number: 0 })
                .collect(),
            budgets: counted.collect(),
        }
    }

    #[test]
    fn what_a_chunk_already_contains_of_later_entries_is_deducted_and_nothing_else() {
        let mut restore = restore((100, 0));
        restore.pending.push_back(("60000:120000".into(), 0));
        restore.add(chunk(7, &[("ta", 10), ("tb", 20)], "100-0"), 1);
        assert_eq!(restore.pending, [("60000:120000".to_owned(), 7)]);
        restore.add(chunk(0, &[("tc", 30), ("td", 40)], "200-0"), 1);
        assert!(restore.pending.is_empty());
        // The first field was read before this entry, and the third after it.
        restore.deduct_entry(&entry(1, &[("a", 1), ("c", 2), ("new", 9)], &[]), (150, 0));
        restore.deduct_entry(&entry(2, &[("c", 5)], &["d"]), (250, 0));
        let mut past = restore.finish("p", 130_000);
        past.sort_by(|a, b| a.flow.cmp(&b.flow));
        let used: Vec<_> = past.iter().map(|usage| (&*usage.flow, usage.amount)).collect();
        assert_eq!(used, [("a", 10), ("b", 20), ("c", 28)], "the reset of d comes with the stream");
    }

    #[test]
    fn a_field_that_is_read_twice_has_its_later_value() {
        let mut restore = restore((100, 0));
        restore.pending.push_back(("60000:120000".into(), 0));
        restore.add(chunk(7, &[("ta", 10)], "100-0"), 1);
        restore.add(chunk(0, &[("ta", 13)], "200-0"), 1);
        restore.deduct_entry(&entry(1, &[("a", 3)], &[]), (150, 0));
        assert_eq!(restore.count, 1);
        assert_eq!(restore.finish("p", 130_000)[0].amount, 10);
    }

    /// The engine has counted every entry since the first position, this companion's own included.
    #[test]
    fn what_was_counted_before_the_hashes_are_read_anew_is_deducted_once() {
        let mut restore = restore((100, 0));
        let hash = || "60000:120000".to_owned();
        restore.pending.push_back((hash(), 0));
        restore.add(chunk(7, &[("ta", 10)], "100-0"), 1);
        for restart in 0..2 {
            restore.restart();
            assert!(restore.pending.is_empty() && restore.count == 0);
            let number = 2 * restart + 1;
            restore.gather_entry(Some(&entry(number, &[("a", 4), ("b", 5)], &[])), (150 + restart, 0));
            // The same batch once more.
            restore.gather_entry(Some(&entry(number, &[("a", 4), ("b", 5)], &[])), (160 + restart, 0));
            restore.gather_entry(Some(&entry(number + 1, &[], &["d"])), (170 + restart, 0));
            restore.end_gathering();
            // The second time, nothing of this counts.
            restore.pending.push_back((hash(), 0));
            restore.add(chunk(0, &[("ta", 18), ("tb", 10), ("tc", 7), ("td", 9)], "200-0"), 1);
            assert!(restore.deducted.to < (200, 0));
            restore.deduct_entry(&entry(9, &[("a", 3)], &[]), (190, 0));
        }
        restore.restart();
        restore.end_gathering();
        restore.pending.push_back((hash(), 0));
        restore.add(chunk(0, &[("ta", 21), ("tb", 10), ("tc", 7), ("td", 9)], "300-0"), 1);
        restore.deduct_entry(&entry(9, &[("a", 3)], &[]), (250, 0));
        let mut past = restore.finish("p", 130_000);
        past.sort_by(|a, b| a.flow.cmp(&b.flow));
        let used: Vec<_> = past.iter().map(|usage| (&*usage.flow, usage.amount)).collect();
        assert_eq!(used, [("a", 10), ("c", 7)], "21 of a are 2 times 4, 3 and what was used before");
    }

    #[test]
    fn a_server_that_is_slow_is_asked_for_less() {
        let mut restore = restore((0, 0));
        (0..20).for_each(|_| restore.failed());
        assert_eq!(restore.fields_max, FIELDS_MIN);
    }
}
