//! A request as it comes in: what its headers and its body make of its Register, and what refuses it at the door.

use penstock_wire::{
    Api, Register,
    limits::{LIST_MAX, NAME_BYTES_MAX},
    names::{self, code},
};

use crate::{
    body::{Body, BodyError},
    headers::{Headers, bounded},
    identity::Properties,
    limits::{LIST_ENTRY_BYTES_MAX, REQUEST_ID_BYTES_MAX},
    local_reply::Failure,
};

/// The client's address as Envoy saw it, without its port; empty: it has none.
pub(crate) fn client(host: &impl Properties) -> String {
    let address = host
        .property(&["source", "address"])
        .and_then(|address| bounded(&address, NAME_BYTES_MAX));
    address.map(without_port).unwrap_or_default()
}

/// What the headers claim, of a client that isn't trusted only what anybody may. The rest is filled in from the body.
pub(crate) fn read_claims(
    sequence: u64,
    api: Api,
    client: String,
    trusted: bool,
    headers: Headers<'_>,
) -> Register {
    let millis = |name| {
        let text = headers.get(name).map(<[u8]>::trim_ascii);
        let number = text
            .and_then(|value| core::str::from_utf8(value).ok()?.parse::<u64>().ok())
            .filter(|value| *value > 0);
        (number, text.is_some() && number.is_none())
    };
    let (deadline_ms, bad_deadline) = millis(names::DEADLINE_HEADER);
    let (slo_ttft_ms, bad_slo_ttft) = millis(names::SLO_TTFT_HEADER);
    let list = |name| {
        let entries = if trusted { LIST_MAX } else { 0 };
        headers.list(name, entries, LIST_ENTRY_BYTES_MAX)
    };
    let pin = headers.text(names::PIN_HEADER, LIST_ENTRY_BYTES_MAX);
    Register {
        sequence,
        request_id: headers
            .text("x-request-id", REQUEST_ID_BYTES_MAX)
            .unwrap_or_default(),
        api: api.into(),
        client,
        untrusted: !trusted,
        subset: list(names::SUBSET_HEADER),
        pin: pin.filter(|_| trusted).unwrap_or_default(),
        tolerations: list(names::TOLERATE_HEADER),
        deadline_ms,
        bad_deadline,
        slo_ttft_ms,
        bad_slo_ttft,
        ..Register::default()
    }
}

/// What the body adds.
pub(crate) fn describe(body: Body, body_bytes: usize, register: &mut Register) {
    register.model = body.model;
    register.stream = body.stream;
    register.max_tokens = body.max_tokens;
    register.prompt_bytes = body.prompt_bytes;
    register.body_bytes = u64::try_from(body_bytes).unwrap_or(u64::MAX);
}

/// `ip:port` or `[ip]:port` without the port.
fn without_port(address: String) -> String {
    let ip = address
        .rsplit_once(':')
        .map(|(ip, _)| ip.trim_start_matches('[').trim_end_matches(']').to_owned());
    ip.unwrap_or(address)
}

/// What is wrong with a request on a queued path already by its headers. `end`: it has no body.
pub(crate) fn refuse_by_headers(headers: Headers<'_>, end: bool, body_bytes_max: u64) -> Option<Failure> {
    if end {
        return Some(invalid(BodyError::Empty));
    }
    let coding = headers
        .get("content-encoding")
        .map(<[u8]>::trim_ascii)
        .unwrap_or_default();
    if !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity") {
        let coding = bounded(coding, 32).unwrap_or_default();
        return Some(Failure::new(
            400,
            code::INVALID_REQUEST,
            format!(
                "The body is compressed (content-encoding: {coding}): send it uncompressed, or put Envoy's \
                     decompressor filter (envoy.filters.http.decompressor) before Penstock."
            ),
        ));
    }
    let length = headers
        .text("content-length", 20)
        .and_then(|length| length.parse::<u64>().ok())?;
    (length > body_bytes_max).then(|| too_large(body_bytes_max))
}

/// Of a body that can't be read.
pub(crate) fn invalid(error: BodyError) -> Failure {
    Failure::new(400, code::INVALID_REQUEST, error.to_string())
}

/// Of a body over the limit.
pub(crate) fn too_large(limit: u64) -> Failure {
    let message = format!("The body is larger than {limit} bytes: send less, or raise `limits.body_bytes`.");
    Failure::new(413, code::REQUEST_TOO_LARGE, message)
}
