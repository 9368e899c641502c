//! Headers between the messages of the gateway and the filter core.

use std::borrow::Cow;

use bytes::Bytes;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::{Headers, Pair};
use penstock_wire::names;

use crate::generated::{HeaderAppendAction, HeaderMap, HeaderMutation, HeaderValue, HeaderValueOption};

/// Request headers that mean something to Penstock's own Envoy alone, by their beginning. A gateway lets no processor change Envoy's.
const OF_OWN_ENVOY: [&str; 2] = ["x-envoy-", "x-penstock-"];

/// Calls `read` with a message's headers.
pub(crate) fn with_headers<T>(map: Option<&HeaderMap>, read: impl FnOnce(Headers<'_>) -> T) -> T {
    let headers = map.map(|map| map.headers.as_slice()).unwrap_or_default();
    let pairs: Vec<Pair<'_>> = headers.iter().map(|header| (header.key.as_bytes(), value(header))).collect();
    read(Headers::of_pairs(&pairs))
}

fn value(header: &HeaderValue) -> &[u8] {
    if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value }
}

/// The value of a request's header as a number.
pub(crate) fn number(headers: Headers<'_>, name: &str) -> Option<usize> {
    core::str::from_utf8(headers.get(name)?).ok()?.trim().parse().ok()
}

/// The edits of a request's headers that a gateway can carry out.
pub(crate) fn of_request(edits: &[HeaderEdit]) -> HeaderMutation {
    let is_foreign = |name: &str| !OF_OWN_ENVOY.iter().any(|beginning| name.starts_with(beginning));
    let is_kept = |edit: &&HeaderEdit| match edit {
        // What a client sent under such a name reaches no server.
        HeaderEdit::Remove(_) => true,
        HeaderEdit::Add(name, _) | HeaderEdit::Set(name, _) | HeaderEdit::SetStatic(name, _) => {
            is_foreign(name)
        }
        HeaderEdit::SetProperty(..) => false,
    };
    let mut mutation = mutation(edits.iter().filter(is_kept));
    if let Some(endpoint) = endpoint(edits) {
        let is_other = |set: &HeaderValueOption| {
            set.header.as_ref().is_none_or(|header| header.key != names::ENDPOINT_HEADER)
        };
        mutation.set_headers.retain(is_other);
        mutation.set_headers.push(set(names::ENDPOINT_HEADER, endpoint.to_owned()));
    }
    mutation
}

/// The edits of a response's headers.
pub(crate) fn of_response(edits: &[HeaderEdit]) -> HeaderMutation {
    mutation(edits.iter())
}

fn mutation<'a>(edits: impl Iterator<Item = &'a HeaderEdit>) -> HeaderMutation {
    let mut mutation = HeaderMutation::default();
    for edit in edits {
        match edit {
            HeaderEdit::Remove(name) => mutation.remove_headers.push(name.to_string()),
            HeaderEdit::Add(name, value) | HeaderEdit::Set(name, value) => {
                mutation.set_headers.push(set(name, value.clone()));
            }
            HeaderEdit::SetStatic(name, value) => mutation.set_headers.push(set(name, (*value).to_owned())),
            HeaderEdit::SetProperty(..) => {}
        }
    }
    // A gateway removes after it has set.
    let HeaderMutation { set_headers, remove_headers } = &mut mutation;
    let is_set = |name: &String| {
        set_headers.iter().any(|set| set.header.as_ref().is_some_and(|header| header.key == *name))
    };
    remove_headers.retain(|name| !is_set(name));
    mutation
}

