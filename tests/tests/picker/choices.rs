//! Which endpoint a request gets, and what the gateway may say about that.

use penstock_tests::gateway::{pool, slots};
use penstock_tests::picker::Setup;
use penstock_tests::ports::free_address;
use penstock_tests::{ClientRequest, Modes, PickerGateway, Upstream, run};
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
fn a_server_that_refuses_the_connection_is_left_out() {
    run(async {
        let server = Upstream::scripted().await;
        let gone = Upstream::scripted().await;
        let keys = "  stock: {watermark_per_backend: none}\n  scheduler: {prefix: 0}\n";
        let pools = [pool("chat", "", &[&gone, &server], keys)];
        let gateway = PickerGateway::start("", &pools, Modes::FULL_DUPLEX).await;
        drop(gone);
        let mut statuses = Vec::new();
        for _ in 0..8 {
            let answer = gateway.spawn(ClientRequest::chat("m", "hi"));
            tokio::select! {
                call = server.next() => { call.answer(); }
                () = async { while !answer.is_finished() { tokio::task::yield_now().await; } } => {}
            }
            statuses.push(answer.await.expect("no panic").status);
        }
        assert_eq!(statuses.last(), Some(&200), "{statuses:?}");
        gateway.stock("chat", 0).await;
    });
}
