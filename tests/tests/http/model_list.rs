//! `GET /v1/models` and `/v1/models/ID`: the union of all pools, answered by the gateway, also while pools and the companion are away.

use http::Method;
use penstock_tests::gateway::{config, pool};
use penstock_tests::process::send;
use penstock_tests::{Answer, Gateway, Upstream, run, until};
use serde_json::json;

use super::api_keys::{Key, KeyFile};

async fn ask(gateway: &Gateway, method: Method, path: &str, key: &str) -> Answer {
    let request = gateway.client().request(method, gateway.url(path)).bearer_auth(key);
    Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer")
}

async fn get(gateway: &Gateway, path: &str, key: &str) -> Answer {
    ask(gateway, Method::GET, path, key).await
}

fn ids(answer: &Answer) -> Vec<String> {
    let list = answer.json();
    let data = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    data.iter().map(|model| model["id"].as_str().expect("a name").to_owned()).collect()
}

/// Waits until the list has these models, in this order.
async fn listed(gateway: &Gateway, key: &str, expected: &[&str]) {
    until(&format!("{expected:?} are listed"), || async {
        let answer = get(gateway, "/v1/models", key).await;
        if answer.status == 200 && ids(&answer) == expected { Ok(()) } else { Err(answer.text()) }
    })
    .await;
}

#[test]
fn list_is_the_union_of_all_pools_and_outlives_their_servers_and_the_companion() {
    run(async {
        let (big, small) = (Upstream::scripted().await, Upstream::scripted().await);
        big.list_models(&["Org/Big", "org/adapter", "elsewhere"]);
        small.list_models(&["small"]);
        let rewrite = "  rewrite: [{model: alias, targets: [{name: Org/Big}]}]\n";
        let key = Key::of("acme");
        let pools = [
            pool("big", "'Org/*', 'org/*', alias, 'spare'", &[&big], rewrite),
            pool("small", "'small*'", &[&small], ""),
        ];
        let gateway = Gateway::start(&config(&KeyFile::with(&[&key]).identity(""), &pools)).await;
        let all = ["Org/Big", "org/adapter", "alias", "spare", "small"];
        listed(&gateway, &key.key, &all).await;

        let answer = get(&gateway, "/v1/models", &key.key).await;
        assert_eq!(answer.header("content-type"), "application/json");
        let list = answer.json();
        let expected = json!({
            "id": "Org/Big", "object": "model", "created": 7, "owned_by": "vllm",
            "type": "model", "display_name": "Org/Big", "created_at": "1970-01-01T00:00:07Z",
        });
        assert_eq!((&list["object"], &list["data"][0]), (&json!("list"), &expected));
        assert_eq!(
            (&list["has_more"], &list["first_id"], &list["last_id"]),
            (&json!(false), &json!("Org/Big"), &json!("small"))
        );

        for (path, id) in [
            ("/v1/models/Org/Big", "Org/Big"),
            ("/v1/models/Org%2FBig", "Org/Big"),
            ("//v1/models/Org%2FBig/", "Org/Big"),
            ("/v1/models/small?beta=true", "small"),
            ("/v1/models/alias", "alias"),
        ] {
            let answer = get(&gateway, path, &key.key).await;
            assert_eq!((answer.status, &answer.json()["id"]), (200, &json!(id)), "{path}");
        }
        // A name that isn't listed is asked of the server that would get its requests.
        let asking = get(&gateway, "/v1/models/Org%2FUnlisted", &key.key);
        let (answer, ()) = tokio::join!(asking, async {
            let call = big.next().await;
            assert_eq!(call.path, "/v1/models/Org/Unlisted", "Envoy decodes slashes");
            call.respond(404, &[], "");
        });
        assert_eq!(answer.status, 404);
        for path in ["/v1/models/elsewhere", "/v1/models/Big"] {
            let answer = get(&gateway, path, &key.key).await;
            let error = &answer.json()["error"];
            assert_eq!(
                (answer.status, &error["code"], &error["param"]),
                (404, &json!("model_not_found"), &json!("model")),
                "{path}"
            );
        }
        let answer = ask(&gateway, Method::HEAD, "/v1/models", &key.key).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        assert_eq!(
            get(&gateway, "/v1/models", "another").await.status,
            401,
            "the list is for those who have a key"
        );

        // No client's request for a list has reached a server.
        drop(small);
        send(gateway.process.pid(), libc::SIGSTOP);
        send(gateway.child("serve").await, libc::SIGKILL);
        for _ in 0..3 {
            assert_eq!(ids(&get(&gateway, "/v1/models", &key.key).await), all, "both are away");
        }
        send(gateway.process.pid(), libc::SIGCONT);
        assert_eq!((big.total(), ids(&get(&gateway, "/v1/models", &key.key).await).is_empty()), (1, false));
    });
}

#[test]
fn without_a_list_a_request_passes_and_a_refused_path_stays_refused() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = Gateway::start(&config("", &[pool("p", "", &[&server], "")])).await;
        let asking = get(&gateway, "/v1/models", "key");
        let (answer, ()) = tokio::join!(asking, async {
            let call = server.next().await;
            assert_eq!((call.method.as_str(), call.path.as_str()), ("GET", "/v1/models"));
            call.answer();
        });
        assert_eq!(answer.status, 200);

        server.list_models(&["m"]);
        let refusing =
            config("paths: {refused: [/v1/models, '/v1/models/*']}\n", &[pool("p", "", &[&server], "")]);
        let gateway = Gateway::start(&refusing).await;
        for path in ["/v1/models", "/v1/models/m"] {
            let answer = get(&gateway, path, "key").await;
            assert_eq!(
                (answer.status, answer.json()["error"]["code"].clone()),
                (403, json!("path_refused")),
                "{path}"
            );
        }
        // What computes under that path is queued, whatever the list has.
        let gateway = Gateway::start(&config("", &[pool("p", "", &[&server], "")])).await;
        listed(&gateway, "key", &["m"]).await;
        let body = json!({"model": "m", "instances": []});
        let asking = gateway.client().post(gateway.url("/v1/models/m:predict")).json(&body).send();
        let (answer, ()) = tokio::join!(asking, async {
            let call = server.next().await;
            assert_eq!(call.path, "/v1/models/m:predict");
            call.answer();
        });
        assert_eq!(answer.expect("an answer").status(), 200);
        let page = gateway.metrics().await;
        assert!(page.sum("penstock_arrivals_total", &[("model", "m")]) > 0.0, "{}", page.text());
    });
}
