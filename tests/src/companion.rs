//! A companion alone: `penstock serve` on unix sockets, which a test can kill, freeze and restart at the same place.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use tempfile::TempDir;
use tokio::process::Command;

use crate::binary;
use crate::pages::Pages;
use crate::process::{self, Process};
use crate::wait::until;

/// A companion's configuration and sockets, and its process while one runs.
pub struct Companion {
    process: Option<Process>,
    pages: Pages,
    config: PathBuf,
    folder: TempDir,
    /// Environment variables of the process.
    variables: Vec<(String, String)>,
}

impl Companion {
    /// Starts a companion with a configuration of `head` (top-level keys except `listen`) and pools.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn start(head: &str, pools: &[String]) -> Self {
        Self::start_with(head, pools, &[]).await
    }

    /// [`Self::start`] with environment variables.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_with(head: &str, pools: &[String], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let grpc = format!("unix:{}", folder.path().join("grpc").display());
        Self::listening(folder, &grpc, head, pools, variables).await
    }

    /// [`Self::start`] of one of several companions, which listens for filters on this address. `head` has `replicas`.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn replica(grpc: SocketAddr, head: &str, pools: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::listening(folder, &grpc.to_string(), head, pools, &[]).await
    }

    /// [`Self::replica`] with environment variables.
    ///
    /// # Panics
    /// As [`Self::replica`].
    pub async fn replica_with(
        grpc: SocketAddr,
        head: &str,
        pools: &[String],
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::listening(folder, &grpc.to_string(), head, pools, variables).await
    }

    async fn listening(
        folder: TempDir,
        grpc: &str,
        head: &str,
        pools: &[String],
        variables: &[(&str, &str)],
    ) -> Self {
        process::raise_open_files();
        let path = |name: &str| folder.path().join(name);
        let listen = format!(
            "listen: {{gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: '{grpc}', http: 'unix:{}'}}\n",
            path("http").display(),
        );
        let config = path("penstock.yaml");
        std::fs::write(&config, format!("{listen}{head}pools:\n{}", pools.concat())).expect("write a file");
        let mut companion = Self {
            process: None,
            pages: Pages::behind(&path("http")),
            config,
            folder,
            variables: (variables.iter())
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        };
        companion.restart().await;
        companion
    }

    /// Starts a companion at the same place.
    ///
    /// # Panics
    /// If the last one still runs, or the new one does not start.
    pub async fn restart(&mut self) {
        assert!(self.process.is_none(), "one at a time");
        let mut command = Command::new(binary::penstock());
        command.arg("serve").arg("--config").arg(&self.config);
        command.current_dir(binary::workspace());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        self.process = Some(Process::start("companion", command).await);
        until("the companion serves", || async {
            match self.pages.get("/livez").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.text()),
                Err(error) => Err(format!("{error}\n{}", self.log())),
            }
        })
        .await;
    }

    /// Ends the process as a crash would: `kill -9`.
    pub async fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.exit().await;
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: i32) {
        self.running().signal(signal);
    }

    /// Stops the process and waits until each of its threads has stopped: a running thread could still answer.
    pub async fn freeze(&self) {
        process::freeze(self.running().pid()).await;
    }

    /// Waits for the process to end.
    ///
    /// # Panics
    /// If it does not run, or does not end in time.
    pub async fn exit(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("it runs");
        process.exit().await
    }

    /// The companion's output.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The path of its configuration.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// A folder that lives as long as the companion.
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
