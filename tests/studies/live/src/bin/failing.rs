//! Two servers, one of which fails every request in some way for a minute and then serves again, behind a real gateway: how many requests
//! fail, after how long the endpoint is kept away, and after how long it takes requests again.
//!
//! `just bench failing [--seconds N]` prints the table of docs/endpoints.md.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use penstock_tests::failing_server::{FailingServer, Way};
use penstock_tests::gateway::{config, slots};
use penstock_tests::{Answer, ClientRequest, Gateway, run};

/// Requests at a time.
const TOGETHER: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// A server that doesn't come back within this time is reported so.
const BACK_WITHIN: Duration = Duration::from_secs(60);

const WAYS: [(&str, Way); 14] = [
    ("500", Way::Status(500)),
    ("502", Way::Status(502)),
    ("503", Way::Status(503)),
    ("504", Way::Status(504)),
    ("429", Way::Status(429)),
    ("400", Way::Status(400)),
    ("401", Way::Status(401)),
    ("404", Way::Status(404)),
    ("an empty 200", Way::Empty),
    ("a page with 200", Way::Page),
    ("an error inside a 200", Way::ReportedError),
    ("text, then an error", Way::Abort),
    ("the connection cut", Way::Cut),
    ("silence, `first_byte: 2s`", Way::Hang),
];

/// What happened while one server failed.
struct Row {
    requests: u32,
    failed: u32,
    failed_later: u32,
    recognized: Option<Duration>,
    back: Option<Duration>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seconds = match words.as_slice() {
        [] => Some(60),
        [key, value] if key == "--seconds" => value.parse().ok(),
        _ => None,
    };
    let Some(seconds) = seconds.filter(|seconds| *seconds > 0) else {
        eprintln!("failing [--seconds N], N at least 1");
        return ExitCode::from(2);
    };
    println!(
        "| one of two servers fails by | requests | failed | failed after recognition | recognized after | back after |"
    );
    println!("|---|---|---|---|---|---|");
    for (name, way) in WAYS {
        let row = run(measure(way, Duration::from_secs(seconds)));
        let shown = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
        };
        println!(
            "| {name} | {} | {} | {} | {} | {} |",
            row.requests,
            row.failed,
            row.failed_later,
            shown(row.recognized),
            shown(row.back)
        );
    }
    ExitCode::SUCCESS
}

async fn measure(way: Way, time: Duration) -> Row {
    let servers = [FailingServer::start(Way::Serve).await, FailingServer::start(Way::Serve).await];
    let [bad, good] = &servers;
    let timeouts = if way == Way::Hang { "  timeouts: {first_byte: 2s}\n" } else { "" };
    let pool = format!(
        "- name: p\n  endpoints: {{static: ['{}', '{}']}}\n  health: {{path: null}}\n{timeouts}{}",
        bad.address(),
        good.address(),
        slots(8)
    );
    let gateway = Gateway::start(&config("", &[pool])).await;
    let mut row = Row { requests: 0, failed: 0, failed_later: 0, recognized: None, back: None };
    // Both have served.
    for _ in 0..5 {
        ask(&gateway).await;
    }
    bad.way.send_replace(way);
    let began = Instant::now();
    while began.elapsed() < time {
        let failed = ask(&gateway).await;
        row.requests += TOGETHER;
        row.failed += failed;
        match row.recognized {
            None if state(&gateway, bad).await != "healthy" => row.recognized = Some(began.elapsed()),
            None => {}
            Some(_) => row.failed_later += failed,
        }
        tokio::time::sleep(PAUSE).await;
    }
    bad.way.send_replace(Way::Serve);
    let mended = Instant::now();
    let before = bad.total();
    while mended.elapsed() < BACK_WITHIN {
        ask(&gateway).await;
        if state(&gateway, bad).await == "healthy" && bad.total() > before {
            row.back = Some(mended.elapsed());
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    row
}

/// Sends requests of four tenants at once, every other one streamed. Returns how many failed.
async fn ask(gateway: &Gateway) -> u32 {
    let asked = (0..TOGETHER).map(|number| {
        let request = ClientRequest::chat("m", "hello").tenant(&format!("t{number}"));
        gateway.open(if number % 2 == 1 { request.streamed() } else { request })
    });
    let mut failed = 0;
    for response in futures_util::future::join_all(asked).await {
        let answer = match response {
            Ok(response) => Answer::read(response).await.ok(),
            Err(_) => None,
        };
        let is_whole = answer.is_some_and(|answer| answer.status == 200 && answer.text().contains("hello"));
        failed += u32::from(!is_whole);
    }
    failed
}

/// The endpoint's state in the status.
async fn state(gateway: &Gateway, server: &FailingServer) -> String {
    let pool = gateway.pool("p").await;
    let mut endpoints = pool["endpoints"].as_array().into_iter().flatten();
    let found = endpoints.find(|endpoint| endpoint["address"] == server.address());
    found.map_or_else(String::new, |endpoint| endpoint["state"].as_str().unwrap_or_default().to_owned())
}
