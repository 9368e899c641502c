//! A store in one redb file.
//!
//! A file that can't be read, or has another format, is renamed and a new one is started: its contents can be learned
//! again. Nothing is deleted except usage outside its window. A file that another process has open, or that can't be
//! opened, is an error. Blocking operations run on threads for blocking work.

mod budget_rows;
mod file_clock;
mod rows;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_control::Kept;
use penstock_engine::input::{BudgetUsage, PastUsage};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};

use self::file_clock::{FileClock, LastWrite, Moment};
use super::message::Windows;
use super::write_buffer::UsageBatch;
use super::{Error, Models, model_from_numbers, model_numbers};
use penstock_base::clock;

/// The format that this version writes and reads.
const FORMAT: u64 = 1;
/// Facts about the file by name. The first table written into a new file.
const ABOUT: TableDefinition<'static, &str, u64> = TableDefinition::new("penstock");
const ABOUT_FORMAT: &str = "format";
/// The file's clock and the wall clock at the last write, in milliseconds since 1970.
const ABOUT_CLOCK: &str = "clock";
const ABOUT_WALL: &str = "wall";
/// By pool and variant: alpha, beta, gamma in milliseconds, and the bias of the time to first token.
const MODELS: TableDefinition<'static, (&str, &str), (f64, f64, f64, f64)> = TableDefinition::new("models");
/// Memory for redb's page cache; the file has few pages.
const CACHE_BYTES: usize = 1 << 20;
/// Renamed damaged files beside each other.
const DAMAGED_MAX: u32 = 1_000;

/// An open file store.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// `None`: an operation panicked or failed to open the file; the next one opens it again.
    store: Option<StoreFile>,
    /// Of pools with usage windows or budgets.
    windows: BTreeMap<String, Windows>,
}

/// A pool's stored state.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) models: Vec<(String, Kept)>,
    pub(super) past_usage: Vec<PastUsage>,
    pub(super) past_budgets: Vec<BudgetUsage>,
}

impl File {
    /// Opens a file, or creates it.
    pub(super) async fn open(path: PathBuf) -> Result<Self, Error> {
        let named = path.clone();
        let opened = tokio::task::spawn_blocking(move || StoreFile::open(&named));
        let store = opened.await.unwrap_or_else(|_| Err(contradictory(&path)))?;
        Ok(Self { path, store: Some(store), windows: BTreeMap::new() })
    }

    /// Keeps this pool from now on, with or without usage. Returns its stored models and, of its stored usage, what
    /// `restored` names.
    pub(super) async fn attach(&mut self, pool: Arc<str>, windows: Windows, restored: Windows) -> Stored {
        match windows.kept() {
            Some(windows) => drop(self.windows.insert(pool.to_string(), windows)),
            None => drop(self.windows.remove(&*pool)),
        }
        let stored = self.run_blocking(move |store| {
            let past_usage = restored.usage.map(|window| store.past_usage(&pool, window));
            let past_budgets = restored.has_budgets.then(|| store.past_budgets(&pool));
            Ok(Stored {
                models: store.models_of(&pool),
                past_usage: past_usage.transpose()?.unwrap_or_default(),
                past_budgets: past_budgets.transpose()?.unwrap_or_default(),
            })
        });
        stored.await.unwrap_or_else(|why| {
            tracing::warn!("{why}; the pool starts without its stored models and usage");
            Stored::default()
        })
    }

    /// Stops keeping this pool. Its rows are deleted when they leave the window.
    pub(super) fn detach(&mut self, pool: &str) {
        self.windows.remove(pool);
    }

    /// On `Ok` both collections are on the disk and empty; on an error both are unchanged.
    pub(super) async fn write(
        &mut self,
        learned: &mut Models,
        backlog: &mut VecDeque<UsageBatch>,
    ) -> Result<(), Error> {
        let (models, windows) = (learned.clone(), self.windows.clone());
        let batches: Vec<UsageBatch> = backlog.iter().cloned().collect();
        self.run_blocking(move |store| store.save(models, &batches, &windows)).await?;
        learned.clear();
        backlog.clear();
        Ok(())
    }

