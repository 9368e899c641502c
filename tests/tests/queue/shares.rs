//! Shares of the servers, measured at the servers: bands by weight, classes by quantum, users by usage, and a light tenant beside a greedy
//! one.
//!
//! After every dispatch the test compares the served amounts with the ideal ones; the difference may not exceed the discipline's bound.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

/// Output tokens of every answer; asked for and given.
const OUTPUT: u64 = 4;

struct Fixture {
    gateway: Gateway,
    bands: Upstream,
    classes: Upstream,
    usage: Upstream,
}

/// One gateway; every test has a pool with one place of its own.
async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let (bands, classes, usage) = (
                Upstream::scripted().await,
                Upstream::scripted().await,
                Upstream::scripted().await,
            );
            let of_pool = |arbitration: &str| {
                format!(
                    "{}  queue: {{flow_capacity: 1000}}\n  arbitration:\n{arbitration}",
                    slots(1)
                )
            };
            let weighted = of_pool(
                "    bands: {mode: weighted, weights: {critical: 70, default: 20, sheddable: 10}}\n",
            );
            let quanta = of_pool(
                "    classes:\n      default_policy_family: large\n      uncached_isl_buckets: [{min_tokens: 0, bucket: all}]\n\
                 \x20     policy_classes:\n\
                 \x20     - {name: large, policy_family: large, cache_bucket: all, quantum: 2048}\n\
                 \x20     - {name: small, policy_family: small, cache_bucket: all, quantum: 512}\n",
            );
            let window = of_pool("    flows: {discipline: usage, key: user, weights: {ann: 3, bob: 2}}\n");
            let pools = [
                pool("bands", "bands", &[&bands], &weighted),
                pool("classes", "classes", &[&classes], &quanta),
                pool("usage", "usage", &[&usage], &window),
            ];
            Fixture {
                gateway: Gateway::start(&config("", &pools)).await,
                bands,
                classes,
                usage,
            }
        })
        .await
}

/// One of the parties that share the servers.
struct Share {
    name: &'static str,
    /// The party's weight, in any unit.
    weight: f64,
    /// Prompt tokens of its requests, in turn.
    prompts: &'static [u64],
    /// How many requests it sends.
    requests: usize,
}

impl Share {
    /// A chat request of exactly so many prompt tokens, four bytes each; its text begins with the party's name.
    fn ask(&self, pool: &str, number: usize) -> (ClientRequest, u64) {
        let tokens = self.prompts[number % self.prompts.len()];
        let bytes = usize::try_from(4 * tokens).expect("a prompt fits");
        let text = format!("{:-<bytes$}", format!("{} {number} ", self.name));
        assert_eq!(text.len(), bytes, "a prompt is long enough for its name");
        (ClientRequest::chat(pool, &text).with("max_tokens", OUTPUT), tokens)
    }
}

/// The amount served for each party.
#[derive(Default)]
struct Served {
    cost: BTreeMap<&'static str, f64>,
}

impl Served {
    /// The largest difference between two parties, each divided by its weight.
    fn gap(&self, shares: &[Share]) -> f64 {
        let normal = shares.iter().map(|s| self.cost.get(s.name).copied().unwrap_or_default() / s.weight);
        let (least, most) =
            normal.fold((f64::MAX, 0.0_f64), |(least, most), own| (least.min(own), most.max(own)));
        most - least
    }
}

/// The rule under test.
struct Rule<'a> {
    shares: &'a [Share],
    /// Makes a request belong to the named party.
    claim: fn(&'static str, ClientRequest) -> ClientRequest,
    /// The cost of a request with so many prompt tokens.
    cost: fn(u64) -> f64,
    /// The largest allowed difference between two parties, each divided by its weight.
    bound: f64,
}

/// The cost of a prompt and the output, which weighs twice.
fn both(prompt: u64) -> f64 {
    (prompt + 2 * OUTPUT) as f64
}

/// Queues all requests behind a running one, has `dispatches` of them served one by one, and checks the gap after each against the
/// bound; at the end checks every share against its ideal, within the difference that such a gap allows.
async fn measured(gateway: &Gateway, server: &Upstream, pool: &str, rule: Rule<'_>, dispatches: usize) {
    let Rule { shares, claim, cost, bound } = rule;
    let held = gateway.spawn(ClientRequest::chat(pool, "held").with("max_tokens", OUTPUT));
    let call = server.next().await;
    let mut asked: Vec<JoinHandle<_>> = Vec::new();
    let most = shares.iter().map(|s| s.requests).max().unwrap_or_default();
    for number in 0..most {
        for share in shares.iter().filter(|s| number < s.requests) {
            let (ask, _) = share.ask(pool, number);
            asked.push(gateway.spawn(claim(share.name, ask)));
        }
    }
    gateway.waiting(pool, asked.len() as u64).await;
    call.answer_with(1, OUTPUT);

    let mut served = Served::default();
    let mut left = asked.len();
    for dispatch in 1..=dispatches {
        let call = server.next().await;
        left -= 1;
        let text = call.text();
        let share = shares.iter().find(|s| text.starts_with(s.name));
        let share = share.unwrap_or_else(|| panic!("whose is {text}"));
        let tokens = text.len() as u64 / 4;
        *served.cost.entry(share.name).or_default() += cost(tokens);
        let gap = served.gap(shares);
        assert!(gap <= bound, "after {dispatch}: {:?} are {gap} apart, {bound} are allowed", served.cost);
        call.answer_with(tokens, OUTPUT);
    }
    let (all, weights) = (served.cost.values().sum::<f64>(), shares.iter().map(|s| s.weight).sum::<f64>());
    for share in shares {
        let ideal = all * share.weight / weights;
        // Every other party ahead of it, or behind it, by the whole bound.
        let allowed = bound * share.weight * (weights - share.weight) / weights;
        let own = served.cost.get(share.name).copied().unwrap_or_default();
        println!(
            "{pool}: {} got {:.2} %, ideal {:.2} %, {:.2} are allowed to be missing",
            share.name,
            100.0 * own / all,
            100.0 * share.weight / weights,
            100.0 * allowed / all
        );
        assert!(
            (own - ideal).abs() <= allowed,
            "{}: {own} of {all}, ideal {ideal}, {allowed} are allowed to be missing",
            share.name
        );
    }
    for _ in 0..left {
        let call = server.next().await;
        let tokens = call.text().len() as u64 / 4;
        call.answer_with(tokens, OUTPUT);
    }
    assert_eq!(held.await.expect("answered").status, 200);
    for answer in asked {
        let answer = answer.await.expect("answered");
        assert_eq!((answer.status, answer.outcome()), (200, "dispatched"));
    }
}

