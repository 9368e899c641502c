//! A file that is written by others: seen to change, and replaced. The configuration is one.
//!
//! What is watched is the folder, for editors replace a file by renaming another one, and Kubernetes replaces the folder
//! behind a link. Which file in it changed isn't asked: whether the bytes are others is, by whoever looks at them.

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

/// Nothing happened for so long: whoever wrote is done.
const QUIET: Duration = Duration::from_millis(100);
/// Where something always happens, the file is looked at this often.
const RESTLESS: Duration = Duration::from_secs(1);
/// A folder that can't be watched is tried again after this.
const AGAIN: Duration = Duration::from_secs(2);
/// Links that lead to each other.
const LINKS: usize = 16;

/// Says `look` now and whenever the file may have changed, as long as somebody listens.
pub(crate) fn watch<T: Send + 'static>(
    path: PathBuf,
    orders: mpsc::Sender<T>,
    look: impl Fn() -> T + Send + 'static,
) {
    tokio::spawn(async move {
        let noticed = Arc::new(Notify::new());
        let mut watched = match Watched::new(noticed.clone()) {
            Ok(watched) => watched,
            Err(why) => {
                tracing::warn!(%why, "files can't be watched: changes of {} aren't seen", path.display());
                // It is looked at once, at least.
                let _ = orders.send(look()).await;
                return;
            }
        };
        loop {
            let all = watched.aim(&path);
            // Whatever happened before it was watched, or was it not.
            if orders.send(look()).await.is_err() {
                return;
            }
            let next = noticed.notified();
            if all {
                tokio::select! {
                    () = next => {}
                    () = orders.closed() => return,
                }
            } else {
                tokio::select! {
                    _ = timeout(AGAIN, next) => {}
                    () = orders.closed() => return,
                }
            }
            let since = Instant::now();
            while since.elapsed() < RESTLESS && timeout(QUIET, noticed.notified()).await.is_ok() {}
        }
    });
}

/// What is watched at present.
struct Watched {
    watcher: RecommendedWatcher,
    places: BTreeSet<PathBuf>,
    said: bool,
}

impl Watched {
    fn new(noticed: Arc<Notify>) -> notify::Result<Self> {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // That it was read is no change, least of all that it was read by us.
            let idle = event.is_ok_and(|it| {
                matches!(it.kind, EventKind::Access(access) if access != notify::event::AccessKind::Close(notify::event::AccessMode::Write))
            });
            if !idle {
                noticed.notify_one();
            }
        })?;
        Ok(Self {
            watcher,
            places: BTreeSet::new(),
            said: false,
        })
    }

    /// Watches all places from which the file can change; whether that succeeds.
    fn aim(&mut self, path: &Path) -> bool {
        let places = places(path);
        for left in self.places.difference(&places) {
            // It has gone, most likely.
            let _ = self.watcher.unwatch(left);
        }
        let mut all = true;
        for place in &places {
            // Once more: it may be another one under the same name.
            match self.watcher.watch(place, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // A link may lead nowhere for a moment.
                Err(_) if !place.exists() => all = false,
                Err(why) => {
                    all = false;
                    if !std::mem::replace(&mut self.said, true) {
                        tracing::warn!(%why, "{} can't be watched: it is looked at every {AGAIN:?}", place.display());
                    }
                }
            }
        }
        self.places = places;
        all
    }
}

/// The folders on the way to the file, link by link, and the file itself, which may be mounted alone.
fn places(path: &Path) -> BTreeSet<PathBuf> {
    let mut places = BTreeSet::new();
    let mut at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..LINKS {
        let Some(folder) = at.parent().map(Path::to_owned) else {
            break;
        };
        places.insert(folder.clone());
        match std::fs::read_link(&at) {
            Ok(to) => at = folder.join(to),
            Err(_) => break,
        }
    }
    // The way by links between folders, as Kubernetes lays it, ends at another folder.
    if let Ok(last) = path.canonicalize() {
        places.extend(last.parent().map(Path::to_owned));
        places.insert(last);
    }
    places
}

/// Replaces what the file holds, whole or not at all. Links stay, and so do mode and owner as far as that is allowed.
///
/// # Errors
/// When the folder can't be written.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A file that has gone is made again.
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(why) if why.kind() == io::ErrorKind::NotFound => std::path::absolute(path)?,
        Err(why) => return Err(why),
    };
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = tempfile::Builder::new()
        .prefix(".penstock-")
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    if let Ok(old) = std::fs::metadata(&path) {
        // A file that may not be written shall not be replaced either.
        File::options().append(true).open(&path)?;
        // Only the superuser may give files away.
        let _ = fchown(file.as_file(), Some(old.uid()), Some(old.gid()));
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|it| it.error)?;
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
    fn what_is_replaced_keeps_its_mode_and_links_to_it() {
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
    async fn a_change_is_seen_however_it_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for version in ["..1", "..2"] {
            std::fs::create_dir(at(version)).expect("made");
            write(&at(version).join("f.yaml"), version);
        }
        symlink("..1", at("..data")).expect("a link");
        symlink("..data/f.yaml", at("f.yaml")).expect("a link");
        let (orders, mut inbox) = mpsc::channel(64);
        watch(at("f.yaml"), orders, || ());
        // It looks once by itself when it has begun to watch, and again whenever something happened.
        let mut looks = 0;
        let mut seen = async |text: &str| {
            loop {
                inbox.recv().await.expect("it watches");
                looks += 1;
                if std::fs::read_to_string(at("f.yaml")).is_ok_and(|it| it == text) {
                    return;
                }
            }
        };
        seen("..1").await;
        // As the kubelet does it.
        symlink("..2", at("..data_tmp")).expect("a link");
        std::fs::rename(at("..data_tmp"), at("..data")).expect("renamed");
        seen("..2").await;
        // Where the links lead to.
        write(&at("..2").join("f.yaml"), "in place");
        seen("in place").await;
        // As editors do it; the link is no more.
        write(&at("f.yaml~"), "renamed");
        std::fs::rename(at("f.yaml~"), at("f.yaml")).expect("renamed");
        seen("renamed").await;
        std::fs::remove_file(at("f.yaml")).expect("removed");
        write(&at("f.yaml"), "again");
        seen("again").await;
        assert!(looks >= 5);
    }
}
