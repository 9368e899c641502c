//! Policy classes by the uncached part of a prompt, as Dynamo's router has them, through a real Envoy.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Dynamo's cache buckets: up to 3,071 uncached tokens, and from there on.
const BUCKETS: &str = "  arbitration:
    classes:
      default_policy_family: standard
      uncached_isl_buckets: [{min_tokens: 0, bucket: cached}, {min_tokens: 3072, bucket: uncached}]
      policy_classes:
      - {name: cached, policy_family: standard, cache_bucket: cached, quantum: 2048, queue_policy: wspt}
      - {name: uncached, policy_family: standard, cache_bucket: uncached, quantum: 512}
";

/// Requests that wait, half of them in each class, and grants in which tokens are counted.
const BACKLOG: u64 = 40;
const GRANTS: usize = 600;

/// A prompt of 4,000 tokens, at four bytes each.
fn prompt(letter: char) -> String {
    String::from(letter).repeat(16_000)
}

fn asks(letter: char, id: &str) -> ClientRequest {
    ClientRequest::chat("m", &prompt(letter)).header("x-request-id", id)
}

/// The class of a request, and its tokens of prompt and cache.
async fn seen(gateway: &Gateway, id: &str) -> Value {
    let request = gateway.request(id).await;
    json!([request["class"], request["tokens"]["prompt"], request["tokens"]["cached"]])
}

/// A gateway in front of a server with one place, with the cache buckets.
async fn start(server: &Upstream) -> Gateway {
    let keys = format!("{}  scheduler: {{prefix: 0}}\n{BUCKETS}", slots(1));
    Gateway::start(&config("", &[pool("p", "m", &[server], &keys)])).await
}

