//! Header lists, and the stream properties that an Envoy exposes to its filter.

use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::serialize;
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::properties::Properties;

/// Headers, in order.
pub(super) type Pairs = Vec<(String, String)>;

/// Names the server that sent a response; each simulated server sets it to its own address.
pub(super) const SERVER_HEADER: &str = "x-server";

/// An Envoy's properties of one HTTP stream.
pub(super) struct StreamProperties<'a> {
    pub(super) upstream_address: &'a str,
    pub(super) attempts: u64,
    pub(super) response_code_details: &'a str,
}

impl Properties for StreamProperties<'_> {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["upstream", "address"] => Some(self.upstream_address.as_bytes().to_vec()),
            ["upstream", "request_attempt_count"] => Some(self.attempts.to_le_bytes().to_vec()),
            ["response", "code_details"] => Some(self.response_code_details.as_bytes().to_vec()),
            ["source", "address"] => Some(b"192.0.2.7:4711".to_vec()),
            _ => None,
        }
    }
}

/// The headers of a filter's local reply.
pub(super) fn local_reply_headers(reply: &LocalReply) -> Pairs {
    let status = (":status".to_owned(), reply.status.to_string());
    let headers = reply.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    core::iter::once(status).chain(headers).collect()
}

/// The headers as the proxy-wasm ABI passes them.
pub(super) fn abi_map(pairs: &Pairs) -> Vec<u8> {
    serialize(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

pub(super) fn apply_edits(pairs: &mut Pairs, edits: &[HeaderEdit]) {
    for edit in edits {
        match edit {
            HeaderEdit::Remove(name) => pairs.retain(|(present, _)| present != name),
            HeaderEdit::Add(name, value) => {
                assert!(pairs.iter().all(|(present, _)| present != name), "{name} is added twice");
                pairs.push(((*name).to_owned(), value.clone()));
            }
            HeaderEdit::Set(name, value) => {
                pairs.retain(|(present, _)| present != name);
                pairs.push(((*name).to_owned(), value.clone()));
            }
            HeaderEdit::SetStatic(name, value) => {
                pairs.retain(|(present, _)| present != name);
                pairs.push(((*name).to_owned(), (*value).to_owned()));
            }
            // A property isn't a header.
            HeaderEdit::SetProperty(..) => {}
        }
    }
}

pub(super) fn header<'a>(pairs: &'a Pairs, name: &str) -> Option<&'a str> {
    pairs.iter().find(|(present, _)| present == name).map(|(_, value)| value.as_str())
}
