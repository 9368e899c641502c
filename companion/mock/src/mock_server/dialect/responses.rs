//! Responses of /v1/responses.

use serde_json::{Value, json};

use super::{Answer, Dialect, Sse};

pub(super) struct Responses;

impl Dialect for Responses {
    fn complete(&self, answer: &Answer) -> Value {
        let (status, details) = final_status(answer);
        response(answer, status, &details, &[item(answer, "completed")], &usage(answer))
    }

    fn start(&self, answer: &Answer, out: &mut Sse) {
        let started = response(answer, "in_progress", &Value::Null, &[], &Value::Null);
        let mut item = item(answer, "in_progress");
        item["content"] = json!([]);
        send(out, "response.created", 0, json!({"response": started}));
        send(out, "response.in_progress", 1, json!({"response": started}));
        send(out, "response.output_item.added", 2, json!({"output_index": 0, "item": item}));
        send(out, "response.content_part.added", 3, with_position(answer, json!({"part": part("")})));
    }

    fn token(&self, answer: &Answer, text: &str, out: &mut Sse) {
        let delta = with_position(answer, json!({"delta": text, "logprobs": []}));
        send(out, "response.output_text.delta", OPENING + answer.output - 1, delta);
    }

    fn end(&self, answer: &Answer, out: &mut Sse) {
        let next = OPENING + answer.output;
        let text = with_position(answer, json!({"text": answer.text, "logprobs": []}));
        send(out, "response.output_text.done", next, text);
        let done = with_position(answer, json!({"part": part(&answer.text)}));
        send(out, "response.content_part.done", next + 1, done);
        let done = json!({"output_index": 0, "item": item(answer, "completed")});
        send(out, "response.output_item.done", next + 2, done);
        let (status, _) = final_status(answer);
        send(out, &format!("response.{status}"), next + 3, json!({"response": self.complete(answer)}));
    }
}

/// Number of events before the first token.
const OPENING: u64 = 4;

fn send(out: &mut Sse, kind: &str, sequence: u64, mut event: Value) {
    event["type"] = json!(kind);
    event["sequence_number"] = json!(sequence);
    out.event(kind, &event);
}

/// Adds the position of the response's only content part.
fn with_position(answer: &Answer, mut event: Value) -> Value {
    event["item_id"] = json!(format!("msg_mock_{}", answer.number));
    event["output_index"] = json!(0);
    event["content_index"] = json!(0);
    event
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

fn item(answer: &Answer, status: &str) -> Value {
    json!({
        "type": "message",
        "id": format!("msg_mock_{}", answer.number),
        "status": status,
        "role": "assistant",
        "content": [part(&answer.text)],
    })
}

fn final_status(answer: &Answer) -> (&'static str, Value) {
    if answer.limited {
        ("incomplete", json!({"reason": "max_output_tokens"}))
    } else {
        ("completed", Value::Null)
    }
}

fn usage(answer: &Answer) -> Value {
    json!({
        "input_tokens": answer.input,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.input + answer.output,
    })
}

fn response(answer: &Answer, status: &str, details: &Value, output: &[Value], usage: &Value) -> Value {
    json!({
        "id": format!("resp_mock_{}", answer.number),
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "error": null,
        "incomplete_details": details,
        "instructions": null,
        "metadata": {},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": true,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    })
}
