//! One request of the demo, from sending to its end.

use std::time::Duration;

use bytes::Bytes;
use reqwest::StatusCode;
use serde_json::Value;
use tokio::time::Instant;

/// The largest response that is read, so that a faulty server can't fill the demo's memory.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// How a request ended, as the client sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    /// A complete response.
    Served { outcome: String, ttft: Duration, input: u64, output: u64 },
    /// An error response from the gateway or a server.
    Refused { outcome: String, status: u16, retry_after: Option<Duration> },
    /// The response started, but didn't end properly.
    Cut { outcome: String, why: String },
    /// No response.
    Failed { why: String },
}

impl Ending {
    /// Whether the client got no complete response, although no limit of the queue refused the request.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Served { .. } => false,
            Self::Refused { outcome, .. } => !outcome.starts_with("rejected_") && outcome != "displaced",
            Self::Cut { .. } | Self::Failed { .. } => true,
        }
    }
}

/// Sends a request and reads the response to its end. `admitted` gets the outcome as soon as the headers of a response with
/// status 200 have arrived.
pub(super) async fn send(request: reqwest::RequestBuilder, admitted: impl FnOnce(&str)) -> Ending {
    let sent = Instant::now();
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => return Ending::Failed { why: chain(&error) },
    };
    if response.status() == StatusCode::OK {
        let outcome = outcome(&response).unwrap_or_else(|| "unnamed".to_owned());
        admitted(&outcome);
        served(response, outcome, sent).await
    } else {
        refused(response).await
    }
}

async fn refused(response: reqwest::Response) -> Ending {
    let status = response.status().as_u16();
    let header_outcome = outcome(&response);
    let retry_after =
        header(&response, "retry-after-ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    let body: Value = response.json().await.unwrap_or_default();
    // Responses of Penstock's filter have the outcome header. Servers send an error code, Envoy only a status.
    let outcome = header_outcome
        .or_else(|| body["error"]["code"].as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("http_{status}"));
    Ending::Refused { outcome, status, retry_after }
}

async fn served(mut response: reqwest::Response, outcome: String, sent: Instant) -> Ending {
    let (mut ttft, mut stream) = (None, Stream::default());
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => {
                ttft.get_or_insert_with(|| sent.elapsed());
                stream.push(&bytes);
                if stream.bytes > RESPONSE_BYTES_MAX {
                    return Ending::Cut {
                        outcome,
                        why: format!("the response is longer than {RESPONSE_BYTES_MAX} bytes"),
                    };
                }
            }
            Ok(None) => break,
            Err(error) => {
                return Ending::Cut { outcome, why: chain(&error) };
            }
        }
    }
    match (ttft, stream.usage, stream.done) {
        (Some(ttft), Some((input, output)), true) => Ending::Served { outcome, ttft, input, output },
        (_, None, true) => Ending::Cut { outcome, why: "the stream has no usage".to_owned() },
        _ => Ending::Cut { outcome, why: "the stream ended without [DONE]".to_owned() },
    }
}

/// Parser state of an event stream: the current line, the usage, and whether the stream is done.
#[derive(Debug, Default)]
struct Stream {
    line: Vec<u8>,
    bytes: usize,
    usage: Option<(u64, u64)>,
    done: bool,
}

impl Stream {
    fn push(&mut self, bytes: &Bytes) {
        self.bytes += bytes.len();
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end_line();
                self.line.clear();
            }
        }
    }

    fn end_line(&mut self) {
        let Some(data) = self.line.strip_prefix(b"data: ") else {
            return;
        };
        let data = data.trim_ascii_end();
        if data == b"[DONE]" {
            self.done = true;
        } else if let Ok(chunk) = serde_json::from_slice::<Value>(data)
            && let (Some(input), Some(output)) =
                (chunk["usage"]["prompt_tokens"].as_u64(), chunk["usage"]["completion_tokens"].as_u64())
        {
            self.usage = Some((input, output));
        }
    }
}

fn outcome(response: &reqwest::Response) -> Option<String> {
    header(response, "x-penstock-outcome").map(str::to_owned)
}

fn header<'a>(response: &'a reqwest::Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// An error with all its causes. The Display text of reqwest's errors omits the causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_lost_unless_it_was_served_or_refused_by_a_limit() {
        let refused =
            |outcome: &str| Ending::Refused { outcome: outcome.to_owned(), status: 503, retry_after: None };
        for (outcome, is_lost) in [
            ("rejected_flow_capacity", false),
            ("displaced", false),
            ("gateway_unavailable", true),
            ("dispatched", true),
        ] {
            assert_eq!(refused(outcome).is_lost(), is_lost, "{outcome}");
        }
        let why = String::new();
        assert!(Ending::Failed { why }.is_lost());
    }

    #[test]
    fn stream_is_parsed_the_same_wherever_it_is_split() {
        let text = b"data: {\"choices\":[]}\n\n: comment\n\ndata: {\"usage\":null}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}\r\n\r\ndata: [DONE]\n\n";
        for split in 0..text.len() {
            let mut stream = Stream::default();
            stream.push(&Bytes::from_static(&text[..split]));
            stream.push(&Bytes::from_static(&text[split..]));
            assert_eq!((stream.usage, stream.done), (Some((7, 9)), true), "split at {split}");
        }
        let mut cut = Stream::default();
        cut.push(&Bytes::from_static(&text[..text.len() - 4]));
        assert!(!cut.done);
    }
}
