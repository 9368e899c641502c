//! The task that reads what others used: what is in the windows when it begins, and then each batch as it is written.
//!
//! It waits at the server for what comes. Where it stopped reading it goes on, after a redis was gone as well.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::streams::StreamReadReply;
use ::redis::{Client, RedisError};
use penstock_engine::input::PastUsage;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::entry::{self, Seen};
use super::{ANSWER_MAX, connect, millis, used_key};
use crate::store::health::{Health, Side};
use crate::store::keeper::News;
use crate::store::{RETRY_FIRST, RETRY_MAX};

/// A server that is silent for longer than this, and an answer's time, is gone.
const WAIT: Duration = Duration::from_secs(10);
/// Entries of a stream that are read at a time.
const COUNT: usize = 500;
/// Uses that are told at a time.
const TOLD_MAX: usize = 16_384;

/// What a reader is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Of this pool it reads from now on what isn't written by `name`.
    Follow {
        pool: Arc<str>,
        window: Duration,
        name: Arc<str>,
        /// Where to say what is in the window, if that begins now.
        past: Option<oneshot::Sender<Vec<PastUsage>>>,
    },
    Leave(Arc<str>),
}

/// A pool's stream.
#[derive(Debug)]
struct Stream {
    key: String,
    window: Duration,
    name: Arc<str>,
    /// The last entry that was read: the server's milliseconds, and its number among those.
    read: Option<(u64, u64)>,
    seen: Seen,
    /// Somebody waits for what is there already.
    past: Option<oneshot::Sender<Vec<PastUsage>>>,
    found: Vec<PastUsage>,
    /// It was warned of an entry that is none.
    strange: bool,
}

pub(super) struct Reader {
    client: Client,
    health: Arc<Health>,
    news: mpsc::Sender<News>,
    streams: BTreeMap<Arc<str>, Stream>,
    /// Said as soon as somebody takes it.
    untold: VecDeque<News>,
}

impl Reader {
    pub(super) fn new(client: Client, health: Arc<Health>, news: mpsc::Sender<News>) -> Self {
        Self {
            client,
            health,
            news,
            streams: BTreeMap::new(),
            untold: VecDeque::new(),
        }
    }

