//! What clients and operators of other queueing systems keep using: their headers, their metric, and configurations that
//! `penstock import` wrote.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, binary, run, until};

/// Holds the only place of a pool, lets these requests wait, and returns the texts in the order of dispatch.
async fn order(
    gateway: &Gateway,
    server: &Upstream,
    pool: &str,
    requests: Vec<ClientRequest>,
) -> Vec<String> {
    let mut answers = vec![gateway.spawn(ClientRequest::chat("m", "held"))];
    let held = server.next().await;
    let count = requests.len();
    for (waiting, request) in requests.into_iter().enumerate() {
        answers.push(gateway.spawn(request));
        gateway.waiting(pool, waiting as u64 + 1).await;
    }
    held.answer();
    let mut order = Vec::new();
    for _ in 0..count {
        let call = server.next().await;
        order.push(call.text());
        call.answer();
    }
    for answer in answers {
        assert_eq!(answer.await.expect("answered").status, 200);
    }
    gateway.stock(pool, 0).await;
    order
}

#[test]
fn the_priority_headers_of_nexus_the_inference_extension_and_llm_d_name_a_band() {
    run(async {
        let server = Upstream::scripted().await;
        let head = "identity: {objectives: {chat-gold: critical, batch: sheddable}}\n";
        let gateway = Gateway::start(&config(head, &[pool("p", "'*'", &[&server], &slots(1))])).await;
        let with =
            |header: &str, value: &str, text: &str| ClientRequest::chat("m", text).header(header, value);
        let objective = "x-gateway-inference-objective";
        let requests = vec![
            with("x-nexus-priority", "low", "nexus low"),
            with(objective, "batch", "objective batch"),
            with(objective, "unknown", "objective unknown"),
            ClientRequest::chat("m", "none"),
            with("x-nexus-priority", "high", "nexus high"),
            with(objective, "chat-gold", "objective gold"),
            with("x-llm-d-inference-objective", "chat-gold", "llm-d gold"),
            // The first header that is present counts.
            with("x-nexus-priority", "low", "nexus low and gold").header(objective, "chat-gold"),
        ];
        let expected = [
            "nexus high",
            "objective gold",
            "llm-d gold",
            "objective unknown",
            "none",
            "nexus low",
            "objective batch",
            "nexus low and gold",
        ];
        assert_eq!(order(&gateway, &server, "p", requests).await, expected);
    });
}

#[test]
fn readyz_is_503_above_the_saturation_that_a_balancer_accepts() {
    run(async {
        let (busy, idle) = (Upstream::scripted().await, Upstream::scripted().await);
        let pools = [pool("busy", "busy", &[&busy], &slots(1)), pool("idle", "idle", &[&idle], &slots(1))];
        let gateway = Gateway::start(&config("", &pools)).await;
        let ready = async |query: &str| {
            let answer = gateway.get(&format!("/readyz?{query}")).await.expect("a page");
            (answer.status, answer.text())
        };
        assert_eq!(ready("pool=busy&max_saturation=0.9").await.0, 200);
        let held = gateway.spawn(ClientRequest::chat("busy", "held"));
        let call = busy.next().await;
        gateway.stock("busy", 1).await;
        let (status, why) = ready("pool=busy&max_saturation=0.9").await;
        assert_eq!(status, 503);
        assert_eq!(why, "not ready: pool `busy` is at 1.00, above 0.9\n");
        for (query, expected) in [
            ("max_saturation=0.9", 503),
            ("pool=busy&max_saturation=1", 200),
            ("pool=idle&max_saturation=0.9", 200),
            ("pool=nowhere&max_saturation=0.9", 503),
            ("pool=busy", 200),
        ] {
            assert_eq!(ready(query).await.0, expected, "{query}");
        }
        call.answer();
        assert_eq!(held.await.expect("answered").status, 200);
        gateway.stock("busy", 0).await;
        assert_eq!(ready("pool=busy&max_saturation=0.9").await.0, 200);
    });
}

