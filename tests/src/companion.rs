//! A companion alone: `penstock serve` behind unix sockets, to be killed, frozen and started again at the same place.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use tempfile::TempDir;
use tokio::process::Command;

use crate::binary;
use crate::pages::Pages;
use crate::process::{self, Process};
use crate::wait::until;

/// A companion's place: its configuration, its sockets, and the process that serves there, if there is one.
pub struct Companion {
    process: Option<Process>,
    pages: Pages,
    config: PathBuf,
    folder: TempDir,
}

impl Companion {
    /// Starts one with a configuration of `head` (top-level keys but `listen`) and pools.
    ///
    /// # Panics
    /// With its log, when it doesn't come up.
    pub async fn start(head: &str, pools: &[String]) -> Self {
        process::raise_open_files();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        let listen = format!(
            "listen: {{gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: 'unix:{}', http: 'unix:{}'}}\n",
            at("grpc").display(),
            at("http").display(),
        );
        let config = at("penstock.yaml");
        std::fs::write(&config, format!("{listen}{head}pools:\n{}", pools.concat())).expect("write a file");
        let mut companion = Self {
            process: None,
            pages: Pages::behind(&at("http")),
            config,
            folder,
        };
        companion.again().await;
        companion
    }

    /// Starts one where the last one was.
    ///
    /// # Panics
    /// When the last one still runs, or the new one doesn't come up.
    pub async fn again(&mut self) {
        assert!(self.process.is_none(), "one at a time");
        let mut command = Command::new(binary::penstock());
        command.arg("serve").arg("--config").arg(&self.config);
        command.current_dir(binary::workspace());
        self.process = Some(Process::start("companion", command).await);
        until("the companion serves", || async {
            match self.pages.look("/livez").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.text()),
                Err(error) => Err(format!("{error}\n{}", self.log())),
            }
        })
        .await;
    }

    /// Ends it as a crash would: `kill -9`.
    pub async fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.exit().await;
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        self.running().signal(signal);
    }

    /// Stops it, and waits until each of its threads has: one of them could still answer.
    pub async fn freeze(&self) {
        process::freeze(self.running().pid()).await;
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it doesn't run, or takes too long.
    pub async fn exit(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("it runs");
        process.exit().await
    }

    /// What it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// A folder that lives as long as it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }
}

impl Deref for Companion {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.pages
    }
}
