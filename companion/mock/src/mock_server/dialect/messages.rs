//! Responses of /v1/messages, Anthropic's API.

use serde_json::{Value, json};

use super::{Answer, Dialect, Sse};

pub(super) struct Messages;

impl Dialect for Messages {
    fn complete(&self, answer: &Answer) -> Value {
        let content = [json!({"type": "text", "text": answer.text})];
        message(answer, &content, Some(stop_reason(answer)), answer.output)
    }

    fn start(&self, answer: &Answer, out: &mut Sse) {
        let message = message(answer, &[], None, 1);
        out.event("message_start", &json!({"type": "message_start", "message": message}));
        let block = json!({"type": "text", "text": ""});
        let start = json!({"type": "content_block_start", "index": 0, "content_block": block});
        out.event("content_block_start", &start);
        out.event("ping", &json!({"type": "ping"}));
    }

    fn token(&self, _: &Answer, text: &str, out: &mut Sse) {
        let delta = json!({"type": "text_delta", "text": text});
        out.event("content_block_delta", &json!({"type": "content_block_delta", "index": 0, "delta": delta}));
    }

    fn end(&self, answer: &Answer, out: &mut Sse) {
        out.event("content_block_stop", &json!({"type": "content_block_stop", "index": 0}));
        let delta = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason(answer), "stop_sequence": null},
            "usage": {"output_tokens": answer.output},
        });
        out.event("message_delta", &delta);
        out.event("message_stop", &json!({"type": "message_stop"}));
    }

    fn error(&self, kind: &str, _: Option<&str>, message: &str) -> Value {
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }
}

fn stop_reason(answer: &Answer) -> &'static str {
    if answer.limited { "max_tokens" } else { "end_turn" }
}

fn message(answer: &Answer, content: &[Value], stop_reason: Option<&str>, output: u64) -> Value {
    json!({
        "id": format!("msg_mock_{}", answer.number),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": null,
        "usage": {"input_tokens": answer.input, "output_tokens": output},
    })
}
