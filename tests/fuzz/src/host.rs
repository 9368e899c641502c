//! A fake Envoy for a worker: random bits, shared data, properties and header maps from the input, and checks of the
//! worker's results.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::properties::Properties;
use penstock_filter_core::session::Epoch;
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_wire::names;
use serde_json::Value;

use super::choices::Choices;
use super::frames::ADDRESSES;

/// A queued path.
pub const PATH: &str = "/v1/chat/completions";

/// The random values of the host.
pub const DRAW: RandomBits = RandomBits { epoch: Epoch { hi: 1, lo: 2 }, envoy: 3, key: [4; 16] };

/// Envoy's shared data: a map that other workers write to as well.
#[derive(Clone, Debug, Default)]
pub struct Shared(Rc<RefCell<Entries>>);

/// Values and versions by key.
type Entries = BTreeMap<String, (Vec<u8>, u32)>;

impl Shared {
    /// Changes a value as another worker might.
    pub fn change_by_another_worker(&self, choices: &mut Choices<'_>) {
        let mut entries = self.0.borrow_mut();
        let index = usize::from(choices.byte()) % entries.len().max(1);
        if let Some((value, version)) = entries.values_mut().nth(index) {
            *version += 1;
            if choices.one_in(4) {
                *value = choices.bytes().to_vec();
            } else if let Some(byte) = value.get_mut(usize::from(choices.byte())) {
                *byte = choices.byte();
            }
        }
    }
}

impl SharedData for Shared {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.0.borrow().get(key).cloned()
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        let mut entries = self.0.borrow_mut();
        let version = entries.get(key).map(|(_, version)| *version);
        let holds = condition.holds(version);
        if holds {
            entries.insert(key.to_owned(), (value.to_vec(), version.unwrap_or(0) + 1));
        }
        holds
    }
}

/// Envoy's properties, taken from the input.
#[derive(Debug)]
pub struct Host<'a>(Cell<Choices<'a>>);

impl<'a> Host<'a> {
    /// Takes properties from these choices.
    #[must_use]
    pub const fn new(choices: Choices<'a>) -> Self {
        Self(Cell::new(choices))
    }

    /// The remaining choices.
    #[must_use]
    pub fn choices(&self) -> Choices<'a> {
        self.0.get()
    }
}

impl Properties for Host<'_> {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        let mut choices = self.0.get();
        let value = match (choices.below(8), path.last()) {
            (0, _) => None,
            (1, _) => Some(choices.bytes().to_vec()),
            (_, Some(&"address")) => Some(choices.item(&ADDRESSES).into()),
            (_, Some(&"request_attempt_count")) => Some(choices.number().to_le_bytes().to_vec()),
            (_, Some(&"code_details")) => Some(
                choices
                    .item(&[
                        "via_upstream",
                        "upstream_reset_before_response_started{connection_termination}",
                        "upstream_reset_before_response_started{remote_connection_failure}",
                        "upstream_reset_after_response_started{connection_termination}",
                        "no_healthy_upstream",
                        "downstream_remote_disconnect",
                        "stream_idle_timeout",
                    ])
                    .into(),
            ),
            (_, _) => Some(choices.bytes().to_vec()),
        };
        self.0.set(choices);
        value
    }
}

