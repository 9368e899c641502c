//! Prefill apart from decoding: a long prompt names an endpoint of its own, and counts at both until its answer begins.

use penstock_tests::gateway::{config, slots};
use penstock_tests::{ClientRequest, Gateway, Mock, Upstream, mock, run, until};
use serde_json::{Value, json};

const HEADER: &str = "x-prefiller-host-port";

/// A pool with these endpoints, in which prompts of 100 tokens are long.
fn roles(endpoints: &[(String, &str)], more: &str) -> String {
    let listed = endpoints.iter().map(|(address, role)| format!("{{address: '{address}', role: {role}}}"));
    let listed: Vec<String> = listed.collect();
    format!(
        "- name: chat\n  endpoints: {{static: [{}], failing: {{consecutive: 3}}}}\n  disaggregation: {{min_uncached_tokens: 100}}\n{more}",
        listed.join(", ")
    )
}

fn of(server: &Upstream, role: &'static str) -> (String, &'static str) {
    (server.address().to_string(), role)
}

/// A prompt of about a thousand tokens that begins with this letter.
fn long(letter: char) -> ClientRequest {
    ClientRequest::chat("m", &String::from(letter).repeat(4_000))
}

/// A member of each endpoint of the pool, in the order of the configuration.
async fn members(gateway: &Gateway, name: &str) -> Vec<Value> {
    let pool = gateway.pool("chat").await;
    let endpoints = pool["endpoints"].as_array().cloned().unwrap_or_default();
    endpoints.iter().map(|endpoint| endpoint[name].clone()).collect()
}

#[test]
fn a_long_prompt_names_an_endpoint_of_its_own_and_counts_there_until_the_answer_begins() {
    run(async {
        let (prompts, answers) = (Upstream::scripted().await, Upstream::scripted().await);
        let pool = roles(&[of(&prompts, "prefill"), of(&answers, "decode")], &slots(4));
        let gateway = Gateway::start(&config("", &[pool])).await;
        assert_eq!(members(&gateway, "role").await, ["prefill", "decode"]);

        let short = gateway.spawn(ClientRequest::chat("m", "hi").header(HEADER, "10.0.0.1:1"));
        let call = answers.next().await;
        assert_eq!(call.header(HEADER), "", "a client names no endpoint for its prompt");
        call.answer();
        assert_eq!(short.await.expect("answered").status, 200);

        for is_streamed in [true, false] {
            let asks = long('a').header(HEADER, "10.0.0.1:1").header("x-encoder-hosts-ports", "10.0.0.1:1");
            let asked = gateway.spawn(if is_streamed { asks.streamed() } else { asks });
            let call = answers.next().await;
            assert_eq!(call.header(HEADER), prompts.address().to_string());
            assert_eq!(call.header("x-encoder-hosts-ports"), "");
            gateway.stock("chat", 2).await;
            assert_eq!(members(&gateway, "stock").await, [1, 1]);
            if is_streamed {
                let stream = call.stream();
                stream.text("hello");
                gateway.stock("chat", 1).await;
                assert_eq!(members(&gateway, "stock").await, [0, 1]);
                stream.finish(1_000, 4);
            } else {
                call.answer_with(1_000, 4);
            }
            assert_eq!(asked.await.expect("answered").status, 200);
            gateway.stock("chat", 0).await;
        }
        assert_eq!(prompts.total(), 0, "the sidecar of the other server would ask it");
        let counted = gateway.metrics().await.sum("penstock_disaggregated_requests_total", &[]);
        assert_eq!(counted, 2.0);

        // A client that leaves takes its prompt along.
        let left = gateway.spawn(long('b'));
        let mut call = answers.next().await;
        gateway.stock("chat", 2).await;
        left.abort();
        call.gone().await;
        gateway.stock("chat", 0).await;
    });
}

