//! The task that reads the usage of other companions: first the entries within the windows, then each batch as it is
//! written, and companions' running requests when an entry reports a change of them.
//!
//! It waits with a blocking XREAD. After a failure it reconnects and continues after the last entry it has read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::streams::StreamReadReply;
use ::redis::{Client, RedisError};
use penstock_engine::input::{BudgetReset, BudgetUsage, PastUsage};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::elsewhere::{Elsewhere, LIST_MAX};
use super::entry::{self, DuplicateFilter, Position};
use super::stream::{Budgets, Stream};
use super::{ANSWER_MAX, connect, kept, millis, running_budgets_key, running_key, used_key};
use crate::budget_buffer::{RunningKey, running_sums};
use crate::health::{Health, Operation};
use crate::message::Windows;
use crate::write_buffer::{SharedUsage, UsageKey};
use crate::{RETRY_FIRST, RETRY_MAX, RUNNING_TTL};

/// A server that is silent for longer than this and [`ANSWER_MAX`] is taken to be unreachable.
const WAIT: Duration = Duration::from_secs(10);
/// Entries of each stream in one answer. One has some hundred kilobytes at most.
const COUNT: usize = 64;
/// Usage records in one message to the driver.
const USAGE_CHUNK: usize = 16_384;

/// A command to the reader.
#[derive(Debug)]
pub(super) enum Command {
    /// Reads a pool's stream from now on, except for the entries of `writer_id`.
    Attach {
        pool: Arc<str>,
        windows: Windows,
        writer_id: Arc<str>,
        /// Receives the usage in the window, if that begins now.
        past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
    },
    Detach(Arc<str>),
    /// Counts usage of the pool's budgets in entries after this one.
    BudgetsFrom {
        pool: Arc<str>,
        position: Position,
    },
    /// Delivers what was used of the pool's budgets until then: to the receiver, as long as it waits.
    PastBudgets {
        pool: Arc<str>,
        past: Vec<BudgetUsage>,
        receiver: Option<oneshot::Sender<Vec<BudgetUsage>>>,
    },
    /// Delivers resets of the pool's budgets of which its engine hasn't heard.
    Resets {
        pool: Arc<str>,
        resets: Vec<BudgetReset>,
    },
}

/// A companion's list of its running requests in a pool, as it was read.
struct List {
    pool: Arc<str>,
    companion: String,
    running: Vec<(UsageKey, u64)>,
    budgets: Vec<(RunningKey, u64)>,
    ttl: Duration,
}

pub(super) struct Reader {
    client: Client,
    health: Arc<Health>,
    shared_usage: mpsc::Sender<SharedUsage>,
    /// This companion. Its list doesn't count.
    companion: Arc<str>,
    streams: BTreeMap<Arc<str>, Stream>,
    /// Waits for room in the channel.
    undelivered: VecDeque<SharedUsage>,
}

impl Reader {
    pub(super) fn new(
        client: Client,
        health: Arc<Health>,
        shared_usage: mpsc::Sender<SharedUsage>,
        companion: Arc<str>,
    ) -> Self {
        Self {
            client,
            health,
            shared_usage,
            companion,
            streams: BTreeMap::new(),
            undelivered: VecDeque::new(),
        }
    }