/// A serialized header map of a request: significant names and values, or arbitrary bytes.
pub fn request_headers(choices: &mut Choices<'_>, token: &str) -> Vec<u8> {
    let usual = [
        "x-gateway-inference-fairness-id",
        "x-penstock-tenant",
        "x-penstock-user",
        "x-penstock-priority",
        "x-penstock-class",
        "x-penstock-strict-priority",
        "x-penstock-priority-jump",
        "x-penstock-deadline-ms",
        "x-slo-ttft-ms",
        "x-penstock-endpoint",
        "x-penstock-tolerate",
        "x-penstock-pool",
        "x-penstock-requeue",
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-subset",
        "x-request-id",
        "content-length",
        "content-encoding",
        "x-forwarded-for",
        "accept-encoding",
    ];
    if choices.one_in(32) {
        return choices.bytes().to_vec();
    }
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    if !choices.one_in(16) {
        pairs.push((b":method".to_vec(), choices.item(&["POST", "POST", "POST", "GET"]).into()));
        let paths = [PATH, "/v1/messages", "/v1/embeddings?a=b", "/v1/models", ""];
        pairs.push((b":path".to_vec(), choices.name(&paths).into()));
    }
    if choices.one_in(2) {
        let mut token = token.as_bytes().to_vec();
        if choices.one_in(4) {
            let index = usize::from(choices.byte()) % token.len();
            token[index] = choices.byte();
        }
        pairs.push((names::REQUEUE_HEADER.into(), token));
    }
    for _ in 0..choices.below(6) {
        let name = choices.name(&usual).into_bytes();
        let value = if choices.one_in(3) {
            choices.bytes().to_vec()
        } else {
            choices
                .name(&[
                    "1",
                    "acme",
                    "critical",
                    "127.0.0.1:8001,127.0.0.1:8002",
                    "18446744073709551615",
                    "gzip",
                ])
                .into_bytes()
        };
        pairs.push((name, value));
    }
    serialize(&pairs)
}

/// A serialized header map of a response, by a server or by Envoy.
pub fn response_headers(choices: &mut Choices<'_>) -> Vec<u8> {
    if choices.one_in(32) {
        return choices.bytes().to_vec();
    }
    let status = choices.name(&["200", "404", "500", "502", "503", "504", "99999"]);
    let mut pairs = vec![(b":status".to_vec(), status.into_bytes())];
    let kind = choices.name(&["text/event-stream", "application/json", "text/plain"]);
    pairs.push((b"content-type".to_vec(), kind.into_bytes()));
    for _ in 0..choices.below(3) {
        let names = [
            "x-penstock-outcome",
            "x-penstock-queue-ms",
            "content-encoding",
            "x-gateway-destination-endpoint-served",
        ];
        pairs.push((choices.name(&names).into_bytes(), choices.bytes().to_vec()));
    }
    serialize(&pairs)
}

/// Like `headers::serialize`, for values that aren't text.
#[must_use]
pub fn serialize(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let length = |text: &[u8]| (text.len() as u32).to_le_bytes();
    let mut map = (pairs.len() as u32).to_le_bytes().to_vec();
    for (name, value) in pairs {
        map.extend(length(name));
        map.extend(length(value));
    }
    for text in pairs.iter().flat_map(|(name, value)| [name, value]) {
        map.extend(text);
        map.push(0);
    }
    map
}

/// Asserts that a client library can read the response.
///
/// # Panics
///
/// If it can't.
pub fn assert_readable(answer: &LocalReply) {
    assert!((400..600).contains(&answer.status), "{}", answer.status);
    let parsed: Result<Value, _> = serde_json::from_slice(&answer.body);
    assert!(
        parsed.is_ok_and(|value| value["error"]["message"].is_string()),
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    for (name, value) in &answer.headers {
        assert_valid_header(name, value);
    }
}

/// Asserts that the host can apply the edits.
///
/// # Panics
///
/// If it can't.
pub fn assert_applicable(edits: &[HeaderEdit]) {
    for edit in edits {
        match edit {
            HeaderEdit::Remove(name) => assert!(!name.is_empty()),
            HeaderEdit::Add(name, value) | HeaderEdit::Set(name, value) => assert_valid_header(name, value),
            HeaderEdit::SetStatic(name, value) => assert_valid_header(name, value),
            HeaderEdit::SetProperty(name, value) => assert!(!name.is_empty() && !value.is_empty()),
        }
    }
}

/// Asserts that a header is valid. Values from a companion or from Envoy are trusted.
fn assert_valid_header(name: &str, value: &str) {
    let trusted = [
        names::POOL_HEADER,
        names::ENDPOINT_HEADER,
        names::PREFILL_HEADER,
        names::ROUTE_HEADER,
        names::OUTCOME_HEADER,
        names::SERVED_HEADER,
        names::SERVED_AGAIN_HEADER,
    ];
    assert!(!name.is_empty());
    let broken = value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    assert!(!broken || trusted.contains(&name), "{name}: {value:?}");
}