#[test]
fn the_nexus_metric_is_the_sum_of_all_queues() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let pools = [pool("a", "a", &[&a], &slots(1)), pool("b", "b", &[&b], &slots(1))];
        let gateway = Gateway::start(&config("metrics: {aliases: [nexus]}\n", &pools)).await;
        let mut answers = Vec::new();
        for (pool, waiting) in [("a", 2), ("b", 1)] {
            answers.push(gateway.spawn(ClientRequest::chat(pool, "runs")));
            gateway.stock(pool, 1).await;
            for number in 1..=waiting {
                answers.push(gateway.spawn(ClientRequest::chat(pool, "waits")));
                gateway.waiting(pool, number).await;
            }
        }
        let page = gateway.metrics().await;
        let depth: Vec<_> = page.samples.iter().filter(|sample| sample.name == "nexus_queue_depth").collect();
        assert!(matches!(depth.as_slice(), [one] if one.value == 3.0 && one.labels.is_empty()), "{depth:?}");
        for (server, count) in [(&a, 3), (&b, 2)] {
            for _ in 0..count {
                server.next().await.answer();
            }
        }
        for answer in answers {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
        assert_eq!(gateway.metrics().await.sum("nexus_queue_depth", &[]), 0.0);
    });
}

/// Every golden file of `penstock import`, with a server in place of the placeholder and free ports.
#[test]
fn imported_configurations_run() {
    run(async {
        for (source, model) in
            [("dynamo", "m"), ("gie", "m"), ("kthena", "m"), ("nexus", "m"), ("wva", "Qwen/Qwen2.5-32B")]
        {
            let server = Upstream::scripted().await;
            let golden = format!("tests/import/{source}.golden.yaml");
            let golden = std::fs::read_to_string(binary::workspace().join(golden)).expect("a golden file");
            let placeholder = "127.0.0.1:8000";
            assert!(golden.contains(placeholder), "{golden}");
            let page = golden.replace(placeholder, &server.address().to_string());
            let gateway = Gateway::start(&(config("", &[]).replace("pools:\n", "") + &page)).await;
            let asked = gateway.spawn(ClientRequest::chat(model, "hello").tenant("acme"));
            let call = server.next().await;
            assert_eq!(call.text(), "hello");
            call.answer();
            let answer = asked.await.expect("answered");
            assert_eq!((answer.status, answer.outcome()), (200, "bypassed"), "{source}");
            until("its end is counted", || async {
                let ended = gateway.metrics().await.sum("penstock_responses_total", &[]);
                if ended == 1.0 { Ok(()) } else { Err(format!("{ended}")) }
            })
            .await;
        }
    });
}

/// The policy of Nexus' queue, imported: two levels, first come first served in each, and a full queue rejects.
#[test]
fn an_imported_nexus_queue_orders_as_nexus_does() {
    run(async {
        let server = Upstream::scripted().await;
        let golden = std::fs::read_to_string(binary::workspace().join("tests/import/nexus.golden.yaml"));
        let page = golden
            .expect("a golden file")
            .replace("127.0.0.1:8000", &server.address().to_string())
            .replace("  arbitration:", &format!("{}  arbitration:", slots(1)));
        let gateway = Gateway::start(&(config("", &[]).replace("pools:\n", "") + &page)).await;
        let ask = |text: &str, tenant: &str| ClientRequest::chat("m", text).tenant(tenant);
        let requests = vec![
            ask("first", "a"),
            ask("second", "a"),
            ask("third", "b"),
            ask("urgent", "a").header("x-nexus-priority", "HIGH"),
            ask("claims another header", "a").priority("critical"),
        ];
        let expected = ["urgent", "first", "second", "third", "claims another header"];
        assert_eq!(order(&gateway, &server, "nexus", requests).await, expected);
    });
}
