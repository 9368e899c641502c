//! The clients of the real gateway: each request of a simulation at its time, as a streamed chat.

use std::time::Duration;

use penstock_engine::Outcome;
use penstock_simulate::closed_loop::{Finished, Planned, Record, Refused};
use penstock_simulate::simulation::Simulation;
use penstock_tests::Gateway;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Bytes of a prompt's text for each of its tokens at the mock server.
const BYTES_PER_TOKEN: usize = 4;

/// Sends the requests, and records what becomes of those that arrive after the warm-up.
///
/// # Panics
/// If a response is cut, because that would falsify the figures.
pub(crate) async fn send(gateway: &Gateway, simulation: &Simulation) -> Record {
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for (index, planned) in simulation.requests.iter().copied().enumerate() {
        let tenant = simulation.tenants[planned.tenant as usize].name.clone();
        let (client, url) = (gateway.client().clone(), gateway.url("/v1/chat/completions"));
        sleep_until(start + planned.at).await;
        clients.spawn(async move {
            let request = client.post(url).header("x-penstock-tenant", &*tenant).json(&body(index, &planned));
            let mut response = request.send().await.expect("an answer comes");
            if response.status() != 200 {
                return Err(Refused {
                    kind: tenant,
                    arrived: planned.at,
                    waited: start.elapsed().saturating_sub(planned.at),
                    outcome: Some(Outcome::ExpiredTtl),
                });
            }
            let mut times: Option<(Duration, Duration)> = None;
            while let Some(chunk) = response.chunk().await.expect("the answer is whole") {
                if !chunk.is_empty() {
                    let now = start.elapsed();
                    times = Some((times.map_or(now, |(first, _)| first), now));
                }
            }
            let (first, last) = times.expect("the answer has a body");
            Ok(Finished {
                kind: tenant,
                server: 0,
                arrived: planned.at,
                granted: planned.at,
                first,
                last,
                input: planned.input,
                output: planned.output,
            })
        });
    }
    let mut record = Record::default();
    while let Some(ended) = clients.join_next().await {
        match ended.expect("a client doesn't panic") {
            Ok(finished) => record.finished.push(finished),
            Err(refused) => record.refused.push(refused),
        }
    }
    record.finished.retain(|finished| finished.arrived >= simulation.warmup);
    record.refused.retain(|refused| refused.arrived >= simulation.warmup);
    record
}

/// A chat with a beginning of its own, because the simulator has no prefix caches: the engine would expect a server to have computed a
/// prompt that begins like an earlier one.
fn body(index: usize, planned: &Planned) -> serde_json::Value {
    let bytes = usize::try_from(planned.input).expect("a prompt fits") * BYTES_PER_TOKEN;
    let mut prompt = format!("{index:08} ").repeat(bytes.div_ceil(9));
    prompt.truncate(bytes);
    json!({
        "model": "chat",
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": planned.output,
        "messages": [{"role": "user", "content": prompt}],
    })
}
