//! A store that is one redb file.
//!
//! A file that can't be read, or is of another format, is set aside under another name and begun anew: what is kept can
//! be learned again, and nothing is ever deleted but what is out of its window. A file that another process has open, or
//! that can't be opened, is an error. What blocks is done where nobody waits.

mod rows;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_control::Kept;
use penstock_engine::input::PastUsage;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};

use super::ledger::Batch;
use super::{Error, Models, kept, numbers};
use crate::clock;

/// What this version writes and reads.
const FORMAT: u64 = 1;
/// Of the format, by name; the first thing that is written into a new file.
const ABOUT: TableDefinition<'static, &str, u64> = TableDefinition::new("penstock");
const ABOUT_FORMAT: &str = "format";
/// By pool and variant: alpha, beta, gamma in milliseconds, and the bias of the time to the first token.
const MODELS: TableDefinition<'static, (&str, &str), (f64, f64, f64, f64)> = TableDefinition::new("models");
/// Memory for pages; the file has a few of them.
const CACHE_BYTES: usize = 1 << 20;
/// Damaged files that stand beside each other.
const ASIDE_MAX: u32 = 1_000;

/// A store that is at work.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// `None`: a write broke off; it is opened again for the next one.
    store: Option<Store>,
    windows: BTreeMap<String, Duration>,
}

/// What is kept of a pool.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) models: Vec<(String, Kept)>,
    pub(super) past: Vec<PastUsage>,
}

impl File {
    /// Opens a file, or begins one.
    pub(super) async fn open(path: PathBuf) -> Result<Self, Error> {
        let named = path.clone();
        let opened = tokio::task::spawn_blocking(move || Store::open(&named));
        let store = opened.await.unwrap_or_else(|_| Err(broken_off(&path)))?;
        Ok(Self {
            path,
            store: Some(store),
            windows: BTreeMap::new(),
        })
    }

    /// Keeps this pool from now on, with a window or without; what is kept of it, and, if `restores`, of its window.
    pub(super) async fn follow(&mut self, pool: Arc<str>, window: Option<Duration>, restores: bool) -> Found {
        match window {
            Some(window) => drop(self.windows.insert(pool.to_string(), window)),
            None => drop(self.windows.remove(&*pool)),
        }
        let found = self.at_work(move |store| {
            let past = window
                .filter(|_| restores)
                .map(|window| store.past(&pool, window));
            Ok(Found {
                models: store.of(&pool),
                past: past.transpose()?.unwrap_or_default(),
            })
        });
        found.await.unwrap_or_else(|why| {
            tracing::warn!("{why}: what was used before isn't known");
            Found::default()
        })
    }

    /// This pool isn't kept here any more; what is there falls out with its window.
    pub(super) fn leave(&mut self, pool: &str) {
        self.windows.remove(pool);
    }

    /// When this returns `Ok` it is on the disk, and nothing is left of either; else all of it is.
    pub(super) async fn write(
        &mut self,
        learned: &mut Models,
        backlog: &mut VecDeque<Batch>,
    ) -> Result<(), Error> {
        let (models, windows) = (learned.clone(), self.windows.clone());
        let batches: Vec<Batch> = backlog.iter().cloned().collect();
        self.at_work(move |store| store.keep(models, &batches, &windows))
            .await?;
        learned.clear();
        backlog.clear();
        Ok(())
    }

    async fn at_work<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (path, store) = (self.path.clone(), self.store.take());
        let done = tokio::task::spawn_blocking(move || {
            let mut store = store.map_or_else(|| Store::open(&path), Ok)?;
            let done = work(&mut store);
            Ok((store, done))
        });
        let (store, done) = done.await.unwrap_or_else(|_| Err(broken_off(&self.path)))?;
        self.store = Some(store);
        done
    }
}

/// redb met what it takes to be impossible.
fn broken_off(path: &Path) -> Error {
    Error::Broken {
        path: path.into(),
        why: "its contents contradict each other".into(),
    }
}

/// An open file and all that is in it.
#[derive(Debug)]
struct Store {
    path: PathBuf,
    /// `None`: a write failed; it is opened again for the next one.
    database: Option<Database>,
    models: Models,
}

impl Store {
    /// Opens a file, or begins one.
    fn open(path: &Path) -> Result<Self, Error> {
        let mut store = Self {
            path: path.into(),
            database: None,
            models: Models::new(),
        };
        (store.database, store.models) = store.read().map(|(it, models)| (Some(it), models))?;
        Ok(store)
    }

    fn read(&self) -> Result<(Database, Models), Error> {
        let why = match attempt(&self.path) {
            Ok(read) => return Ok(read),
            Err(Unusable::Locked) => return Err(Error::Locked(self.path.clone())),
            Err(Unusable::Io(source)) => {
                return Err(Error::Io {
                    path: self.path.clone(),
                    source,
                });
            }
            Err(Unusable::Damaged(why)) => why,
        };
        let stuck = |source| Error::Stuck {
            path: self.path.clone(),
            why: why.clone(),
            source,
        };
        let aside = set_aside(&self.path).map_err(stuck)?;
        tracing::warn!(
            file = %self.path.display(),
            why,
            "can't be read: it is set aside as {} and begun anew; its models are learned again, and its windows begin anew",
            aside.display()
        );
        attempt(&self.path).map_err(|it| match it {
            Unusable::Locked => Error::Locked(self.path.clone()),
            Unusable::Io(source) => stuck(source),
            Unusable::Damaged(why) => stuck(io::Error::other(why)),
        })
    }

