//! What the gateway says of a stream beside its headers and bodies: metadata and attributes.
//!
//! Envoy sends attributes only where the configuration of its filter lists them, and a gateway may be no Envoy. Without
//! `response.code_details`, the headers of an error show whether a server sent it.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_filter_core::headers::Headers;
use penstock_filter_core::properties::Properties;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::generated::ProcessingRequest;

/// The namespace of load balancing, and the key by which the gateway names the server that has answered.
const LB: &str = "envoy.lb";
const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The namespace and the key by which the gateway restricts a request to some endpoints.
const SUBSET_HINT: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";

/// Envoy's details of a response that a server has sent.
const VIA_UPSTREAM: &str = "via_upstream";
/// The header that Envoy's router adds to a server's response.
const SERVICE_TIME: &str = "x-envoy-upstream-service-time";

/// The facts of one stream.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pool: Option<Arc<str>>,
    /// By namespace.
    metadata: HashMap<String, Struct>,
    /// By name.
    attributes: HashMap<String, Value>,
    passes_answer: bool,
    /// The endpoint to which the picker has sent the request, `ip:port`.
    endpoint: Option<String>,
    /// How the response came to be, by its headers.
    details: Option<&'static str>,
}

impl Facts {
    /// The facts of a new stream, which came by the port of this pool.
    pub(crate) fn new(pool: Option<Arc<str>>) -> Self {
        Self { pool, passes_answer: true, ..Self::default() }
    }

    /// Takes what a message brings.
    pub(crate) fn take_from(&mut self, message: &mut ProcessingRequest) {
        if let Some(metadata) = message.metadata_context.take() {
            self.metadata.extend(metadata.filter_metadata);
        }
        let attributes = message.attributes.drain().flat_map(|(_, attributes)| attributes.fields);
        self.attributes.extend(attributes);
    }

    /// Whether the body of the response comes.
    pub(crate) const fn set_passes_answer(&mut self, passes_answer: bool) {
        self.passes_answer = passes_answer;
    }

    /// The picker sends the request to this endpoint, `ip:port`.
    pub(crate) fn set_endpoint(&mut self, endpoint: &str) {
        self.endpoint = Some(endpoint.to_owned());
    }

    /// The picker is about to reply itself.
    pub(crate) const fn set_replying(&mut self) {
        self.details = Some("penstock");
    }

    /// Notes what a response's headers show of its origin.
    pub(crate) fn note_response(&mut self, headers: Headers<'_>) {
        let is_text = headers.get("content-type").is_some_and(|kind| kind.starts_with(b"text/plain"));
        let is_served = self.served().is_some() || headers.get(SERVICE_TIME).is_some();
        self.details = Some(match headers.get(":status") {
            _ if is_served => VIA_UPSTREAM,
            Some(b"503") if is_text => "upstream_reset_before_response_started",
            Some(b"504") if is_text => "upstream_response_timeout",
            _ => VIA_UPSTREAM,
        });
    }

    fn served(&self) -> Option<&str> {
        text(self.metadata.get(LB)?.fields.get(SERVED)?)
    }

    /// The server that the gateway has used last, as far as it says so: otherwise the one that the picker has chosen.
    fn upstream(&self) -> Option<Vec<u8>> {
        let attribute = self.attribute(&["upstream", "address"]);
        let told = || self.served().or(self.endpoint.as_deref()).map(|address| address.as_bytes().to_vec());
        attribute.or_else(told)
    }

