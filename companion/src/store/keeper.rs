//! Stores at work: one thread a file writes what was learned, so that nobody waits for a disk.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use penstock_control::Kept;

use super::{Error, Store};
use crate::config::Config;

/// What waits for its thread; what comes when it is full is dropped, for the same is learned better later.
const INBOX: usize = 256;

/// What a thread is told.
enum Message {
    Learned {
        pool: String,
        variant: String,
        kept: Kept,
    },
    Close,
}

/// All stores of a configuration, open.
#[derive(Debug, Default)]
pub struct Keeper {
    threads: Vec<(SyncSender<Message>, JoinHandle<()>)>,
    writers: Writers,
    kept: HashMap<String, Vec<(String, Kept)>>,
}

/// Takes what is learned, and keeps nobody waiting. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Writers(HashMap<String, SyncSender<Message>>);

/// Opens the stores that the pools name. Blocks.
///
/// # Errors
/// When one is in use by another process, or can't be opened.
pub fn open(config: &Config) -> Result<Keeper, Error> {
    let mut keeper = Keeper::default();
    let mut stores: BTreeMap<PathBuf, (Store, Vec<String>)> = BTreeMap::new();
    for pool in &config.pools {
        let Some(path) = &pool.store else { continue };
        let file = one_spelling(path);
        if !stores.contains_key(&file) {
            stores.insert(file.clone(), (Store::open(path)?, Vec::new()));
        }
        if let Some((store, pools)) = stores.get_mut(&file) {
            keeper.kept.insert(pool.name.clone(), store.of(&pool.name));
            pools.push(pool.name.clone());
        }
    }
    for (store, pools) in stores.into_values() {
        let (sender, inbox) = sync_channel(INBOX);
        for pool in pools {
            keeper.writers.0.insert(pool, sender.clone());
        }
        let thread = std::thread::spawn(move || run(store, &inbox));
        keeper.threads.push((sender, thread));
    }
    Ok(keeper)
}

/// The same for every way to write the same path, as far as its folder is there.
fn one_spelling(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

impl Keeper {
    /// What earlier lives learned of this pool, by variant; given away once.
    pub fn take(&mut self, pool: &str) -> Vec<(String, Kept)> {
        self.kept.remove(pool).unwrap_or_default()
    }

    /// Where to say what is learned.
    #[must_use]
    pub fn writers(&self) -> Writers {
        self.writers.clone()
    }

    /// Writes what was said so far, and closes all files; gives up waiting for a slow disk after `most`, which loses
    /// nothing that was written before.
    pub async fn close(self, most: Duration) {
        let closing = tokio::task::spawn_blocking(move || {
            for (sender, thread) in self.threads {
                // Either fails if the thread has ended.
                let _ = sender.send(Message::Close);
                let _ = thread.join();
            }
        });
        if tokio::time::timeout(most, closing).await.is_err() {
            tracing::warn!("usage.store: its disk is slow; not waiting for it");
        }
    }
}

impl Writers {
    /// Keeps this, if its pool has a store.
    pub fn learned(&self, pool: &str, variant: String, kept: Kept) {
        if let Some(sender) = self.0.get(pool) {
            let pool = pool.to_owned();
            // A full inbox, or a thread that has ended, has been said in the log.
            let _ = sender.try_send(Message::Learned { pool, variant, kept });
        }
    }
}

fn run(mut store: Store, inbox: &Receiver<Message>) {
    let mut failing = false;
    let mut closing = false;
    while !closing {
        let Ok(first) = inbox.recv() else { return };
        let mut learned = BTreeMap::new();
        for message in std::iter::once(first).chain(inbox.try_iter()) {
            match message {
                Message::Learned { pool, variant, kept } => {
                    learned.insert((pool, variant), kept);
                }
                Message::Close => closing = true,
            }
        }
        if learned.is_empty() {
            continue;
        }
        match store.keep(learned) {
            Ok(()) if failing => {
                tracing::info!("usage.store: {} is written again", store.path.display());
                failing = false;
            }
            Ok(()) => {}
            Err(error) if !failing => {
                tracing::warn!("{error}: what is learned isn't kept until that is mended");
                failing = true;
            }
            Err(_) => {}
        }
    }
}