#[test]
fn weighted_bands_get_70_20_10() {
    run(async {
        let all = shared().await;
        // With its output every request costs 1,000, so a visit serves 7, 2 or 1 requests.
        let share = |name, weight, requests| Share { name, weight, prompts: &[1_000 - 2 * OUTPUT], requests };
        let rule = Rule {
            shares: &[
                share("critical", 7_000.0, 160),
                share("default", 2_000.0, 60),
                share("sheddable", 1_000.0, 40),
            ],
            claim: |name, ask| ask.priority(name),
            cost: both,
            // 2 * Max + Qmin, divided by Qmin.
            bound: (2.0 * 1_000.0 + 1_000.0) / 1_000.0,
        };
        measured(&all.gateway, &all.bands, "bands", rule, 200).await;
    });
}

#[test]
fn classes_get_their_quanta() {
    run(async {
        let all = shared().await;
        let rule = Rule {
            shares: &[
                Share {
                    name: "large",
                    weight: 2_048.0,
                    prompts: &[700, 128, 333, 64, 512, 256],
                    requests: 240,
                },
                Share { name: "small", weight: 512.0, prompts: &[96, 400, 160, 32], requests: 120 },
            ],
            claim: |name, ask| ask.header("x-penstock-class", name),
            // A class is charged the uncached prompt.
            cost: |prompt| prompt as f64,
            // 2 * Max + Qmin, divided by Qmin.
            bound: (2.0 * 700.0 + 512.0) / 512.0,
        };
        measured(&all.gateway, &all.classes, "classes", rule, 200).await;
    });
}

#[test]
fn three_users_get_usage_by_weight() {
    run(async {
        let all = shared().await;
        let rule = Rule {
            shares: &[
                Share { name: "ann", weight: 3.0, prompts: &[100, 60, 240], requests: 250 },
                Share { name: "bob", weight: 2.0, prompts: &[400, 500], requests: 60 },
                Share { name: "cyd", weight: 1.0, prompts: &[900, 150, 30], requests: 60 },
            ],
            claim: |name, ask| ask.header("x-penstock-user", name),
            cost: both,
            // The least used flow goes first, so the difference is at most one largest request of each flow.
            bound: both(900) + both(500) / 2.0,
        };
        measured(&all.gateway, &all.usage, "usage", rule, 200).await;
    });
}

#[test]
fn a_light_tenant_gets_half_beside_a_greedy_one() {
    run(async {
        const SERVERS: usize = 3;
        const PLACES: u32 = 4;
        /// Arrivals before the count begins, and counted arrivals. The bound for 12 in flight is a gap of 26 requests, 13 more or less
        /// than a half, which is below 1 % of this number.
        const SKIPPED: usize = 100;
        const COUNTED: usize = 1_600;
        let servers = Upstream::streaming(SERVERS, Duration::from_millis(60), PLACES as usize).await;
        let all: Vec<_> = servers.iter().collect();
        let gateway = Gateway::start(&config("", &[pool("p", "m", &all, &slots(PLACES))])).await;

        let done = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for (tenant, out) in [("greedy", 64), ("light", 16)] {
            for _ in 0..out {
                let (done, client, url) =
                    (done.clone(), gateway.client().clone(), gateway.url("/v1/chat/completions"));
                clients.push(tokio::spawn(async move {
                    let body = ClientRequest::chat("m", tenant).with("max_tokens", OUTPUT).streamed().body();
                    while !done.load(Ordering::SeqCst) {
                        let request = client.post(&url).json(&body).header("x-penstock-tenant", tenant);
                        let answer = Answer::read(request.send().await.expect("an answer"))
                            .await
                            .expect("a whole answer");
                        assert_eq!(answer.status, 200, "{tenant}: {}", answer.text());
                        assert!(
                            matches!(answer.outcome(), "bypassed" | "leased" | "dispatched"),
                            "{tenant}: {}",
                            answer.outcome()
                        );
                    }
                }));
            }
        }
        servers[0].arrived_together(SKIPPED + COUNTED).await;
        done.store(true, Ordering::SeqCst);
        for client in clients {
            client.await.expect("nothing is refused");
        }
        let texts = servers[0].texts_together();
        let light = texts[SKIPPED..SKIPPED + COUNTED].iter().filter(|text| *text == "light").count();
        println!("light: {light} of {COUNTED}");
        assert!((COUNTED * 49 / 100..=COUNTED * 51 / 100).contains(&light), "light got {light} of {COUNTED}");
        let places = SERVERS * PLACES as usize;
        assert_eq!(servers[0].peak_together(), places, "all places are used, and no more");
    });
}
