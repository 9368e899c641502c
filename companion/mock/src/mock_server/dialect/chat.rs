//! Responses of /v1/chat/completions.

use serde_json::{Value, json};

use super::{Answer, Dialect, Sse, finish_reason, usage};

pub(super) struct Chat;

impl Dialect for Chat {
    fn complete(&self, answer: &Answer) -> Value {
        json!({
            "id": id(answer),
            "object": "chat.completion",
            "created": answer.created,
            "model": answer.model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": answer.text, "refusal": null},
                "logprobs": null,
                "finish_reason": finish_reason(answer),
            }],
            "usage": usage(answer),
        })
    }

    fn start(&self, answer: &Answer, out: &mut Sse) {
        out.data(&chunk(answer, &json!({"role": "assistant", "content": ""}), None));
    }

    fn token(&self, answer: &Answer, text: &str, out: &mut Sse) {
        out.data(&chunk(answer, &json!({"content": text}), None));
    }

    fn end(&self, answer: &Answer, out: &mut Sse) {
        out.data(&chunk(answer, &json!({}), Some(finish_reason(answer))));
        if answer.include_usage {
            let mut last = chunk(answer, &Value::Null, None);
            last["choices"] = json!([]);
            last["usage"] = usage(answer);
            out.data(&last);
        }
        out.raw("[DONE]");
    }
}

fn id(answer: &Answer) -> String {
    format!("chatcmpl-mock-{}", answer.number)
}

fn chunk(answer: &Answer, delta: &Value, finish: Option<&str>) -> Value {
    let mut chunk = json!({
        "id": id(answer),
        "object": "chat.completion.chunk",
        "created": answer.created,
        "model": answer.model,
        "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
    });
    if answer.include_usage {
        chunk["usage"] = Value::Null;
    }
    chunk
}
