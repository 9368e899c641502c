//! Endpoints and pools that appear and disappear while Envoy runs: a found endpoint is used at once, no running request is lost,
//! and no process restarts.

use std::path::Path;
use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, process, run, until};
use serde_json::{Value, json};

/// Clients, each with one request in flight at any time.
const CLIENTS: usize = 24;
/// Requests that a server receives before the next change.
const ENOUGH: usize = 40;
/// A word of Envoy's command line that the companion's does not have.
const ENVOY: &str = "--disable-hot-restart";
/// A word of the companion's command line that Envoy's does not have: the path of an Envoy may contain "serve".
const COMPANION: &str = "--envoy-admin";
const SERVICE: Duration = Duration::from_millis(5);

/// Replaces the file by a list of these servers, atomically.
fn list(file: &Path, servers: &[&Upstream]) {
    let new = file.with_extension("new");
    let lines = servers.iter().map(|server| format!("- {}\n", server.address()));
    let text = lines.collect::<String>();
    std::fs::write(&new, if text.is_empty() { "[]" } else { &text }).expect("written");
    std::fs::rename(&new, file).expect("renamed");
}

/// Waits until a server has received `more` further requests.
async fn served(server: &Upstream, more: usize) {
    let before = server.total();
    until(&format!("{more} more requests"), || async {
        let now = server.total();
        if now >= before + more { Ok(()) } else { Err((now - before).to_string()) }
    })
    .await;
}

/// Waits until the companion is ready, discovery included.
async fn becomes_ready(gateway: &Gateway) {
    until("readiness", || async {
        let ready = gateway.get("/readyz").await?;
        if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
    })
    .await;
}

#[test]
fn pool_gains_and_loses_endpoints_under_load_without_losing_requests() {
    run(async {
        let servers = Upstream::several(3, SERVICE, 1).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("servers.yaml");
        list(&file, &[&servers[0]]);
        let found = format!("- name: a\n  endpoints: {{file: '{}'}}\n{}", file.display(), slots(4));
        let gateway = Gateway::start(&config("", &[found])).await;
        let envoy = gateway.child(ENVOY).await;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let clients = (0..CLIENTS).map(|client| {
            let (gateway, stopped) = (&gateway, stopped.clone());
            async move {
                let mut sent = 0;
                while !*stopped.borrow() {
                    let answer = gateway.send(ClientRequest::chat("m", &format!("{client}"))).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    sent += 1;
                }
                sent
            }
        });
        let clients = futures_util::future::join_all(clients);
        let changes = async {
            served(&servers[0], ENOUGH).await;
            list(&file, &[&servers[0], &servers[1]]);
            served(&servers[1], ENOUGH).await;
            // The first endpoint disappears while requests run there.
            list(&file, &[&servers[1], &servers[2]]);
            served(&servers[2], ENOUGH).await;
            until("nothing runs at the first", || async {
                match servers[0].in_flight() {
                    0 => Ok(()),
                    more => Err(more.to_string()),
                }
            })
            .await;
            let last = servers[0].total();
            served(&servers[1], ENOUGH).await;
            assert_eq!(servers[0].total(), last, "it has gone");
            // No endpoint at all: requests wait for one.
            list(&file, &[]);
            until("nothing runs", || async {
                match servers.iter().map(Upstream::in_flight).sum::<usize>() {
                    0 => Ok(()),
                    more => Err(more.to_string()),
                }
            })
            .await;
            gateway.waiting("a", CLIENTS as u64).await;
            list(&file, &[&servers[0]]);
            served(&servers[0], ENOUGH).await;
            stop.send_replace(true);
        };
        let (sent, ()) = tokio::join!(clients, changes);
        let total: usize = servers.iter().map(Upstream::total).sum();
        assert_eq!(total, sent.iter().sum::<usize>(), "each came to one server, once");
        assert_eq!(gateway.child(ENVOY).await, envoy, "the same Envoy");
    });
}