    /// Until nobody is left to tell it anything.
    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut retry = RETRY_FIRST;
        let mut due = None;
        loop {
            let reading = async {
                if self.streams.is_empty() {
                    std::future::pending::<()>().await;
                }
                if let Some(at) = due {
                    tokio::time::sleep_until(at).await;
                }
                let begun = Instant::now();
                let Err(why) = self.read().await;
                (begun, why)
            };
            let failed = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => {
                        self.take(order);
                        continue;
                    }
                    None => return,
                },
                failed = reading => failed,
            };
            let (begun, why) = failed;
            self.health.fails(Side::Reading, &why);
            for stream in self.streams.values_mut() {
                // Who starts goes on without; what is found later is told then.
                stream.past = None;
            }
            if begun.elapsed() > RETRY_MAX {
                retry = RETRY_FIRST;
            }
            due = Some(Instant::now() + retry);
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Follow {
                pool,
                window,
                name,
                past,
            } => match self.streams.get_mut(&pool) {
                Some(stream) if stream.name == name => stream.window = window,
                Some(_) | None => {
                    let stream = Stream {
                        key: used_key(&pool),
                        window,
                        name,
                        read: None,
                        seen: Seen::default(),
                        past,
                        found: Vec::new(),
                        strange: false,
                    };
                    self.streams.insert(pool, stream);
                }
            },
            Order::Leave(pool) => drop(self.streams.remove(&pool)),
        }
    }

    /// Reads until that fails. It may be broken off at any time: what was read is told with the next.
    async fn read(&mut self) -> Result<std::convert::Infallible, RedisError> {
        let mut connection = connect(&self.client, WAIT + ANSWER_MAX).await?;
        let now = now(&mut connection).await?;
        for stream in self.streams.values_mut() {
            let from = now.saturating_sub(millis(stream.window));
            // Of a server whose clock is behind that of the one before nothing would be read for long.
            stream.read = Some(
                stream
                    .read
                    .map_or((from, 0), |read| read.min((now, 0)).max((from, 0))),
            );
        }
        while self.read_once(&mut connection, None).await? {
            self.tell().await;
        }
        for (pool, stream) in &mut self.streams {
            let found = std::mem::take(&mut stream.found);
            let left = match stream.past.take() {
                Some(past) => past.send(found).err(),
                None => Some(found),
            };
            if let Some(found) = left.filter(|found| !found.is_empty()) {
                self.untold.push_back((pool.clone(), found));
            }
        }
        self.health.works(Side::Reading);
        loop {
            self.tell().await;
            self.read_once(&mut connection, Some(WAIT)).await?;
        }
    }

    async fn tell(&mut self) {
        while !self.untold.is_empty() {
            // Broken off before this is done, nothing is lost.
            let Ok(permit) = self.news.reserve().await else {
                self.untold.clear();
                return;
            };
            if let Some(news) = self.untold.pop_front() {
                permit.send(news);
            }
        }
    }

    /// Reads what is there, or waits so long for something; whether there was anything.
    async fn read_once(
        &mut self,
        connection: &mut MultiplexedConnection,
        wait: Option<Duration>,
    ) -> Result<bool, RedisError> {
        let mut command = ::redis::cmd("XREAD");
        command.arg("COUNT").arg(COUNT);
        if let Some(wait) = wait {
            command.arg("BLOCK").arg(millis(wait));
        }
        command.arg("STREAMS");
        for stream in self.streams.values() {
            command.arg(&stream.key);
        }
        for stream in self.streams.values() {
            let (millis, number) = stream.read.unwrap_or_default();
            command.arg(format!("{millis}-{number}"));
        }
        let reply: Option<StreamReadReply> = command.query_async(connection).await?;
        let Some(reply) = reply.filter(|reply| !reply.keys.is_empty()) else {
            return Ok(false);
        };
        // Nothing is waited for from where something is taken for read until it stands in `untold`.
        let now = now(connection).await?;
        for of_key in reply.keys {
            let of_it = self.streams.iter_mut().find(|(_, it)| it.key == of_key.key);
            let Some((pool, stream)) = of_it else { continue };
            for id in &of_key.ids {
                stream.take(id, pool, now);
            }
            let told_at_once = stream.past.is_none() || stream.found.len() >= TOLD_MAX;
            if told_at_once && !stream.found.is_empty() {
                let found = std::mem::take(&mut stream.found);
                self.untold.push_back((pool.clone(), found));
            }
        }
        Ok(true)
    }
}

impl Stream {
    fn take(&mut self, id: &::redis::streams::StreamId, pool: &str, now: u64) {
        let read = id.id.split_once('-').and_then(|(millis, number)| {
            let (millis, number) = (millis.parse().ok()?, number.parse().ok()?);
            Some((millis, number))
        });
        self.read = self.read.max(read);
        match entry::parse(id) {
            Some(entry) if self.seen.is_new(&entry) && entry.by != *self.name => {
                self.found.extend(entry.past(now));
            }
            Some(_) => {}
            None if !self.strange => {
                self.strange = true;
                tracing::warn!(
                    pool,
                    key = self.key,
                    "an entry there is no companion's of this version: it and others like it are left out"
                );
            }
            None => {}
        }
    }
}

/// The server's time, in milliseconds.
async fn now(connection: &mut MultiplexedConnection) -> Result<u64, RedisError> {
    ::redis::cmd("TIME")
        .query_async(connection)
        .await
        .map(server_millis)
}

/// What TIME answers, in milliseconds.
pub(super) const fn server_millis((seconds, micros): (u64, u64)) -> u64 {
    seconds.saturating_mul(1_000).saturating_add(micros / 1_000)
}
