//! The companion as the endpoint picker of an Envoy Gateway that loads no filter: an EnvoyExtensionPolicy asks it, and a
//! BackendTrafficPolicy sends requests where it says.

use penstock_tests::gateway::{pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::ports::free_address;
use penstock_tests::{Answer, ClientRequest, Upstream, run, until};

use super::{Gateway, Plan};

/// The resources, for these modes of bodies.
fn resources(picker: std::net::SocketAddr, servers: &[&Upstream], mode: &str) -> String {
    let endpoint = |address: std::net::SocketAddr| {
        format!("  - ip: {{address: {}, port: {}}}\n", address.ip(), address.port())
    };
    let backend = |name: &str, endpoints: String| {
        format!(
            "---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}, namespace: default}}
spec:
  endpoints:
{endpoints}"
        )
    };
    let servers = servers.iter().map(|server| endpoint(server.address())).collect();
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: models, namespace: default}}
spec:
  parentRefs: [{{name: eg}}]
  rules:
  - backendRefs: [{{group: gateway.envoyproxy.io, kind: Backend, name: servers}}]
    timeouts: {{request: 0s}}
{}{}---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
metadata: {{name: picked, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: models}}]
  loadBalancer:
    type: LeastRequest
    endpointOverride: {{extractFrom: [{{header: x-gateway-destination-endpoint}}]}}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyExtensionPolicy
metadata: {{name: picker, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: models}}]
  extProc:
  - backendRefs: [{{group: gateway.envoyproxy.io, kind: Backend, name: picker}}]
    messageTimeout: 60s
    failOpen: false
    processingMode: {{request: {{body: {mode}}}, response: {{body: {mode}}}}}
    metadata: {{accessibleNamespaces: [envoy.lb], writableNamespaces: [envoy.lb]}}
",
        backend("servers", servers),
        backend("picker", endpoint(picker)),
    )
}

/// A gateway whose pool has these servers, with one request at a time each.
async fn start(servers: &[&Upstream], mode: &str) -> Gateway {
    let picker = free_address();
    let pools = [pool("chat", "", servers, &format!("  health: {{path: null}}\n{}", slots(1)))];
    let plan = Plan::new(&pools, &format!("picker: {{listen: '{picker}'}}\n"));
    let gateway = plan.start("", &resources(picker, servers, mode)).await;
    gateway.listens().await;
    gateway
}

/// Waits until the picker answers.
async fn answers(gateway: &Gateway, server: &Upstream) -> Answer {
    let asked = gateway.spawn(ClientRequest::chat("m", "first"));
    until("the gateway asks the picker", || async {
        match asked.is_finished() || server.in_flight() > 0 {
            true => Ok(()),
            false => Err(gateway.gateway.tail()),
        }
    })
    .await;
    if server.in_flight() > 0 {
        server.next().await.answer();
    }
    asked.await.expect("no panic")
}

#[test]
fn requests_pass_by_the_pickers_choice_and_in_its_order() {
    run(async {
        for mode in ["FullDuplexStreamed", "Buffered"] {
            let (one, two) = (Upstream::scripted().await, Upstream::scripted().await);
            let gateway = start(&[&one, &two], mode).await;
            // Both are full; a third request waits in the companion.
            let texts = ["1", "2", "3"];
            let mut asked = Vec::new();
            for text in texts {
                asked.push(gateway.spawn(ClientRequest::chat("m", text)));
                if text != "3" {
                    gateway.pages.stock("chat", text.parse().expect("a number")).await;
                }
            }
            gateway.pages.waiting("chat", 1).await;
            assert_eq!((one.in_flight(), two.in_flight()), (1, 1), "{mode}");
            one.next().await.answer_with(3, 2);
            one.next().await.answer_with(3, 2);
            two.next().await.answer_with(3, 2);
            for answer in asked {
                let answer = answer.await.expect("no panic");
                assert_eq!(answer.status, 200, "{mode}: {}", answer.text());
                assert!(
                    ["bypassed", "dispatched"].contains(&answer.outcome()),
                    "{mode}: {}",
                    answer.outcome()
                );
            }
            gateway.pages.stock("chat", 0).await;
            assert_eq!((one.peak(), two.peak()), (1, 1), "{mode}");
        }
    });
}

#[test]
fn long_bodies_and_streams_pass_over_both_versions_of_http() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&[&server], "FullDuplexStreamed").await;
        let large = || ClientRequest::chat("m", &"x".repeat(8 << 20));
        let asked = gateway.spawn(large());
        let call = server.next().await;
        assert!(call.json() == large().body(), "{} bytes", call.body.len());
        call.answer();
        assert_eq!(asked.await.expect("no panic").status, 200);

        let mut client = H2c::connect(gateway.address).await;
        let asked = client.ask(&large().streamed()).await;
        let stream = server.next().await.stream();
        stream.text("one");
        stream.text("two");
        stream.finish(1, 2);
        let answer = H2c::answer(asked).await.expect("an answer over HTTP/2");
        assert!(answer.text().contains("one") && answer.text().contains("two"), "{}", answer.text());
        gateway.pages.stock("chat", 0).await;

        let refused = gateway.send(ClientRequest::to("/v1/nothing", serde_json::json!({}))).await;
        refused.expect_error(404, "path_not_found", "rejected_invalid");
    });
}

#[test]
fn without_the_picker_requests_are_refused_until_it_is_back() {
    run(async {
        let server = Upstream::scripted().await;
        let mut gateway = start(&[&server], "FullDuplexStreamed").await;
        assert_eq!(answers(&gateway, &server).await.status, 200);
        gateway.kill_companion().await;
        assert_eq!(gateway.send(ClientRequest::chat("m", "away")).await.status, 500);
        assert_eq!(server.in_flight(), 0, "failOpen is false");
        gateway.start_companion().await;
        until("the picker is back", || async {
            let answer = answers(&gateway, &server).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        })
        .await;
    });
}
