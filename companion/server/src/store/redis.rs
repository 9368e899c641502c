//! A store that is a redis, which companions share: what one settles is, a second later, in the windows of the others.
//!
//! A pool's use is a stream, an entry a batch: who wrote it, its number among what that one wrote, how old it was, and
//! whose use it was, as JSON. The server's clock is everybody's: an entry's id is when it was written. What is out of the
//! window is trimmed with every entry, a stream has a limit, and one that nobody writes to is forgotten with its window. The models are a hash, by variant. All names begin with the number of the format.
//!
//! It needs redis 6.2. What was written and not acknowledged is written again, with its number: readers count it once.

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

use self::reader::{Order, Reader};
use super::health::Health;
use super::keeper::News;
use super::ledger::Batch;
use super::{Error, Models, kept, numbers};

/// To reach the server, and to be let in.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// For an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Entries of a stream: some batches a second, for as long as a window.
const STREAM_MAX: usize = 100_000;
/// Variants of a pool.
const VARIANTS_MAX: usize = 1_000;
/// A stream outlives its window by so much.
const SLACK: Duration = Duration::from_secs(10);
/// Orders that wait for the reader.
const ORDERS: usize = 64;

/// The stream of what a pool's flows used.
fn used_key(pool: &str) -> String {
    format!("penstock:1:used:{pool}")
}

/// The hash of what is known of a pool's servers.
fn models_key(pool: &str) -> String {
    format!("penstock:1:models:{pool}")
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

/// A store that is at work.
#[derive(Debug)]
pub(super) struct Redis {
    client: Client,
    connection: Option<MultiplexedConnection>,
    /// Who writes for a pool: another for each life of its windows.
    names: BTreeMap<Arc<str>, Arc<str>>,
    orders: mpsc::Sender<Order>,
}

impl Redis {
    /// A client of this server, which needn't be there; what others use is told as `news`.
    pub(super) fn new(url: &RedisUrl, health: Arc<Health>, news: mpsc::Sender<News>) -> Result<Self, Error> {
        let client = Client::open(url.with_password()).map_err(|why| Error::Redis {
            place: url.to_string(),
            why: why.to_string(),
        })?;
        let (orders, inbox) = mpsc::channel(ORDERS);
        tokio::spawn(Reader::new(client.clone(), health, news).run(inbox));
        Ok(Self {
            client,
            connection: None,
            names: BTreeMap::new(),
            orders,
        })
    }

    /// Reads of this pool from now on, if it has a window: from where that begins if `past` asks for it.
    pub(super) async fn follow(
        &mut self,
        pool: Arc<str>,
        window: Option<Duration>,
        past: Option<oneshot::Sender<Vec<PastUsage>>>,
    ) {
        let Some(window) = window else {
            self.leave(&pool).await;
            return;
        };
        let name = match self.names.get(&pool).filter(|_| past.is_none()) {
            Some(name) => name.clone(),
            // Its windows begin now: what it wrote before is somebody else's.
            None => name(),
        };
        self.names.insert(pool.clone(), name.clone());
        let follow = Order::Follow {
            pool,
            window,
            name,
            past,
        };
        // The reader ends with the last who could tell it anything.
        let _ = self.orders.send(follow).await;
    }

    pub(super) async fn leave(&mut self, pool: &str) {
        if self.names.remove(pool).is_some() {
            // As above.
            let _ = self.orders.send(Order::Leave(pool.into())).await;
        }
    }

    /// What is known of the pool's servers.
    pub(super) async fn models(&mut self, pool: &str) -> Result<Vec<(String, Kept)>, RedisError> {
        let connection = self.connected().await?;
        let asked = ::redis::cmd("HGETALL")
            .arg(models_key(pool))
            .query_async(connection)
            .await;
        let all: Vec<(String, String)> = self.noted(asked)?;
        let mut models = Vec::new();
        for (variant, text) in all.into_iter().take(VARIANTS_MAX) {
            match serde_json::from_str(&text).ok().and_then(kept) {
                Some(kept) => models.push((variant, kept)),
                None => tracing::warn!(
                    pool,
                    variant,
                    "what is kept of this variant can't be true: it is learned again"
                ),
            }
        }
        Ok(models)
    }

    /// What is written is taken out of both.
    pub(super) async fn write(
        &mut self,
        learned: &mut Models,
        backlog: &mut VecDeque<Batch>,
    ) -> Result<(), RedisError> {
        while let Some(((pool, variant), kept)) = learned.first_key_value() {
            let text = serde_json::to_string(&numbers(kept)).unwrap_or_default();
            let mut command = ::redis::cmd("HSET");
            command.arg(models_key(pool)).arg(variant).arg(text);
            let connection = self.connected().await?;
            let done = command.query_async(connection).await;
            self.noted::<()>(done)?;
            learned.pop_first();
        }
        while let Some(batch) = backlog.front() {
            self.append(batch).await?;
            backlog.pop_front();
        }
        Ok(())
    }

    async fn append(&mut self, batch: &Batch) -> Result<(), RedisError> {
        let Some(name) = self.names.get(&batch.pool).cloned() else {
            // It was left with this unsaid.
            return Ok(());
        };
        let key = used_key(&batch.pool);
        let connection = self.connected().await?;
        let asked = ::redis::cmd("TIME").query_async(connection).await;
        let now = reader::server_millis(self.noted(asked)?);
        let mut pipe = ::redis::pipe();
        pipe.atomic();
        pipe.cmd("XADD").arg(&key).arg("MAXLEN").arg("~").arg(STREAM_MAX);
        pipe.arg("*")
            .arg(entry::BY)
            .arg(&*name)
            .arg(entry::NUMBER)
            .arg(batch.number);
        pipe.arg(entry::AGE).arg(millis(batch.taken.elapsed()));
        pipe.arg(entry::USED).arg(entry::text(&batch.used)).ignore();
        let from = now.saturating_sub(millis(batch.window));
        pipe.cmd("XTRIM").arg(&key).arg("MINID").arg(from).ignore();
        let lives = millis(batch.window.saturating_add(SLACK));
        pipe.cmd("PEXPIRE").arg(&key).arg(lives).ignore();
        let connection = self.connected().await?;
        let done = pipe.query_async(connection).await;
        self.noted::<()>(done)
    }

    /// After a failure it is connected to anew.
    fn noted<T>(&mut self, result: Result<T, RedisError>) -> Result<T, RedisError> {
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

/// One that nobody else has.
fn name() -> Arc<str> {
    let half = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", half(), half()).into()
}

/// Each answer may take so long.
async fn connect(client: &Client, answer_max: Duration) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_response_timeout(Some(answer_max));
    client.get_multiplexed_async_connection_with_config(&config).await
}