#[test]
fn the_second_of_two_equal_prompts_goes_by_the_cached_bucket() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server).await;

        let first = gateway.spawn(asks('a', "first"));
        server.next().await.answer_with(4_000, 4);
        assert_eq!(first.await.expect("answered").status, 200);
        assert_eq!(seen(&gateway, "first").await, json!(["uncached", 4_000, 0]));

        // 11,585 of the 16,000 bytes have a hash.
        let second = gateway.spawn(asks('a', "second"));
        let call = server.next().await;
        assert_eq!(seen(&gateway, "second").await, json!(["cached", 4_000, 2_896]));

        // Of those that wait, the class of the repeated prompt is granted four times as many tokens.
        let other = gateway.spawn(asks('b', "other"));
        gateway.waiting("p", 1).await;
        let again = gateway.spawn(asks('a', "again"));
        gateway.waiting("p", 2).await;
        assert_eq!(seen(&gateway, "other").await, json!(["uncached", 4_000, 0]));
        assert_eq!(seen(&gateway, "again").await, json!(["cached", 4_000, 2_896]));
        call.answer_with(4_000, 4);
        let call = server.next().await;
        assert_eq!(call.text(), prompt('a'), "the repeated prompt overtakes the other");
        call.answer_with(4_000, 4);
        server.next().await.answer_with(4_000, 4);
        for answer in [second, other, again] {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

/// A page of metrics with a queue of this length, of a process that started at this time.
fn page(queue: u64, started: &str) -> String {
    format!("vllm:num_requests_waiting {queue}\nprocess_start_time_seconds {started}\n")
}

/// Waits until the companion has read a page with a queue of this length.
async fn read(gateway: &Gateway, queue: u64) {
    until("the page is read", || async {
        let endpoint = gateway.pool("p").await["endpoints"][0].clone();
        if endpoint["queue"] == queue { Ok(()) } else { Err(endpoint.to_string()) }
    })
    .await;
}

#[test]
fn a_server_that_was_restarted_in_its_place_has_no_prompt_cached() {
    run(async {
        let server = Upstream::scripted().await;
        let keys = format!("{}  scheduler: {{prefix: 0}}\n  scrape: {{interval: 20ms}}\n{BUCKETS}", slots(1));
        let gateway = Gateway::start(&config("", &[pool("p", "m", &[&server], &keys)])).await;
        server.set_metrics(Some(&page(1, "1.73205610025e+09")));
        read(&gateway, 1).await;
        let ask = async |id: &str| {
            let answer = gateway.spawn(asks('a', id));
            let call = server.next().await;
            let seen = seen(&gateway, id).await[2].clone();
            call.answer_with(4_000, 4);
            assert_eq!(answer.await.expect("answered").status, 200);
            // Whose cache the answer tells of is known once the companion has it.
            gateway.stock("p", 0).await;
            seen
        };
        assert_eq!(ask("first").await, 0);
        assert_eq!(ask("second").await, 2_896);
        server.set_metrics(Some(&page(2, "1.73205610025e+09")));
        read(&gateway, 2).await;
        // The second answer confirmed nothing, which counts for one sixteenth.
        assert_eq!(ask("third").await, 2_715, "the process is the same");
        server.set_metrics(Some(&page(3, "1.73206e+09")));
        read(&gateway, 3).await;
        assert_eq!(ask("fourth").await, 0);
        assert_eq!(
            ask("fifth").await,
            2_896,
            "the new process has computed it, and has contradicted nothing"
        );
    });
}

/// Requests of two kinds, each sent in the background with a different id.
#[derive(Default)]
struct Sender {
    sent: u64,
    answers: Vec<JoinHandle<Answer>>,
}

impl Sender {
    /// Sends the repeated prompt, or one that no other request has.
    fn send(&mut self, gateway: &Gateway, is_repeated: bool) {
        self.sent += 1;
        let text = if is_repeated { prompt('a') } else { format!("{:06}{}", self.sent, "b".repeat(15_994)) };
        let request = ClientRequest::chat("m", &text).header("x-request-id", &self.sent.to_string());
        self.answers.push(gateway.spawn(request));
    }
}

#[test]
fn classes_share_uncached_tokens_by_their_quanta() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server).await;
        let mut sender = Sender::default();
        sender.send(&gateway, true);
        let mut call = server.next().await;
        for _ in 0..BACKLOG / 2 {
            sender.send(&gateway, true);
            sender.send(&gateway, false);
        }
        gateway.waiting("p", BACKLOG).await;
        let mut uncached = [0.0, 0.0];
        let mut cached = 0;
        for _ in 0..GRANTS {
            call.answer_with_cached(4_000, cached, 4);
            call = server.next().await;
            let is_repeated = call.text() == prompt('a');
            cached = if is_repeated { 3_984 } else { 0 };
            let request = seen(&gateway, call.header("x-request-id")).await;
            assert_eq!(request[0], if is_repeated { "cached" } else { "uncached" });
            let tokens = |index: usize| request[index].as_f64().expect("a number");
            uncached[usize::from(!is_repeated)] += tokens(1) - tokens(2);
            sender.send(&gateway, is_repeated);
        }
        let share = uncached[0] / (uncached[0] + uncached[1]);
        let exact = 2_048.0 / (2_048.0 + 512.0);
        assert!((share - exact).abs() <= 0.01 * exact, "{uncached:?}: {share}");
        for _ in 0..BACKLOG {
            call.answer_with(4_000, 4);
            call = server.next().await;
        }
        call.answer_with(4_000, 4);
        for answer in sender.answers {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn a_server_that_reports_no_cached_tokens_soon_counts_as_one_that_caches_nothing() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server).await;
        for answer in 0..20 {
            let id = format!("r{answer}");
            let asked = gateway.spawn(asks('a', &id));
            let call = server.next().await;
            let request = seen(&gateway, &id).await;
            match answer {
                1 => assert_eq!(request, json!(["cached", 4_000, 2_896])),
                0 | 17.. => assert_eq!(request, json!(["uncached", 4_000, 0])),
                _ => {}
            }
            call.answer_with(4_000, 4);
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}
