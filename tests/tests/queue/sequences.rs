//! Requests of several sequences, several choices or lists of prompts, through a real Envoy.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};
use serde_json::{Value, json};

/// A pool whose server takes eight sequences at a time.
fn eight(server: &Upstream, more: &str) -> String {
    let stock = slots(8).replace('{', "{unit: sequences, ");
    pool("chat", "m", &[server], &(stock + more))
}

async fn start(server: &Upstream) -> Gateway {
    Gateway::start(&config("", &[eight(server, "")])).await
}

fn choices(text: &str, n: impl Into<Value>) -> ClientRequest {
    ClientRequest::chat("m", text).with("n", n)
}

#[test]
fn sequences_take_as_many_places_and_the_bound_holds() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server).await;
        let mut asked = vec![gateway.spawn(choices("five", 5))];
        let five = server.next().await;
        gateway.stock("chat", 5).await;
        asked.push(gateway.spawn(choices("four", 4)));
        gateway.waiting("chat", 1).await;
        let held = gateway.pool("chat").await;
        assert_eq!(held["endpoints"][0]["stock"], 5, "{held}");
        // A small one doesn't overtake it, however often it comes.
        asked.push(gateway.spawn(choices("three", 3)));
        gateway.waiting("chat", 2).await;
        assert!(server.arrived().await.is_none());
        five.answer();
        let both = [server.next().await, server.next().await];
        let mut texts = both.each_ref().map(|call| call.text());
        texts.sort();
        assert_eq!(texts, ["four", "three"]);
        gateway.stock("chat", 7).await;
        for call in both {
            call.answer();
        }
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn a_request_of_more_sequences_than_the_bound_runs_alone() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server).await;
        let small = gateway.spawn(choices("small", 1));
        let running = server.next().await;
        let large = gateway.spawn(choices("large", 64).header("x-request-id", "large"));
        gateway.waiting("chat", 1).await;
        let why = gateway.request("large").await;
        assert!(why["why"].to_string().contains("64 sequences"), "{why}");
        running.answer();
        let running = server.next().await;
        assert_eq!(running.text(), "large");
        gateway.stock("chat", 64).await;
        let next = gateway.spawn(choices("next", 1));
        gateway.waiting("chat", 1).await;
        running.answer();
        server.next().await.answer();
        for answer in [small, large, next] {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn lists_of_prompts_and_every_form_of_a_count_are_sequences() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server).await;
        let completion = |body: Value| ClientRequest::to("/v1/completions", body);
        for (request, sequences) in [
            (completion(json!({"model": "m", "prompt": ["a", "b", "c"]})), 3),
            (completion(json!({"model": "m", "prompt": [[1, 2], [3]], "n": 2})), 4),
            (completion(json!({"model": "m", "prompt": [1, 2, 3], "best_of": 6, "n": 2})), 6),
            (completion(json!({"model": "m", "prompt": "a", "n": "7"})), 7),
            (ClientRequest::to("/v1/embeddings", json!({"model": "m", "input": ["a", "b"]})), 2),
            (ClientRequest::to("/v1/embeddings", json!({"model": "m", "input": [1, 2]})), 1),
            (ClientRequest::to("/v1/responses", json!({"model": "m", "n": 5, "input": [{}, {}]})), 1),
            (choices("no number", "many"), 1),
        ] {
            let what = request.body().to_string();
            let answer = gateway.spawn(request);
            let call = server.next().await;
            until(&what, || async {
                let stock = gateway.pool("chat").await["endpoints"][0]["stock"].clone();
                if stock == sequences { Ok(()) } else { Err(stock.to_string()) }
            })
            .await;
            call.answer();
            assert_eq!(answer.await.expect("answered").status, 200, "{what}");
            gateway.stock("chat", 0).await;
        }
    });
}

#[test]
fn a_budget_reserves_the_output_of_every_sequence_and_the_prompt_once() {
    run(async {
        let server = Upstream::scripted().await;
        let budget = "  arbitration: {flows: {budgets: [{match: acme, windows: [{tokens: 100000, per: 1h}], over: refuse}]}}\n";
        let gateway = Gateway::start(&config("", &[eight(&server, budget)])).await;
        let reserved = |n: u64| {
            // Prompts of their own: none is cached.
            let request =
                choices(&format!("{n} {}", "word ".repeat(80)), n).with("max_tokens", 50).tenant("acme");
            let (gateway, server) = (&gateway, &server);
            async move {
                let answer = gateway.spawn(request);
                let call = server.next().await;
                let budgets = gateway.get("/budgets").await.expect("it answers").json();
                // Nothing is learned of a request that the server rejects, so the next estimate is as this one.
                call.respond(400, &[("content-type", "application/json")], "{}");
                assert_eq!(answer.await.expect("answered").status, 400);
                gateway.stock("chat", 0).await;
                let found =
                    budgets.as_array().expect("a list").iter().find(|budget| budget["flow"] == "acme");
                found.expect("a budget")["windows"][0]["reserved"].as_u64().expect("a number")
            }
        };
        let (one, four) = (reserved(1).await, reserved(4).await);
        // An output token counts 2.
        assert_eq!(four - one, 3 * 50 * 2, "{one} {four}");
    });
}

#[test]
fn sequences_of_a_request_are_no_foreign_work() {
    run(async {
        let server = Upstream::scripted().await;
        let more = slots(8) + "  scrape: {interval: 100ms}\n";
        let gateway = Gateway::start(&config("", &[pool("chat", "m", &[&server], &more)])).await;
        let answer = gateway.spawn(choices("many", 6));
        let call = server.next().await;
        let foreign = |reported: u64, foreign: u64| {
            let (gateway, server) = (&gateway, &server);
            async move {
                server.report(reported);
                until(&format!("{foreign} foreign of {reported}"), || async {
                    let endpoint = gateway.pool("chat").await["endpoints"][0].clone();
                    if endpoint["foreign"] == foreign { Ok(()) } else { Err(endpoint.to_string()) }
                })
                .await;
            }
        };
        foreign(9, 3).await;
        foreign(6, 0).await;
        assert_eq!(gateway.pool("chat").await["endpoints"][0]["stock"], 1, "the unit is requests");
        call.answer();
        assert_eq!(answer.await.expect("answered").status, 200);
    });
}