    async fn run_blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut StoreFile) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (path, store) = (self.path.clone(), self.store.take());
        let done = tokio::task::spawn_blocking(move || {
            let mut store = store.map_or_else(|| StoreFile::open(&path), Ok)?;
            let done = work(&mut store);
            Ok((store, done))
        });
        let (store, done) = done.await.unwrap_or_else(|_| Err(contradictory(&self.path)))?;
        self.store = Some(store);
        done
    }
}

/// redb panicked because the file's contents violate its invariants.
fn contradictory(path: &Path) -> Error {
    Error::Broken { path: path.into(), why: "its contents contradict each other".into() }
}

/// An open file and its models.
#[derive(Debug)]
struct StoreFile {
    path: PathBuf,
    /// `None`: a write failed; the next write opens the file again.
    database: Option<Database>,
    models: Models,
    clock: FileClock,
}

/// What a file has when it is opened.
#[derive(Debug, Default)]
struct Contents {
    models: Models,
    last_write: Option<LastWrite>,
}

impl StoreFile {
    /// Opens a file, or creates it.
    fn open(path: &Path) -> Result<Self, Error> {
        Self::open_at(path, clock::unix())
    }

    /// [`Self::open`] while the wall clock shows `wall`.
    fn open_at(path: &Path, wall: Duration) -> Result<Self, Error> {
        let mut store = Self {
            path: path.into(),
            database: None,
            models: Models::new(),
            clock: FileClock::resume(None, wall),
        };
        let (database, contents) = store.read()?;
        store.database = Some(database);
        store.models = contents.models;
        store.clock = FileClock::resume(contents.last_write, wall);
        Ok(store)
    }

    /// Opens and reads the file; sets a damaged file aside and starts a new one.
    fn read(&self) -> Result<(Database, Contents), Error> {
        let now = self.moment();
        let why = match attempt(&self.path, now) {
            Ok(read) => return Ok(read),
            Err(Unusable::Locked) => return Err(Error::Locked(self.path.clone())),
            Err(Unusable::Io(source)) => {
                return Err(Error::Io { path: self.path.clone(), source });
            }
            Err(Unusable::Damaged(why)) => why,
        };
        let stuck = |source| Error::Stuck { path: self.path.clone(), why: why.clone(), source };
        let aside = set_aside(&self.path).map_err(stuck)?;
        tracing::warn!(
            file = %self.path.display(),
            why,
            "store file can't be read: set aside as {}; a new one is started, models are learned again and usage windows \
             start empty",
            aside.display()
        );
        attempt(&self.path, now).map_err(|unusable| match unusable {
            Unusable::Locked => Error::Locked(self.path.clone()),
            Unusable::Io(source) => stuck(source),
            Unusable::Damaged(why) => stuck(io::Error::other(why)),
        })
    }

    fn moment(&self) -> Moment {
        self.clock.moment(clock::unix())
    }

    /// The stored models of a pool, by variant.
    fn models_of(&self, pool: &str) -> Vec<(String, Kept)> {
        let models = self.models.iter().filter(|((owner, _), _)| owner == pool);
        models.map(|((_, variant), model)| (variant.clone(), *model)).collect()
    }

    /// Usage of this pool's flows in the window that ends now.
    fn past_usage(&self, pool: &str, window: Duration) -> Result<Vec<PastUsage>, Error> {
        let Some(database) = &self.database else {
            return Ok(Vec::new());
        };
        rows::past_usage(database, pool, window, self.moment().clock).map_err(|why| self.broken(&why))
    }

    /// What was used of this pool's budgets.
    fn past_budgets(&self, pool: &str) -> Result<Vec<BudgetUsage>, Error> {
        let Some(database) = &self.database else {
            return Ok(Vec::new());
        };
        budget_rows::past(database, pool, self.moment()).map_err(|why| self.broken(&why))
    }

    /// Writes `learned` and `batches`, and deletes usage outside its window. On `Ok` all of it is on the disk. After an
    /// error, the next call writes `learned` as well.
    fn save(
        &mut self,
        learned: impl IntoIterator<Item = ((String, String), Kept)>,
        batches: &[UsageBatch],
        windows: &BTreeMap<String, Windows>,
    ) -> Result<(), Error> {
        let now = self.moment();
        self.models.extend(learned);
        let database = match self.database.take() {
            Some(database) => database,
            None => self.read()?.0,
        };
        write(&database, &self.models, batches, windows, now).map_err(|why| self.broken(&why))?;
        self.database = Some(database);
        Ok(())
    }

