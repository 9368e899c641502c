//! The report of `penstock up --backend`: the state of the model servers, and the defaults in use.
//!
//! The servers are queried once, and nothing is changed. If a server doesn't answer, its requests wait. Texts from
//! servers are printed to a terminal, so control characters are removed.

use std::fmt::{self, Write as _};
use std::time::Duration;

use penstock_config::{Pool, Then};
use penstock_engine::policy::{Discipline, Gate};
use penstock_engine::units::Decimal;
use penstock_errors::root_cause;
use reqwest::{Client, StatusCode};
use serde_json::Value;

use super::backend::Backend;

/// Time limit for all queries to a server.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// Bytes of a response that are read.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// Models of a server that are listed.
const MODELS_SHOWN: usize = 4;
/// Characters of a server's text that are shown.
const TEXT_MAX: usize = 80;
/// Prefixes of metric names by kind of server, as the scraper recognizes them.
const METRIC_PREFIXES: [(&str, &str); 3] = [("vllm:", "vLLM"), ("sglang:", "SGLang"), ("tgi_", "TGI")];

/// The servers to query.
#[derive(Debug)]
pub(super) struct Inspection {
    pub backends: Vec<Backend>,
    /// The pool of the servers.
    pub pool: Pool,
}

/// The state of one server, as texts for the report.
#[derive(Debug, PartialEq, Eq)]
struct ServerReport {
    /// The names in `/v1/models`, or why there are none.
    models: Result<Vec<String>, String>,
    /// The result of the health check; `None` if the pool has none.
    health: Option<String>,
    /// The kind of metrics; `None` if the pool has no scraping.
    metrics: Option<String>,
}

