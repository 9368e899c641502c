//! A store in a redis server that companions share: usage that one companion settles enters the windows of the other
//! companions within about a second.
//!
//! A pool's usage is a stream, and each batch is one entry: the writer's id, the batch's number among this writer's
//! batches, the batch's age when it was written, and the usage as JSON. The server's clock is the common clock: an
//! entry's id is the time at which it was written. Each write trims entries outside the window; a stream has a length
//! limit, and a stream without writes expires after its window. The learned models of a pool are a hash, by variant. All
//! keys begin with the number of the format.
//!
//! A companion's running requests in a pool are in a separate key, which expires soon after the companion died. The companion replaces
//! it in the transaction that writes the final costs, and names itself in the entry. So an entry tells the readers to read
//! the key again, and an estimate ends where its final cost begins ([`elsewhere`]).
//!
//! Usage of budgets goes the same way, in the same entries. A budget's window may be a month, so it is also summed up in hashes, from which
//! a companion restores it ([`restore`]), while it writes and reads usage. A change of a budget by hand goes the same way: a top-up beside the
//! usage, and a reset, which also deletes what the hashes have of its flow.
//!
//! It needs redis 6.2. A batch without acknowledgement is written again with the same number, and readers count it once.

mod budgets;
mod elsewhere;
mod entry;
mod reader;
mod restore;
mod restoring;
mod stream;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError};
use penstock_config::RedisUrl;
use penstock_control::Kept;
use penstock_engine::input::{BudgetUsage, PastUsage};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::reader::{Command, Reader};
use self::restoring::{Restoring, waiting};
use super::health::Health;
use super::message::Windows;
use super::write_buffer::{SharedUsage, UsageBatch};
use super::{Error, Models, RUNNING_TTL, millis, model_from_numbers, model_numbers};
use penstock_base::essential;

/// To connect and authenticate.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// To answer a command.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Entries of a stream: some batches a second during a window.
const STREAM_MAX: usize = 100_000;
/// Variants that are read for a pool.
const VARIANTS_MAX: usize = 1_000;
/// How much longer than its window a stream is kept.
const SLACK: Duration = Duration::from_secs(10);
/// Entries with usage of budgets are kept for this long. A companion that doesn't read for longer misses what was used before.
const EXCHANGE_KEPT: Duration = Duration::from_secs(3_600);
/// Commands that wait for the reader.
const COMMANDS: usize = 64;

/// The stream with the usage of a pool's flows.
fn used_key(pool: &str) -> String {
    format!("penstock:1:used:{pool}")
}

/// What a companion runs in a pool.
fn running_key(pool: &str, companion: &str) -> String {
    format!("penstock:1:running:{pool}:{companion}")
}

/// What a companion runs of flows with budgets in a pool.
fn running_budgets_key(pool: &str, companion: &str) -> String {
    format!("penstock:1:budgets-running:{pool}:{companion}")
}

/// The hash with the learned models of a pool.
fn models_key(pool: &str) -> String {
    format!("penstock:1:models:{pool}")
}

/// An open redis store.
#[derive(Debug)]
pub(super) struct Redis {
    client: Client,
    connection: Option<MultiplexedConnection>,
    /// Pools with usage windows or budgets.
    pools: BTreeMap<Arc<str>, Attached>,
    /// Names what this companion runs.
    companion: Arc<str>,
    reader: mpsc::Sender<Command>,
    /// When this companion began to use the store.
    opened: Instant,
}

/// A pool with usage windows or budgets.
#[derive(Debug)]
struct Attached {
    /// A new one each time the usage windows begin.
    writer_id: Arc<str>,
    windows: Windows,
    restoring: Restoring,
    known_resets: budgets::KnownResets,
}

/// How long the stream keeps entries for these windows.
fn kept(windows: Windows) -> Duration {
    let exchange = if windows.has_budgets { EXCHANGE_KEPT } else { Duration::ZERO };
    windows.usage.unwrap_or_default().max(exchange)
}

