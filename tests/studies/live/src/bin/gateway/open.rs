//! The open loop: oha sends at a fixed rate, independent of earlier requests, and measures each request from the time when it was due.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::body;
use crate::cores::REST;

/// More connections than requests in flight at the rates of this benchmark, unless a gateway stalls.
const CONNECTIONS: &str = "200";

/// Latencies from the time when a request was due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Checks that oha is installed.
pub(crate) fn installed() -> Result<(), String> {
    let how = "`cargo install oha --locked`, `brew install oha`, or https://github.com/hatoo/oha";
    body::installed("oha", "open loop", how)
}

/// Sends short chat requests to `url` at a fixed rate.
///
/// # Panics
/// If oha fails, an answer is an error, or fewer requests were sent than were due.
pub(crate) async fn run(url: &str, rate: u32, seconds: u32) -> Times {
    let mut oha = Command::new("oha");
    oha.args(["--no-tui", "--output-format", "json", "--latency-correction", "-w"]);
    oha.args(["-q", &rate.to_string(), "-z", &format!("{seconds}s"), "-c", CONNECTIONS]);
    oha.args(["-m", "POST", "-T", "application/json", "-d", &body::chat(body::SHORT)]);
    oha.arg(url).stdin(Stdio::null()).kill_on_drop(true);
    REST.hold(&mut oha);
    let output = oha.output().await.expect("oha runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let result: Value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("oha: {e}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    let all =
        |map: &Value| map.as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum::<u64>();
    let (answers, good) =
        (&result["statusCodeDistribution"], result["statusCodeDistribution"]["200"].as_u64());
    let due = u64::from(rate) * u64::from(seconds);
    assert!(
        good == Some(all(answers)) && all(&result["errorDistribution"]) == 0 && good >= Some(due * 99 / 100),
        "{url}: of {due} requests that were due: {answers}, {}",
        result["errorDistribution"]
    );
    let us = |key: &str| {
        let seconds = result["latencyPercentiles"][key].as_f64();
        seconds.expect("a time") * 1e6
    };
    Times { p50_us: us("p50"), p99_us: us("p99") }
}
