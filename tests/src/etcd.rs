//! A real etcd server: of `$ETCD`, from PATH, or from a Debian package that is unpacked once below the target folder.

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::ports::free_address;
use crate::process::{Process, freeze};
use crate::wait::until;

/// One member's ports and data, and its process while one runs.
pub struct Etcd {
    process: Option<Process>,
    port: u16,
    peer_port: u16,
    binary: PathBuf,
    data: TempDir,
    client: reqwest::Client,
}

/// The server's binary. A test that needs etcd fails if there is none and none can be unpacked.
static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/etcd");
    let found = std::process::Command::new("bash").arg(script).output().expect("bash runs");
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let path = String::from_utf8(found.stdout).expect("a path");
    path.trim().into()
});

impl Etcd {
    /// Starts a server without data.
    ///
    /// # Panics
    /// If no server is available, or it does not start.
    pub async fn start() -> Self {
        let binary = tokio::task::spawn_blocking(|| BINARY.clone());
        let mut etcd = Self {
            process: None,
            port: free_address().port(),
            peer_port: free_address().port(),
            binary: binary.await.expect("an etcd"),
            data: tempfile::tempdir().expect("a folder"),
            client: reqwest::Client::builder().no_proxy().build().expect("a client can be built"),
        };
        etcd.restart().await;
        etcd
    }

    /// Starts a server at the same place with the same data.
    ///
    /// # Panics
    /// If the last one still runs, or the new one does not start.
    pub async fn restart(&mut self) {
        assert!(self.process.is_none(), "one at a time");
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new(&self.binary);
        command.arg("--data-dir").arg(self.data.path());
        for option in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([option, &self.url()]);
        }
        for option in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([option, &peer]);
        }
        command.args(["--initial-cluster", &format!("default={peer}")]);
        self.process = Some(Process::start("etcd", command).await);
        until("the etcd serves", || async {
            let log = self.process.as_ref().map(Process::log).unwrap_or_default();
            let answer = self.client.get(format!("{}/health", self.url())).send().await;
            let is_ready = answer.is_ok_and(|answer| answer.status().is_success());
            if is_ready { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// Ends the process as a crash would.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.signal(libc::SIGKILL);
        process.exit().await;
    }

    /// The server's address for clients.
    #[must_use]
    pub fn address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Stops the process, so that it answers nothing, until [`Etcd::thaw`].
    ///
    /// # Panics
    /// If it does not run.
    pub async fn freeze(&self) {
        freeze(self.process.as_ref().expect("it runs").pid()).await;
    }

    /// Lets a frozen process go on.
    ///
    /// # Panics
    /// If it does not run.
    pub fn thaw(&self) {
        self.process.as_ref().expect("it runs").signal(libc::SIGCONT);
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Calls its JSON interface; keys and values are in base64.
    ///
    /// # Panics
    /// If the call fails.
    pub async fn call(&self, path: &str, body: &Value) -> Value {
        let url = format!("{}/v3/{path}", self.url());
        let answer = self.client.post(url).json(body).send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a body");
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).expect("JSON")
    }
}
