//! The part of llm-d's sidecar in front of a server that decodes: a request that names an endpoint for its prompt has the prompt computed
//! there first, and begins here with a full cache. If that endpoint fails, this server computes the prompt too.

use axum::http::HeaderMap;
use bytes::Bytes;
use serde_json::Value;

use super::request::Api;

/// The header that names the endpoint, `ip:port`.
const HEADER: &str = "x-prefiller-host-port";

/// Has the prompt of a request computed where its headers say. Returns whether it was.
pub(super) async fn prefill(
    client: &reqwest::Client,
    api: Api,
    path: &str,
    headers: &HeaderMap,
    body: &Bytes,
) -> bool {
    let named = headers.get(HEADER).and_then(|value| value.to_str().ok()).filter(|_| api != Api::Embeddings);
    let Some((address, body)) = named.zip(prompt_only(api, body)) else {
        return false;
    };
    let mut request =
        client.post(format!("http://{address}{path}")).header("content-type", "application/json").body(body);
    if let Some(id) = headers.get("x-request-id").and_then(|id| id.to_str().ok()) {
        request = request.header("x-request-id", id);
    }
    match request.send().await.and_then(reqwest::Response::error_for_status) {
        // The answer, one token, is of no use; the whole of it shows that the prompt is computed.
        Ok(response) => response.bytes().await.is_ok(),
        Err(_) => false,
    }
}

/// The body of a request for one token, which isn't streamed; `None` if it isn't an object.
fn prompt_only(api: Api, body: &[u8]) -> Option<Vec<u8>> {
    let mut body: Value = serde_json::from_slice(body).ok()?;
    let fields = body.as_object_mut()?;
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens", "stream_options"] {
        fields.remove(name);
    }
    let limit = match api {
        Api::Responses => "max_output_tokens",
        Api::Chat | Api::Completions | Api::Embeddings | Api::Messages => "max_tokens",
    };
    fields.insert(limit.into(), 1.into());
    fields.insert("stream".into(), false.into());
    serde_json::to_vec(&body).ok()
}
