//! Times and sizes, with their units: `30s`, `256MiB`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// What a duration looks like: whole numbers with units, one after the other.
const SPAN_PATTERN: &str = r"^\s*([0-9]+(\.[0-9]+)?\s*(nsec|ns|usec|us|µs|μs|msec|ms|millis|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|hr|h|days?|d|weeks?|w|months?|M|years?|y)\s*)+$";
/// What a size looks like.
const SIZE_PATTERN: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtTpPeE]?[iI]?[bB]?)?\s*$";

/// A duration above zero, written `30s`, `250ms`, `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

/// Reads a duration above zero.
fn parse_span(text: &str) -> Option<Duration> {
    humantime::parse_duration(text.trim())
        .ok()
        .filter(|span| !span.is_zero())
}

/// The longest unit that leaves a whole number, but no longer one for a single minute or hour.
fn write_span(span: Duration) -> String {
    let nanos = span.as_nanos();
    for (unit, of, least) in [
        ("h", 3_600_000_000_000, 2),
        ("m", 60_000_000_000, 2),
        ("s", 1_000_000_000, 1),
        ("ms", 1_000_000, 1),
        ("us", 1_000, 1),
    ] {
        if nanos.is_multiple_of(of) && nanos / of >= least {
            return format!("{}{unit}", nanos / of);
        }
    }
    format!("{nanos}ns")
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Spans;
        impl Visitor<'_> for Spans {
            type Value = Span;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a duration above zero with its unit, like 30s, 250ms or 5m")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                parse_span(text)
                    .map(Span)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Spans)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&write_span(self.0))
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "duration-with-unit", "pattern": SPAN_PATTERN})
    }
}

/// A number of bytes, written `32MiB`, `1500KB` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;
        impl Visitor<'_> for Sizes {
            type Value = Bytes;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a size like 256MiB, or a whole number of bytes")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                let size: bytesize::ByteSize = text
                    .trim()
                    .parse()
                    .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Bytes(size.as_u64()))
            }
        }
        deserializer.deserialize_any(Sizes)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0;
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if bytes > 0 && bytes.trailing_zeros() >= shift {
                return to.collect_str(&format_args!("{}{unit}", bytes >> shift));
            }
        }
        to.serialize_u64(bytes)
    }
}

impl JsonSchema for Bytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "string", "format": "size-with-unit", "pattern": SIZE_PATTERN},
            {"type": "integer", "minimum": 0},
        ]})
    }
}

/// A time that a server is given, above zero: `500ms`, or a number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target(pub(crate) Duration);

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Targets;
        impl Visitor<'_> for Targets {
            type Value = Target;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a time above zero, like 500ms, or a number of milliseconds")
            }
            fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Target, E> {
                match millis {
                    0 => Err(E::invalid_value(de::Unexpected::Unsigned(0), &self)),
                    millis => Ok(Target(Duration::from_millis(millis))),
                }
            }
            fn visit_i64<E: de::Error>(self, millis: i64) -> Result<Target, E> {
                match u64::try_from(millis) {
                    Ok(millis) => self.visit_u64(millis),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(millis), &self)),
                }
            }
            fn visit_f64<E: de::Error>(self, millis: f64) -> Result<Target, E> {
                match Duration::try_from_secs_f64(millis / 1_000.0) {
                    Ok(span) if !span.is_zero() => Ok(Target(span)),
                    Ok(_) | Err(_) => Err(E::invalid_value(de::Unexpected::Float(millis), &self)),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Target, E> {
                parse_span(text)
                    .map(Target)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Targets)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&write_span(self.0))
    }
}

impl JsonSchema for Target {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Target".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "string", "format": "duration-with-unit", "pattern": SPAN_PATTERN},
            {"type": "number", "exclusiveMinimum": 0},
        ]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_is_the_files_notation() {
        for (text, written) in [
            ("30s", "30s"),
            ("60s", "60s"),
            ("5m", "5m"),
            ("90s", "90s"),
            ("1h", "60m"),
            ("2h 30m", "150m"),
            ("1500ms", "1500ms"),
            ("2000ms", "2s"),
            ("1ns", "1ns"),
        ] {
            let span = parse_span(text).expect(text);
            assert_eq!(write_span(span), written);
            assert_eq!(parse_span(written), Some(span));
        }
        for (bytes, written) in [
            (256 << 20, "\"256MiB\""),
            (4096, "\"4KiB\""),
            (1_500_000, "1500000"),
            (0, "0"),
        ] {
            assert_eq!(serde_json::to_string(&Bytes(bytes)).expect("JSON"), written);
        }
    }
}
