//! Identities from another Envoy filter's metadata: the claims of a token that jwt_authn has verified.

use penstock_tests::gateway::config;
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};

/// Signs tokens.
struct Issuer(KeyPair);

impl Issuer {
    fn new() -> Self {
        Self(KeyPair::generate_for(&PKCS_ED25519).expect("a key"))
    }

    /// Envoy's jwt_authn filter: requires a token of this issuer and stores its claims as `payload`.
    fn filter(&self) -> Value {
        let key = json!({
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "x": base64url(self.0.der_bytes()),
        });
        json!({
            "name": "envoy.filters.http.jwt_authn",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                "providers": {"ours": {
                    "issuer": "https://issuer.test",
                    "local_jwks": {"inline_string": json!({"keys": [key]}).to_string()},
                    "payload_in_metadata": "payload",
                }},
                "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "ours"}}],
            },
        })
    }

    fn token(&self, mut claims: Value) -> String {
        claims["iss"] = "https://issuer.test".into();
        let head = json!({"alg": "EdDSA", "typ": "JWT"}).to_string();
        let said = format!("{}.{}", base64url(head.as_bytes()), base64url(claims.to_string().as_bytes()));
        let signature = self.0.sign(said.as_bytes()).expect("signed");
        format!("{said}.{}", base64url(&signature))
    }
}

/// RFC 4648, section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for position in 0..=chunk.len() {
            let digit = bits >> (18 - 6 * position) & 63;
            text.push(DIGITS[digit as usize].into());
        }
    }
    text
}

/// A pool whose only server is held by the test, so that waiting requests appear in /status.
fn pool(server: &Upstream) -> String {
    let one = "{lower_bound_per_backend: 1, upper_bound_per_backend: 1, watermark_per_backend: 1, extra_for_idle_flows: 0}";
    format!(
        "- name: p\n  endpoints: {{static: ['{}']}}\n  health: {{path: null}}\n  stock: {one}\n",
        server.address()
    )
}

const CLAIMS: &str = "\
identity:
  fairness_id:
  - {metadata: envoy.filters.http.jwt_authn/payload/https:~1~1issuer.test~1team}
  - {metadata: envoy.filters.http.jwt_authn/payload/sub}
  - {metadata: envoy.filters.http.jwt_authn/payload/account/number}
  - {metadata: envoy.filters.http.jwt_authn/payload/internal}
  - {header: x-penstock-tenant}
  user: []
  priority: [{metadata: envoy.filters.http.jwt_authn/payload/tier}]
";

fn with(ask: ClientRequest, token: &str) -> ClientRequest {
    ask.header("authorization", &format!("Bearer {token}"))
}

#[test]
fn claims_of_a_token_are_identities() {
    run(async {
        let (server, issuer) = (Upstream::scripted().await, Issuer::new());
        let gateway = Gateway::behind(&config(CLAIMS, &[pool(&server)]), &issuer.filter()).await;
        let first =
            gateway.spawn(with(ClientRequest::chat("m", "first"), &issuer.token(json!({"sub": "first"}))));
        let mut call = server.next().await;
        let mut asked = vec![first];
        for (claims, flow, band) in [
            (json!({"sub": "acme", "tier": "critical"}), "acme", "critical"),
            (json!({"sub": "other", "https://issuer.test/team": "red"}), "red", "default"),
            (json!({"account": {"number": 4711}}), "4711", "default"),
            (json!({"internal": true, "tier": "low"}), "true", "sheddable"),
            (
                json!({"https://issuer.test/team": ["a", "list"], "account": {"number": 0.5}}),
                "0.5",
                "default",
            ),
            // Without the claim, the client's header counts.
            (json!({}), "said", "default"),
        ] {
            let ask = ClientRequest::chat("m", flow).tenant("said");
            asked.push(gateway.spawn(with(ask, &issuer.token(claims))));
            gateway.waiting("p", 1).await;
            let pool = gateway.pool("p").await;
            let flows = pool["flows"].as_array().cloned().unwrap_or_default();
            let waiting: Vec<_> = flows.iter().filter(|flow| flow["waiting"] != 0).collect();
            assert_eq!(waiting.len(), 1, "{pool}");
            assert_eq!((&waiting[0]["key"], &waiting[0]["band"]), (&json!(flow), &json!(band)), "{pool}");
            assert_eq!(call.header("authorization"), "", "Envoy keeps the token");
            call.answer();
            call = server.next().await;
            assert_eq!(call.text(), flow);
        }
        call.answer();
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn request_without_a_token_of_the_issuer_is_rejected() {
    run(async {
        let (server, issuer) = (Upstream::scripted().await, Issuer::new());
        let gateway = Gateway::behind(&config(CLAIMS, &[pool(&server)]), &issuer.filter()).await;
        let good = issuer.token(json!({"sub": "acme"}));
        let (said, _) = good.rsplit_once('.').expect("three parts");
        let forged = Issuer::new().token(json!({"sub": "acme"}));
        let expired = issuer.token(json!({"sub": "acme", "exp": 1}));
        let unsigned = format!("{said}.");
        let denied = |answer: Answer| {
            assert_eq!(answer.status, 401, "{}", answer.text());
            assert_eq!(answer.outcome(), "", "it never came to Penstock");
        };
        denied(gateway.send(ClientRequest::chat("m", "x")).await);
        for token in [&forged, &expired, &unsigned] {
            denied(gateway.send(with(ClientRequest::chat("m", "x"), token)).await);
        }
        let asked = gateway.spawn(with(ClientRequest::chat("m", "x"), &good));
        server.next().await.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
        assert_eq!(server.total(), 1);
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_arrivals_total", &[]), 1.0);
    });
}

#[test]
fn requeued_request_keeps_its_identity() {
    run(async {
        let (server, issuer) = (Upstream::scripted().await, Issuer::new());
        let gateway = Gateway::behind(&config(CLAIMS, &[pool(&server)]), &issuer.filter()).await;
        let asked = gateway.spawn(with(ClientRequest::chat("m", "x"), &issuer.token(json!({"sub": "acme"}))));
        // The token stays with the filter that verified it; the requeue listener does not require it.
        server.next().await.cut();
        let call = server.next().await;
        let pool = gateway.pool("p").await;
        let flows = pool["flows"].as_array().cloned().unwrap_or_default();
        let runs: Vec<_> =
            flows.iter().filter(|flow| flow["in_flight"] != 0).map(|flow| &flow["key"]).collect();
        assert_eq!(runs, ["acme"], "{pool}");
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
    });
}
