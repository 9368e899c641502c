//! What Envoy is to a worker: random bits, shared data, properties and header maps, as the input has them, and the rules
//! for what it is handed back.

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

use super::dice::Dice;
use super::frames::ADDRESSES;

/// A path that is queued.
pub const PATH: &str = "/v1/chat/completions";

/// What the host would draw.
pub const DRAW: RandomBits = RandomBits {
    epoch: Epoch { hi: 1, lo: 2 },
    envoy: 3,
    key: [4; 16],
};

/// Envoy's shared data: a map that other workers write to as well.
#[derive(Clone, Debug, Default)]
pub struct Shared(Rc<RefCell<Kept>>);

/// Values by key, each with its number.
type Kept = BTreeMap<String, (Vec<u8>, u32)>;

impl Shared {
    /// Another worker writes something into it.
    pub fn meddle(&self, dice: &mut Dice<'_>) {
        let mut kept = self.0.borrow_mut();
        let at = usize::from(dice.byte()) % kept.len().max(1);
        if let Some((value, number)) = kept.values_mut().nth(at) {
            *number += 1;
            if dice.one_in(4) {
                *value = dice.bytes().to_vec();
            } else if let Some(byte) = value.get_mut(usize::from(dice.byte())) {
                *byte = dice.byte();
            }
        }
    }
}

impl SharedData for Shared {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.0.borrow().get(key).cloned()
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        let mut kept = self.0.borrow_mut();
        let version = kept.get(key).map(|(_, version)| *version);
        let holds = condition.holds(version);
        if holds {
            kept.insert(key.to_owned(), (value.to_vec(), version.unwrap_or(0) + 1));
        }
        holds
    }
}

/// Envoy's properties: what the input says of them.
#[derive(Debug)]
pub struct Host<'a>(Cell<Dice<'a>>);

impl<'a> Host<'a> {
    /// What the input says from here on.
    #[must_use]
    pub const fn new(dice: Dice<'a>) -> Self {
        Self(Cell::new(dice))
    }

    /// What of the input is left.
    #[must_use]
    pub fn dice(&self) -> Dice<'a> {
        self.0.get()
    }
}

impl Properties for Host<'_> {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        let mut dice = self.0.get();
        let value = match (dice.below(8), path.last()) {
            (0, _) => None,
            (1, _) => Some(dice.bytes().to_vec()),
            (_, Some(&"address")) => Some(dice.of(&ADDRESSES).into()),
            (_, Some(&"request_attempt_count")) => Some(dice.number().to_le_bytes().to_vec()),
            (_, Some(&"code_details")) => Some(
                dice.of(&[
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
            (_, _) => Some(dice.bytes().to_vec()),
        };
        self.0.set(dice);
        value
    }
}

/// A header map in the host's form: names and values that matter, or arbitrary bytes, or no map at all.
pub fn request_headers(dice: &mut Dice<'_>, token: &str) -> Vec<u8> {
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
    if dice.one_in(32) {
        return dice.bytes().to_vec();
    }
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    if !dice.one_in(16) {
        pairs.push((
            b":method".to_vec(),
            dice.of(&["POST", "POST", "POST", "GET"]).into(),
        ));
        let paths = [PATH, "/v1/messages", "/v1/embeddings?a=b", "/v1/models", ""];
        pairs.push((b":path".to_vec(), dice.name(&paths).into()));
    }
    if dice.one_in(2) {
        let mut token = token.as_bytes().to_vec();
        if dice.one_in(4) {
            let at = usize::from(dice.byte()) % token.len();
            token[at] = dice.byte();
        }
        pairs.push((names::REQUEUE_HEADER.into(), token));
    }
    for _ in 0..dice.below(6) {
        let name = dice.name(&usual).into_bytes();
        let value = if dice.one_in(3) {
            dice.bytes().to_vec()
        } else {
            dice.name(&[
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

/// A server's, or Envoy's own, in the same form.
pub fn response_headers(dice: &mut Dice<'_>) -> Vec<u8> {
    if dice.one_in(32) {
        return dice.bytes().to_vec();
    }
    let status = dice.name(&["200", "404", "500", "502", "503", "504", "99999"]);
    let mut pairs = vec![(b":status".to_vec(), status.into_bytes())];
    let kind = dice.name(&["text/event-stream", "application/json", "text/plain"]);
    pairs.push((b"content-type".to_vec(), kind.into_bytes()));
    for _ in 0..dice.below(3) {
        let names = [
            "x-penstock-outcome",
            "x-penstock-queue-ms",
            "content-encoding",
            "x-gateway-destination-endpoint-served",
        ];
        pairs.push((dice.name(&names).into_bytes(), dice.bytes().to_vec()));
    }
    serialize(&pairs)
}

/// As `headers::serialize`, for bytes that are no text.
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

/// An answer that a client's library can read.
///
/// # Panics
/// When it isn't one.
pub fn whole(answer: &LocalReply) {
    assert!((400..600).contains(&answer.status), "{}", answer.status);
    let read: Result<Value, _> = serde_json::from_slice(&answer.body);
    assert!(
        read.is_ok_and(|it| it["error"]["message"].is_string()),
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    for (name, value) in &answer.headers {
        header(name, value);
    }
}

/// Changes that the host can make.
///
/// # Panics
/// When it can't.
pub fn proper(edits: &[HeaderEdit]) {
    for edit in edits {
        match edit {
            HeaderEdit::Remove(name) => assert!(!name.is_empty()),
            HeaderEdit::Set(name, value) => header(name, value),
        }
    }
}

/// What the host takes for a header's value. What a companion names, and what Envoy does, is taken at its word.
fn header(name: &str, value: &str) {
    let trusted = [
        names::POOL_HEADER,
        names::ENDPOINT_HEADER,
        names::ROUTE_HEADER,
        names::OUTCOME_HEADER,
        names::SERVED_HEADER,
        names::SERVED_AGAIN_HEADER,
    ];
    assert!(!name.is_empty());
    let broken = value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    assert!(!broken || trusted.contains(&name), "{name}: {value:?}");
}
