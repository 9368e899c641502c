//! The files with API keys, credentials and certificates that a configuration names. They are watched while it names them.

use std::collections::BTreeSet;
use std::future::pending;
use std::path::PathBuf;

use penstock_config::Config;
use tokio::sync::mpsc;

use super::watched_file;

#[derive(Default)]
pub(crate) struct SecretFileWatch {
    files: BTreeSet<PathBuf>,
    /// A message for each possible change. Dropping the receiver ends the watches.
    changes: Option<mpsc::Receiver<()>>,
}

impl SecretFileWatch {
    /// Watches the files that this configuration names.
    pub(crate) fn follow(&mut self, config: &Config) {
        let files = config.secret_files();
        if self.files == files {
            return;
        }
        let (sender, changes) = mpsc::channel(1);
        for file in &files {
            watched_file::watch(file.clone(), sender.clone(), || ());
        }
        self.changes = (!files.is_empty()).then_some(changes);
        self.files = files;
    }

    /// Waits until a file may have changed; for ever if none is watched.
    pub(crate) async fn changed(&mut self) {
        let change = match &mut self.changes {
            Some(changes) => changes.recv().await,
            None => None,
        };
        if change.is_none() {
            pending::<()>().await;
        }
    }
}
