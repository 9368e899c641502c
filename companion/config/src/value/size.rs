//! Durations and sizes with their units: `30s`, `256MiB`.

use std::fmt;
use std::time::Duration;

use schemars::json_schema;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// One or more numbers, each with its unit.
const DURATION_PATTERN: &str = r"^\s*([0-9]+(\.[0-9]+)?\s*(nsec|ns|usec|us|µs|μs|msec|ms|millis|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|hr|h|days?|d|weeks?|w|months?|M|years?|y)\s*)+$";
const SIZE_PATTERN: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtTpPeE]?[iI]?[bB]?)?\s*$";

/// A duration above zero, written `30s`, `250ms`, `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositiveDuration(pub(crate) Duration);

impl PositiveDuration {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        parse_duration(text).map(Self)
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    humantime::parse_duration(text.trim()).ok().filter(|duration| !duration.is_zero())
}

/// In the largest unit that gives a whole number. One minute is written as 60s and one hour as 60m.
fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    for (unit, size, least) in [
        ("h", 3_600_000_000_000, 2),
        ("m", 60_000_000_000, 2),
        ("s", 1_000_000_000, 1),
        ("ms", 1_000_000, 1),
        ("us", 1_000, 1),
    ] {
        if nanos.is_multiple_of(size) && nanos / size >= least {
            return format!("{}{unit}", nanos / size);
        }
    }
    format!("{nanos}ns")
}

impl<'de> Deserialize<'de> for PositiveDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PositiveDurationVisitor;
        impl Visitor<'_> for PositiveDurationVisitor {
            type Value = PositiveDuration;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a duration above zero with its unit, like 30s, 250ms or 5m")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<PositiveDuration, E> {
                parse_duration(text)
                    .map(PositiveDuration)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(PositiveDurationVisitor)
    }
}

impl Serialize for PositiveDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(self.0))
    }
}

inline_schema!(
    PositiveDuration,
    |_| json_schema!({"type": "string", "format": "duration-with-unit", "pattern": DURATION_PATTERN})
);

/// A number of bytes, written `32MiB`, `1500KB` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Bytes;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a size like 256MiB, or a whole number of bytes")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                let size: bytesize::ByteSize =
                    text.trim().parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Bytes(size.as_u64()))
            }
        }
        deserializer.deserialize_any(BytesVisitor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0;
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if bytes > 0 && bytes.trailing_zeros() >= shift {
                return serializer.collect_str(&format_args!("{}{unit}", bytes >> shift));
            }
        }
        serializer.serialize_u64(bytes)
    }
}

inline_schema!(Bytes, |_| json_schema!({"anyOf": [
    {"type": "string", "format": "size-with-unit", "pattern": SIZE_PATTERN},
    {"type": "integer", "minimum": 0},
]}));

/// A latency target above zero: `500ms`, or a number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatencyTarget(pub(crate) Duration);

impl<'de> Deserialize<'de> for LatencyTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LatencyTargetVisitor;
        impl Visitor<'_> for LatencyTargetVisitor {
            type Value = LatencyTarget;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a time above zero, like 500ms, or a number of milliseconds")
            }
            fn visit_u64<E: de::Error>(self, millis: u64) -> Result<LatencyTarget, E> {
                match millis {
                    0 => Err(E::invalid_value(de::Unexpected::Unsigned(0), &self)),
                    millis => Ok(LatencyTarget(Duration::from_millis(millis))),
                }
            }
            fn visit_i64<E: de::Error>(self, millis: i64) -> Result<LatencyTarget, E> {
                match u64::try_from(millis) {
                    Ok(millis) => self.visit_u64(millis),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(millis), &self)),
                }
            }
            fn visit_f64<E: de::Error>(self, millis: f64) -> Result<LatencyTarget, E> {
                match Duration::try_from_secs_f64(millis / 1_000.0) {
                    Ok(duration) if !duration.is_zero() => Ok(LatencyTarget(duration)),
                    Ok(_) | Err(_) => Err(E::invalid_value(de::Unexpected::Float(millis), &self)),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<LatencyTarget, E> {
                parse_duration(text)
                    .map(LatencyTarget)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(LatencyTargetVisitor)
    }
}

impl Serialize for LatencyTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(self.0))
    }
}

inline_schema!(LatencyTarget, |_| json_schema!({"anyOf": [
    {"type": "string", "format": "duration-with-unit", "pattern": DURATION_PATTERN},
    {"type": "number", "exclusiveMinimum": 0},
]}));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_written_in_a_form_that_reads_back() {
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
            let duration = parse_duration(text).expect(text);
            assert_eq!(format_duration(duration), written);
            assert_eq!(parse_duration(written), Some(duration));
        }
        for (bytes, written) in
            [(256 << 20, "\"256MiB\""), (4096, "\"4KiB\""), (1_500_000, "1500000"), (0, "0")]
        {
            assert_eq!(serde_json::to_string(&Bytes(bytes)).expect("JSON"), written);
        }
    }
}
