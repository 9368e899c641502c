//! What `penstock up --backend` finds at the model servers, and what it decided on, in a few lines for people.
//!
//! It looks once and changes nothing: a server that answers nothing is said to, and its requests wait. What servers say
//! goes to a terminal, so no control character of theirs does.

use std::fmt::{self, Write as _};
use std::time::Duration;

use penstock_config::{Pool, Then};
use penstock_engine::policy::{Discipline, Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_errors::cause;
use reqwest::{Client, StatusCode};
use serde_json::Value;

use super::backend::Backend;

/// How long all that is asked of a server may take.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 1 << 20;
/// Models of a server that are named.
const MODELS_SHOWN: usize = 4;
/// Characters of what a server says.
const TEXT_MAX: usize = 80;
/// Which servers' series begin with what, as the scraper reads them.
const METRICS: [(&str, &str); 3] = [("vllm:", "vLLM"), ("sglang:", "SGLang"), ("tgi_", "TGI")];

/// What is looked at.
#[derive(Debug)]
pub(super) struct Inspection {
    pub backends: Vec<Backend>,
    /// The one that they are.
    pub pool: Pool,
}

/// What one server says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Server {
    /// By `/v1/models`, or why not.
    models: Option<Result<Vec<String>, String>>,
    /// Of the health check's path; `None`: not asked.
    health: Option<String>,
    /// Of the path of its metrics; `None`: not asked.
    metrics: Option<String>,
}

impl Inspection {
    /// Looks, and says all of it.
    pub(super) async fn run(self) -> String {
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .build();
        let servers = match &client {
            Ok(client) => {
                let looks = self.backends.iter().map(|it| look(client, it, &self.pool));
                futures_util::future::join_all(looks).await
            }
            Err(why) => self.backends.iter().map(|_| Err(why.to_string())).collect(),
        };
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = self.say(&servers, &mut text);
        text
    }

