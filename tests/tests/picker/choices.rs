//! Which endpoint a request gets, and what the gateway may say about that.

use std::time::Duration;

use penstock_tests::gateway::{pool, slots};
use penstock_tests::picker::Setup;
use penstock_tests::ports::free_address;
use penstock_tests::{ClientRequest, Modes, PickerGateway, Upstream, run, until};
use serde_json::json;

#[test]
fn a_gateway_reads_the_endpoint_from_metadata_over_tls() {
    run(async {
        let server = Upstream::scripted().await;
        let setup = Setup { reads_metadata: true, has_tls: true, ..Setup::default() };
        let gateway =
            PickerGateway::with("", &[pool("chat", "", &[&server], "")], ", tls: auto", &setup).await;
        let answer = gateway.spawn(ClientRequest::chat("m", "hi"));
        server.next().await.answer();
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status, 200, "{}", gateway.logs());
        assert_eq!(answer.header("x-gateway-destination-endpoint-served"), server.address().to_string());
    });
}

#[test]
fn the_body_gets_the_target_model_in_modes_that_send_it() {
    run(async {
        let rewrite = "  rewrite: [{model: chat, targets: [{name: a-much-longer-name-of-a-model}]}]\n";
        for request_body in ["FULL_DUPLEX_STREAMED", "BUFFERED"] {
            let server = Upstream::scripted().await;
            let modes = Modes { request_body, ..Modes::FULL_DUPLEX };
            let gateway = PickerGateway::start("", &[pool("chat", "", &[&server], rewrite)], modes).await;
            for words in [1, 100_000] {
                let ask = ClientRequest::chat("chat", &"word ".repeat(words));
                let mut expected = ask.body();
                expected["model"] = "a-much-longer-name-of-a-model".into();
                let answer = gateway.spawn(ask);
                let call = server.next().await;
                assert!(call.json() == expected, "{request_body} {words}: {} bytes", call.body.len());
                call.answer();
                assert_eq!(answer.await.expect("no panic").status, 200);
            }
        }
    });
}

#[test]
fn the_gateways_subset_restricts_a_request() {
    run(async {
        let servers = [Upstream::scripted().await, Upstream::scripted().await];
        let pools = [pool("chat", "", &[&servers[0], &servers[1]], &slots(4))];
        let subset = |list: &str| {
            vec![("envoy.lb.subset_hint", json!({"x-gateway-destination-endpoint-subset": list}))]
        };
        let second = servers[1].address().to_string();
        let setup = Setup { metadata: subset(&second), ..Setup::default() };
        // An untrusted client: the gateway's word counts all the same.
        let gateway = PickerGateway::with("identity: {trust: none}\n", &pools, "", &setup).await;
        for _ in 0..3 {
            let answer = gateway.spawn(ClientRequest::chat("m", "hi"));
            servers[1].next().await.answer();
            assert_eq!(answer.await.expect("no panic").status, 200);
        }
        assert_eq!(servers[0].total(), 0);
        drop(gateway);
        for list in ["", "127.0.0.1:1"] {
            let setup = Setup { metadata: subset(list), ..Setup::default() };
            let gateway = PickerGateway::with("", &pools, "", &setup).await;
            let answer = gateway.send(ClientRequest::chat("m", "hi")).await;
            answer.expect_error(503, "no_endpoints", "no_endpoints");
        }
    });
}

#[test]
fn the_port_chooses_the_pool_whatever_the_model() {
    run(async {
        let servers = [Upstream::scripted().await, Upstream::scripted().await];
        let port = free_address();
        let pools = [
            pool("first", "llama*", &[&servers[0]], ""),
            pool("second", "qwen*", &[&servers[1]], &format!("  picker_port: {}\n", port.port())),
        ];
        let setup = Setup { picker: Some(port), ..Setup::default() };
        let gateway = PickerGateway::with("", &pools, "", &setup).await;
        for model in ["llama-8b", "other"] {
            let answer = gateway.spawn(ClientRequest::chat(model, "hi"));
            servers[1].next().await.answer();
            let answer = answer.await.expect("no panic");
            assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        }
        assert_eq!(servers[0].total(), 0);
        gateway.stock("second", 0).await;
    });
}

#[test]
fn a_server_that_refuses_connections_is_marked_down() {
    run(async {
        let server = Upstream::serving(Duration::ZERO).await;
        let gone = Upstream::scripted().await;
        let address = gone.address().to_string();
        let keys = "  scheduler: {prefix: 0}\n  down: {first: 60s, max: 60s}\n";
        let pools = [pool("chat", "", &[&gone, &server], keys)];
        let gateway = PickerGateway::start("", &pools, Modes::FULL_DUPLEX).await;
        drop(gone);
        let ask = || gateway.send(ClientRequest::chat("m", "hi"));
        until("the server is down", || async {
            let answer = ask().await;
            if answer.status != 200 {
                assert_eq!((answer.status, answer.code()), (503, "upstream_unavailable".to_owned()));
            }
            let labels = [("endpoint", address.as_str()), ("state", "down")];
            match gateway.metrics().await.sum("penstock_endpoint_state", &labels) {
                1.0 => Ok(()),
                seen => Err(format!("{seen} after {}", answer.status)),
            }
        })
        .await;
        for _ in 0..8 {
            assert_eq!(ask().await.status, 200);
        }
        gateway.stock("chat", 0).await;
    });
}