#[test]
fn a_companion_that_starts_while_discovery_fails_serves_the_endpoints_that_envoy_has() {
    run(async {
        let server = Upstream::serving(SERVICE).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("servers.yaml");
        list(&file, &[&server]);
        let found = format!("- name: a\n  endpoints: {{file: '{}'}}\n", file.display());
        let gateway = Gateway::start(&config("", &[found])).await;
        let answer = gateway.send(ClientRequest::chat("m", "before")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let discovery = gateway.pool("a").await["discovery"].clone();
        assert_eq!((&discovery["up"], &discovery["reason"]), (&json!(true), &json!(null)));
        assert!(discovery["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{discovery}");

        std::fs::write(&file, "[").expect("written");
        let up = |expected| {
            let gateway = &gateway;
            async move {
                let page = gateway.metrics().await;
                let up = page.sum("penstock_discovery_up", &[("pool", "a")]);
                if up == expected { Ok(()) } else { Err(up.to_string()) }
            }
        };
        until("discovery fails", || up(0.0)).await;
        let companion = gateway.child(COMPANION).await;
        process::send(companion, libc::SIGKILL);
        until("another companion", || async {
            let status: Result<Value, String> = gateway.get("/status").await.map(|page| page.json());
            let pid = gateway.child(COMPANION).await;
            match status {
                Ok(_) if pid != companion => Ok(()),
                other => Err(format!("{pid}: {other:?}")),
            }
        })
        .await;
        for number in 0..20 {
            let answer = gateway.send(ClientRequest::chat("m", &format!("{number}"))).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let ready = gateway.get("/readyz").await.expect("an answer");
        assert_eq!(ready.status, 503);
        assert!(ready.text().contains("pool `a`"), "{}", ready.text());
        until("the reason", || async {
            let discovery = gateway.pool("a").await["discovery"].to_string();
            if discovery.contains("servers.yaml") { Ok(()) } else { Err(discovery) }
        })
        .await;

        list(&file, &[&server]);
        until("discovery works again", || up(1.0)).await;
        becomes_ready(&gateway).await;
        // A companion that was ready stays ready.
        std::fs::write(&file, "[").expect("written");
        until("discovery fails again", || up(0.0)).await;
        assert_eq!(gateway.get("/readyz").await.expect("an answer").status, 200);
        assert!(gateway.process.log().contains("endpoint discovery works again"));
    });
}

#[test]
fn a_gateway_starts_without_an_answer_of_discovery_and_becomes_ready_with_one() {
    run(async {
        let server = Upstream::serving(SERVICE).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("servers.yaml");
        let found = format!("- name: a\n  endpoints: {{file: '{}'}}\n", file.display());
        let gateway = Gateway::start(&config("", &[found])).await;
        let ready = gateway.get("/readyz").await.expect("an answer");
        assert_eq!(ready.status, 503, "{}", ready.text());
        list(&file, &[&server]);
        becomes_ready(&gateway).await;
        let answer = gateway.send(ClientRequest::chat("m", "hello")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    });
}

#[test]
fn added_pool_is_served_without_a_restart_and_removed_pool_finishes_its_requests() {
    run(async {
        let servers = Upstream::several(1, SERVICE, 1).await;
        let slow = Upstream::scripted().await;
        let one = pool("one", "'one'", &[&slow], &slots(1));
        let two = pool("two", "'two'", &[&servers[0]], &slots(1));
        let gateway = Gateway::start(&config("", std::slice::from_ref(&one))).await;
        let envoy = gateway.child(ENVOY).await;
        let runs = gateway.spawn(ClientRequest::chat("one", "runs"));
        let call = slow.next().await;
        let unknown = gateway.send(ClientRequest::chat("two", "early")).await;
        unknown.expect_error(404, "model_not_found", "rejected_invalid");

        std::fs::write(gateway.config(), config("", &[one, two.clone()])).expect("written");
        until("the new pool answers", || async {
            let answer = gateway.send(ClientRequest::chat("two", "x")).await;
            // Envoy never receives a grant for a cluster that it does not know.
            assert!([200, 404].contains(&answer.status), "{}", answer.text());
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        })
        .await;

        std::fs::write(gateway.config(), config("", &[two])).expect("written");
        until("the old pool is gone", || async {
            let answer =
                tokio::time::timeout(SERVICE, gateway.send(ClientRequest::chat("one", "late"))).await;
            match answer {
                Ok(answer) if answer.status == 404 => Ok(()),
                Ok(answer) => Err(answer.text()),
                Err(_) => Err("it waits".to_owned()),
            }
        })
        .await;
        call.answer();
        let answer = runs.await.expect("no panic");
        assert_eq!(answer.status, 200, "what runs ends: {}", answer.text());
        assert_eq!(gateway.child(ENVOY).await, envoy, "the same Envoy");
    });
}

#[test]
fn pool_without_a_server_shows_zeros_and_asks_for_the_first_one_while_a_request_waits() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("servers.yaml");
        list(&file, &[]);
        let found = format!(
            "- name: a\n  endpoints: {{file: '{}', defaults: {{variant: h100}}}}\n  queue: {{no_endpoint_ttl: 5m}}\n",
            file.display()
        );
        let gateway = Gateway::start(&config("", &[found])).await;
        let values = async |name: &str, labels: &[(&str, &str)]| -> Vec<f64> {
            let page = gateway.metrics().await;
            let fits = |sample: &&penstock_tests::metrics::Sample| {
                sample.name == name
                    && labels
                        .iter()
                        .all(|(label, value)| sample.labels.get(*label).is_some_and(|is| is == value))
            };
            page.samples.iter().filter(fits).map(|sample| sample.value).collect()
        };
        let variant = [("pool", "a"), ("variant", "h100")];
        assert_eq!(values("penstock_current_replicas", &variant).await, [0.0]);
        assert_eq!(values("penstock_pending_replicas", &variant).await, [0.0]);
        assert_eq!(values("penstock_queue_length", &[("pool", "a")]).await, [0.0; 3], "one for each band");
        assert_eq!(values("penstock_active_flows", &[("pool", "a")]).await, [0.0]);
        assert_eq!(values("penstock_desired_replicas", &variant).await, [0.0; 0]);

        let asked = gateway.spawn(ClientRequest::chat("m", "first"));
        gateway.waiting("a", 1).await;
        let waiting = [variant[0], variant[1], ("source", "waiting")];
        assert_eq!(values("penstock_desired_replicas", &waiting).await, [1.0]);
        list(&file, &[&server]);
        server.next().await.answer();
        assert_eq!(asked.await.expect("asked").status, 200);
        assert_eq!(values("penstock_desired_replicas", &waiting).await, [0.0; 0]);
    });
}