    /// Runs until the sender of commands is dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut retry = RETRY_FIRST;
        let mut due = None;
        loop {
            let reading = async {
                self.deliver().await;
                if self.streams.is_empty() {
                    std::future::pending::<()>().await;
                }
                if let Some(instant) = due {
                    self.wait_until(instant).await;
                }
                let begun = Instant::now();
                let Err(why) = self.read().await;
                (begun, why)
            };
            let failed = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => {
                        self.handle(command);
                        continue;
                    }
                    None => {
                        for stream in std::mem::take(&mut self.streams) {
                            self.end(stream);
                        }
                        self.deliver().await;
                        return;
                    }
                },
                failed = reading => failed,
            };
            let (begun, why) = failed;
            self.health.failed(Operation::Read, &why);
            for stream in self.streams.values_mut() {
                // The start doesn't wait for a failing server; usage that is found later is delivered then.
                stream.past_usage = None;
            }
            if begun.elapsed() > RETRY_MAX {
                retry = RETRY_FIRST;
            }
            due = Some(Instant::now() + retry);
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Attach { pool, windows, writer_id, past_usage } => match self.streams.get_mut(&pool) {
                Some(stream) if stream.writer_id == writer_id => stream.windows = windows,
                Some(_) | None => {
                    let mut budgets = Budgets::default();
                    if let Some((pool, mut stream)) = self.streams.remove_entry(&pool) {
                        // Only the usage windows begin anew.
                        budgets = std::mem::take(&mut stream.budgets);
                        self.end((pool, stream));
                    }
                    let stream = Stream {
                        key: used_key(&pool),
                        windows,
                        writer_id,
                        last_read: None,
                        duplicates: DuplicateFilter::default(),
                        past_usage,
                        found: Vec::new(),
                        elsewhere: Elsewhere::default(),
                        changed: Vec::new(),
                        budgets,
                        warned: false,
                    };
                    self.streams.insert(pool, stream);
                }
            },
            Command::Detach(pool) => {
                if let Some(stream) = self.streams.remove_entry(&pool) {
                    self.end(stream);
                }
            }
            Command::BudgetsFrom { pool, position } => {
                if let Some(stream) = self.streams.get_mut(&pool) {
                    stream.count_budgets_from(position);
                }
            }
            Command::PastBudgets { pool, mut past, receiver } => {
                let Some(stream) = self.streams.get_mut(&pool) else {
                    return;
                };
                if let Some(reset_flows) = stream.budgets.reset_flows.take() {
                    past.retain(|usage| !reset_flows.contains(&usage.flow));
                }
                let undelivered = match receiver {
                    Some(receiver) => receiver.send(past).err(),
                    None => Some(past),
                };
                // What nothing waits for any more goes with the usage of others.
                let past =
                    SharedUsage { past_budgets: undelivered.unwrap_or_default(), ..SharedUsage::none(pool) };
                self.undelivered.extend(Some(past).filter(|past| !past.is_empty()));
            }
            Command::Resets { pool, resets } => {
                if self.streams.contains_key(&pool) {
                    let resets = SharedUsage { budget_resets: resets, ..SharedUsage::none(pool) };
                    self.undelivered.push_back(resets);
                }
            }
        }
    }

    /// A stream is no longer read: nothing that other companions run counts any more.
    fn end(&mut self, (pool, mut stream): (Arc<str>, Stream)) {
        let running = stream.elsewhere.clear();
        stream.change(running);
        let running = stream.budgets.elsewhere.clear();
        stream.budgets.change(running);
        self.undelivered.extend(stream.take_changed(&pool));
    }

    /// Waits without a connection; meanwhile lists expire.
    async fn wait_until(&mut self, instant: Instant) {
        loop {
            let next = self.next_expiry().map_or(instant, |expiry| expiry.min(instant));
            tokio::time::sleep_until(next).await;
            self.expire();
            self.deliver().await;
            if Instant::now() >= instant {
                return;
            }
        }
    }

    fn next_expiry(&self) -> Option<Instant> {
        let streams = self.streams.values();
        let lists = streams
            .flat_map(|stream| [stream.elsewhere.next_expiry(), stream.budgets.elsewhere.next_expiry()]);
        lists.flatten().min()
    }

    /// Lists that were not repeated in time no longer count.
    fn expire(&mut self) {
        let now = Instant::now();
        for (pool, stream) in &mut self.streams {
            let running = stream.elsewhere.expire(now);
            stream.change(running);
            let running = stream.budgets.elsewhere.expire(now);
            stream.budgets.change(running);
            self.undelivered.extend(stream.take_changed(pool));
        }
    }

    /// Reads until it fails. Dropping the future loses nothing: entries that were read are delivered by the next call.
    async fn read(&mut self) -> Result<std::convert::Infallible, RedisError> {
        let mut connection = connect(&self.client, WAIT + ANSWER_MAX).await?;
        self.expire();
        let now = now(&mut connection).await?;
        for stream in self.streams.values_mut() {
            let from = now.saturating_sub(millis(stream.windows.usage.unwrap_or_default()));
            let oldest = now.saturating_sub(millis(kept(stream.windows)));
            // Without the upper bound, nothing would be read for long after a switch to a server whose clock is behind.
            stream.last_read = Some(
                stream.last_read.map_or((from, 0), |last_read| last_read.min((now, 0)).max((oldest, 0))),
            );
        }
        while self.read_once(&mut connection, None).await? {
            self.deliver().await;
        }
        for (pool, stream) in &mut self.streams {
            let found = std::mem::take(&mut stream.found);
            let rest = match stream.past_usage.take() {
                Some(past_usage) => past_usage.send(found).err(),
                None => Some(found),
            };
            stream.found = rest.unwrap_or_default();
            self.undelivered.extend(stream.take_found(pool));
        }
        self.health.succeeded(Operation::Read);
        loop {
            self.deliver().await;
            let to_expiry = |expiry: Instant| expiry.saturating_duration_since(Instant::now());
            let wait = self.next_expiry().map_or(WAIT, |expiry| to_expiry(expiry).min(WAIT));
            // The server counts milliseconds, and 0 would be for ever.
            let wait = Duration::from_millis(millis(wait) + 1);
            let reading =
                tokio::time::timeout(wait + ANSWER_MAX, self.read_once(&mut connection, Some(wait)));
            match reading.await {
                Ok(read) => read?,
                Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            };
            self.expire();
        }
    }

    async fn deliver(&mut self) {
        while !self.undelivered.is_empty() {
            // Dropping the future at this await loses nothing.
            let Ok(permit) = self.shared_usage.reserve().await else {
                self.undelivered.clear();
                return;
            };
            if let Some(usage) = self.undelivered.pop_front() {
                permit.send(usage);
            }
        }
    }

    /// Reads the available entries, or waits up to `wait` for some. Returns whether there were any.
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
            let (millis, number) = stream.last_read.unwrap_or_default();
            command.arg(format!("{millis}-{number}"));
        }
        let reply: Option<StreamReadReply> = command.query_async(connection).await?;
        let Some(reply) = reply.filter(|reply| !reply.keys.is_empty()) else {
            return Ok(false);
        };
        let now = now(connection).await?;
        let lists = self.lists(connection, &reply, now).await?;
        // From here until all entries are in `undelivered` there is no await: dropping the future loses no entry.
        for read in reply.keys {
            let found = self.streams.iter_mut().find(|(_, stream)| stream.key == read.key);
            let Some((pool, stream)) = found else { continue };
            for entry in &read.ids {
                stream.add(entry, (pool, &self.companion), now);
            }
        }
        let read_at = Instant::now();
        for list in lists {
            if let Some(stream) = self.streams.get_mut(&list.pool) {
                let (companion, ttl) = (&*list.companion, list.ttl);
                let changed = stream.elsewhere.update(companion, list.running, read_at, ttl);
                stream.change(changed);
                let elsewhere = &mut stream.budgets.elsewhere;
                let changed = elsewhere.update(companion, list.budgets, read_at, ttl);
                stream.budgets.change(changed);
            }
        }
        for (pool, stream) in &mut self.streams {
            if stream.past_usage.is_none() || stream.found.len() >= USAGE_CHUNK {
                self.undelivered.extend(stream.take_found(pool));
            } else {
                self.undelivered.extend(stream.take_budgets(pool));
            }
        }
        Ok(true)
    }

    /// Reads what those companions run now that have changed it by these entries.
    async fn lists(
        &self,
        connection: &mut MultiplexedConnection,
        reply: &StreamReadReply,
        now: u64,
    ) -> Result<Vec<List>, RedisError> {
        let oldest = now.saturating_sub(millis(RUNNING_TTL));
        let mut changed: BTreeSet<(&Arc<str>, &str)> = BTreeSet::new();
        for read in &reply.keys {
            let found = self.streams.iter().find(|(_, stream)| stream.key == read.key);
            let Some((pool, _)) = found else { continue };
            let writers = read.ids.iter().filter_map(entry::writer_of_running);
            let recent = writers.filter(|&(companion, time)| time >= oldest && *companion != *self.companion);
            changed.extend(recent.map(|(companion, _)| (pool, companion)));
        }
        let mut lists = Vec::new();
        for (pool, companion) in changed {
            let key = running_key(pool, companion);
            let mut pipe = ::redis::pipe();
            pipe.cmd("GETRANGE").arg(&key).arg(0).arg(LIST_MAX);
            pipe.cmd("GETRANGE").arg(running_budgets_key(pool, companion));
            pipe.arg(0).arg(LIST_MAX);
            pipe.cmd("PTTL").arg(&key);
            let (text, budgets, ttl): (Vec<u8>, Vec<u8>, i64) = pipe.query_async(connection).await?;
            let text = std::str::from_utf8(&text).unwrap_or_default();
            let budgets = std::str::from_utf8(&budgets).unwrap_or_default();
            let budgets = entry::parse_running_budgets(budgets).unwrap_or_default();
            lists.push(List {
                pool: pool.clone(),
                companion: companion.to_owned(),
                running: entry::parse_list(text).unwrap_or_default(),
                budgets: running_sums(budgets),
                // Without the key: there is no list.
                ttl: Duration::from_millis(u64::try_from(ttl).unwrap_or(0)).min(RUNNING_TTL),
            });
        }
        Ok(lists)
    }
}

/// The server's time in milliseconds.
async fn now(connection: &mut MultiplexedConnection) -> Result<u64, RedisError> {
    ::redis::cmd("TIME").query_async(connection).await.map(server_millis)
}

/// The answer to TIME in milliseconds.
pub(super) const fn server_millis((seconds, micros): (u64, u64)) -> u64 {
    seconds.saturating_mul(1_000).saturating_add(micros / 1_000)
}
