//! Envoy's file descriptors: clients leave some for servers, and no server is blamed for a lack of them.

use std::time::Duration;

use penstock_tests::gateway::{pool, slots};
use penstock_tests::process::limit_open_files;
use penstock_tests::raw::{Raw, post};
use penstock_tests::{Companion, Envoy, Upstream, run, until};
use serde_json::Value;

/// The open files for which the bootstrap is printed, and the clients' connections that it then allows.
const FILES: (u32, usize) = (480, 80);
/// Enough for Envoy itself and two descriptors for each client.
const FILES_ALLOWED: u64 = 256;
const REFUSED: usize = 40;

fn request() -> String {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
    let length = format!("content-length: {}\r\n", body.len());
    post("/v1/chat/completions", &length) + body
}

async fn expect_all_ready(companion: &Companion) {
    let pool = companion.status().await["pools"][0].clone();
    let endpoints = pool["endpoints"].as_array().cloned().unwrap_or_default();
    assert!(endpoints.iter().all(|endpoint| endpoint["ready"] == Value::Bool(true)), "{pool}");
}

#[test]
fn clients_above_the_limit_are_refused_and_those_below_it_are_served() {
    run(async {
        let server = Upstream::scripted().await;
        let companion = Companion::start("", &[pool("p", "'*'", &[&server], &slots(200))]).await;
        let envoy = Envoy::with_open_files(&companion, "files", FILES.0).await;
        limit_open_files(envoy.process.pid(), FILES_ALLOWED);
        let mut clients = Vec::new();
        for _ in 0..FILES.1 + REFUSED {
            let mut client = Raw::connect(envoy.gateway()).await;
            client.send(request()).await;
            clients.push(client);
        }
        let mut calls = Vec::new();
        for _ in 0..FILES.1 {
            calls.push(server.next().await);
        }
        for call in calls {
            call.answer();
        }
        let (mut served, mut refused) = (0, 0);
        for mut client in clients {
            if client.closed().await {
                refused += 1;
            } else {
                assert_eq!(client.answer().await.status, 200);
                served += 1;
            }
        }
        assert_eq!((served, refused), (FILES.1, REFUSED));
        assert_eq!(server.total(), FILES.1);
        expect_all_ready(&companion).await;
    });
}

#[test]
fn a_lack_of_file_descriptors_marks_no_server_down() {
    run(async {
        let servers = [Upstream::serving(Duration::ZERO).await, Upstream::serving(Duration::ZERO).await];
        let companion =
            Companion::start("", &[pool("p", "'*'", &[&servers[0], &servers[1]], &slots(8))]).await;
        let envoy = Envoy::start(&companion, "files").await;
        let mut clients = Vec::new();
        // Two requests that a server fails would mark it down.
        for _ in 0..8 {
            clients.push(Raw::connect(envoy.gateway()).await);
        }
        // Envoy has accepted them.
        envoy.connections(clients.len()).await;
        let before = limit_open_files(envoy.process.pid(), 3);
        for client in &mut clients {
            client.send(request()).await;
        }
        until("each request has failed some times", || async {
            let page = companion.metrics().await;
            let requeues = page.sum("penstock_requeues_total", &[("pool", "p")]);
            if requeues >= 24.0 { Ok(()) } else { Err(format!("{requeues} requeues")) }
        })
        .await;
        expect_all_ready(&companion).await;
        assert_eq!(servers[0].total() + servers[1].total(), 0);
        limit_open_files(envoy.process.pid(), before);
        for mut client in clients {
            assert_eq!(client.answer().await.status, 200);
        }
        expect_all_ready(&companion).await;
    });
}
