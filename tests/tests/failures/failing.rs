//! Two model servers, one of which fails every request in some way while its health check is fine: clients see few failures, it is probed
//! by single requests, and it comes back by itself. Healthy servers stay, whatever clients send.

use penstock_tests::failing_server::{FailingServer, Way};
use penstock_tests::gateway::config;
use penstock_tests::{Answer, ClientRequest, Gateway, run, until};
use serde_json::Value;
use tokio::task::JoinHandle;

async fn gateway(servers: &[&FailingServer], keys: &str) -> Gateway {
    let addresses: Vec<_> = servers.iter().map(|server| format!("'{}'", server.address())).collect();
    let pool = format!(
        "- name: p\n  endpoints: {{static: [{}], failing: {{probe_every: 500ms}}}}\n  health: {{path: null}}\n  \
         stock: {{lower_bound_per_backend: 4, upper_bound_per_backend: 4, watermark_per_backend: 4, extra_for_idle_flows: 0}}\n  {keys}\n",
        addresses.join(", ")
    );
    Gateway::start(&config("", &[pool])).await
}

/// The endpoint's state in the status.
async fn shown(gateway: &Gateway, server: &FailingServer) -> Value {
    let pool = gateway.pool("p").await;
    let endpoints = pool["endpoints"].as_array().cloned().unwrap_or_default();
    let found = endpoints.into_iter().find(|endpoint| endpoint["address"] == server.address());
    found.unwrap_or_else(|| panic!("{} isn't in {pool}", server.address()))
}

async fn state(gateway: &Gateway, server: &FailingServer) -> String {
    shown(gateway, server).await["state"].as_str().unwrap_or_default().to_owned()
}

/// Every other tenant asks for a stream.
fn ask(gateway: &Gateway, tenant: u32) -> JoinHandle<Answer> {
    let request = ClientRequest::chat("m", "hello").header("x-penstock-tenant", &format!("t{tenant}"));
    gateway.spawn(if tenant % 2 == 1 { request.streamed() } else { request })
}

/// The client has what it asked for.
fn is_whole(answer: &Answer) -> bool {
    answer.status == 200 && answer.text().contains("hello")
}

/// Sends so many requests of four tenants, four at a time. Returns how many failed.
async fn failures(gateway: &Gateway, requests: u32) -> u32 {
    let mut failed = 0;
    for batch in 0..requests / 4 {
        let asked: Vec<_> = (0..4).map(|number| ask(gateway, (batch + number) % 4)).collect();
        for asked in asked {
            failed += u32::from(!is_whole(&asked.await.expect("answered")));
        }
    }
    failed
}