impl Inspection {
    /// Queries the servers and returns the report.
    pub(super) async fn run(self) -> String {
        let client =
            Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).timeout(TIMEOUT).build();
        let servers = match &client {
            Ok(client) => {
                let queries = self.backends.iter().map(|backend| query(client, backend, &self.pool));
                futures_util::future::join_all(queries).await
            }
            Err(error) => self.backends.iter().map(|_| Err(error.to_string())).collect(),
        };
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = self.write(&servers, &mut text);
        text
    }

    fn write(&self, servers: &[Result<ServerReport, String>], out: &mut String) -> fmt::Result {
        writeln!(out, "found:")?;
        for (backend, server) in self.backends.iter().zip(servers) {
            write!(out, "  {}", backend.url)?;
            // The URL contains a host name, or no port.
            if !backend.url.contains(&backend.address.to_string()) {
                write!(out, " ({})", backend.address)?;
            }
            match server {
                Err(why) => writeln!(out, ": doesn't answer ({why}); its requests wait until it does")?,
                Ok(server) => writeln!(out, ": {server}")?,
            }
        }
        self.write_defaults(out)
    }

    fn write_defaults(&self, out: &mut String) -> fmt::Result {
        let pool = &self.pool;
        writeln!(out, "defaults (change them with --config FILE; see docs/reference.md):")?;
        let servers = self.backends.len();
        let s = if servers == 1 { "" } else { "s" };
        writeln!(out, "  pool {}: {servers} server{s}, for every model", pool.name)?;
        writeln!(out, "  {}", bound(pool))?;
        writeln!(out, "  {}", order(pool))?;
        let queue = &pool.policy.queue;
        writeln!(
            out,
            "  at most {} requests wait, {} of one tenant, {:?} each (queue.total_capacity, flow_capacity, ttl)",
            queue.total_capacity, queue.flow_capacity, queue.ttl
        )?;
        let fallback = match pool.then {
            Then::Open => "they are sent to a server without it",
            Then::Closed => "they are answered with 503",
        };
        writeln!(out, "  if the companion is away, requests wait {:?}, then {fallback}", pool.hold)?;
        let names: Vec<_> = self.backends.iter().filter_map(|backend| backend.name.as_deref()).collect();
        if !names.is_empty() {
            writeln!(
                out,
                "  {} resolved once; endpoints: {{dns: {{name, port}}}} in a file follows changes of a name",
                match names.as_slice() {
                    [name] => format!("{name} was"),
                    names => format!("{} were", names.join(", ")),
                }
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.models {
            Err(why) => write!(f, "/v1/models {why}")?,
            Ok(models) if models.is_empty() => f.write_str("no model")?,
            Ok(models) => {
                let shown: Vec<_> = models.iter().take(MODELS_SHOWN).map(|name| plain(name)).collect();
                f.write_str(&shown.join(", "))?;
                match models.len().saturating_sub(MODELS_SHOWN) {
                    0 => {}
                    more => write!(f, " and {more} more")?,
                }
            }
        }
        for result in [&self.health, &self.metrics].into_iter().flatten() {
            write!(f, " · {result}")?;
        }
        Ok(())
    }
}

/// A line about the requests that run at a time.
fn bound(pool: &Pool) -> String {
    match pool.policy.gate {
        Gate::Open | Gate::Manual => "requests go to the servers at once, without waiting".into(),
        Gate::Auto { initial } => {
            format!(
                "each server gets as many requests at a time as its learned parameters allow, {} at first",
                number(initial)
            )
        }
        Gate::Bounded { unit, lower, upper, watermark } => {
            let unit = unit.as_str();
            format!(
                "each server gets about {} {unit} at a time, {} to {}; the others wait \
                 (stock.watermark_per_backend: N, or auto)",
                number(watermark),
                number(lower),
                number(upper)
            )
        }
    }
}

/// A line about the order of waiting requests.
fn order(pool: &Pool) -> String {
    let flows = &pool.policy.flows;
    let discipline = match flows.discipline {
        Discipline::Wfq => "wfq: tenants share the servers by tokens and weight",
        Discipline::Usage => "usage: the tenant with the fewest recent tokens goes first",
        Discipline::Vtc => "vtc: tenants share the servers by tokens",
        Discipline::Drr => "drr: tenants share the servers by turns",
        Discipline::RoundRobin => "round_robin: tenants take turns",
        Discipline::Fifo => "fifo: requests go in order of arrival",
    };
    format!("{discipline} (x-penstock-tenant names a tenant, x-penstock-priority a priority)")
}

fn number(value: Decimal) -> String {
    let billionths = value.billionths();
    let (whole, part) = (billionths / 1_000_000_000, billionths % 1_000_000_000);
    let part = format!("{part:09}");
    match part.trim_end_matches('0') {
        "" => whole.to_string(),
        part => format!("{whole}.{part}"),
    }
}

/// Sends all queries to a server at once. An error means that none of them was answered.
async fn query(client: &Client, backend: &Backend, pool: &Pool) -> Result<ServerReport, String> {
    let url = |path: &str| format!("http://{}{path}", backend.address);
    let health = async {
        let path = &pool.health.as_ref()?.path;
        Some((path, get(client, url(path)).await))
    };
    let metrics = async {
        let path = &pool.scrape.as_ref()?.path;
        Some((path, get(client, url(path)).await))
    };
    let (models, health, metrics) =
        futures_util::future::join3(get(client, url("/v1/models")), health, metrics).await;
    let answered = [&health, &metrics].into_iter().flatten().any(|(_, answer)| answer.is_ok());
    if let (false, Err(why)) = (answered, &models) {
        return Err(plain(why));
    }
    Ok(ServerReport {
        models: models.and_then(|(status, text)| model_names(status, &text)),
        health: health.map(|(path, answer)| health_result(path, answer)),
        metrics: metrics.map(|(path, answer)| metrics_result(path, answer)),
    })
}

type Answer = Result<(StatusCode, String), String>;

fn health_result(path: &str, answer: Answer) -> String {
    match answer {
        Ok((status, _)) if status.is_success() => format!("healthy by {path}"),
        Ok((StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED, _)) => {
            format!("no {path}: counts as healthy while it answers")
        }
        Ok((status, _)) => format!("{path} returns {}: not ready", status.as_u16()),
        Err(why) => format!("{path}: {}", plain(&why)),
    }
}

fn metrics_result(path: &str, answer: Answer) -> String {
    match answer {
        Ok((status, text)) if status.is_success() => match server_kind(&text) {
            Some(kind) => format!("metrics of {kind}"),
            None => {
                format!("{path} isn't from vLLM, SGLang or TGI: only this gateway's load is known")
            }
        },
        Ok((status, _)) => {
            format!("no metrics ({path} returns {}): only this gateway's load is known", status.as_u16())
        }
        Err(why) => format!("{path}: {}", plain(&why)),
    }
}

/// The status and the first bytes of a response.
async fn get(client: &Client, url: String) -> Answer {
    let response = async {
        let mut response = client.get(url).send().await?;
        let mut bytes = Vec::new();
        while bytes.len() < RESPONSE_BYTES_MAX {
            match response.chunk().await? {
                Some(chunk) => bytes.extend_from_slice(&chunk),
                None => break,
            }
        }
        Ok((response.status(), String::from_utf8_lossy(&bytes).into_owned()))
    };
    response.await.map_err(|error: reqwest::Error| {
        if error.is_timeout() {
            return format!("no answer within {TIMEOUT:?}");
        }
        root_cause(&error)
    })
}

fn model_names(status: StatusCode, text: &str) -> Result<Vec<String>, String> {
    if !status.is_success() {
        return Err(format!("returns {}", status.as_u16()));
    }
    let document: Value = serde_json::from_str(text).map_err(|_| "isn't JSON".to_owned())?;
    let list = document["data"].as_array().ok_or("has no list of models")?;
    Ok(list.iter().filter_map(|model| model["id"].as_str()).map(ToOwned::to_owned).collect())
}

/// The kind of server, from the first known prefix on its page of metrics.
fn server_kind(page: &str) -> Option<&'static str> {
    let known = |line: &str| METRIC_PREFIXES.iter().find(|(prefix, _)| line.starts_with(prefix));
    page.lines().find_map(known).map(|(_, kind)| *kind)
}

