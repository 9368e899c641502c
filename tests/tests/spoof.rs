//! Headers that are Penstock's own can't be set by anyone else: not by a client, not by a server, on no path.

use penstock_envoy::bootstrap::REQUEUE_HOST;
use penstock_tests::gateway::{answer, config, pool};
use penstock_tests::{Ask, Gateway, Upstream, run};
use serde_json::json;

/// What a client might try; `{other}` is the address of a server that isn't its pool's.
const CLAIMS: [(&str, &str); 5] = [
    ("x-gateway-destination-endpoint", "{other}"),
    ("X-Gateway-Destination-Endpoint", "{other},{other}"),
    ("x-penstock-pool", "other"),
    ("x-penstock-requeue", "AAAA"),
    ("x-penstock-tolerate", "AAAA"),
];

/// What a server might answer.
const LIES: [(&str, &str); 4] = [
    ("x-penstock-outcome", "spoofed"),
    ("x-penstock-queue-ms", "spoofed"),
    ("x-penstock-saturation", "spoofed"),
    ("x-gateway-destination-endpoint-served", "spoofed"),
];

#[test]
fn nobody_else_sets_penstocks_headers() {
    run(async {
        let (own, other) = (Upstream::scripted().await, Upstream::scripted().await);
        let pools = [
            pool("own", "own", &[&own], ""),
            pool("other", "other", &[&other], ""),
        ];
        let gateway = Gateway::start(&config("", &pools)).await;
        let other_address = other.address().to_string();

        for path in [
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/embeddings",
            "/v1/models",
            "/tokenize",
        ] {
            let queued = !matches!(path, "/v1/models" | "/tokenize");
            let mut request = gateway
                .client()
                .post(gateway.url(path))
                .json(&json!({"model": "own"}));
            for (name, value) in CLAIMS {
                request = request.header(name, value.replace("{other}", &other_address));
            }
            let asked = tokio::spawn(request.send());
            let call = own.next().await;
            assert!(
                other.arrived().await.is_none(),
                "{path} went where the client wanted"
            );
            for (name, _) in CLAIMS {
                for value in call.headers.get_all(name) {
                    let value = value.to_str().unwrap_or_default();
                    assert!(
                        !value.contains(&other_address),
                        "{path}: the server got {name}: {value}"
                    );
                    assert!(
                        !["other", "AAAA"].contains(&value),
                        "{path}: the server got {name}: {value}"
                    );
                }
            }
            let own_address = own.address().to_string();
            if queued {
                // The pool's only server, then the gateway's own listener for what no server takes.
                let list = call.header("x-gateway-destination-endpoint");
                assert_eq!(list, format!("{own_address},{REQUEUE_HOST}"), "{path}");
                assert_eq!(
                    call.headers
                        .get_all("x-gateway-destination-endpoint")
                        .iter()
                        .count(),
                    1
                );
            }
            call.respond(200, &LIES, "{}");
            let answer = answer(asked.await.expect("no panic").expect("an answer"))
                .await
                .expect("whole");
            assert_eq!(answer.status, 200);
            for (name, _) in LIES {
                for value in answer.headers.get_all(name) {
                    assert_ne!(value, "spoofed", "{path}: the client got {name} of the server");
                }
            }
            if queued {
                assert_eq!(answer.outcome(), "bypassed", "{path}: {:?}", answer.headers);
                assert_eq!(
                    answer.header("x-gateway-destination-endpoint-served"),
                    own_address,
                    "{path}"
                );
            }
        }
        let asked = gateway.spawn(Ask::chat("other", "x"));
        other.next().await.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
        gateway.stock("own", 0).await;
        gateway.stock("other", 0).await;
    });
}
