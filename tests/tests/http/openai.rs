//! OpenAI's Python client through the gateway: it works unchanged and handles rejections correctly.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, python, run, until};
use serde_json::Value;
use tokio::sync::OnceCell;

struct Fixture {
    gateway: Gateway,
    served: Upstream,
    refused: Upstream,
}

async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let (served, refused) = (Upstream::scripted().await, Upstream::scripted().await);
            let no_queue = format!("{}  queue: {{enabled: false}}\n", slots(1));
            let pools = [
                pool("served", "served", &[&served], ""),
                pool("refused", "refused", &[&refused], &no_queue),
            ];
            Fixture { gateway: Gateway::start(&config("", &pools)).await, served, refused }
        })
        .await
}

/// Starts `script` with a client; its last line of output must be JSON.
fn start(gateway: &Gateway, script: &str) -> tokio::task::JoinHandle<Value> {
    let head = "\
import json, time, openai
sent, answered = [], []
def on_request(request): sent.append(time.monotonic())
def on_response(response): answered.append((time.monotonic(), response.status_code, dict(response.headers)))
client = openai.OpenAI(base_url=BASE, api_key='k', max_retries=2, http_client=openai.DefaultHttpxClient(
    trust_env=False, event_hooks={'request': [on_request], 'response': [on_response]}))
ask = [{'role': 'user', 'content': 'hello'}]
";
    let script = format!("BASE = '{}'\n{head}{script}", gateway.url("/v1"));
    let mut command = python::script(&python::package(python::OPENAI), &script);
    tokio::spawn(async move {
        let output = command.output().await.expect("python3 runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        serde_json::from_str(out.trim()).unwrap_or_else(|e| panic!("{e}: {out}{err}"))
    })
}

#[test]
fn whole_and_streamed_responses_pass() {
    run(async {
        let all = shared().await;
        let script = "\
whole = client.chat.completions.create(model='served', messages=ask)
text, usage = '', None
for event in client.chat.completions.create(model='served', messages=ask, stream=True, stream_options={'include_usage': True}):
    if event.choices: text += event.choices[0].delta.content or ''
    if event.usage: usage = event.usage.total_tokens
print(json.dumps({'whole': whole.choices[0].message.content, 'total': whole.usage.total_tokens, 'text': text, 'usage': usage}))
";
        let ran = start(&all.gateway, script);
        all.served.next().await.answer_with(5, 6);
        let call = all.served.next().await;
        assert_eq!(call.json()["stream_options"]["include_usage"], true);
        let events = call.stream();
        for piece in ["a ", "b ", "c"] {
            events.text(piece);
        }
        events.finish(7, 3);
        let seen = ran.await.expect("python ends well");
        assert_eq!(seen, serde_json::json!({"whole": "hello", "total": 11, "text": "a b c", "usage": 10}));
    });
}

#[test]
fn errors_raise_the_client_library_exceptions() {
    run(async {
        let all = shared().await;
        let script = "\
try:
    client.chat.completions.create(model='unheard-of', messages=ask)
except openai.NotFoundError as e:
    print(json.dumps({'status': e.status_code, 'code': e.code, 'type': e.type, 'message': e.body['message']}))
";
        let seen = start(&all.gateway, script).await.expect("python ends well");
        assert_eq!(seen["status"], 404);
        assert_eq!(seen["code"], "model_not_found");
        assert_eq!(seen["type"], "invalid_request_error");
        assert!(seen["message"].as_str().is_some_and(|m| m.contains("unheard-of")), "{seen}");
    });
}

#[test]
fn rejected_client_obeys_retry_after_and_is_served() {
    run(async {
        let all = shared().await;
        let gateway = &all.gateway;
        let held = gateway.spawn(ClientRequest::chat("refused", "held"));
        let call = all.refused.next().await;
        let script = "\
answer = client.chat.completions.with_raw_response.create(model='refused', messages=ask)
print(json.dumps({'retries': answer.retries_taken, 'statuses': [a[1] for a in answered], 'first': answered[0][2],
    'pause': sent[1] - answered[0][0]}))
";
        let ran = start(gateway, script);
        until("a refusal", || async {
            let labels = [("pool", "refused"), ("outcome", "rejected_policy")];
            let seen = gateway.metrics().await.sum("penstock_requests_total", &labels);
            if seen == 1.0 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        call.answer();
        assert_eq!(held.await.expect("answered").status, 200);
        let again = all.refused.next().await;
        assert_eq!(again.header("x-stainless-retry-count"), "1");
        again.answer();
        let seen = ran.await.expect("python ends well");
        assert_eq!(seen["retries"], 1, "{seen}");
        assert_eq!(seen["statuses"], serde_json::json!([503, 200]), "{seen}");
        let told: f64 =
            seen["first"]["retry-after-ms"].as_str().and_then(|v| v.parse().ok()).expect("retry-after-ms");
        let pause = seen["pause"].as_f64().expect("a number");
        // The client's default backoff starts at half a second, so a longer wait follows Retry-After.
        assert!(told >= 1_000.0 && pause * 1_000.0 >= told, "{seen}");
    });
}
