//! A whole gateway: `penstock up`, that is Envoy, the filter and the companion.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::ask::{Answer, Ask};
use crate::metrics::Metrics;
use crate::pages::Pages;
use crate::process::Process;
use crate::wait::until;
use crate::{Upstream, binary};

/// Listeners on ports that nobody else has.
const LISTEN: &str = "listen: {gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: '127.0.0.1:0', http: '127.0.0.1:0'}\n";

/// The same but for gRPC, to be continued with `, grpc: ADDRESS}`.
pub const LISTEN_BUT_GRPC: &str =
    "listen: {gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', http: '127.0.0.1:0'";

/// One pool of a configuration: `models` decide that a request is its, `more` are further keys of the pool, each
/// line indented by two blanks.
#[must_use]
pub fn pool(name: &str, models: &str, servers: &[&Upstream], more: &str) -> String {
    let addresses: Vec<_> = servers.iter().map(|s| format!("'{}'", s.address())).collect();
    format!(
        "- name: {name}\n  models: [{models}]\n  endpoints: {{static: [{}]}}\n{more}",
        addresses.join(", ")
    )
}

/// The key of a pool that lets exactly `n` requests run at each of its servers.
#[must_use]
pub fn slots(n: u32) -> String {
    format!(
        "  stock: {{lower_bound_per_backend: {n}, upper_bound_per_backend: {n}, watermark_per_backend: {n}}}\n"
    )
}

/// A configuration of `head` (top-level keys) and pools.
#[must_use]
pub fn config(head: &str, pools: &[String]) -> String {
    format!("{LISTEN}{head}pools:\n{}", pools.concat())
}

/// A running gateway.
pub struct Gateway {
    /// The process of `penstock up`.
    pub process: Process,
    address: SocketAddr,
    pages: Pages,
    client: reqwest::Client,
    folder: TempDir,
}

impl Gateway {
    /// Starts one with this configuration and waits until it is ready.
    ///
    /// # Panics
    /// With its log, when it doesn't come up.
    pub async fn start(config: &str) -> Self {
        Self::with_log(config, "info").await
    }

    /// The same, with what `penstock --log` takes.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn with_log(config: &str, log: &str) -> Self {
        Self::launch(config, &[("PENSTOCK_LOG", log.to_owned())], None).await
    }

    /// The same, with more in its environment.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn with_environment(config: &str, environment: &[(&str, String)]) -> Self {
        Self::launch(config, environment, None).await
    }

    /// The same with a file for `--http-filter`.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn behind(config: &str, http_filters: &Value) -> Self {
        Self::launch(config, &[], Some(http_filters)).await
    }

    async fn launch(config: &str, environment: &[(&str, String)], http_filters: Option<&Value>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("penstock.yaml");
        std::fs::write(&file, config).expect("write the configuration");
        let mut command = Self::command(&file);
        command.env("PENSTOCK_LOG", "info");
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        if let Some(filters) = http_filters {
            let file = folder.path().join("filters.json");
            std::fs::write(&file, filters.to_string()).expect("write a file");
            command.arg("--http-filter").arg(file);
        }
        let mut process = Process::start("up", command).await;
        let url = process.line("gateway http://").await;
        let companion = process.line("dashboard http://").await;
        process.line("metrics http://").await;
        let address = url
            .trim()
            .trim_end_matches('/')
            .parse()
            .unwrap_or_else(|e| panic!("{url}: {e}"));
        let gateway = Self {
            process,
            address,
            pages: Pages::at(format!("http://{}", companion.trim().trim_end_matches('/'))),
            client: client(),
            folder,
        };
        gateway.ready().await;
        gateway
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("penstock.yaml")
    }

    /// The companion's pages.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The command that starts one from a file.
    #[must_use]
    pub fn command(file: &Path) -> Command {
        let mut command = Command::new(binary::penstock());
        command
            .arg("up")
            .arg("--config")
            .arg(file)
            .args(["--port", "0", "--admin-port", "0"]);
        command.current_dir(binary::workspace());
        command
    }

    /// Waits until `/readyz` says so.
    pub async fn ready(&self) {
        let what = format!("the gateway is ready\n{}", self.process.tail());
        until(&what, || async {
            match self.look("/readyz").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, answer.text())),
                Err(error) => Err(error),
            }
        })
        .await;
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base of the companion's pages.
    #[must_use]
    pub fn companion(&self) -> &str {
        self.pages.base()
    }

    /// A page of the companion.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn look(&self, path: &str) -> Result<Answer, String> {
        self.pages.look(path).await
    }

    /// The document of `/status`.
    ///
    /// # Panics
    /// When it isn't there.
    pub async fn status(&self) -> Value {
        self.pages.status().await
    }

    /// What `/status` says of a pool.
    ///
    /// # Panics
    /// When it says nothing.
    pub async fn pool(&self, name: &str) -> Value {
        self.pages.pool(name).await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// The page of metrics.
    ///
    /// # Panics
    /// When it isn't there.
    pub async fn metrics(&self) -> Metrics {
        self.pages.metrics().await
    }

    /// Waits until so many requests wait in a pool.
    pub async fn waiting(&self, pool: &str, count: u64) {
        self.pages.waiting(pool, count).await;
    }

    /// Waits until so many requests run in a pool.
    pub async fn stock(&self, pool: &str, count: u64) {
        self.pages.stock(pool, count).await;
    }

    /// Sends a request and waits for the whole answer.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn send(&self, ask: Ask) -> Answer {
        let response = self
            .open(ask)
            .await
            .unwrap_or_else(|e| panic!("{e:?}\n{}", self.process.tail()));
        answer(response)
            .await
            .unwrap_or_else(|e| panic!("{e:?}\n{}", self.process.tail()))
    }

    /// Sends a request and gives its answer as soon as its headers are in.
    ///
    /// # Errors
    /// When none come.
    pub async fn open(&self, ask: Ask) -> reqwest::Result<reqwest::Response> {
        let mut request = self.client.post(self.url(&ask.path)).json(&ask.body);
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        request.send().await
    }

    /// Sends a request in the background; aborting the handle is a client that leaves.
    #[must_use]
    pub fn spawn(&self, ask: Ask) -> JoinHandle<Answer> {
        let mut request = self.client.post(self.url(&ask.path)).json(&ask.body);
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        tokio::spawn(async move {
            let response = request.send().await.expect("an answer comes");
            answer(response).await.expect("the answer is whole")
        })
    }

    /// The address of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Any request with the client of this gateway.
    #[must_use]
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// The process id of the companion, or of Envoy, by a word of its command line.
    pub async fn child(&self, word: &str) -> i32 {
        until(&format!("a child with {word}"), || async {
            let children = self.process.children();
            let found = children
                .iter()
                .find(|(_, command)| command.contains(word))
                .map(|(pid, _)| *pid);
            found.ok_or_else(|| format!("{children:?}"))
        })
        .await
    }
}

/// A client that waits as long as it must and follows nothing.
fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client can be built")
}

/// Reads a response whole.
///
/// # Errors
/// When it is cut.
pub async fn answer(response: reqwest::Response) -> reqwest::Result<Answer> {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    Ok(Answer {
        status,
        headers,
        body: response.bytes().await?,
    })
}
