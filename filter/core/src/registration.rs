//! Builds the registration of a request from its headers and body, and refuses malformed requests.

use penstock_wire::limits::LIST_MAX;
use penstock_wire::{Api, Register};
use penstock_wire::{Code, names};

use crate::body::{Body, BodyError};
use crate::headers::{Headers, bounded};
use crate::json::SyntaxError;
use crate::limits::{
    DECODED_RATIO, HEADERS_BYTES_MAX, HEADERS_MAX, LIST_ENTRY_BYTES_MAX, REQUEST_ID_BYTES_MAX,
};
use crate::local_reply::Failure;

/// The part of a registration that the headers determine. The body adds the rest. For an untrusted client, the claims that
/// only trusted clients may make are left out.
pub(crate) fn from_headers(
    sequence: u64,
    api: Api,
    client: Option<String>,
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
    let slo_header = names::SLO_TTFT_HEADERS.into_iter().find(|name| headers.get(name).is_some());
    let (slo_ttft_ms, bad_slo_ttft) = slo_header.map_or((None, false), millis);
    let list = |name| {
        let entries = if trusted { LIST_MAX } else { 0 };
        headers.list(name, entries, LIST_ENTRY_BYTES_MAX)
    };
    let pin = headers.text(names::PIN_HEADER, LIST_ENTRY_BYTES_MAX);
    Register {
        sequence,
        request_id: headers.text("x-request-id", REQUEST_ID_BYTES_MAX).unwrap_or_default(),
        api: api.into(),
        client: client.unwrap_or_default(),
        untrusted: !trusted,
        subset: list(names::SUBSET_HEADER),
        pin: pin.filter(|_| trusted).unwrap_or_default(),
        tolerations: list(names::TOLERATE_HEADER),
        deadline_ms,
        bad_deadline,
        slo_ttft_ms,
        bad_slo_ttft,
        client_retries: client_retries(headers),
        ..Register::default()
    }
}

/// Restricts a request to the endpoints that its gateway allows, whatever its client asks for. Returns whether there are none.
pub(crate) fn restrict_to_subset(register: &mut Register, subset: Option<Vec<String>>) -> bool {
    let Some(mut subset) = subset else {
        return false;
    };
    subset.retain(|endpoint| !endpoint.is_empty() && endpoint.len() <= LIST_ENTRY_BYTES_MAX);
    subset.truncate(LIST_MAX);
    register.subset = subset;
    register.gateway_subset = true;
    register.subset.is_empty()
}

/// How often the client's library says that it has sent the request before. Those of OpenAI and Anthropic do.
fn client_retries(headers: Headers<'_>) -> u32 {
    let count = headers.get("x-stainless-retry-count").map(<[u8]>::trim_ascii);
    count.and_then(|count| core::str::from_utf8(count).ok()?.parse().ok()).unwrap_or(0)
}

/// Adds the part that the body determines.
pub(crate) fn add_body(body: Body, body_bytes: usize, register: &mut Register) {
    register.model = body.model;
    register.stream = body.stream;
    register.background = body.is_background;
    register.max_tokens = body.max_tokens;
    // One sequence is what every companion takes a request for.
    register.sequences = if body.sequences > 1 { body.sequences } else { 0 };
    register.prompt_bytes = body.prompt_bytes;
    register.body_bytes = u64::try_from(body_bytes).unwrap_or(u64::MAX);
}

/// The models of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelName<'a> {
    /// The model that the client requested.
    pub(crate) requested: &'a str,
    /// The model that a grant wrote into the body in its place.
    pub(crate) target: Option<&'a str>,
}

impl<'a> ModelName<'a> {
    /// The models of a registration, which sends an absent target as an empty string.
    pub(crate) fn of(register: &'a Register) -> Self {
        Self {
            requested: &register.model,
            target: Some(register.target_model.as_str()).filter(|target| !target.is_empty()),
        }
    }

    /// The model that the body names.
    pub(crate) fn in_body(self) -> &'a str {
        self.target.unwrap_or(self.requested)
    }
}

/// Checks the headers of a request on a queued path, and returns the reason for refusing it. `end`: it has no body.
pub(crate) fn check_headers(headers: Headers<'_>, end: bool, body_bytes_max: u64) -> Option<Failure> {
    if end {
        return Some(invalid_body(BodyError::Empty));
    }
    let coding = headers.get("content-encoding").map(<[u8]>::trim_ascii).unwrap_or_default();
    if !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity") {
        let coding = bounded(coding, 32).unwrap_or_default();
        let message = format!(
            "The body is compressed (content-encoding: {coding}): send it uncompressed, or as application/json with gzip, br or zstd, \
             which Envoy's decompressor filters (envoy.filters.http.decompressor) decode where they are before Penstock's filter."
        );
        return Some(Failure::new(400, Code::InvalidRequest, message));
    }
    let length = headers.text("content-length", 20).and_then(|length| length.parse::<u64>().ok())?;
    (length > body_bytes_max).then(|| body_too_large(body_bytes_max))
}

/// The reason for refusing the headers of a request on any path.
pub(crate) fn too_many_headers(headers: Headers<'_>) -> Option<Failure> {
    let is_own = |name: &[u8]| {
        !(name.starts_with(b":") || name.starts_with(b"x-forwarded-") || name.starts_with(b"x-envoy-"))
    };
    let message = if headers.bytes() > HEADERS_BYTES_MAX {
        format!("The request has more than {HEADERS_BYTES_MAX} bytes of headers: send fewer or shorter ones.")
    } else if headers.count() > HEADERS_MAX
        && headers.iter().filter(|(name, _)| is_own(name)).count() > HEADERS_MAX
    {
        format!("The request has more than {HEADERS_MAX} headers: send fewer.")
    } else {
        return None;
    };
    Some(Failure::new(431, Code::InvalidRequest, message))
}

/// The error for a body that the scanner refuses at its end. `size`: its bytes. `received`: those that have arrived, which are fewer if Envoy has
/// decoded the body.
pub(crate) fn invalid_whole_body(error: BodyError, size: usize, received: Option<u64>) -> Failure {
    let size = u64::try_from(size).unwrap_or(u64::MAX);
    let received = received.unwrap_or(size);
    match error {
        BodyError::Empty if received > 0 => Failure::new(
            400,
            Code::InvalidRequest,
            "The body can't be decoded: it isn't what its content-encoding says.",
        ),
        BodyError::Syntax(SyntaxError::Unfinished, _) if size / DECODED_RATIO >= received.max(1) => {
            Failure::new(
                413,
                Code::RequestTooLarge,
                "The compressed body is more than 100 times larger when it is decoded: send it uncompressed.",
            )
        }
        BodyError::Syntax(SyntaxError::Unfinished, _) if received < size => {
            let message =
                format!("{error} It was compressed: it may be cut, or not what its content-encoding says.");
            Failure::new(400, Code::InvalidRequest, message)
        }
        error => invalid_body(error),
    }
}

/// The error for a body that the scanner refuses.
pub(crate) fn invalid_body(error: BodyError) -> Failure {
    Failure::new(400, Code::InvalidRequest, error.to_string())
}

/// The error for a body over the policy's limit.
pub(crate) fn body_too_large(limit: u64) -> Failure {
    let message = format!("The body is larger than {limit} bytes: send less, or raise `limits.body_bytes`.");
    Failure::new(413, Code::RequestTooLarge, message)
}
