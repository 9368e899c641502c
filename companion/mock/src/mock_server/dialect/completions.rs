//! Responses of /v1/completions.

use serde_json::{Value, json};

use super::{Answer, Dialect, Sse, finish_reason, usage};

pub(super) struct Completions;

impl Dialect for Completions {
    fn complete(&self, answer: &Answer) -> Value {
        let mut response = chunk(answer, &answer.text, Some(finish_reason(answer)));
        response["usage"] = usage(answer);
        response
    }

    fn start(&self, _: &Answer, _: &mut Sse) {}

    fn token(&self, answer: &Answer, text: &str, out: &mut Sse) {
        out.data(&chunk(answer, text, None));
    }

    fn end(&self, answer: &Answer, out: &mut Sse) {
        out.data(&chunk(answer, "", Some(finish_reason(answer))));
        if answer.include_usage {
            let mut last = chunk(answer, "", None);
            last["choices"] = json!([]);
            last["usage"] = usage(answer);
            out.data(&last);
        }
        out.raw("[DONE]");
    }
}

fn chunk(answer: &Answer, text: &str, finish: Option<&str>) -> Value {
    json!({
        "id": format!("cmpl-mock-{}", answer.number),
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": finish}],
    })
}