    fn broken(&self, why: &redb::Error) -> Error {
        Error::Broken { path: self.path.clone(), why: why.to_string() }
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

/// Opens and reads a file. redb verifies the file, and still some damage makes it panic; a panic counts as damage.
fn attempt(path: &Path, now: Moment) -> Result<(Database, Contents), Unusable> {
    let path = path.to_owned();
    std::thread::spawn(move || {
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true)
            .create(path)
            .map_err(redb::Error::from)?;
        let contents = read(&database, now)?;
        Ok((database, contents))
    })
    .join()
    .unwrap_or_else(|_| Err(Unusable::Damaged("its contents contradict each other".into())))
}

fn read(database: &Database, now: Moment) -> Result<Contents, Unusable> {
    let reading = database.begin_read().map_err(redb::Error::from)?;
    let tables: Vec<_> = reading.list_tables().map_err(redb::Error::from)?.collect();
    if tables.is_empty() {
        drop(reading);
        write(database, &Models::new(), &[], &BTreeMap::new(), now)?;
        return Ok(Contents::default());
    }
    if !tables.iter().any(|table| table.name() == ABOUT.name()) {
        return Err(Unusable::Damaged("it is the database of another program".into()));
    }
    let about = reading.open_table(ABOUT).map_err(redb::Error::from)?;
    let number = |name: &str| -> Result<Option<u64>, Unusable> {
        let entry = about.get(name).map_err(redb::Error::from)?;
        Ok(entry.map(|entry| entry.value()))
    };
    let format = number(ABOUT_FORMAT)?;
    if format != Some(FORMAT) {
        let format = format.map_or_else(|| "unknown".into(), |format| format.to_string());
        return Err(Unusable::Damaged(format!("its format is {format}; this version reads {FORMAT}")));
    }
    let table = reading.open_table(MODELS).map_err(redb::Error::from)?;
    let mut models = Models::new();
    for entry in table.iter().map_err(redb::Error::from)? {
        let (name, value) = entry.map_err(redb::Error::from)?;
        let (pool, variant) = name.value();
        match model_from_numbers(value.value()) {
            Some(model) => {
                models.insert((pool.into(), variant.into()), model);
            }
            None => tracing::warn!(
                pool,
                variant,
                "stored model ignored: its values are impossible; the variant is learned again"
            ),
        }
    }
    Ok(Contents { models, last_write: number(ABOUT_CLOCK)?.zip(number(ABOUT_WALL)?) })
}

/// Writes everything in one transaction.
fn write(
    database: &Database,
    models: &Models,
    batches: &[UsageBatch],
    windows: &BTreeMap<String, Windows>,
    now: Moment,
) -> Result<(), redb::Error> {
    let writing = database.begin_write()?;
    {
        let mut about = writing.open_table(ABOUT)?;
        let (clock, wall) = now.last_write();
        for (name, value) in [(ABOUT_FORMAT, FORMAT), (ABOUT_CLOCK, clock), (ABOUT_WALL, wall)] {
            about.insert(name, value)?;
        }
    }
    {
        let mut table = writing.open_table(MODELS)?;
        for ((pool, variant), model) in models {
            table.insert((pool.as_str(), variant.as_str()), model_numbers(model))?;
        }
    }
    let usage = windows.iter().filter_map(|(pool, windows)| Some((pool.clone(), windows.usage?)));
    rows::write(&writing, batches, &usage.collect(), now)?;
    budget_rows::write(&writing, batches, windows.len(), now)?;
    writing.commit()?;
    Ok(())
}

/// Renames a damaged file to the first free name `<file>.damaged-<number>`.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for number in 1..=DAMAGED_MAX {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".damaged-{number}"));
        let aside = PathBuf::from(aside);
        if aside.symlink_metadata().is_ok() {
            continue;
        }
        std::fs::rename(path, &aside)?;
        return Ok(aside);
    }
    Err(io::Error::other(format!("{DAMAGED_MAX} damaged files are beside it already; delete them")))
}

#[cfg(test)]
mod tests;
