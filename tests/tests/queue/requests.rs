//! `/requests/{id}` during and after a request's life, and the output of `penstock status` and `top`.

use std::process::Output;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, binary, run};
use serde_json::{Value, json};
use tokio::process::Command;

fn named(model: &str, id: &str) -> ClientRequest {
    ClientRequest::chat(model, id).header("x-request-id", id).tenant("acme")
}

#[test]
fn request_is_shown_from_its_arrival_until_a_minute_after_its_end() {
    run(async {
        let server = Upstream::scripted().await;
        let keys = format!("{}  queue: {{flow_capacity: 2}}\n", slots(1));
        let gateway = Gateway::start(&config("", &[pool("p", "m", &[&server], &keys)])).await;

        let first = gateway.spawn(named("m", "first"));
        let call = server.next().await;
        let runs = gateway.request("first").await;
        let summary =
            |found: &Value| ["state", "outcome", "pool", "band", "flow"].map(|key| found[key].clone());
        assert_eq!(json!(summary(&runs)), json!(["running", "bypassed", "p", "default", "acme"]));
        assert_eq!(runs["endpoint"], server.address().to_string());
        assert_eq!((&runs["position"], &runs["tag"]), (&Value::Null, &Value::Null));

        let second = gateway.spawn(named("m", "second"));
        gateway.waiting("p", 1).await;
        let third = gateway.spawn(named("m", "third").priority("critical"));
        gateway.waiting("p", 2).await;
        let waits = gateway.request("second").await;
        assert_eq!(json!(summary(&waits)), json!(["waiting", null, "p", "default", "acme"]));
        assert_eq!(waits["position"], 2);
        assert!(waits["estimate_ms"].as_u64() >= Some(1_000), "{waits}");
        assert!(waits["tag"].is_number(), "{waits}");
        let why = "the gate is full: stock 1 of 1; the next request is granted below that; requests before it: 1 (1 more critical)";
        assert_eq!(waits["why"], why);
        assert_eq!(gateway.request("third").await["position"], 1);

        // The flow has room for two waiting requests in the band: the fourth request finds room, the fifth none.
        let fourth = gateway.spawn(named("m", "fourth"));
        gateway.waiting("p", 3).await;
        assert_eq!(gateway.send(named("m", "fifth")).await.code(), "flow_capacity");
        let refused = gateway.request("fifth").await;
        assert_eq!(
            json!(summary(&refused)),
            json!(["ended", "rejected_flow_capacity", "p", "default", "acme"])
        );
        assert!(refused["why"].as_str().is_some_and(|why| why.contains("queue.flow_capacity")), "{refused}");
        let advice = gateway.pool("p").await["advice"].to_string();
        assert!(advice.contains("the last of flow `acme`"), "{advice}");

        call.answer();
        for _ in 0..3 {
            server.next().await.answer();
        }
        for answer in [first, second, third, fourth] {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
        let ended = gateway.ended_request("second").await;
        assert_eq!(ended["outcome"], "dispatched");
        assert_eq!(ended["endpoint"], server.address().to_string());
        assert!(ended["why"].as_str().is_some_and(|why| why.contains("was answered 200")), "{ended}");

        let nobody = gateway.get("/requests/nobody").await.expect("it answers");
        assert_eq!((nobody.status, nobody.code().as_str()), (404, "request_not_found"));
    });
}

async fn penstock(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary::penstock());
    command.args(arguments).kill_on_drop(true);
    command.output().await.expect("it runs")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn status_and_top_show_a_gateway_and_report_a_missing_one() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = Gateway::start(&config("", &[pool("p", "m", &[&server], &slots(1))])).await;
        let held = gateway.spawn(named("m", "held"));
        let call = server.next().await;
        let url = gateway.companion();
        for command in ["status", "top"] {
            let looked = penstock(&[command, "--url", url]).await;
            let page = text(&looked.stdout);
            assert_eq!(looked.status.code(), Some(0), "{}", text(&looked.stderr));
            for word in ["pools", "acme", &server.address().to_string(), "advice"] {
                assert!(page.contains(word), "{word} isn't in\n{page}");
            }
            let looked = penstock(&[command, "--url", url, "--json"]).await;
            let document: Value = serde_json::from_slice(&looked.stdout).expect("the document");
            assert_eq!(document["pools"][0]["stock"], 1, "{document}");

            let wrong = penstock(&[command, "--url", "127.0.0.1:1"]).await;
            assert_eq!(wrong.status.code(), Some(2));
            assert!(text(&wrong.stderr).contains("http://HOST:PORT"), "{}", text(&wrong.stderr));
            let socket = gateway.config().with_extension("sock");
            let nobody = penstock(&[command, "--url", &format!("unix:{}", socket.display())]).await;
            assert_eq!(nobody.status.code(), Some(1));
            assert!(text(&nobody.stderr).contains("penstock serve"), "{}", text(&nobody.stderr));
        }
        call.answer();
        assert_eq!(held.await.expect("answered").status, 200);
    });
}
