//! A real Prometheus server that scrapes a companion.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::process::Process;
use crate::wait::until;

/// The end of the log line with the server's address.
const LISTENS: &str = "msg=\"Listening on\" address=";

/// A running server with a separate data folder.
pub struct Prometheus {
    _process: Process,
    address: SocketAddr,
    client: reqwest::Client,
    _data: TempDir,
}

/// The server's binary: `$PROMETHEUS`, or the one on PATH.
///
/// # Errors
/// A sentence with a remedy, if there is none.
pub fn binary() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("PROMETHEUS") {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut on_path = std::env::split_paths(&path).map(|folder| folder.join("prometheus"));
    on_path.find(|path| path.is_file()).ok_or_else(|| {
        "no prometheus: `just autoscaling` brings one, or install Prometheus and say in PROMETHEUS where it is".to_owned()
    })
}

/// The path of `prometheus` or `promtool`: of `$PROMETHEUS` or `$PROMTOOL`, from PATH, or from a Debian package that is unpacked
/// once below the target folder.
///
/// # Panics
/// If there is none and none can be unpacked.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let script = crate::binary::workspace().join(".ci/prometheus");
    let found = std::process::Command::new("bash")
        .arg(script)
        .arg(name)
        .env("CARGO_TARGET_DIR", crate::binary::target_folder())
        .output()
        .expect("bash runs");
    let complaint = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "{complaint}");
    let path = String::from_utf8(found.stdout).expect("a path");
    path.trim().into()
}

impl Prometheus {
    /// Starts the server, which scrapes the page `http://TARGET/metrics` every second.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn scraping(binary: PathBuf, target: &str) -> Self {
        let data = tempfile::tempdir().expect("a temporary folder");
        let config = data.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: penstock\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        std::fs::write(&config, text).expect("write a file");
        let mut command = Command::new(binary);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", data.path().join("data").display()));
        command.arg("--web.listen-address=127.0.0.1:0");
        let process = Process::start("prometheus", command).await;
        let address = until("prometheus listens", || async {
            let log = process.log();
            let line = log.lines().find_map(|line| line.split_once(LISTENS));
            let address = line.and_then(|(_, address)| address.trim().parse().ok());
            address.ok_or(log)
        })
        .await;
        Self {
            _process: process,
            address,
            client: reqwest::Client::builder().no_proxy().build().expect("a client can be built"),
            _data: data,
        }
    }

    /// The samples that an expression has now.
    ///
    /// # Errors
    /// The server's error, or its answer if that is no list of samples.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let answer = self.get("query", &[("query", expression)]).await?;
        let samples = answer["data"]["result"].as_array().cloned();
        samples.ok_or_else(|| answer.to_string())
    }

    /// The names and labels of the series that match a selector.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn series(&self, selector: &str) -> Result<Vec<Value>, String> {
        let answer = self.get("series", &[("match[]", selector)]).await?;
        let series = answer["data"].as_array().cloned();
        series.ok_or_else(|| answer.to_string())
    }

    async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let url = format!("http://{}/api/v1/{path}", self.address);
        let url = reqwest::Url::parse_with_params(&url, parameters).map_err(|error| error.to_string())?;
        let answer = self.client.get(url).send().await;
        let text = answer.map_err(|error| error.to_string())?.text().await;
        let text = text.map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        if answer["status"] == "success" {
            Ok(answer)
        } else {
            Err(answer["error"].as_str().unwrap_or(&text).to_owned())
        }
    }
}