    /// How often the gateway has sent the request: once, if it has sent it where the picker said.
    fn attempts(&self) -> Option<u64> {
        let is_chosen = self.endpoint.as_deref().map(str::as_bytes) == self.upstream().as_deref();
        (self.endpoint.is_some() && is_chosen).then_some(1)
    }

    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.attributes.get(&path.join(".")).and_then(|value| bytes(value, whole))
    }

    /// A value of another filter's metadata, in the form in which Envoy gives it to a filter.
    fn metadata(&self, keys: &[&str]) -> Option<Vec<u8>> {
        let (namespace, keys) = keys.split_first()?;
        let (first, rest) = keys.split_first()?;
        let first = self.metadata.get(*namespace)?.fields.get(*first)?;
        let value = rest.iter().try_fold(first, |value, key| match &value.kind {
            Some(Kind::StructValue(inner)) => inner.fields.get(*key),
            _ => None,
        });
        bytes(value?, f64::to_le_bytes)
    }
}

impl Properties for Facts {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["upstream", "address"] => self.upstream(),
            ["upstream", "request_attempt_count"] => {
                let counted = || self.attempts().map(|attempts| attempts.to_le_bytes().to_vec());
                self.attribute(path).or_else(counted)
            }
            ["response", "code_details"] => {
                let noted = || self.details.map(|details| details.as_bytes().to_vec());
                self.attribute(path).or_else(noted)
            }
            ["metadata", "filter_metadata", keys @ ..] => self.metadata(keys),
            _ => self.attribute(path),
        }
    }

    fn pool(&self) -> Option<&str> {
        self.pool.as_deref()
    }

    fn subset(&self) -> Option<Vec<String>> {
        let value = self.metadata.get(SUBSET_HINT)?.fields.get(SUBSET)?;
        let split = |list: &str| list.split(',').map(|entry| entry.trim().to_owned()).collect();
        Some(match &value.kind {
            Some(Kind::StringValue(list)) => split(list),
            Some(Kind::ListValue(list)) => {
                list.values.iter().filter_map(text).map(|entry| entry.trim().to_owned()).collect()
            }
            _ => Vec::new(),
        })
    }

    fn passes_answer(&self) -> bool {
        self.passes_answer
    }
}

fn text(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

/// A value as bytes; `number` writes a number. Objects and lists have none.
fn bytes(value: &Value, number: impl FnOnce(f64) -> [u8; 8]) -> Option<Vec<u8>> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text.as_bytes().to_vec()),
        Some(Kind::NumberValue(value)) => Some(number(*value).to_vec()),
        Some(Kind::BoolValue(value)) => Some(vec![u8::from(*value)]),
        _ => None,
    }
}