impl Redis {
    /// A client of this server, which needn't be reachable. Usage of other companions is sent to `shared_usage`.
    pub(super) fn new(
        url: &RedisUrl,
        health: Arc<Health>,
        shared_usage: mpsc::Sender<SharedUsage>,
    ) -> Result<Self, Error> {
        let client = Client::open(url.with_password())
            .map_err(|why| Error::Redis { place: url.to_string(), why: why.to_string() })?;
        let (reader, commands) = mpsc::channel(COMMANDS);
        let companion = new_writer_id();
        essential::spawn(
            "usage of other companions",
            Reader::new(client.clone(), health, shared_usage, companion.clone()).run(commands),
        );
        Ok(Self {
            client,
            connection: None,
            pools: BTreeMap::new(),
            companion,
            reader,
            opened: Instant::now(),
        })
    }

    /// Reads this pool's stream from now on, if it has windows: usage from the window's beginning if `past_usage` is given, and usage of
    /// budgets from where the hashes end. `past_budgets` receives these, unless the server doesn't answer.
    pub(super) async fn attach(
        &mut self,
        pool: Arc<str>,
        windows: Windows,
        past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
        past_budgets: Option<oneshot::Sender<Vec<BudgetUsage>>>,
    ) {
        if windows.kept().is_none() {
            self.detach(&pool).await;
            return;
        }
        let previous = self.pools.remove(&pool);
        let restoring = match &previous {
            Some(previous) if previous.windows.has_budgets && past_budgets.is_none() => None,
            Some(_) | None => Some(waiting(past_budgets)).filter(|_| windows.has_budgets),
        };
        let (writer_id, before, known_resets) = match previous {
            Some(previous) => (Some(previous.writer_id), previous.restoring, previous.known_resets),
            None => (None, Restoring::Done, budgets::KnownResets::default()),
        };
        let writer_id = match writer_id.filter(|_| past_usage.is_none()) {
            Some(id) => id,
            // The windows begin now, so this companion's earlier entries must be read as well: they need another id.
            None => new_writer_id(),
        };
        let attached = Attached {
            writer_id: writer_id.clone(),
            windows,
            restoring: restoring.unwrap_or(before),
            known_resets,
        };
        self.pools.insert(pool.clone(), attached);
        let attach = Command::Attach { pool: pool.clone(), windows, writer_id, past_usage };
        // The reader runs as long as this sender.
        let _ = self.reader.send(attach).await;
        // The start doesn't wait for a failing server; the next write tries again, and reports the failure.
        let _ = self.begin_restore(&pool).await;
    }

    pub(super) async fn detach(&mut self, pool: &str) {
        if self.pools.remove(pool).is_some() {
            // The reader runs as long as this sender.
            let _ = self.reader.send(Command::Detach(pool.into())).await;
        }
    }

    /// The engine has heard of these resets by number: what a batch has of these flows from here on was used after them.
    pub(super) fn know_resets(&mut self, pool: &str, resets: HashMap<Box<str>, Option<u64>>) {
        if let Some(attached) = self.pools.get_mut(pool) {
            let numbered = resets.into_iter().filter_map(|(flow, number)| Some((flow, number?)));
            numbered.for_each(|(flow, number)| attached.known_resets.hear(flow, number));
        }
    }

    /// What was used of some pool's budgets isn't read yet.
    pub(super) fn is_behind(&self) -> bool {
        let mut pools = self.pools.values();
        pools.any(|attached| matches!(attached.restoring, Restoring::Waits(_)))
    }

    /// The server's time in milliseconds.
    async fn server_time(&mut self) -> Result<u64, RedisError> {
        let connection = self.connected().await?;
        let answer = ::redis::cmd("TIME").query_async(connection).await;
        self.check(answer).map(reader::server_millis)
    }

