//! What is kept across restarts, in one redb file: the parameters of the models, by pool and variant.
//!
//! A file that can't be read, or is of another format, is set aside under another name and begun anew: what is kept can
//! be learned again, and nothing is ever deleted. A file that another process has open, or that can't be opened, is an
//! error: whoever named it expects that it is used. All in here blocks; a [`Keeper`] does it where nobody waits.

mod keeper;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use penstock_control::Kept;
use penstock_model::Parameters;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};

pub use self::keeper::{Keeper, Writers};

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

/// By pool and variant.
type Models = BTreeMap<(String, String), Kept>;

/// Why a store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it open.
    #[error(
        "usage.store: {} is in use by another process, or is named twice in different spellings", .0.display()
    )]
    Locked(PathBuf),
    /// It can't be opened or written.
    #[error("usage.store: {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is damaged, and can't be set aside.
    #[error("usage.store: {} can't be read ({why}), and can't be set aside: {source}", path.display())]
    Stuck {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// Why it stays.
        source: io::Error,
    },
    /// It was open, and can't be written any more.
    #[error("usage.store: {}: {why}", path.display())]
    Broken {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },
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
            "can't be read: it is set aside as {} and begun anew; its models are learned again",
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

    /// Keeps what `learned` says; when this returns it is on the disk. On an error it is kept with the next.
    fn keep(&mut self, learned: impl IntoIterator<Item = ((String, String), Kept)>) -> Result<(), Error> {
        self.models.extend(learned);
        let database = match self.database.take() {
            Some(database) => database,
            None => self.read()?.0,
        };
        write(&database, &self.models).map_err(|error| Error::Broken {
            path: self.path.clone(),
            why: error.to_string(),
        })?;
        self.database = Some(database);
        Ok(())
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
        write(database, &Models::new())?;
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

/// `None`: nothing that was ever learned.
fn kept((alpha_ms, beta_ms, gamma_ms, ttft_bias): (f64, f64, f64, f64)) -> Option<Kept> {
    let parameters = Parameters {
        alpha_ms,
        beta_ms,
        gamma_ms,
    };
    (parameters.is_valid() && ttft_bias.is_finite() && ttft_bias > 0.0).then_some(Kept {
        parameters,
        ttft_bias,
    })
}

/// Writes all of it, or nothing.
fn write(database: &Database, models: &Models) -> Result<(), redb::Error> {
    let writing = database.begin_write()?;
    writing.open_table(ABOUT)?.insert(ABOUT_FORMAT, FORMAT)?;
    {
        let mut table = writing.open_table(MODELS)?;
        for ((pool, variant), kept) in models {
            let Parameters {
                alpha_ms,
                beta_ms,
                gamma_ms,
            } = kept.parameters;
            let name = (pool.as_str(), variant.as_str());
            table.insert(name, (alpha_ms, beta_ms, gamma_ms, kept.ttft_bias))?;
        }
    }
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