/// The text without control characters, shortened to [`TEXT_MAX`].
fn plain(text: &str) -> String {
    let short: String = text.chars().filter(|character| !character.is_control()).take(TEXT_MAX).collect();
    if text.chars().count() > TEXT_MAX { short + "…" } else { short }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get as served;
    use penstock_config::Config;
    use serde_json::json;

    use super::*;

    fn pool() -> Pool {
        let text = "pools: [{name: default, endpoints: {static: ['127.0.0.1:1']}}]";
        Config::parse(text, "f.yaml").expect("valid").pools.remove(0)
    }

    async fn server(app: Router) -> Backend {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Backend { url: format!("http://{address}"), address, name: None }
    }

    async fn report(backends: Vec<Backend>) -> String {
        let inspection = Inspection { backends, pool: pool() };
        inspection.run().await
    }

    #[tokio::test]
    async fn report_names_a_vllm_server_and_an_unreachable_one() {
        let models = json!({"object": "list", "data": [{"id": "meta-llama/Llama-3.1-8B"}, {"id": "ad\u{1b}[31mapter"}]});
        let app = Router::new()
            .route("/v1/models", served(async move || axum::Json(models)))
            .route("/health", served(async || ""))
            .route("/metrics", served(async || "# HELP x\nvllm:num_requests_running{a=\"b\"} 0\n"));
        let there = server(app).await;
        let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let unreachable = Backend {
            url: "http://gpu-2:8000".into(),
            address: unused.local_addr().expect("bound"),
            name: Some("gpu-2".into()),
        };
        drop(unused);
        let text = report(vec![there.clone(), unreachable.clone()]).await;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "found:");
        assert_eq!(
            lines[1],
            format!(
                "  {}: meta-llama/Llama-3.1-8B, ad[31mapter · healthy by /health · metrics of vLLM",
                there.url
            )
        );
        let expected = format!("  http://gpu-2:8000 ({}): doesn't answer (", unreachable.address);
        assert!(lines[2].starts_with(&expected), "{text}");
        for word in [
            "pool default: 2 servers, for every model",
            "about 2 requests at a time, 1.8 to 2.2",
            "wfq: ",
            "at most 1000 requests wait, 100 of one tenant, 30s each",
            "gpu-2 was resolved once",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[tokio::test]
    async fn other_kinds_of_servers_are_reported_without_failure() {
        let app = Router::new()
            .route("/v1/models", served(async || "<html>"))
            .route("/health", served(async || StatusCode::INTERNAL_SERVER_ERROR));
        let text = report(vec![server(app).await]).await;
        for word in [
            "/v1/models isn't JSON",
            "/health returns 500: not ready",
            "no metrics (/metrics returns 404)",
            "1 server, for",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("resolved"), "{text}");
    }

    #[test]
    fn server_texts_are_plain_and_short() {
        assert_eq!(plain("a\r\n\u{7}b"), "ab");
        assert_eq!(plain(&"x".repeat(1_000)).chars().count(), TEXT_MAX + 1);
        assert_eq!(number(Decimal::whole(2)), "2");
    }
}
