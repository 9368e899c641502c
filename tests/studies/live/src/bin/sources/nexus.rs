//! The success criteria of Nexus' request queue (SC-001 to SC-011), through a real gateway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run as run_async};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::closed_loops::distribution;

/// Model servers, the places of each, and the time of a response.
const SERVERS: usize = 2;
const PLACES: u32 = 4;
const SERVICE: Duration = Duration::from_millis(50);
/// Requests that arrive at once.
const BURST: usize = 400;
/// Concurrent clients with high and with normal priority, and how long they send.
const CLIENTS: [(&str, usize); 2] = [("high", 2), ("normal", 60)];
const PRIORITY_TIME: Duration = Duration::from_secs(10);
/// Changes of the queue's length that are looked for in the metrics.
const DEPTHS: u64 = 40;
/// Requests that time out, that are refused, and that wait at the shutdown.
const EXPIRING: u32 = 200;
const REFUSED: usize = 300;
const AT_SHUTDOWN: usize = 200;
const TTL: Duration = Duration::from_secs(1);
/// Between two requests that time out, so that each has the machine for itself.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(10);
/// Places of the queue that is filled.
const CAPACITY: u64 = 10;
/// Seconds after which requests time out, while twice as many arrive as the servers serve; and how long they go on arriving after that.
const TTLS: [u64; 3] = [1, 2, 4];
const STEADY: Duration = Duration::from_secs(2);

pub(crate) fn run() -> Value {
    run_async(async {
        json!({
            "machine": penstock_studies::figures::machine(),
            "burst": burst().await,
            "priority": priority(true).await,
            "priority_in_step": priority(false).await,
            "depth": depth().await,
            "timeout": timeout().await,
            "refusal": refusal().await,
            "shutdown": shutdown().await,
            "configuration": configuration().await,
            "requeue": requeue().await,
            "retry": retry().await,
        })
    })
}

async fn answers(asked: Vec<JoinHandle<Answer>>) -> Vec<Answer> {
    let mut answers = Vec::with_capacity(asked.len());
    for asked in asked {
        answers.push(asked.await.expect("the client doesn't panic"));
    }
    answers
}

/// SC-001 and SC-007: the burst without and with a queue, and the queue's counts afterwards.
async fn burst() -> Value {
    let servers = Upstream::several(SERVERS, SERVICE, 0).await;
    let all: Vec<_> = servers.iter().collect();
    let pools = [
        pool("door", "door", &all, &format!("{}  queue: {{enabled: false}}\n", slots(PLACES))),
        pool("queue", "queue", &all, &format!("{}  queue: {{flow_capacity: 1000}}\n", slots(PLACES))),
    ];
    let gateway = Gateway::start(&config("", &pools)).await;
    let refused = async |model: &str| {
        let asked = (0..BURST).map(|_| gateway.spawn(ClientRequest::chat(model, "burst")));
        let answers = answers(asked.collect()).await;
        answers.iter().filter(|answer| answer.status != 200).count()
    };
    let without = refused("door").await;
    let with = refused("queue").await;
    gateway.stock("queue", 0).await;
    let page = gateway.metrics().await;
    let sum = |name: &str| page.sum(name, &[("pool", "queue")]);
    json!({
        "requests": BURST,
        "places": SERVERS as u32 * PLACES,
        "refused_without": without,
        "refused_with": with,
        "saved": 1.0 - with as f64 / without as f64,
        "counted": sum("penstock_requests_total"),
        "depth_afterwards": sum("penstock_queue_length"),
    })
}

/// Answers each request of a scripted server, after a time of its own: from half of [`SERVICE`] to one and a half.
fn vary(server: Arc<Upstream>, seed: u64) -> JoinHandle<()> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    tokio::spawn(async move {
        loop {
            let call = server.next().await;
            let takes = SERVICE.mul_f64(random.random_range(0.5..1.5));
            tokio::spawn(async move {
                tokio::time::sleep(takes).await;
                call.answer();
            });
        }
    })
}

/// SC-002: waits in the queue by priority, under load. The responses take from 25 to 75 ms if they are `varied`, else exactly 50 ms: then the
/// places become free in step, and a request that has just missed one waits for a whole response.
async fn priority(is_varied: bool) -> Value {
    let mut servers = Vec::new();
    let mut answering = Vec::new();
    for seed in 0..SERVERS as u64 {
        if is_varied {
            let server = Arc::new(Upstream::scripted().await);
            answering.push(vary(server.clone(), seed));
            servers.push(server);
        } else {
            servers.push(Arc::new(Upstream::serving(SERVICE).await));
        }
    }
    let all: Vec<&Upstream> = servers.iter().map(|server| &**server).collect();
    let gateway = Gateway::start(&config("", &[pool("p", "'*'", &all, &slots(PLACES))])).await;
    let end = Instant::now() + PRIORITY_TIME;
    let mut clients = Vec::new();
    for (priority, count) in CLIENTS {
        for _ in 0..count {
            let (client, url) = (gateway.client().clone(), gateway.url("/v1/chat/completions"));
            clients.push(tokio::spawn(async move {
                let mut waits = Vec::new();
                while Instant::now() < end {
                    let request = client
                        .post(&url)
                        .json(&ClientRequest::chat("m", "load").body())
                        .header("x-nexus-priority", priority);
                    let answer =
                        Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer");
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    let waited = answer.header("x-penstock-queue-ms").parse();
                    waits.push(Duration::from_millis(waited.expect("milliseconds")));
                }
                (priority, waits)
            }));
        }
    }
    let mut waits: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for client in clients {
        let (priority, own) = client.await.expect("the client doesn't panic");
        waits.entry(priority).or_default().extend(own);
    }
    answering.iter().for_each(JoinHandle::abort);
    let [high, normal] = ["high", "normal"].map(|priority| distribution(waits[priority].clone()));
    let less = ["mean", "p50", "p99"].map(|figure| {
        let ms = |times: &Value| times[figure].as_f64().expect("a time");
        (figure, json!(1.0 - ms(&high) / ms(&normal)))
    });
    json!({
        "less": serde_json::Map::from_iter(less.map(|(figure, part)| (figure.to_owned(), part))),
        "high": high,
        "normal": normal,
    })
}