    /// The stored models of a pool.
    pub(super) async fn models(&mut self, pool: &str) -> Result<Vec<(String, Kept)>, RedisError> {
        let connection = self.connected().await?;
        let answer = ::redis::cmd("HGETALL").arg(models_key(pool)).query_async(connection).await;
        let all: Vec<(String, String)> = self.check(answer)?;
        let mut models = Vec::new();
        for (variant, text) in all.into_iter().take(VARIANTS_MAX) {
            match serde_json::from_str(&text).ok().and_then(model_from_numbers) {
                Some(model) => models.push((variant, model)),
                None => tracing::warn!(
                    pool,
                    variant,
                    "stored model ignored: its values are impossible; the variant is learned again"
                ),
            }
        }
        Ok(models)
    }

    /// Writes everything; each model and each batch leaves its collection once it is written. Then restores the next chunk of what was used
    /// of budgets, if [`Self::is_behind`].
    pub(super) async fn write(
        &mut self,
        learned: &mut Models,
        backlog: &mut VecDeque<UsageBatch>,
    ) -> Result<(), RedisError> {
        while let Some(((pool, variant), model)) = learned.first_key_value() {
            let text = serde_json::to_string(&model_numbers(model)).unwrap_or_default();
            let mut command = ::redis::cmd("HSET");
            command.arg(models_key(pool)).arg(variant).arg(text);
            let connection = self.connected().await?;
            let answer = command.query_async(connection).await;
            self.check::<()>(answer)?;
            learned.pop_first();
        }
        let pools: Vec<Arc<str>> = self.pools.keys().cloned().collect();
        for pool in &pools {
            self.begin_restore(pool).await?;
        }
        while let Some(batch) = backlog.front_mut() {
            self.append(batch).await?;
            backlog.pop_front();
        }
        for pool in &pools {
            self.restore_chunk(pool, backlog).await?;
        }
        Ok(())
    }

    /// Writes a batch.
    async fn append(&mut self, batch: &mut UsageBatch) -> Result<(), RedisError> {
        // A reset by another companion may come between reading the resets and writing what they leave.
        while !self.try_append(batch).await? {}
        Ok(())
    }

    /// Writes a batch, unless its pool's resets have changed meanwhile: then `false`.
    async fn try_append(&mut self, batch: &mut UsageBatch) -> Result<bool, RedisError> {
        let Some(Attached { writer_id, windows, .. }) = self.pools.get(&batch.pool) else {
            // The pool was detached before this batch could be written.
            return Ok(true);
        };
        let (writer_id, kept) = (writer_id.clone(), kept(*windows));
        let key = used_key(&batch.pool);
        let age = millis(batch.taken.elapsed());
        let now = self.server_time().await?;
        let taken_at = now.saturating_sub(age);
        let resets = self.drop_reset(batch, now).await?;
        let numbers = budgets::number_resets(&batch.budget_resets, &resets, now);
        let tried = std::mem::replace(&mut batch.reset_numbers, numbers);
        let mut pipe = ::redis::pipe();
        pipe.atomic();
        if let Some(running) = &batch.running {
            let usage = elsewhere::encode_within(&running.usage, entry::encode);
            let budgets = elsewhere::encode_within(&running.budgets, entry::encode_running_budgets);
            for (key, text) in [
                (running_key(&batch.pool, &self.companion), usage),
                (running_budgets_key(&batch.pool, &self.companion), budgets),
            ] {
                pipe.cmd("SET").arg(key).arg(text);
                pipe.arg("PX").arg(millis(RUNNING_TTL)).ignore();
            }
        }
        if let Some(add) = budgets::add(batch, &writer_id, taken_at, now) {
            pipe.add_command(add);
        }
        let entry = entry_command(batch, &writer_id, &self.companion, (taken_at, age));
        pipe.add_command(entry).ignore();
        let from = now.saturating_sub(millis(kept));
        pipe.cmd("XTRIM").arg(&key).arg("MINID").arg(from).ignore();
        let lifetime = millis(kept.saturating_add(SLACK));
        pipe.cmd("PEXPIRE").arg(&key).arg(lifetime).ignore();
        let connection = self.connected().await?;
        let answer = pipe.query_async(connection).await;
        let Some(added) = self.check::<Option<Vec<u64>>>(answer)? else {
            return Ok(false);
        };
        // An earlier attempt, whose answer was lost, may have added it.
        let is_added = added.first() != Some(&0);
        let numbers = if is_added { std::mem::take(&mut batch.reset_numbers) } else { tried };
        if let Some(attached) = self.pools.get_mut(&batch.pool) {
            attached.known_resets.hear_all(numbers, now);
        }
        Ok(true)
    }