/// Sends requests until the endpoint is healthy again and serves.
async fn comes_back(gateway: &Gateway, server: &FailingServer) {
    server.way.send_replace(Way::Serve);
    until("the endpoint is healthy again", || async {
        failures(gateway, 4).await;
        let shown = shown(gateway, server).await;
        if shown["state"] == "healthy" { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
    let before = server.total();
    assert_eq!(failures(gateway, 20).await, 0);
    assert!(server.total() > before, "it serves again");
}

async fn check(way: Way, is_hidden: bool) {
    let (bad, good) = (FailingServer::start(way).await, FailingServer::start(Way::Serve).await);
    let keys = if way == Way::Hang { "timeouts: {first_byte: 700ms}" } else { "" };
    let gateway = gateway(&[&bad, &good], keys).await;
    let failed = failures(&gateway, 600).await;
    let shown = shown(&gateway, &bad).await;
    let is_out = shown["state"] == "failing" || shown["state"] == "probing";
    assert!(is_out, "{way:?}: {shown}");
    assert!(shown["reason"].as_str().is_some_and(|reason| reason.contains("fail")), "{shown}");
    assert!(!shown["since"].is_null(), "{shown}");
    assert!(failed <= 60, "{way:?}: {failed} of 600 failed");
    if is_hidden {
        assert_eq!(failed, 0, "{way:?}: no byte was passed on");
    }
    let labels = [("pool", "p"), ("endpoint", &*bad.address()), ("state", "healthy")];
    assert_eq!(gateway.metrics().await.sum("penstock_endpoint_state", &labels), 0.0);
    assert_eq!(state(&gateway, &good).await, "healthy");
    comes_back(&gateway, &bad).await;
}

#[test]
fn server_that_answers_server_errors_is_kept_away_and_no_client_sees_one() {
    run(async {
        for status in [500, 502, 504] {
            check(Way::Status(status), true).await;
        }
    });
}

#[test]
fn server_that_rejects_what_others_serve_is_kept_away() {
    run(async {
        for status in [400, 401, 403, 422] {
            check(Way::Status(status), false).await;
        }
    });
}

#[test]
fn server_that_succeeds_without_an_answer_is_kept_away() {
    run(async {
        for way in [Way::Empty, Way::NoContent, Way::Page] {
            check(way, false).await;
        }
    });
}

#[test]
fn server_that_reports_an_error_inside_its_answer_is_kept_away() {
    run(async {
        for way in [Way::ReportedError, Way::Abort] {
            check(way, false).await;
        }
    });
}

#[test]
fn server_that_cuts_every_connection_is_kept_away_and_no_client_sees_it() {
    run(check(Way::Cut, true));
}

#[test]
fn server_that_sends_nothing_is_kept_away_and_no_client_sees_it() {
    run(check(Way::Hang, true));
}

#[test]
fn no_server_is_kept_away_if_all_fail_alike() {
    run(async {
        for way in [Way::Status(500), Way::Status(401)] {
            let (one, other) =
                (FailingServer::start(Way::Serve).await, FailingServer::start(Way::Serve).await);
            let gateway = gateway(&[&one, &other], "").await;
            assert_eq!(failures(&gateway, 40).await, 0);
            one.way.send_replace(way);
            other.way.send_replace(way);
            assert_eq!(failures(&gateway, 200).await, 200, "{way:?}");
            for server in [&one, &other] {
                server.way.send_replace(Way::Serve);
            }
            for server in [&one, &other] {
                until("both are healthy", || async {
                    failures(&gateway, 4).await;
                    let shown = shown(&gateway, server).await;
                    if shown["state"] == "healthy" { Ok(()) } else { Err(shown.to_string()) }
                })
                .await;
            }
            assert_eq!(failures(&gateway, 40).await, 0);
        }
    });
}

#[test]
fn only_server_of_a_pool_stays_and_its_own_errors_reach_the_client() {
    run(async {
        let server = FailingServer::start(Way::Status(500)).await;
        let gateway = gateway(&[&server], "").await;
        for tenant in 0..20 {
            let answer = ask(&gateway, tenant % 2).await.expect("answered");
            assert_eq!(answer.status, 500, "{}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "mine", "{}", answer.text());
        }
        assert_eq!(state(&gateway, &server).await, "healthy");
        assert_eq!(server.total(), 40, "each is tried again once");
        server.way.send_replace(Way::Serve);
        assert_eq!(failures(&gateway, 8).await, 0);
    });
}

#[test]
fn bad_requests_of_a_client_keep_no_server_away() {
    run(async {
        let (one, other) =
            (FailingServer::start(Way::Reject("bad")).await, FailingServer::start(Way::Reject("bad")).await);
        let gateway = gateway(&[&one, &other], "").await;
        for round in 0..150 {
            let bad = ClientRequest::chat("m", "bad").header("x-penstock-tenant", "careless");
            // Most of them go to one server.
            let bad = if round % 3 == 0 { bad } else { bad.header("x-penstock-endpoint", &one.address()) };
            let (asked, bad) = (ask(&gateway, round % 3), gateway.spawn(bad));
            assert_eq!(asked.await.expect("answered").status, 200);
            assert_eq!(bad.await.expect("answered").status, 400);
            for server in [&one, &other] {
                let shown = shown(&gateway, server).await;
                assert_eq!(shown["state"], "healthy", "{shown}");
            }
        }
    });
}

#[test]
fn model_that_one_server_lacks_is_served_by_the_other() {
    run(async {
        let (without, with) =
            (FailingServer::start(Way::Lacks("lora")).await, FailingServer::start(Way::Serve).await);
        let gateway = gateway(&[&without, &with], "").await;
        for round in 0..40 {
            let lora = gateway.spawn(ClientRequest::chat("lora", "x")).await.expect("answered");
            assert_eq!(lora.status, 200, "{round}: {lora:?}");
            let base = ask(&gateway, round % 2).await.expect("answered");
            assert_eq!(base.status, 200, "{}", base.text());
        }
        assert_eq!(state(&gateway, &without).await, "healthy", "it serves the other model");
        let before = without.total();
        assert_eq!(failures(&gateway, 40).await, 0);
        assert!(without.total() > before, "the other model still goes there");
        // A model that no server has is the client's mistake, sent to each server once at most.
        with.way.send_replace(Way::Lacks("nowhere"));
        without.way.send_replace(Way::Lacks("nowhere"));
        let before = with.total() + without.total();
        let answer = gateway.spawn(ClientRequest::chat("nowhere", "x")).await.expect("answered");
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (404, Some("mine")));
        assert!(with.total() + without.total() <= before + 2);
    });
}

#[test]
fn request_whose_connection_is_cut_is_sent_twice() {
    run(async {
        let servers = [FailingServer::start(Way::Cut).await, FailingServer::start(Way::Cut).await];
        let gateway = gateway(&[&servers[0], &servers[1]], "").await;
        let answer = ask(&gateway, 1).await.expect("answered");
        answer.expect_error(502, "upstream_reset", "bypassed");
        assert_eq!(servers[0].total() + servers[1].total(), 2);
        for server in &servers {
            assert_eq!(state(&gateway, server).await, "healthy", "one request marks nothing");
        }
        // Others are served meanwhile.
        servers[0].way.send_replace(Way::Serve);
        servers[1].way.send_replace(Way::Serve);
        assert_eq!(failures(&gateway, 8).await, 0);
    });
}