/// SC-011: how long the requests that time out are told to wait, by the length of the queue.
async fn retry() -> Value {
    let mut rows = Vec::new();
    for ttl in TTLS {
        rows.push(retry_after(ttl).await);
    }
    json!(rows)
}

async fn retry_after(ttl: u64) -> Value {
    let servers = Upstream::several(SERVERS, SERVICE, 0).await;
    let all: Vec<_> = servers.iter().collect();
    let queue =
        format!("{}  queue: {{ttl: {ttl}s, total_capacity: 10000, flow_capacity: 10000}}\n", slots(PLACES));
    let gateway = Gateway::start(&config("", &[pool("p", "'*'", &all, &queue)])).await;
    let every = SERVICE / (2 * SERVERS as u32 * PLACES);
    let lasts = Duration::from_secs(ttl) + STEADY;
    let mut ticks = tokio::time::interval(every);
    let started = Instant::now();
    let mut asked = Vec::new();
    while started.elapsed() < lasts {
        ticks.tick().await;
        asked.push(gateway.spawn(ClientRequest::chat("m", "expires")));
    }
    let page = gateway.metrics().await;
    let answers = answers(asked).await;
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    let served_per_s = served as f64 / started.elapsed().as_secs_f64();
    let told = answers.into_iter().filter(|answer| answer.status != 200);
    let told = told.map(|answer| {
        answer.expect_error(503, "queue_timeout", "expired_ttl");
        let ms = answer.header("retry-after-ms").parse();
        Duration::from_millis(ms.expect("milliseconds until a retry makes sense"))
    });
    json!({
        "ttl_s": ttl,
        "waiting": page.sum("penstock_queue_length", &[("pool", "p")]),
        "served_per_s": served_per_s,
        "told": distribution(told.collect()),
    })
}

/// SC-003 and SC-009: from the client's request until the queue's gauge counts it, and how the room of the queue shows.
async fn depth() -> Value {
    let server = Upstream::scripted().await;
    let queue = format!("{}  queue: {{total_capacity: {DEPTHS}, flow_capacity: {DEPTHS}}}\n", slots(1));
    let head = "metrics: {aliases: [nexus]}\n";
    let gateway = Gateway::start(&config(head, &[pool("p", "'*'", &[&server], &queue)])).await;
    let mut asked = vec![gateway.spawn(ClientRequest::chat("m", "runs"))];
    let mut call = server.next().await;
    let mut lags = Vec::new();
    let shown = async |depth: u64, since: Instant| {
        while gateway.metrics().await.sum("nexus_queue_depth", &[]) != depth as f64 {}
        since.elapsed()
    };
    for depth in 1..=DEPTHS {
        let since = Instant::now();
        asked.push(gateway.spawn(ClientRequest::chat("m", "waits")));
        lags.push(shown(depth, since).await);
    }
    let page = gateway.metrics().await;
    let sum = |name: &str| page.sum(name, &[("pool", "p")]);
    let used = sum("penstock_queue_length") / sum("penstock_queue_capacity");
    for depth in (0..DEPTHS).rev() {
        let since = Instant::now();
        call.answer();
        lags.push(shown(depth, since).await);
        call = server.next().await;
    }
    call.answer();
    assert!(answers(asked).await.iter().all(|answer| answer.status == 200));
    json!({"lag": distribution(lags), "used_room_of_a_full_queue": used})
}

