//! Waiting and running requests by model and target model, in `/status` and in the metrics.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};
use serde_json::{Value, json};

/// A gateway whose only server runs one request at a time. Each model has its own queue, and `chat` is rewritten.
async fn start(server: &Upstream, head: &str) -> Gateway {
    let more = format!(
        "{}  arbitration: {{per_model: true}}\n  rewrite: [{{model: chat, targets: [{{name: llama, weight: 1}}]}}]\n",
        slots(1)
    );
    Gateway::start(&config(head, &[pool("p", "", &[server], &more)])).await
}

/// Waits until `/status` shows these models: requested, target, waiting, running.
async fn models(gateway: &Gateway, expected: &[(&str, &str, u64, u64)]) {
    let expected: Vec<Value> = expected
        .iter()
        .map(|(model, target_model, waiting, running)| {
            json!({"model": model, "target_model": target_model, "waiting": waiting, "running": running})
        })
        .collect();
    until(&format!("{expected:?}"), || async {
        let models = gateway.pool("p").await["models"].clone();
        if models == json!(expected) { Ok(()) } else { Err(models.to_string()) }
    })
    .await;
}

/// The value of both gauges for a model and its target.
async fn gauges(gateway: &Gateway, model: &str, target: &str) -> (f64, f64) {
    let page = gateway.metrics().await;
    let labels = [("pool", "p"), ("model", model), ("target_model", target)];
    (page.sum("penstock_queue_length_by_model", &labels), page.sum("penstock_stock_by_model", &labels))
}

#[test]
fn requests_are_counted_by_model_from_their_arrival_to_their_end() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server, "").await;
        let mut answers = vec![gateway.spawn(ClientRequest::chat("chat", "1"))];
        let running = server.next().await;
        for (waiting, model) in ["chat", "llama", "chat"].into_iter().enumerate() {
            answers.push(gateway.spawn(ClientRequest::chat(model, "x")));
            gateway.waiting("p", waiting as u64 + 1).await;
        }
        models(&gateway, &[("chat", "llama", 2, 1), ("llama", "llama", 1, 0)]).await;
        assert_eq!(gauges(&gateway, "chat", "llama").await, (2.0, 1.0));
        assert_eq!(gauges(&gateway, "llama", "llama").await, (1.0, 0.0));
        // A client leaves, and a request that waited runs.
        answers.pop().expect("the last").abort();
        models(&gateway, &[("chat", "llama", 1, 1), ("llama", "llama", 1, 0)]).await;
        running.answer();
        server.next().await.answer();
        server.next().await.answer();
        for answer in answers {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
        models(&gateway, &[("chat", "llama", 0, 0), ("llama", "llama", 0, 0)]).await;
        let page = gateway.metrics().await;
        for name in ["penstock_queue_length_by_model", "penstock_stock_by_model"] {
            assert!(page.has(name) && page.sum(name, &[]) == 0.0, "{}", page.text());
        }
    });
}

#[test]
fn models_beyond_the_label_limit_are_counted_as_other() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server, "metrics: {flows: 1}\n").await;
        let mut answers = Vec::new();
        for (open, model) in ["a", "b", "c"].into_iter().enumerate() {
            answers.push(gateway.spawn(ClientRequest::chat(model, "x")));
            if open == 0 {
                gateway.stock("p", 1).await;
            } else {
                gateway.waiting("p", open as u64).await;
            }
        }
        assert_eq!(gauges(&gateway, "a", "a").await, (0.0, 1.0));
        assert_eq!(gauges(&gateway, "other", "other").await, (2.0, 0.0));
        // The document isn't a set of labels: it shows every name.
        models(&gateway, &[("b", "b", 1, 0), ("c", "c", 1, 0), ("a", "a", 0, 1)]).await;
        for _ in 0..answers.len() {
            server.next().await.answer();
        }
        for answer in answers {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}
