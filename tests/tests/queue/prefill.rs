//! Prefill thresholds of policy classes, imported from Dynamo, through a real Envoy.

use std::process::Command;

use penstock_tests::gateway::LISTEN_BUT_GRPC;
use penstock_tests::{ClientRequest, Gateway, Upstream, binary, run};

/// One class, which is held while more than half of an endpoint's batched tokens are in prefill.
const POLICY: &str = "default_policy_family: all
uncached_isl_buckets: [{min_tokens: 0, bucket: any}]
policy_classes:
- name: every
  policy_family: all
  cache_bucket: any
  quantum: 2048
  prefill_busy_threshold_frac: 0.5
  busy_worker_ratio: 0.95
  queue_admission: {type: session_aware}
";

/// The configuration that `penstock import dynamo` makes of the policy, with this server.
fn imported(server: &Upstream) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, POLICY).expect("written");
    let output = Command::new(binary::penstock())
        .args(["import", "dynamo", "--max-batched-tokens", "2000"])
        .arg(&file)
        .output()
        .expect("penstock runs");
    assert!(output.status.success(), "{output:?}");
    let page = String::from_utf8(output.stdout).expect("UTF-8");
    let page = page.replace("127.0.0.1:8000", &server.address().to_string());
    format!("{LISTEN_BUT_GRPC}, grpc: '127.0.0.1:0'}}\n{page}")
}

/// A prompt of 4,000 tokens, at four bytes each.
fn asks(letter: char, id: &str) -> ClientRequest {
    ClientRequest::chat("m", &String::from(letter).repeat(16_000)).header("x-request-id", id)
}

#[test]
fn an_imported_policy_holds_requests_until_the_first_token_of_an_answer() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = Gateway::start(&imported(&server)).await;

        let first = gateway.spawn(asks('a', "first").streamed());
        let call = server.next().await;
        let second = gateway.spawn(asks('b', "second"));
        gateway.waiting("dynamo", 1).await;
        let held = gateway.request("second").await;
        assert_eq!(held["class"], "every");
        let why = held["why"].as_str().unwrap_or_default();
        assert!(why.contains("above its prefill threshold"), "{held}");

        // Both run once the first answer has begun.
        let stream = call.stream();
        stream.text("hello");
        let call = server.next().await;
        assert_eq!(call.text().chars().next(), Some('b'));
        gateway.stock("dynamo", 2).await;
        let third = gateway.spawn(asks('c', "third"));
        gateway.waiting("dynamo", 1).await;
        stream.finish(4_000, 4);
        call.answer_with(4_000, 4);
        server.next().await.answer_with(4_000, 4);
        for answer in [first, second, third] {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}
