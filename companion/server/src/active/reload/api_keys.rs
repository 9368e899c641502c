//! The file of `identity.api_keys`, which is watched while the configuration names it.

use std::collections::BTreeSet;
use std::future::pending;
use std::path::{Path, PathBuf};

use penstock_config::{ApiKeyTable, Config};
use tokio::sync::mpsc;

use crate::base::watched_file;

#[derive(Default)]
pub(super) struct KeyFileWatch {
    /// The file, and a message for each possible change. Dropping the receiver ends the watch.
    watched: Option<(PathBuf, mpsc::Receiver<()>)>,
}

impl KeyFileWatch {
    /// Watches the file that this configuration names.
    pub(super) fn follow(&mut self, config: &Config) {
        let file = config.identity.api_keys.as_ref().map(|keys| &keys.file);
        if self.watched.as_ref().map(|(path, _)| path) == file {
            return;
        }
        self.watched = file.map(|file| {
            let (sender, changes) = mpsc::channel(1);
            watched_file::watch(file.clone(), sender, || ());
            (file.clone(), changes)
        });
    }

    /// Waits until the file may have changed; for ever if none is watched.
    pub(super) async fn changed(&mut self) {
        let change = match &mut self.watched {
            Some((_, changes)) => changes.recv().await,
            None => None,
        };
        if change.is_none() {
            pending::<()>().await;
        }
    }
}

/// Logs a change of the keys: how many, and no digest.
pub(super) fn log(file: &Path, before: &ApiKeyTable, after: &ApiKeyTable) {
    let before: BTreeSet<_> = before.iter().collect();
    let after: BTreeSet<_> = after.iter().collect();
    let tenants: BTreeSet<_> = after.iter().map(|(_, tenant)| tenant).collect();
    tracing::info!(
        file = %file.display(),
        added = after.difference(&before).count(),
        removed = before.difference(&after).count(),
        keys = after.len(),
        tenants = tenants.len(),
        "API keys changed"
    );
}
