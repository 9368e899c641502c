//! Whether the environment turns on the export of spans. The filter then reports what spans need, and the companion
//! exports them.

/// Names the collector for all signals.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Names the collector for spans.
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// Whether the environment names a collector and doesn't turn traces off. `variable` returns the value of an environment
/// variable; commands read it once at their start.
#[must_use]
pub fn are_on(variable: impl Fn(&str) -> Option<String>) -> bool {
    let equals =
        |name: &str, value: &str| variable(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
    let is_set = |name: &str| variable(name).is_some_and(|text| !text.trim().is_empty());
    let is_off = equals("OTEL_SDK_DISABLED", "true") || equals("OTEL_TRACES_EXPORTER", "none");
    (is_set(ENDPOINT) || is_set(TRACES_ENDPOINT)) && !is_off
}
