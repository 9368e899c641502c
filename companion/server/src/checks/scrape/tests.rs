//! Readable and unreadable metrics pages, through the driver and a real control.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, header as http_header};
use axum::routing::get;
use axum::{Router, http};
use bytes::Bytes;
use futures_util::stream;
use penstock_control::ServerStatus;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::page::PAGE_MAX;
use super::*;
use crate::base::check_failures::CheckFailures;
use crate::base::clock::Clock;
use crate::decisions::driver;
use crate::decisions::observe::Observer;
use crate::metrics::Metrics;

/// A server's answer to /metrics.
#[derive(Clone, Debug)]
enum Answer {
    Page(&'static str),
    Status(u16),
    /// The server accepts the request and never answers.
    Never,
    /// The body ends early.
    Half(&'static str),
    /// The body repeats this without end.
    Endless(Bytes),
    Elsewhere,
}

async fn answer(answer: Answer) -> Response<Body> {
    let with = |status: u16, body: Body| Response::builder().status(status).body(body).expect("a response");
    match answer {
        Answer::Page(page) => with(200, page.into()),
        Answer::Status(status) => with(status, "vllm:num_requests_running 1\n".into()),
        Answer::Never => std::future::pending().await,
        Answer::Half(page) => {
            let cut = Err(std::io::Error::other("cut"));
            let parts = stream::iter([Ok(Bytes::from_static(page.as_bytes())), cut]);
            with(200, Body::from_stream(parts))
        }
        Answer::Endless(part) => {
            let parts = stream::iter(std::iter::repeat_with(move || Ok::<_, std::io::Error>(part.clone())));
            with(200, Body::from_stream(parts))
        }
        Answer::Elsewhere => {
            let mut response = with(307, Body::empty());
            response
                .headers_mut()
                .insert(http_header::LOCATION, http::HeaderValue::from_static("/elsewhere"));
            response
        }
    }
}

/// A server with settable answers, and a companion that reads its metrics.
struct World {
    answers: watch::Sender<Answer>,
    driver: Handle,
}

impl World {
    async fn new(first: Answer, keys: &str) -> Self {
        let (answers, answer_receiver) = watch::channel(first);
        let metrics = get(move || {
            let current = answer_receiver.borrow().clone();
            answer(current)
        });
        let elsewhere = get(|| async { "vllm:num_requests_running 99\n" });
        let app = Router::new().route("/metrics", metrics).route("/elsewhere", elsewhere);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        let yaml = format!(
            "pools:\n- name: chat\n  endpoints: {{static: ['{address}']}}\n  scrape: {{interval: 2ms{keys}}}\n"
        );
        let config = Config::parse(&yaml, "test").expect("valid");
        let shared = Arc::new(Metrics::new().expect("distinct"));
        let observer = Observer::new(shared.clone(), 10);
        let driver::Started { handle: driver, .. } = driver::spawn(
            crate::decisions::control_settings::settings(
                &config,
                &crate::decisions::control_settings::ProcessIdentity::now(None, false),
            ),
            Clock::start(),
            observer,
            crate::decisions::reports::Reporters::default(),
        );
        let mut readers = Readers::new(driver.clone(), shared, CheckFailures::default());
        readers.follow(&config).await;
        Self { answers, driver }
    }

    fn set_answer(&self, answer: Answer) {
        self.answers.send(answer).expect("the server lives");
    }

    async fn server(&self) -> ServerStatus {
        let status = self.driver.status().await.expect("the driver lives");
        status.pools[0].servers[0].clone()
    }

    /// Polls the status until `condition` holds; fails after 20 s.
    async fn until(&self, name: &str, condition: impl Fn(&ServerStatus) -> bool) -> ServerStatus {
        let polling = async {
            loop {
                let server = self.server().await;
                if condition(&server) {
                    return server;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), polling)
            .await
            .unwrap_or_else(|_| panic!("never: {name}"))
    }
}

fn runs(server: &ServerStatus, requests: u64) -> bool {
    server.scraped.is_some_and(|scraped| scraped.running == Some(requests))
}

#[tokio::test]
async fn values_are_known_until_they_are_stale() {
    let world = World::new(Answer::Page("vllm:num_requests_running 3\n"), ", stale_after: 50ms").await;
    let server = world.until("read", |server| runs(server, 3)).await;
    assert_eq!(server.foreign, 3, "no request of this companion runs there");
    world.set_answer(Answer::Page("vllm:num_requests_running 1\n"));
    world.until("read again", |server| runs(server, 1)).await;
    let failures = [Answer::Never, Answer::Status(500), Answer::Half("vllm:num_requests_running 7\n")];
    for failure in failures {
        world.set_answer(failure);
        let server = world.until("too old", |server| server.scraped.is_none()).await;
        assert_eq!(server.foreign, 0);
        world.set_answer(Answer::Page("vllm:num_requests_running 2\n"));
        world.until("back", |server| runs(server, 2)).await;
    }
}

/// Reads the page of a server with this answer once.
async fn read_once(answer: Answer) -> Result<Scraped, Failure> {
    let (sender, receiver) = watch::channel(());
    let app = Router::new()
        .route(
            "/metrics",
            get(move || {
                sender.send_replace(());
                self::answer(answer)
            }),
        )
        .route("/elsewhere", get(|| async { "vllm:num_requests_running 99\n" }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    let route = Route { tls: None, http2: false, headers: Vec::new() };
    let reader = Reader {
        route: route.clone(),
        pool: "chat".into(),
        address: address.to_string(),
        early: Arc::default(),
        failures: CheckFailures::default(),
        scrape: Scrape {
            path: "/metrics".into(),
            interval: Duration::from_secs(1),
            stale_after: Duration::from_secs(5),
            port: None,
            token_file: None,
            tls: None,
        },
    };
    let answer = reader.read(&mut ServerClient::new(address, route)).await;
    let answer = answer.map(|page| page.scraped);
    assert!(receiver.has_changed().unwrap_or(true), "the server got a request");
    answer
}

#[tokio::test]
async fn failures_are_named_and_classified() {
    let noise: Vec<u8> =
        (0..50_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let cases = [
        (Answer::Status(404), "the server answers 404 Not Found", true),
        (Answer::Status(401), "the server answers 401 Unauthorized", true),
        (Answer::Status(503), "the server answers 503 Service Unavailable", false),
        (Answer::Elsewhere, "the server answers 307 Temporary Redirect", true),
        (Answer::Page("<html>sign in</html>\n"), "none of the series", true),
        (Answer::Page(""), "none of the series", true),
        // All that is ever read of 100 MB, of lines, of one line, and of bytes.
        (
            Answer::Endless(Bytes::from("vllm:num_requests_running 1\n".repeat(10_000))),
            "more than 8 MiB",
            true,
        ),
        (Answer::Endless(Bytes::from("x".repeat(100_000))), "more than 8 MiB", true),
        (Answer::Endless(Bytes::from(noise)), "more than 8 MiB", true),
        (Answer::Half("vllm:num_requests_running 7\n"), "", false),
    ];
    assert_eq!(PAGE_MAX, 8 << 20);
    for (answer, why, lasting) in cases {
        let shown = format!("{answer:.40?}");
        let failure = read_once(answer).await.expect_err("of no use");
        assert!(failure.to_string().contains(why), "{shown}: {failure}");
        assert_eq!(failure.is_lasting(), lasting, "{shown}");
    }
}

#[test]
fn every_change_is_reported_once() {
    let start = Instant::now();
    let time = |seconds: u64| start + Duration::from_secs(seconds);
    let mut state = State::new(Duration::from_secs(5));
    assert_eq!(state.update(time(0), false), Change::NeverRead);
    assert_eq!(state.update(time(1), false), Change::Nothing);
    assert_eq!(state.update(time(9), false), Change::Nothing);
    assert_eq!(state.update(time(10), true), Change::Readable);
    assert_eq!(state.update(time(11), true), Change::StillRead);
    assert_eq!(state.stale_at(), Some(time(16)));
    assert_eq!(state.update(time(15), false), Change::Nothing, "it may come back in time");
    assert_eq!(state.update(time(16), false), Change::Stale);
    assert_eq!(state.update(time(17), false), Change::Nothing);
    assert_eq!(state.update(time(18), true), Change::Readable);
}