    /// Drops what the batch has of flows that other companions have reset, if this one's engine hasn't heard of it: when it does, it will
    /// forget the same. Returns the remembered resets. From here on, a transaction on this connection fails if they change before.
    async fn drop_reset(&mut self, batch: &mut UsageBatch, now: u64) -> Result<budgets::Resets, RedisError> {
        if batch.budgets.is_empty() && batch.budget_resets.is_empty() {
            return Ok(budgets::Resets::new());
        }
        let watch = ::redis::cmd("WATCH").arg(budgets::resets_key(&batch.pool)).to_owned();
        let connection = self.connected().await?;
        let answer = watch.query_async(connection).await;
        self.check::<()>(answer)?;
        let connection = self.connected().await?;
        let answer = budgets::read_resets(&batch.pool, now).query_async(connection).await;
        let resets: budgets::Resets = self.check::<Vec<(String, u64)>>(answer)?.into_iter().collect();
        let attached = self.pools.get_mut(&batch.pool);
        let missed =
            attached.map(|attached| attached.known_resets.drop_unknown(batch, &resets, Instant::now()));
        self.deliver_resets(&batch.pool, missed.unwrap_or_default()).await;
        Ok(resets)
    }

    /// Drops the connection after a failure, so that the next command connects again.
    fn check<T>(&mut self, result: Result<T, RedisError>) -> Result<T, RedisError> {
        if result.is_err() {
            self.connection = None;
        }
        result
    }

    async fn connected(&mut self) -> Result<&mut MultiplexedConnection, RedisError> {
        match &mut self.connection {
            Some(_) => {}
            none => *none = Some(connect(&self.client, ANSWER_MAX).await?),
        }
        Ok(self.connection.as_mut().expect("invariant: it was just made"))
    }
}

/// The command that adds the batch to its pool's stream. `taken_at` is the server's time at which it was taken, `age` ago, in milliseconds.
fn entry_command(
    batch: &UsageBatch,
    writer_id: &str,
    companion: &str,
    (taken_at, age): (u64, u64),
) -> ::redis::Cmd {
    let mut command = ::redis::cmd("XADD");
    command.arg(used_key(&batch.pool)).arg("MAXLEN").arg("~").arg(STREAM_MAX).arg("*");
    command.arg(entry::BY).arg(writer_id);
    command.arg(entry::NUMBER).arg(batch.number);
    command.arg(entry::AGE).arg(age);
    command.arg(entry::USED).arg(entry::encode(&batch.used));
    if !batch.budgets.is_empty() || !batch.budget_resets.is_empty() {
        command.arg(entry::COMPANION).arg(companion);
    }
    if !batch.budget_resets.is_empty() {
        let numbers = batch.reset_numbers.iter().zip(batch.budget_resets.iter());
        let resets = numbers.map(|((flow, number), own)| (&**flow, *number, own.number));
        let resets = entry::encode_resets(resets);
        command.arg(entry::RESETS).arg(resets);
    }
    if !batch.budgets.is_empty() {
        let budgets = entry::encode_budgets(&batch.budgets, taken_at);
        command.arg(entry::BUDGETS).arg(budgets);
    }
    if batch.running.is_some() {
        command.arg(entry::RUNNING).arg(companion);
    }
    command
}

/// A random id that no other writer has.
fn new_writer_id() -> Arc<str> {
    let half = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", half(), half()).into()
}

/// Connects; each later answer may take up to `answer_max`.
async fn connect(client: &Client, answer_max: Duration) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_response_timeout(Some(answer_max));
    client.get_multiplexed_async_connection_with_config(&config).await
}
