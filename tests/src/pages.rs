//! A client of the companion's HTTP pages, over TCP or a unix socket.

use std::path::Path;

use serde_json::Value;

use crate::client_request::Answer;
use crate::metrics::Metrics;
use crate::wait::until;

/// The HTTP side of one companion.
pub struct Pages {
    client: reqwest::Client,
    base: String,
}

impl Pages {
    /// The pages at a base URL such as `http://127.0.0.1:9191`.
    ///
    /// # Panics
    /// If no client can be built.
    #[must_use]
    pub fn at(base: String) -> Self {
        let client = reqwest::Client::builder().no_proxy().build();
        Self { client: client.expect("a client can be built"), base }
    }

    /// The pages behind a unix socket.
    ///
    /// # Panics
    /// If no client can be built.
    #[must_use]
    pub fn behind(socket: &Path) -> Self {
        // Idle connections would outlive a companion that is killed and restarted.
        let client =
            reqwest::Client::builder().no_proxy().unix_socket(socket).pool_max_idle_per_host(0).build();
        Self { client: client.expect("a client can be built"), base: "http://localhost".to_owned() }
    }

    /// The base URL.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Gets a page.
    ///
    /// # Errors
    /// If the companion does not answer.
    pub async fn get(&self, path: &str) -> Result<Answer, String> {
        let response =
            self.client.get(format!("{}{path}", self.base)).send().await.map_err(|e| e.to_string())?;
        Answer::read(response).await.map_err(|e| e.to_string())
    }

    /// Posts a document of JSON.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn try_post(&self, path: &str, body: &str) -> Result<Answer, String> {
        let request = self.client.post(format!("{}{path}", self.base));
        let request = request.header("content-type", "application/json").body(body.to_owned());
        let response = request.send().await.map_err(|e| e.to_string())?;
        Answer::read(response).await.map_err(|e| e.to_string())
    }

    /// Sends a change such as `PUT /config`, with headers. The body's content type is JSON unless a header sets another.
    ///
    /// # Panics
    /// If the companion does not answer.
    pub async fn change(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let method = method.parse().expect("a method");
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.body(body.to_owned()).send().await;
        Answer::read(response.expect("an answer")).await.expect("a whole answer")
    }

    /// Gets a page with request headers.
    ///
    /// # Panics
    /// If the companion does not answer.
    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.client.get(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer")
    }

    /// The document of `/status`.
    ///
    /// # Panics
    /// If the page is missing.
    pub async fn status(&self) -> Value {
        self.get("/status").await.expect("/status answers").json()
    }

    /// A pool in `/status`.
    ///
    /// # Errors
    /// The status document, if the pool is missing.
    pub async fn pool(&self, name: &str) -> Result<Value, String> {
        let status = self.get("/status").await?.json();
        let pools = status["pools"].as_array().cloned().unwrap_or_default();
        pools.into_iter().find(|p| p["name"] == name).ok_or_else(|| format!("no pool {name} in {status}"))
    }

    /// The page of metrics.
    ///
    /// # Panics
    /// If the page is missing.
    pub async fn metrics(&self) -> Metrics {
        Metrics::parse(&self.get("/metrics").await.expect("/metrics answers").text())
    }

    /// Waits until `count` requests wait in a pool.
    pub async fn waiting(&self, pool: &str, count: u64) {
        self.number(pool, "waiting", count).await;
    }

    /// Waits until `count` requests run in a pool.
    pub async fn stock(&self, pool: &str, count: u64) {
        self.number(pool, "stock", count).await;
    }

    async fn number(&self, pool: &str, key: &str, count: u64) {
        until(&format!("{key} {count} in {pool}"), || async {
            let seen = self.pool(pool).await?;
            if seen[key] == count { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
    }

    /// Waits until the workers of the endpoint picker have their sessions.
    pub async fn picker_sessions(&self) {
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
        self.sessions("picker", workers).await;
    }

    /// Waits until exactly `count` sessions of Envoys with this node name are open.
    pub async fn sessions(&self, node: &str, count: usize) {
        until(&format!("{count} sessions of {node}"), || async {
            let seen = self.get("/status").await?.json();
            let all = seen["sessions"].as_array().cloned().unwrap_or_default();
            let open = all.iter().filter(|session| session["worker"] == node && session["open"] == true);
            if open.count() == count { Ok(()) } else { Err(seen["sessions"].to_string()) }
        })
        .await;
    }
}
