//! Two tenants with a constant number of concurrent requests, each request on a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_tests::{ClientRequest, Gateway, Upstream};

/// The tenants, by their index in a load.
const TENANTS: [&str; 2] = ["greedy", "light"];
/// Warm-up of a load, until the queue is stable.
const SETTLING: Duration = Duration::from_secs(2);

/// The result of one load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// Times to the first event of the light tenant's responses, in milliseconds, sorted.
    light_ttft_ms: Vec<f64>,
    /// The light tenant's part of the requests at the servers.
    light_share: f64,
    /// Completed requests per second.
    rate: f64,
}

impl Load {
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    pub(crate) fn light_share(&self) -> f64 {
        self.light_share
    }

    pub(crate) fn light_p50_ms(&self) -> f64 {
        self.quantile(50)
    }

    pub(crate) fn light_p99_ms(&self) -> f64 {
        self.quantile(99)
    }

    fn quantile(&self, percent: usize) -> f64 {
        let index = (self.light_ttft_ms.len() * percent).div_ceil(100).max(1) - 1;
        self.light_ttft_ms.get(index).copied().unwrap_or_default()
    }
}

/// The state of a client task.
struct Phase {
    measured: AtomicBool,
    over: AtomicBool,
    ended: AtomicUsize,
}

/// Loads `model` for `time` with a constant number of concurrent requests per tenant.
///
/// # Panics
/// If a request is rejected, because rejections would falsify the figures.
pub(crate) async fn run(
    gateway: &Gateway,
    servers: &[Upstream],
    model: &'static str,
    out: [usize; 2],
    time: Duration,
) -> Load {
    let phase = Arc::new(Phase {
        measured: AtomicBool::new(false),
        over: AtomicBool::new(false),
        ended: AtomicUsize::new(0),
    });
    let mut clients = Vec::new();
    for (tenant, out) in TENANTS.into_iter().zip(out) {
        for _ in 0..out {
            let (client, url) = (gateway.client().clone(), gateway.url("/v1/chat/completions"));
            let phase = phase.clone();
            clients
                .push((tenant, tokio::spawn(async move { one(&client, &url, model, tenant, &phase).await })));
        }
    }
    tokio::time::sleep(SETTLING).await;
    servers[0].texts_together();
    let ended = phase.ended.load(Ordering::SeqCst);
    phase.measured.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    tokio::time::sleep(time).await;
    phase.measured.store(false, Ordering::SeqCst);
    let seconds = begin.elapsed().as_secs_f64();
    let texts = servers[0].texts_together();
    let served = phase.ended.load(Ordering::SeqCst) - ended;
    phase.over.store(true, Ordering::SeqCst);
    let mut light_ttft_ms = Vec::new();
    for (tenant, client) in clients {
        let own = client.await.expect("nothing is refused");
        if tenant == TENANTS[1] {
            light_ttft_ms.extend(own);
        }
    }
    light_ttft_ms.sort_by(f64::total_cmp);
    let light = texts.iter().filter(|text| *text == TENANTS[1]).count();
    Load {
        light_ttft_ms,
        light_share: light as f64 / texts.len().max(1) as f64,
        rate: served as f64 / seconds,
    }
}

/// Sends one request after the other; returns the times to the first event during the measurement.
async fn one(
    client: &reqwest::Client,
    url: &str,
    model: &str,
    tenant: &'static str,
    phase: &Phase,
) -> Vec<f64> {
    let body = ClientRequest::chat(model, tenant).with("max_tokens", 4).streamed().body();
    let mut times = Vec::new();
    while !phase.over.load(Ordering::SeqCst) {
        let measured = phase.measured.load(Ordering::SeqCst);
        let begin = Instant::now();
        let request = client.post(url).json(&body).header("x-penstock-tenant", tenant);
        let mut response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{tenant} at {model}");
        let first = response.chunk().await.expect("an event");
        let first_ms = begin.elapsed().as_secs_f64() * 1e3;
        assert!(first.is_some(), "{tenant} at {model}: an empty answer");
        while response.chunk().await.expect("a whole answer").is_some() {}
        phase.ended.fetch_add(1, Ordering::SeqCst);
        if measured {
            times.push(first_ms);
        }
    }
    times
}