/// An attribute that counts. What is out of range becomes the nearest number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the conversion saturates")]
const fn whole(value: f64) -> [u8; 8] {
    (value as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use penstock_filter_core::headers::Headers;

    use super::*;
    use crate::generated::Metadata;

    fn value(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    fn string(text: &str) -> Value {
        value(Kind::StringValue(text.into()))
    }

    fn object(fields: &[(&str, Value)]) -> Struct {
        Struct { fields: fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect() }
    }

    fn facts(metadata: &[(&str, Struct)], attributes: &[(&str, Value)]) -> Facts {
        let mut facts = Facts::new(None);
        let metadata = metadata.iter().map(|(name, fields)| ((*name).to_owned(), fields.clone())).collect();
        facts.take_from(&mut ProcessingRequest {
            metadata_context: Some(Metadata { filter_metadata: metadata }),
            attributes: [("envoy.filters.http.ext_proc".to_owned(), object(attributes))].into(),
            ..ProcessingRequest::default()
        });
        facts
    }

    #[test]
    fn metadata_and_attributes_have_the_forms_of_a_filter() {
        let payload = object(&[("sub", string("acme")), ("level", value(Kind::NumberValue(3.0)))]);
        let jwt = object(&[("payload", value(Kind::StructValue(payload)))]);
        let facts = facts(
            &[("jwt", jwt)],
            &[("source.address", string("10.0.0.1:7")), ("response.flags", value(Kind::NumberValue(64.0)))],
        );
        let property = |path: &[&str]| facts.property(path);
        assert_eq!(
            property(&["metadata", "filter_metadata", "jwt", "payload", "sub"]),
            Some(b"acme".to_vec())
        );
        let level = property(&["metadata", "filter_metadata", "jwt", "payload", "level"]);
        assert_eq!(level, Some(3_f64.to_le_bytes().to_vec()));
        assert_eq!(property(&["metadata", "filter_metadata", "jwt", "payload"]), None);
        assert_eq!(property(&["source", "address"]), Some(b"10.0.0.1:7".to_vec()));
        assert_eq!(property(&["response", "flags"]), Some(64_u64.to_le_bytes().to_vec()));
        assert_eq!(property(&["request", "total_size"]), None);
    }

    #[test]
    fn a_request_was_sent_once_if_its_endpoint_was_used() {
        let elsewhere = facts(&[(LB, object(&[(SERVED, string("10.0.0.2:80"))]))], &[]);
        let counted = facts(&[], &[("upstream.request_attempt_count", value(Kind::NumberValue(3.0)))]);
        let attempts = |mut facts: Facts| {
            facts.set_endpoint("10.0.0.1:80");
            let count = facts.property(&["upstream", "request_attempt_count"]);
            (facts.property(&["upstream", "address"]), count)
        };
        let count = |count: u64| Some(count.to_le_bytes().to_vec());
        assert_eq!(attempts(Facts::new(None)), (Some(b"10.0.0.1:80".to_vec()), count(1)));
        assert_eq!(attempts(elsewhere), (Some(b"10.0.0.2:80".to_vec()), None));
        assert_eq!(attempts(counted), (Some(b"10.0.0.1:80".to_vec()), count(3)));
        assert_eq!(Facts::new(None).property(&["upstream", "request_attempt_count"]), None);
    }

    #[test]
    fn the_gateway_restricts_a_request_by_a_text_or_a_list() {
        let hint = |value| facts(&[(SUBSET_HINT, object(&[(SUBSET, value)]))], &[]).subset();
        let two = Some(vec!["10.0.0.1:80".to_owned(), "10.0.0.2:80".to_owned()]);
        assert_eq!(hint(string("10.0.0.1:80, 10.0.0.2:80")), two);
        let list = prost_types::ListValue { values: vec![string("10.0.0.1:80"), string("10.0.0.2:80")] };
        assert_eq!(hint(value(Kind::ListValue(list))), two);
        assert_eq!(hint(value(Kind::ListValue(prost_types::ListValue::default()))), Some(vec![]));
        assert_eq!(facts(&[], &[]).subset(), None);
    }

    #[test]
    fn an_error_of_the_gateway_itself_is_told_from_a_servers() {
        let details = |facts: &mut Facts, status: &'static str, more: &[(&'static str, &'static str)]| {
            let pairs: Vec<_> = core::iter::once((":status", status))
                .chain(more.iter().copied())
                .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
                .collect();
            facts.note_response(Headers::of_pairs(&pairs));
            facts.property(&["response", "code_details"]).and_then(|bytes| String::from_utf8(bytes).ok())
        };
        let text = ("content-type", "text/plain");
        let unavailable = Some("upstream_reset_before_response_started".to_owned());
        let served = Some(VIA_UPSTREAM.to_owned());
        let mut plain = Facts::new(None);
        assert_eq!(details(&mut plain, "503", &[text]), unavailable);
        assert_eq!(details(&mut plain, "503", &[text, (SERVICE_TIME, "3")]), served);
        assert_eq!(details(&mut plain, "503", &[("content-type", "application/json")]), served);
        let mut named = facts(&[(LB, object(&[(SERVED, string("10.0.0.1:80"))]))], &[]);
        assert_eq!(details(&mut named, "503", &[text]), served);
        assert_eq!(named.property(&["upstream", "address"]), Some(b"10.0.0.1:80".to_vec()));
        let mut told = facts(&[], &[("response.code_details", string("no_healthy_upstream"))]);
        assert_eq!(details(&mut told, "503", &[text]), Some("no_healthy_upstream".to_owned()));
    }
}