#[test]
fn a_request_that_failed_is_sent_to_one_server_alone_and_the_cause_is_found() {
    run(async {
        let prompts = Upstream::scripted().await;
        let answers = [Upstream::scripted().await, Upstream::scripted().await];
        let endpoints = [of(&prompts, "prefill"), of(&answers[0], "decode"), of(&answers[1], "decode")];
        let gateway = Gateway::start(&config("", &[roles(&endpoints, &slots(4))])).await;
        let (mut failed, mut letters) = (0, ('a'..='z').cycle());
        // Whenever the prompt is computed elsewhere, that fails, and the sidecar says so.
        while members(&gateway, "state").await[0] != "failing" {
            assert!(failed < 50, "{:?}", members(&gateway, "state").await);
            let asked = gateway.spawn(long(letters.next().expect("endless")));
            let mut attempts = 0;
            loop {
                let call = tokio::select! {
                    call = answers[0].next() => call,
                    call = answers[1].next() => call,
                };
                attempts += 1;
                if call.header(HEADER).is_empty() {
                    call.answer_with(1_000, 4);
                    break;
                }
                assert_eq!(attempts, 1, "the second attempt computes the prompt itself");
                failed += 1;
                call.respond(500, &[], "the prompt could not be fetched");
            }
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        let states = members(&gateway, "state").await;
        assert_eq!(states, ["failing", "healthy", "healthy"], "those that answer are innocent");
    });
}

#[test]
fn a_server_that_fails_several_at_once_takes_no_partner_along() {
    run(async {
        let prompts = Upstream::scripted().await;
        let answers = [Upstream::scripted().await, Upstream::scripted().await];
        let endpoints = [of(&prompts, "prefill"), of(&answers[0], "decode"), of(&answers[1], "decode")];
        let gateway = Gateway::start(&config("", &[roles(&endpoints, &slots(8))])).await;
        let mut letters = ('a'..='z').cycle();
        let mut ask = || gateway.spawn(long(letters.next().expect("endless")));
        // All have served such requests before.
        for _ in 0..10 {
            let pair = [ask(), ask()];
            for server in &answers {
                server.next().await.answer_with(1_000, 4);
            }
            for answer in pair {
                assert_eq!(answer.await.expect("answered").status, 200);
            }
            gateway.stock("chat", 0).await;
        }
        let asked: Vec<_> = (0..6).map(|_| ask()).collect();
        gateway.stock("chat", 12).await;
        let mut failing = Vec::new();
        for _ in 0..3 {
            failing.push(answers[0].next().await);
        }
        for call in failing {
            assert_eq!(call.header(HEADER), prompts.address().to_string());
            call.respond(500, &[], "no room for the KV cache");
        }
        // Three of its own, and those that were sent again.
        for _ in 0..6 {
            answers[1].next().await.answer_with(1_000, 4);
        }
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
        let states = members(&gateway, "state").await;
        assert_eq!(states, ["healthy", "failing", "healthy"]);
    });
}

#[test]
fn without_one_role_the_other_does_both() {
    run(async {
        let (prompts, answers) = (Upstream::scripted().await, Upstream::scripted().await);
        let health = "  health: {interval: 100ms, unhealthy_after: 1}\n";
        let pool = roles(&[of(&prompts, "prefill"), of(&answers, "decode")], &(slots(4) + health));
        let gateway = Gateway::start(&config("", &[pool])).await;
        let ready = async |index: usize, expected: bool| {
            until("the health check has seen it", || async {
                let ready = members(&gateway, "ready").await;
                if ready[index] == expected { Ok(()) } else { Err(format!("{ready:?}")) }
            })
            .await;
        };
        prompts.set_healthy(false);
        ready(0, false).await;
        let asked = gateway.spawn(long('a'));
        let call = answers.next().await;
        assert_eq!(call.header(HEADER), "");
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);

        prompts.set_healthy(true);
        ready(0, true).await;
        answers.set_healthy(false);
        ready(1, false).await;
        let asked = gateway.spawn(long('b'));
        let call = prompts.next().await;
        assert_eq!(call.header(HEADER), "");
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
    });
}

#[test]
fn the_mock_servers_sidecar_has_the_prompt_computed_where_the_header_says() {
    run(async {
        let hardware = mock::Hardware { alpha: 1.0, beta: 0.001, gamma: 0.0, noise: 0.0 };
        let (prompts, answers) = (Mock::start(hardware, 1).await, Mock::start(hardware, 2).await);
        let endpoints =
            [(prompts.address().to_string(), "prefill"), (answers.address().to_string(), "decode")];
        let gateway = Gateway::start(&config("", &[roles(&endpoints, &slots(4))])).await;
        for ask in [long('a').with("max_tokens", 5), long('b').with("max_tokens", 5).streamed()] {
            let answer = gateway.send(ask).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        gateway.stock("chat", 0).await;
        let log = async |server: &Mock| -> Value {
            let url = format!("http://{}/mock/log", server.address());
            let page = gateway.client().get(url).send().await.expect("it answers");
            page.json().await.expect("JSON")
        };
        let requests = |log: &Value| log["requests"].as_array().cloned().unwrap_or_default();
        let (at_prompts, at_answers) = (log(&prompts).await, log(&answers).await);
        assert_eq!((requests(&at_prompts).len(), requests(&at_answers).len()), (2, 2), "{at_prompts}");
        for request in requests(&at_answers) {
            assert_eq!(
                request["request"]["headers"][HEADER],
                json!(prompts.address().to_string()),
                "{request}"
            );
        }
    });
}
