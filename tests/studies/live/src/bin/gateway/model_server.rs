//! The benchmark's model server: it reads the whole request and answers at once, streams events at a fixed rate for `"stream": true`, or
//! never answers for `"hold": true`. Its page of metrics is that of an idle vLLM, as far as endpoint pickers read it.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::IntervalStream;

/// Events per second of one stream.
pub(crate) const EVENTS_PER_S: u64 = 50;

/// One stream event, always the same bytes.
pub(crate) const EVENT: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\
    \"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";

/// The first key of a body decides whether the answer is streamed or withheld; the clients here write it first.
pub(crate) const STREAM: &str = r#"{"stream":true,"#;
/// An endpoint picker writes the body anew, with sorted keys: then the key is the last.
const STREAM_SORTED: &str = r#","stream":true}"#;
pub(crate) const HOLD: &str = r#"{"hold":true,"#;

const METRICS: &str = "\
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name=\"m\"} 0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name=\"m\"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name=\"m\"} 0
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"4096\"} 1
";

/// Serves until the process is killed.
pub(crate) async fn serve(listener: TcpListener) {
    let answer = Bytes::from(
        json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
            "usage": {"prompt_tokens": 240, "completion_tokens": 1, "total_tokens": 241},
        })
        .to_string(),
    );
    loop {
        let (socket, _) = listener.accept().await.expect("there are files left");
        // An optimisation; the socket works without it.
        let _ = socket.set_nodelay(true);
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| serve_one(request, answer.clone()));
            // An error means that the client has closed the connection.
            let _cut = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

async fn serve_one(
    request: Request<Incoming>,
    answer: Bytes,
) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    if request.uri().path() == "/metrics" {
        return Ok(response("text/plain; version=0.0.4", Full::from(METRICS).boxed()));
    }
    let mut body = request.into_body();
    let (mut first, mut last) = (Bytes::new(), Bytes::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data()
            && !data.is_empty()
        {
            if first.is_empty() {
                first = data.clone();
            }
            last = data;
        }
    }
    if first.starts_with(HOLD.as_bytes()) {
        std::future::pending::<()>().await;
    }
    let streams = first.starts_with(STREAM.as_bytes()) || last.ends_with(STREAM_SORTED.as_bytes());
    Ok(if streams {
        response("text/event-stream", BodyExt::boxed(StreamBody::new(events())))
    } else {
        response("application/json", Full::new(answer).boxed())
    })
}

fn response(kind: &'static str, body: BoxBody<Bytes, Infallible>) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// Endless; the client disconnects.
fn events() -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let mut pace = tokio::time::interval(Duration::from_micros(1_000_000 / EVENTS_PER_S));
    // A late event does not make the following events arrive in one piece.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    IntervalStream::new(pace).map(|_| Ok(Frame::data(Bytes::from_static(EVENT.as_bytes()))))
}
