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
//! It needs redis 6.2. A batch without acknowledgement is written again with the same number, and readers count it once.

mod elsewhere;
mod entry;
mod reader;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError};
use penstock_config::RedisUrl;
use penstock_control::Kept;
use penstock_engine::input::PastUsage;
use tokio::sync::{mpsc, oneshot};

use self::reader::{Command, Reader};
use super::health::Health;
use super::write_buffer::{SharedUsage, UsageBatch};
use super::{Error, Models, RUNNING_TTL, model_from_numbers, model_numbers};
use crate::essential;

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

/// The hash with the learned models of a pool.
fn models_key(pool: &str) -> String {
    format!("penstock:1:models:{pool}")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An open redis store.
#[derive(Debug)]
pub(super) struct Redis {
    client: Client,
    connection: Option<MultiplexedConnection>,
    /// The writer id of each pool with windows; a new one each time its windows begin.
    writer_ids: BTreeMap<Arc<str>, Arc<str>>,
    /// Names what this companion runs.
    companion: Arc<str>,
    reader: mpsc::Sender<Command>,
}

impl Redis {
    /// A client of this server, which needn't be reachable. Usage of other companions is sent to `shared_usage`.
    pub(super) fn new(
        url: &RedisUrl,
        health: Arc<Health>,
        shared_usage: mpsc::Sender<SharedUsage>,
    ) -> Result<Self, Error> {
        let client = Client::open(url.with_password()).map_err(|why| Error::Redis {
            place: url.to_string(),
            why: why.to_string(),
        })?;
        let (reader, commands) = mpsc::channel(COMMANDS);
        let companion = new_writer_id();
        essential::spawn(
            "usage of other companions",
            Reader::new(client.clone(), health, shared_usage, companion.clone()).run(commands),
        );
        Ok(Self {
            client,
            connection: None,
            writer_ids: BTreeMap::new(),
            companion,
            reader,
        })
    }

    /// Reads this pool's stream from now on, if it has a window; from the window's beginning if `past_usage` is given.
    pub(super) async fn attach(
        &mut self,
        pool: Arc<str>,
        window: Option<Duration>,
        past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
    ) {
        let Some(window) = window else {
            self.detach(&pool).await;
            return;
        };
        let writer_id = match self.writer_ids.get(&pool).filter(|_| past_usage.is_none()) {
            Some(id) => id.clone(),
            // The windows begin now, so this companion's earlier entries must be read as well: they need another id.
            None => new_writer_id(),
        };
        self.writer_ids.insert(pool.clone(), writer_id.clone());
        let attach = Command::Attach {
            pool,
            window,
            writer_id,
            past_usage,
        };
        // The reader runs as long as this sender.
        let _ = self.reader.send(attach).await;
    }

    pub(super) async fn detach(&mut self, pool: &str) {
        if self.writer_ids.remove(pool).is_some() {
            // The reader runs as long as this sender.
            let _ = self.reader.send(Command::Detach(pool.into())).await;
        }
    }

    /// The stored models of a pool.
    pub(super) async fn models(&mut self, pool: &str) -> Result<Vec<(String, Kept)>, RedisError> {
        let connection = self.connected().await?;
        let answer = ::redis::cmd("HGETALL")
            .arg(models_key(pool))
            .query_async(connection)
            .await;
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

    /// Writes everything; each model and each batch leaves its collection once it is written.
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
        while let Some(batch) = backlog.front() {
            self.append(batch).await?;
            backlog.pop_front();
        }
        Ok(())
    }

    async fn append(&mut self, batch: &UsageBatch) -> Result<(), RedisError> {
        let Some(writer_id) = self.writer_ids.get(&batch.pool).cloned() else {
            // The pool was detached before this batch could be written.
            return Ok(());
        };
        let key = used_key(&batch.pool);
        let connection = self.connected().await?;
        let answer = ::redis::cmd("TIME").query_async(connection).await;
        let now = reader::server_millis(self.check(answer)?);
        let mut pipe = ::redis::pipe();
        pipe.atomic();
        if let Some(running) = &batch.running {
            let key = running_key(&batch.pool, &self.companion);
            let text = elsewhere::encode(running);
            pipe.cmd("SET")
                .arg(key)
                .arg(text)
                .arg("PX")
                .arg(millis(RUNNING_TTL));
            pipe.ignore();
        }
        pipe.cmd("XADD").arg(&key).arg("MAXLEN").arg("~").arg(STREAM_MAX);
        pipe.arg("*")
            .arg(entry::BY)
            .arg(&*writer_id)
            .arg(entry::NUMBER)
            .arg(batch.number);
        pipe.arg(entry::AGE).arg(millis(batch.taken.elapsed()));
        pipe.arg(entry::USED).arg(entry::encode(&batch.used));
        if batch.running.is_some() {
            pipe.arg(entry::RUNNING).arg(&*self.companion);
        }
        pipe.ignore();
        let from = now.saturating_sub(millis(batch.window));
        pipe.cmd("XTRIM").arg(&key).arg("MINID").arg(from).ignore();
        let lifetime = millis(batch.window.saturating_add(SLACK));
        pipe.cmd("PEXPIRE").arg(&key).arg(lifetime).ignore();
        let connection = self.connected().await?;
        let answer = pipe.query_async(connection).await;
        self.check::<()>(answer)
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