    /// What is kept of this pool, by variant.
    fn of(&self, pool: &str) -> Vec<(String, Kept)> {
        let models = self.models.iter().filter(|((of, _), _)| of == pool);
        models
            .map(|((_, variant), kept)| (variant.clone(), *kept))
            .collect()
    }

    /// What this pool's flows used in the window that ends now.
    fn past(&self, pool: &str, window: Duration) -> Result<Vec<PastUsage>, Error> {
        let Some(database) = &self.database else {
            return Ok(Vec::new());
        };
        rows::past(database, pool, window, clock::unix()).map_err(|why| self.broken(&why))
    }

    /// Keeps what `learned` and `batches` say, and drops what is out of the windows; when this returns it is on the disk.
    /// On an error what was learned is kept with the next.
    fn keep(
        &mut self,
        learned: impl IntoIterator<Item = ((String, String), Kept)>,
        batches: &[Batch],
        windows: &BTreeMap<String, Duration>,
    ) -> Result<(), Error> {
        self.models.extend(learned);
        let database = match self.database.take() {
            Some(database) => database,
            None => self.read()?.0,
        };
        write(&database, &self.models, batches, windows).map_err(|why| self.broken(&why))?;
        self.database = Some(database);
        Ok(())
    }

    fn broken(&self, why: &redb::Error) -> Error {
        Error::Broken {
            path: self.path.clone(),
            why: why.to_string(),
        }
    }
}

/// Why a file can't be used.
#[derive(Debug)]
enum Unusable {
    Locked,
    Io(io::Error),
    Damaged(String),
}

impl From<redb::Error> for Unusable {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => Self::Locked,
            redb::Error::Io(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Self::Damaged(error.to_string()),
                _ => Self::Io(error),
            },
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// Opens and reads a file. redb checks what it reads, and yet some damage makes it panic: then it is damaged.
fn attempt(path: &Path) -> Result<(Database, Models), Unusable> {
    let path = path.to_owned();
    std::thread::spawn(move || {
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true)
            .create(path)
            .map_err(redb::Error::from)?;
        let models = read(&database)?;
        Ok((database, models))
    })
    .join()
    .unwrap_or_else(|_| Err(Unusable::Damaged("its contents contradict each other".into())))
}

fn read(database: &Database) -> Result<Models, Unusable> {
    let reading = database.begin_read().map_err(redb::Error::from)?;
    let tables: Vec<_> = reading.list_tables().map_err(redb::Error::from)?.collect();
    if tables.is_empty() {
        drop(reading);
        write(database, &Models::new(), &[], &BTreeMap::new())?;
        return Ok(Models::new());
    }
    if !tables.iter().any(|it| it.name() == ABOUT.name()) {
        return Err(Unusable::Damaged("it is the database of another program".into()));
    }
    let about = reading.open_table(ABOUT).map_err(redb::Error::from)?;
    let format = about
        .get(ABOUT_FORMAT)
        .map_err(redb::Error::from)?
        .map(|it| it.value());
    if format != Some(FORMAT) {
        let format = format.map_or_else(|| "unknown".into(), |it| it.to_string());
        return Err(Unusable::Damaged(format!(
            "its format is {format}; this version reads {FORMAT}"
        )));
    }
    let table = reading.open_table(MODELS).map_err(redb::Error::from)?;
    let mut models = Models::new();
    for entry in table.iter().map_err(redb::Error::from)? {
        let (name, value) = entry.map_err(redb::Error::from)?;
        let (pool, variant) = name.value();
        match kept(value.value()) {
            Some(kept) => {
                models.insert((pool.into(), variant.into()), kept);
            }
            None => tracing::warn!(
                pool,
                variant,
                "what is kept of this variant can't be true: it is learned again"
            ),
        }
    }
    Ok(models)
}

/// Writes all of it, or nothing.
fn write(
    database: &Database,
    models: &Models,
    batches: &[Batch],
    windows: &BTreeMap<String, Duration>,
) -> Result<(), redb::Error> {
    let writing = database.begin_write()?;
    writing.open_table(ABOUT)?.insert(ABOUT_FORMAT, FORMAT)?;
    {
        let mut table = writing.open_table(MODELS)?;
        for ((pool, variant), kept) in models {
            table.insert((pool.as_str(), variant.as_str()), numbers(kept))?;
        }
    }
    rows::write(&writing, batches, windows, clock::unix())?;
    writing.commit()?;
    Ok(())
}

/// Gives a file another name, one that is free.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for number in 1..=ASIDE_MAX {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".damaged-{number}"));
        let aside = PathBuf::from(aside);
        if aside.symlink_metadata().is_ok() {
            continue;
        }
        std::fs::rename(path, &aside)?;
        return Ok(aside);
    }
    Err(io::Error::other(format!("{ASIDE_MAX} others stand beside it")))
}

#[cfg(test)]
mod tests;
