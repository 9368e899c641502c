//! A file that other programs change: watched for changes, and replaced atomically. The configuration is such a file.
//!
//! The watch is on the file's folder, because editors replace a file by renaming another one, and Kubernetes replaces
//! the folder behind a symbolic link. An event doesn't tell whether the file's bytes changed; the receiver of the message
//! compares them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};

use crate::base::essential;

/// A file is read once its folder had no event for this long, so that the writer has finished.
const QUIET: Duration = Duration::from_millis(100);
/// In a folder that is never quiet, the file is read this often.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// How often a watch that failed is set up again.
const RETRY: Duration = Duration::from_secs(2);
/// Symbolic links that are followed to the file.
const LINKS: usize = 16;

/// Sends `message` now and whenever the file may have changed, until the receiver is dropped.
pub(crate) fn watch<T: Send + 'static>(
    path: PathBuf,
    receiver: mpsc::Sender<T>,
    message: impl Fn() -> T + Send + 'static,
) {
    essential::spawn("changes of files", async move {
        let events = Arc::new(Notify::new());
        let mut watched = match Watched::new(events.clone()) {
            Ok(watched) => watched,
            Err(why) => {
                tracing::warn!(
                    %why,
                    file = %path.display(),
                    "file can't be watched: the companion does not notice later changes of it"
                );
                // The present content is still loaded.
                let _ = receiver.send(message()).await;
                return;
            }
        };
        loop {
            let is_complete = watched.watch_places(&path);
            // The file may have changed before the watch began.
            if receiver.send(message()).await.is_err() {
                return;
            }
            let next = events.notified();
            if is_complete {
                tokio::select! {
                    () = next => {}
                    () = receiver.closed() => return,
                }
            } else {
                tokio::select! {
                    _ = timeout(RETRY, next) => {}
                    () = receiver.closed() => return,
                }
            }
            let since = Instant::now();
            while since.elapsed() < BUSY_INTERVAL && timeout(QUIET, events.notified()).await.is_ok() {}
        }
    });
}

/// The paths that are watched.
struct Watched {
    watcher: RecommendedWatcher,
    places: BTreeSet<PathBuf>,
    failure_logged: bool,
}

impl Watched {
    fn new(events: Arc<Notify>) -> notify::Result<Self> {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading the file is an event too, and each message causes a read: ignore it.
            let is_read = event.is_ok_and(|event| {
                matches!(event.kind, EventKind::Access(access) if access != notify::event::AccessKind::Close(notify::event::AccessMode::Write))
            });
            if !is_read {
                events.notify_one();
            }
        })?;
        Ok(Self { watcher, places: BTreeSet::new(), failure_logged: false })
    }

    /// Watches every path through which the file can change. Returns whether all watches succeeded.
    fn watch_places(&mut self, path: &Path) -> bool {
        let places = places(path);
        for place in self.places.difference(&places) {
            // Fails when the path no longer exists.
            let _ = self.watcher.unwatch(place);
        }
        let mut is_complete = true;
        for place in &places {
            // Also for paths watched before: another file may have taken the name.
            match self.watcher.watch(place, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // During a replacement, a link may lead nowhere for a moment.
                Err(_) if !place.exists() => is_complete = false,
                Err(why) => {
                    is_complete = false;
                    if !std::mem::replace(&mut self.failure_logged, true) {
                        tracing::warn!(
                            %why,
                            path = %place.display(),
                            "path not watched: the file is read every {RETRY:?} instead"
                        );
                    }
                }
            }
        }
        self.places = places;
        is_complete
    }
}

/// The folders on the way to the file, link by link, and the file itself, which may be a mount of its own.
fn places(path: &Path) -> BTreeSet<PathBuf> {
    let mut places = BTreeSet::new();
    let mut place = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..LINKS {
        let Some(folder) = place.parent().map(Path::to_owned) else {
            break;
        };
        places.insert(folder.clone());
        match std::fs::read_link(&place) {
            Ok(target) => place = folder.join(target),
            Err(_) => break,
        }
    }
    // Links between folders, as Kubernetes makes them, lead to another folder than links of the file.
    if let Ok(last) = path.canonicalize() {
        places.extend(last.parent().map(Path::to_owned));
        places.insert(last);
    }
    places
}

/// Replaces the file's content atomically. Symbolic links stay, and so do mode and owner as far as permissions allow.
///
/// # Errors
/// When the folder can't be written.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A missing file is created.
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(why) if why.kind() == io::ErrorKind::NotFound => std::path::absolute(path)?,
        Err(why) => return Err(why),
    };
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = tempfile::Builder::new().prefix(".penstock-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    if let Ok(old) = std::fs::metadata(&path) {
        // Renaming would succeed even on a read-only file; opening it for writing fails.
        File::options().append(true).open(&path)?;
        // Only the superuser may change a file's owner.
        let _ = fchown(file.as_file(), Some(old.uid()), Some(old.gid()));
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).expect("written");
    }

    #[test]
    fn replacing_keeps_mode_and_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("f.yaml"), folder.path().join("link.yaml"));
        write(&file, "old");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).expect("its owner");
        symlink("f.yaml", &link).expect("a link");
        replace(&link, b"new").expect("replaced");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "new");
        assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
        let mode = std::fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let names = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 2, "nothing is left behind");
        std::fs::remove_file(&file).expect("removed");
        replace(&file, b"again").expect("made again");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "again");
        replace(&folder.path().join("no/f.yaml"), b"").expect_err("no folder");
    }

    #[tokio::test]
    async fn every_kind_of_change_sends_a_message() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = |name: &str| folder.path().join(name);
        for version in ["..1", "..2"] {
            std::fs::create_dir(inside(version)).expect("made");
            write(&inside(version).join("f.yaml"), version);
        }
        symlink("..1", inside("..data")).expect("a link");
        symlink("..data/f.yaml", inside("f.yaml")).expect("a link");
        let (sender, mut inbox) = mpsc::channel(64);
        watch(inside("f.yaml"), sender, || ());
        // One message is sent when the watch begins, and one after each change.
        let mut messages = 0;
        let mut wait_for = async |text: &str| {
            loop {
                inbox.recv().await.expect("the watch runs");
                messages += 1;
                if std::fs::read_to_string(inside("f.yaml")).is_ok_and(|content| content == text) {
                    return;
                }
            }
        };
        wait_for("..1").await;
        // As the kubelet replaces a ConfigMap.
        symlink("..2", inside("..data_tmp")).expect("a link");
        std::fs::rename(inside("..data_tmp"), inside("..data")).expect("renamed");
        wait_for("..2").await;
        // In place, behind the links.
        write(&inside("..2").join("f.yaml"), "in place");
        wait_for("in place").await;
        // As editors replace a file; the link is gone.
        write(&inside("f.yaml~"), "renamed");
        std::fs::rename(inside("f.yaml~"), inside("f.yaml")).expect("renamed");
        wait_for("renamed").await;
        std::fs::remove_file(inside("f.yaml")).expect("removed");
        write(&inside("f.yaml"), "again");
        wait_for("again").await;
        assert!(messages >= 5);
    }
}