/// SC-004: how long after its timeout a request is answered.
async fn timeout() -> Value {
    let server = Upstream::scripted().await;
    let queue = format!("{}  queue: {{ttl: {}s, flow_capacity: 1000}}\n", slots(1), TTL.as_secs());
    let gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], &queue)])).await;
    let held = gateway.spawn(ClientRequest::chat("m", "runs"));
    let call = server.next().await;
    let asked = (0..EXPIRING).map(|number| {
        let (client, url) = (gateway.client().clone(), gateway.url("/v1/chat/completions"));
        tokio::spawn(async move {
            tokio::time::sleep(EXPIRY_INTERVAL * number).await;
            let since = Instant::now();
            let body = ClientRequest::chat("m", "expires").body();
            let response = client.post(url).json(&body).send().await.expect("an answer");
            let elapsed = since.elapsed();
            let answer = Answer::read(response).await.expect("a whole answer");
            answer.expect_error(503, "queue_timeout", "expired_ttl");
            elapsed.saturating_sub(TTL)
        })
    });
    let mut late = Vec::new();
    for asked in asked.collect::<Vec<_>>() {
        late.push(asked.await.expect("the client doesn't panic"));
    }
    call.answer();
    assert_eq!(held.await.expect("answered").status, 200);
    json!({"late": distribution(late)})
}

/// SC-005: the time of a refusal by a full queue, on an open connection.
async fn refusal() -> Value {
    let server = Upstream::scripted().await;
    let queue = format!("{}  queue: {{total_capacity: {CAPACITY}, flow_capacity: {CAPACITY}}}\n", slots(1));
    let gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], &queue)])).await;
    let mut asked = vec![gateway.spawn(ClientRequest::chat("m", "runs"))];
    let mut call = server.next().await;
    for _ in 0..CAPACITY {
        asked.push(gateway.spawn(ClientRequest::chat("m", "waits")));
    }
    gateway.waiting("p", CAPACITY).await;
    let mut times = Vec::new();
    for _ in 0..REFUSED {
        let since = Instant::now();
        let answer = gateway.send(ClientRequest::chat("m", "refused")).await;
        times.push(since.elapsed());
        assert!(matches!(answer.status, 429 | 503), "{}", answer.status);
    }
    for _ in 0..CAPACITY {
        call.answer();
        call = server.next().await;
    }
    call.answer();
    assert!(answers(asked).await.iter().all(|answer| answer.status == 200));
    json!({"time": distribution(times)})
}

/// SC-006: from SIGTERM until a waiting request is answered.
async fn shutdown() -> Value {
    let server = Upstream::scripted().await;
    let queue = format!("{}  queue: {{flow_capacity: 1000}}\n", slots(1));
    let mut gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], &queue)])).await;
    let held = gateway.spawn(ClientRequest::chat("m", "runs"));
    let call = server.next().await;
    let asked: Vec<_> = (0..AT_SHUTDOWN)
        .map(|_| {
            let (client, url) = (gateway.client().clone(), gateway.url("/v1/chat/completions"));
            tokio::spawn(async move {
                let body = ClientRequest::chat("m", "waits").body();
                let response = client.post(url).json(&body).send().await.expect("an answer");
                let answered = Instant::now();
                let answer = Answer::read(response).await.expect("a whole answer");
                answer.expect_error(503, "shutting_down", "shutting_down");
                answered
            })
        })
        .collect();
    gateway.waiting("p", AT_SHUTDOWN as u64).await;
    let since = Instant::now();
    gateway.process.signal(libc::SIGTERM);
    let mut times = Vec::new();
    for asked in asked {
        times.push(asked.await.expect("the client doesn't panic") - since);
    }
    call.answer();
    assert_eq!(held.await.expect("answered").status, 200);
    assert_eq!(gateway.process.exit().await.code(), Some(0));
    json!({"time": distribution(times)})
}

/// SC-008: from a change of the configuration until a request meets it, without a restart.
async fn configuration() -> Value {
    let server = Upstream::scripted().await;
    let gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], &slots(1))])).await;
    let mut asked = vec![gateway.spawn(ClientRequest::chat("m", "runs"))];
    let call = server.next().await;
    let since = Instant::now();
    let disabled = json!({"pools": [{"name": "p", "queue": {"enabled": false}}]});
    let answer = gateway.pages().change("PATCH", "/config", &[], &disabled.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let refused = gateway.send(ClientRequest::chat("m", "refused")).await;
    let elapsed = since.elapsed();
    assert!(matches!(refused.status, 429 | 503), "{}", refused.text());
    call.answer();
    assert!(answers(std::mem::take(&mut asked)).await.iter().all(|answer| answer.status == 200));
    json!({"ms": elapsed.as_secs_f64() * 1e3})
}

/// SC-010: requests at a server that dies, and whether each is answered by the other.
async fn requeue() -> Value {
    let (killed, survivor) = (Upstream::scripted().await, Upstream::serving(SERVICE).await);
    let queue = format!("{}  queue: {{flow_capacity: 1000}}\n", slots(PLACES));
    let pools = [pool("p", "'*'", &[&killed, &survivor], &queue)];
    let gateway = Gateway::start(&config("", &pools)).await;
    let asked: Vec<_> = (0..BURST).map(|_| gateway.spawn(ClientRequest::chat("m", "burst"))).collect();
    let mut lost = Vec::new();
    for _ in 0..PLACES {
        lost.push(killed.next().await);
    }
    drop(killed);
    let cut = lost.len();
    for call in lost {
        call.cut();
    }
    let answers = answers(asked).await;
    let failed = answers.iter().filter(|answer| answer.status != 200).count();
    json!({"requests": BURST, "at_the_killed_server": cut, "failed": failed})
}
