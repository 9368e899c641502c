//! The leader lease as a locked file, for companions on one machine.
//!
//! The leader holds an exclusive `flock` on the file. The kernel releases the lock when the process ends, however it ends,
//! so a free lock means that the last leader is gone. A leader that is frozen, with SIGSTOP for example, keeps the lock, and no standby takes
//! over until it is killed or continues. The file must be on a local disk: locks of network file systems differ.
//!
//! The record is in `PATH.record`, with a number that rises with each change.

use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_election::{Holder, Record, Request, View};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};

use super::store::{LeaseStore, Outcome, StoreError};
use crate::base::watched_file;

/// Attempts to take a lock that another companion may be testing at this moment.
const ATTEMPTS: u32 = 10;
/// The pause between attempts. A test of the lock takes microseconds.
const PAUSE: Duration = Duration::from_millis(1);

/// The contents of the record's file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u64,
    record: Option<Record>,
}

/// A lease in a file.
#[derive(Debug)]
pub(super) struct File(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    record_path: PathBuf,
    /// The locked file while this process is the holder.
    held: Mutex<Option<fs::File>>,
    /// Whether a thread waits for the lock's release.
    is_waiting: Mutex<bool>,
    freed: Notify,
}

impl File {
    pub(super) fn new(path: &Path) -> Self {
        let mut record_path = path.as_os_str().to_owned();
        record_path.push(".record");
        Self(Arc::new(Shared {
            path: path.to_owned(),
            record_path: record_path.into(),
            held: Mutex::default(),
            is_waiting: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// Runs file operations on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Shared) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.0.clone();
        let done = tokio::task::spawn_blocking(move || operation(&shared)).await;
        // Fails when the runtime shuts down.
        let done = done.map_err(|error| StoreError::new(&error))?;
        done.map_err(|why| StoreError::new(&why))
    }
}

impl LeaseStore for File {
    fn place(&self) -> String {
        format!("file {}", self.0.path.display())
    }

    async fn execute(&self, request: &Request) -> Result<Outcome, StoreError> {
        let request = request.clone();
        self.run(move |shared| shared.execute(&request)).await
    }

    async fn observe(&self) -> Result<View, StoreError> {
        self.run(Shared::view).await
    }

    async fn watch(&self, views: &mpsc::Sender<View>) -> StoreError {
        let (changed, mut changes) = mpsc::channel(1);
        watched_file::watch(self.0.record_path.clone(), changed, || ());
        loop {
            let view = match self.observe().await {
                Ok(view) => view,
                Err(why) => return why,
            };
            if view.holder == Holder::Other {
                Shared::wait(&self.0);
            }
            if views.send(view).await.is_err() {
                return StoreError("the election has ended".into());
            }
            tokio::select! {
                () = self.0.freed.notified() => {}
                changed = changes.recv() => if changed.is_none() {
                    return StoreError("the record's file can no longer be watched".into());
                },
            }
        }
    }
}

impl Shared {
    fn execute(&self, request: &Request) -> io::Result<Outcome> {
        let mut held = self.held();
        if held.as_ref().is_some_and(|file| !self.is_at_path(file)) {
            // The file was deleted or replaced, and another process may have locked the new one.
            *held = None;
        }
        let mut acquired = None;
        if let Request::Acquire { .. } = request {
            match self.lock()? {
                Some(file) if held.is_none() => acquired = Some(file),
                _ => return Ok(Outcome::Refused),
            }
        } else if held.is_none() {
            return Ok(Outcome::Refused);
        }
        let version = self.contents()?.version;
        if version != request.version() {
            return Ok(Outcome::Refused);
        }
        let record = match request {
            Request::Renew { .. } => return Ok(Outcome::Done { version }),
            Request::Acquire { record, .. }
            | Request::Write { record, .. }
            | Request::Release { record, .. } => record,
        };
        let version = version + 1;
        let contents = Contents { version, record: Some(record.clone()) };
        self.replace(&contents)?;
        match request {
            Request::Release { .. } => *held = None,
            _ => *held = acquired.or_else(|| held.take()),
        }
        Ok(Outcome::Done { version })
    }

    /// Tries to lock the file; `None`: another process has it.
    fn lock(&self) -> io::Result<Option<fs::File>> {
        for _ in 0..ATTEMPTS {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(&self.path)?;
            match file.try_lock() {
                Ok(()) if self.is_at_path(&file) => return Ok(Some(file)),
                Ok(()) | Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(why)) => return Err(why),
            }
        }
        Ok(None)
    }

    fn view(&self) -> io::Result<View> {
        let held = self.held();
        let Contents { version, mut record } = self.contents()?;
        let holder = if held.as_ref().is_some_and(|file| self.is_at_path(file)) {
            Holder::Me
        } else if self.is_locked()? {
            Holder::Other
        } else {
            // The last leader's process has ended or let go: nothing else unlocks the file.
            if let Some(record) = &mut record {
                record.released = true;
            }
            Holder::None
        };
        Ok(View { holder, record, version })
    }

    /// Tests the lock, without changing the file.
    fn is_locked(&self) -> io::Result<bool> {
        let file = match fs::File::open(&self.path) {
            Ok(file) => file,
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(false),
            Err(why) => return Err(why),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(why)) => Err(why),
        }
    }

    /// Notifies `freed` when no process has the file locked any more. The kernel wakes the thread: nothing polls.
    fn wait(shared: &Arc<Self>) {
        let mut is_waiting = shared.is_waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_waiting, true) {
            return;
        }
        drop(is_waiting);
        let waiter = shared.clone();
        let thread = std::thread::Builder::new().name("leader lease".into());
        let started = thread.spawn(move || {
            if let Ok(file) = fs::File::open(&waiter.path) {
                // A failure shows in the next view.
                let _ = file.lock_shared();
            }
            waiter.stop_waiting();
        });
        if started.is_err() {
            shared.stop_waiting();
        }
    }

    fn stop_waiting(&self) {
        *self.is_waiting.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.freed.notify_one();
    }

    /// The file still is the one that other processes would open.
    fn is_at_path(&self, file: &fs::File) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let (own, present) = (file.metadata(), fs::metadata(&self.path));
        own.ok().map(identity) == present.ok().map(identity)
    }

    fn contents(&self) -> io::Result<Contents> {
        match fs::read(&self.record_path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|why| {
                let place = self.record_path.display();
                io::Error::other(format!("{place} is no record of a leader ({why}); delete it"))
            }),
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(Contents::default()),
            Err(why) => Err(why),
        }
    }

    fn replace(&self, contents: &Contents) -> io::Result<()> {
        let folder = self.record_path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        serde_json::to_writer(&mut file, contents)?;
        file.as_file().sync_all()?;
        file.persist(&self.record_path).map_err(|failed| failed.error)?;
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Option<fs::File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
