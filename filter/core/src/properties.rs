//! Properties of an HTTP stream that Envoy provides beside the headers: addresses, response details, metadata.

use penstock_wire::limits::NAME_BYTES_MAX;

use crate::headers::{Headers, bounded};

/// Envoy's properties of one HTTP stream.
pub trait Properties {
    /// The value of the property at `path`; `None`: the stream doesn't have it.
    fn property(&self, path: &[&str]) -> Option<Vec<u8>>;

    /// The pool that the gateway has chosen for the request; `None`: its model chooses.
    fn pool(&self) -> Option<&str> {
        None
    }

    /// The only endpoints, `ip:port`, to which the gateway lets the request go; `None`: it restricts nothing.
    fn subset(&self) -> Option<Vec<String>> {
        None
    }

    /// Whether the host passes the body of the response to the worker.
    fn passes_answer(&self) -> bool {
        true
    }

    /// Whether the host can restart the stream: send its request in again, with its whole body of `body_bytes`.
    fn can_restart(&self, body_bytes: u64) -> bool {
        let _ = body_bytes;
        false
    }
}

/// Bytes of the request's body that Envoy has received; `None`: unknown. `headers`: the request's present headers.
#[must_use]
pub fn received_body_bytes(host: &impl Properties, headers: Headers<'_>) -> Option<u64> {
    // Envoy's size counts the names and values of the headers as well.
    let total = host.property(&["request", "total_size"])?;
    let total = u64::from_le_bytes(total.try_into().ok()?);
    let size = |(name, value): (&[u8], &[u8])| u64::try_from(name.len().saturating_add(value.len())).ok();
    let own = headers.iter().filter_map(size).fold(0, u64::saturating_add);
    Some(total.saturating_sub(own))
}

/// The client's address as Envoy sees it, without its port.
pub(crate) fn client_address(host: &impl Properties) -> Option<String> {
    let address = host.property(&["source", "address"])?;
    bounded(&address, NAME_BYTES_MAX).map(without_port)
}

/// Envoy's response code details: the reason why a response was sent or a stream ended.
pub(crate) fn response_code_details(host: &impl Properties) -> String {
    text(host.property(&["response", "code_details"])).unwrap_or_default()
}

/// The address of the server that Envoy used last.
pub(crate) fn upstream_address(host: &impl Properties) -> Option<String> {
    text(host.property(&["upstream", "address"]))
}

/// Envoy had no file descriptor for a connection to a server.
pub(crate) fn lacked_socket(host: &impl Properties) -> bool {
    let reason = text(host.property(&["upstream", "transport_failure_reason"]));
    reason.is_some_and(|reason| reason.contains("socket creation failure"))
}

/// The server ended the connection or the stream after Envoy had sent the request, or a part of it.
pub(crate) fn was_cut(host: &impl Properties) -> bool {
    /// Envoy's bits for "upstream remote reset" and "upstream connection termination".
    const CUTS: u64 = (1 << 4) | (1 << 6);
    response_flags(host) & CUTS != 0
}

/// Envoy ended the attempt because the server's headers took too long.
pub(crate) fn ran_out_of_time(host: &impl Properties) -> bool {
    /// Envoy's bit for "upstream request timeout".
    const TIMEOUT: u64 = 1 << 2;
    response_flags(host) & TIMEOUT != 0
}

/// Envoy's response flags; 0: none, or unknown.
fn response_flags(host: &impl Properties) -> u64 {
    let flags = host.property(&["response", "flags"]);
    flags.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).unwrap_or(0)
}

/// The attempt went over a connection that was open already: Envoy took it from its pool without waiting.
pub(crate) fn was_reused(host: &impl Properties) -> bool {
    /// A new connection takes at least a turn of Envoy's event loop.
    const AT_ONCE_NS: i64 = 15_000;
    let took = host.property(&["upstream", "cx_pool_ready_duration"]);
    let took = took.and_then(|bytes| Some(i64::from_le_bytes(bytes.try_into().ok()?)));
    took.is_some_and(|took| (0..AT_ONCE_NS).contains(&took))
}

/// How often Envoy sent the request upstream; 0: unknown.
pub(crate) fn attempt_count(host: &impl Properties) -> u32 {
    let count = host.property(&["upstream", "request_attempt_count"]);
    let count = count.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

fn text(value: Option<Vec<u8>>) -> Option<String> {
    value.and_then(|value| String::from_utf8(value).ok()).filter(|value| !value.is_empty())
}

/// Removes the port from `ip:port` or `[ip]:port`.
fn without_port(address: String) -> String {
    let ip =
        address.rsplit_once(':').map(|(ip, _)| ip.trim_start_matches('[').trim_end_matches(']').to_owned());
    ip.unwrap_or(address)
}