/// Sets a header to this value.
pub(crate) fn set(name: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: name.to_owned(),
            value: String::new(),
            raw_value: Bytes::from(value),
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// The endpoint to which these edits send a request, `ip:port`: the first one of a grant.
///
/// The others are fallbacks. A gateway may follow them, but a cluster of the type `ORIGINAL_DST`, as in the charts of llm-d, takes a list for
/// no address and answers 503.
pub(crate) fn endpoint(edits: &[HeaderEdit]) -> Option<&str> {
    let list = edits.iter().rev().find_map(|edit| match edit {
        HeaderEdit::Add(name, value) | HeaderEdit::Set(name, value) if *name == names::ENDPOINT_HEADER => {
            Some(value.as_str())
        }
        _ => None,
    })?;
    list.split(',').next()
}

/// Headers of a reply, with these edits carried out. The status is among them, as `:status`.
pub(crate) fn edited(
    headers: impl IntoIterator<Item = (&'static str, String)>,
    edits: Vec<HeaderEdit>,
) -> Vec<(Cow<'static, str>, String)> {
    let mut headers: Vec<(Cow<'static, str>, String)> =
        headers.into_iter().map(|(name, value)| (name.into(), value)).collect();
    for edit in edits {
        let (name, value) = match edit {
            HeaderEdit::Remove(name) => (name, None),
            HeaderEdit::Add(name, value) | HeaderEdit::Set(name, value) => (name.into(), Some(value)),
            HeaderEdit::SetStatic(name, value) => (name.into(), Some(value.to_owned())),
            HeaderEdit::SetProperty(..) => continue,
        };
        headers.retain(|(present, _)| *present != name);
        headers.extend(value.map(|value| (name, value)));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(mutation: &HeaderMutation) -> Vec<String> {
        let set = mutation.set_headers.iter().filter_map(|set| set.header.as_ref());
        let set = set.map(|header| format!("{}: {}", header.key, String::from_utf8_lossy(value(header))));
        set.chain(mutation.remove_headers.iter().map(|name| format!("-{name}"))).collect()
    }

    #[test]
    fn a_gateway_gets_what_it_can_carry_out() {
        let edits = [
            HeaderEdit::Remove("x-penstock-pool".into()),
            HeaderEdit::Remove("accept-encoding".into()),
            HeaderEdit::Add("x-penstock-pool", "chat".into()),
            HeaderEdit::Remove("x-gateway-destination-endpoint".into()),
            HeaderEdit::Add("x-gateway-destination-endpoint", "127.0.0.1:1,127.0.0.1:2".into()),
            HeaderEdit::Set("content-length", "7".into()),
            HeaderEdit::SetStatic("x-envoy-retry-on", "connect-failure"),
            HeaderEdit::SetProperty("penstock.requeue", "token".into()),
        ];
        assert_eq!(
            shown(&of_request(&edits)),
            [
                "content-length: 7",
                "x-gateway-destination-endpoint: 127.0.0.1:1",
                "-x-penstock-pool",
                "-accept-encoding"
            ]
        );
        assert_eq!(endpoint(&edits), Some("127.0.0.1:1"));
        let report = [HeaderEdit::Add("x-penstock-outcome", "dispatched".into())];
        assert_eq!(shown(&of_response(&report)), ["x-penstock-outcome: dispatched"]);
    }

    #[test]
    fn edits_of_a_reply_replace_its_headers() {
        let edits = vec![
            HeaderEdit::Set(":status", "503".into()),
            HeaderEdit::Remove("a".into()),
            HeaderEdit::Add("b", "2".into()),
        ];
        let headers = edited([(":status", "200".into()), ("a", "1".into()), ("c", "3".into())], edits);
        let shown: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(shown, ["c: 3", ":status: 503", "b: 2"]);
    }

    #[test]
    fn values_are_read_wherever_the_gateway_has_them() {
        let header = |value: &str, raw: &'static str| HeaderValue {
            key: "content-length".into(),
            value: value.into(),
            raw_value: Bytes::from_static(raw.as_bytes()),
        };
        for header in [header("", "12"), header("12", ""), header("7", " 12")] {
            let map = HeaderMap { headers: vec![header] };
            assert_eq!(with_headers(Some(&map), |headers| number(headers, "content-length")), Some(12));
        }
        assert_eq!(with_headers(None, |headers| number(headers, "content-length")), None);
    }
}
