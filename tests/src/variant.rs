//! What a run of the tests goes through, by the environment: all tests of the filter pass with both of its hosts, and most with the endpoint
//! picker in its place.

/// The environment variable that names what Envoy runs the filter as, `wasm` or `native`.
pub(crate) const FILTER: &str = "PENSTOCK_TEST_FILTER";

/// The environment variable that names the door of a gateway's requests, `filter` or `picker`.
const DOOR: &str = "PENSTOCK_TEST_DOOR";

/// Envoy runs the filter as native code.
#[must_use]
pub fn is_native() -> bool {
    std::env::var(FILTER).is_ok_and(|filter| filter == "native")
}

/// Requests come through an Envoy without the filter, which asks the companion as an endpoint picker.
pub(crate) fn is_picker() -> bool {
    std::env::var(DOOR).is_ok_and(|door| door == "picker")
}
