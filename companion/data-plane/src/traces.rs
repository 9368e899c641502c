//! Whether requests are traced: the filter is told of it, and the companion sends the spans.

/// Names the collector for everything,
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// or for spans.
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// The environment names a collector, and doesn't switch traces off.
#[must_use]
pub fn is_wanted() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|it| it.eq_ignore_ascii_case(value));
    let named = |name: &str| std::env::var(name).is_ok_and(|it| !it.trim().is_empty());
    let is_off = is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none");
    (named(ENDPOINT) || named(TRACES_ENDPOINT)) && !is_off
}