    fn say(&self, servers: &[Result<Server, String>], to: &mut String) -> fmt::Result {
        writeln!(to, "found:")?;
        for (backend, server) in self.backends.iter().zip(servers) {
            write!(to, "  {}", backend.url)?;
            // A name, or an address whose port wasn't said.
            if !backend.url.contains(&backend.address.to_string()) {
                write!(to, " ({})", backend.address)?;
            }
            match server {
                Err(why) => writeln!(to, ": doesn't answer ({why}); its requests wait until it does")?,
                Ok(server) => writeln!(to, ": {server}")?,
            }
        }
        let pool = &self.pool;
        writeln!(
            to,
            "decided (--config FILE says otherwise; see docs/reference.md):"
        )?;
        let servers = self.backends.len();
        let s = if servers == 1 { "" } else { "s" };
        writeln!(to, "  pool {}: {servers} server{s}, for every model", pool.name)?;
        writeln!(to, "  {}", bound(pool))?;
        writeln!(to, "  {}", turn(pool))?;
        let queue = &pool.policy.queue;
        writeln!(
            to,
            "  at most {} requests wait, {} of one tenant, {:?} each (queue.total_capacity, flow_capacity, ttl)",
            queue.total_capacity, queue.flow_capacity, queue.ttl
        )?;
        let away = match pool.then {
            Then::Open => "they go on without it",
            Then::Closed => "they are answered 503",
        };
        writeln!(
            to,
            "  without the companion requests wait {:?}, then {away}",
            pool.hold
        )?;
        let named: Vec<_> = self.backends.iter().filter_map(|it| it.name.as_deref()).collect();
        if !named.is_empty() {
            writeln!(
                to,
                "  {} looked up once; endpoints: {{dns: {{name, port}}}} in a file follows a name",
                match named.as_slice() {
                    [one] => format!("{one} was"),
                    many => format!("{} were", many.join(", ")),
                }
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.models {
            None => f.write_str("models not asked")?,
            Some(Err(why)) => write!(f, "/v1/models {why}")?,
            Some(Ok(models)) if models.is_empty() => f.write_str("no model")?,
            Some(Ok(models)) => {
                let shown: Vec<_> = models.iter().take(MODELS_SHOWN).map(|it| plain(it)).collect();
                f.write_str(&shown.join(", "))?;
                match models.len().saturating_sub(MODELS_SHOWN) {
                    0 => {}
                    more => write!(f, " and {more} more")?,
                }
            }
        }
        for said in [&self.health, &self.metrics].into_iter().flatten() {
            write!(f, " · {said}")?;
        }
        Ok(())
    }
}

/// How much of it runs at a time.
fn bound(pool: &Pool) -> String {
    match pool.policy.gate {
        Gate::Open | Gate::Manual => "nothing waits: requests go to the servers at once".into(),
        Gate::Auto { initial } => {
            format!(
                "each server works on as many requests as it is learned to do best, {} at first",
                number(initial)
            )
        }
        Gate::Bounded {
            unit,
            lower,
            upper,
            watermark,
        } => {
            let unit = match unit {
                StockUnit::Requests => "requests",
                StockUnit::Tokens => "tokens",
            };
            format!(
                "each server works on about {} {unit} at a time, {} to {}; the rest waits here \
                 (stock.watermark_per_backend: N, or auto)",
                number(watermark),
                number(lower),
                number(upper)
            )
        }
    }
}

/// Who goes next.
fn turn(pool: &Pool) -> String {
    let flows = &pool.policy.flows;
    let discipline = match flows.discipline {
        Discipline::Wfq => "wfq: tenants share the servers by tokens and weight",
        Discipline::Usage => "usage: who used the fewest tokens lately goes first",
        Discipline::Vtc => "vtc: tenants share the servers by tokens",
        Discipline::Drr => "drr: tenants share the servers by turns",
        Discipline::RoundRobin => "round_robin: tenants take turns",
        Discipline::Fifo => "fifo: who came first goes first",
    };
    format!("{discipline} (x-penstock-tenant names a tenant, x-penstock-priority a priority)")
}

fn number(of: Decimal) -> String {
    let billionths = of.billionths();
    let (whole, part) = (billionths / 1_000_000_000, billionths % 1_000_000_000);
    let part = format!("{part:09}");
    match part.trim_end_matches('0') {
        "" => whole.to_string(),
        part => format!("{whole}.{part}"),
    }
}

/// Asks for all of it at once; an error: it doesn't even accept a connection, or says nothing in time.
async fn look(client: &Client, backend: &Backend, pool: &Pool) -> Result<Server, String> {
    let at = |path: &str| format!("http://{}{path}", backend.address);
    let health = async {
        let path = &pool.health.as_ref()?.path;
        Some((path, get(client, at(path)).await))
    };
    let metrics = async {
        let path = &pool.scrape.as_ref()?.path;
        Some((path, get(client, at(path)).await))
    };
    let (models, health, metrics) =
        futures_util::future::join3(get(client, at("/v1/models")), health, metrics).await;
    let silent = [
        Some(&models),
        health.as_ref().map(|it| &it.1),
        metrics.as_ref().map(|it| &it.1),
    ]
    .into_iter()
    .flatten()
    .all(Result::is_err);
    if let (true, Err(why)) = (silent, &models) {
        return Err(plain(why));
    }
    Ok(Server {
        models: Some(models.and_then(|(status, text)| names(status, &text))),
        health: health.map(|(path, answer)| match answer {
            Ok((status, _)) if status.is_success() => format!("healthy by {path}"),
            Ok((StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED, _)) => {
                format!("no {path}: taken for healthy while it answers")
            }
            Ok((status, _)) => format!("{path} says {}: not ready", status.as_u16()),
            Err(why) => format!("{path}: {}", plain(&why)),
        }),
        metrics: metrics.map(|(path, answer)| match answer {
            Ok((status, text)) if status.is_success() => match kind(&text) {
                Some(kind) => format!("metrics of {kind}"),
                None => {
                    format!("{path} isn't of vLLM, SGLang or TGI: only the load of this gateway is known")
                }
            },
            Ok((status, _)) => format!(
                "no metrics ({path} says {}): only the load of this gateway is known",
                status.as_u16()
            ),
            Err(why) => format!("{path}: {}", plain(&why)),
        }),
    })
}

/// The first bytes of an answer.
async fn get(client: &Client, url: String) -> Result<(StatusCode, String), String> {
    let asked = async {
        let mut answer = client.get(url).send().await?;
        let mut bytes = Vec::new();
        while bytes.len() < ANSWER_MAX {
            match answer.chunk().await? {
                Some(chunk) => bytes.extend_from_slice(&chunk),
                None => break,
            }
        }
        Ok((answer.status(), String::from_utf8_lossy(&bytes).into_owned()))
    };
    asked.await.map_err(|why: reqwest::Error| {
        if why.is_timeout() {
            return format!("nothing within {PATIENCE:?}");
        }
        cause::root(&why)
    })
}

fn names(status: StatusCode, text: &str) -> Result<Vec<String>, String> {
    if !status.is_success() {
        return Err(format!("says {}", status.as_u16()));
    }
    let document: Value = serde_json::from_str(text).map_err(|_| "isn't JSON".to_owned())?;
    let list = document["data"].as_array().ok_or("has no list of models")?;
    Ok(list
        .iter()
        .filter_map(|it| it["id"].as_str())
        .map(ToOwned::to_owned)
        .collect())
}

fn kind(page: &str) -> Option<&'static str> {
    let of = |line: &str| METRICS.iter().find(|(prefix, _)| line.starts_with(prefix));
    page.lines().find_map(of).map(|(_, kind)| *kind)
}

/// For a terminal, and not too long.
fn plain(text: &str) -> String {
    let short: String = text
        .chars()
        .filter(|it| !it.is_control())
        .take(TEXT_MAX)
        .collect();
    if text.chars().count() > TEXT_MAX {
        short + "…"
    } else {
        short
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get as served;
    use serde_json::json;

    use penstock_config::Config;

    use super::*;

    fn pool() -> Pool {
        let text = "pools: [{name: default, endpoints: {static: ['127.0.0.1:1']}}]";
        Config::parse(text, "f.yaml").expect("valid").pools.remove(0)
    }

    async fn server(app: Router) -> Backend {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Backend {
            url: format!("http://{address}"),
            address,
            name: None,
        }
    }

    async fn said(backends: Vec<Backend>) -> String {
        let inspection = Inspection {
            backends,
            pool: pool(),
        };
        inspection.run().await
    }

    #[tokio::test]
    async fn a_vllm_is_known_and_one_that_isnt_there_is_said_not_to_be() {
        let models = json!({"object": "list", "data": [{"id": "meta-llama/Llama-3.1-8B"}, {"id": "ad\u{1b}[31mapter"}]});
        let app = Router::new()
            .route("/v1/models", served(async move || axum::Json(models)))
            .route("/health", served(async || ""))
            .route(
                "/metrics",
                served(async || "# HELP x\nvllm:num_requests_running{a=\"b\"} 0\n"),
            );
        let there = server(app).await;
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let gone = Backend {
            url: "http://gpu-2:8000".into(),
            address: free.local_addr().expect("bound"),
            name: Some("gpu-2".into()),
        };
        drop(free);
        let text = said(vec![there.clone(), gone.clone()]).await;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "found:");
        assert_eq!(
            lines[1],
            format!(
                "  {}: meta-llama/Llama-3.1-8B, ad[31mapter · healthy by /health · metrics of vLLM",
                there.url
            )
        );
        let expected = format!("  http://gpu-2:8000 ({}): doesn't answer (", gone.address);
        assert!(lines[2].starts_with(&expected), "{text}");
        for word in [
            "pool default: 2 servers, for every model",
            "about 2 requests at a time, 1.8 to 2.2",
            "wfq: ",
            "at most 1000 requests wait, 100 of one tenant, 30s each",
            "gpu-2 was looked up once",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[tokio::test]
    async fn a_server_of_another_kind_is_no_failure() {
        let app = Router::new()
            .route("/v1/models", served(async || "<html>"))
            .route("/health", served(async || StatusCode::INTERNAL_SERVER_ERROR));
        let text = said(vec![server(app).await]).await;
        for word in [
            "/v1/models isn't JSON",
            "/health says 500: not ready",
            "no metrics (/metrics says 404)",
            "1 server, for",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("looked up"), "{text}");
    }

    #[test]
    fn what_a_server_says_is_plain_and_short() {
        assert_eq!(plain("a\r\n\u{7}b"), "ab");
        assert_eq!(plain(&"x".repeat(1_000)).chars().count(), TEXT_MAX + 1);
        assert_eq!(number(Decimal::whole(2)), "2");
    }
}
