//! Numbers with a range: counts, weights, rates, fractions.

use std::fmt;

use penstock_engine::limits::FLOWS_MAX;
use penstock_engine::units::Decimal;
use schemars::json_schema;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// The first whole number from which not every whole number has a double of its own: 2^53.
const EXACT_IN_F64: f64 = 9_007_199_254_740_992.0;

/// Takes any number. The text describes the allowed numbers in errors.
struct Numbers(&'static str);

impl Visitor<'_> for Numbers {
    type Value = f64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "above 2^53 the nearest double is meant")]
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "above 2^53 the nearest double is meant")]
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }
}

/// Takes whole numbers of at least 0. The text describes the allowed numbers in errors.
struct Wholes(&'static str);

impl Visitor<'_> for Wholes {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
    }
}

fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    allowed: &'static str,
    fits: impl FnOnce(f64) -> bool,
) -> Result<f64, D::Error> {
    let number = deserializer.deserialize_any(Numbers(allowed))?;
    if number.is_finite() && fits(number) {
        Ok(number)
    } else {
        Err(de::Error::invalid_value(de::Unexpected::Float(number), &Numbers(allowed)))
    }
}

fn whole<'de, D: Deserializer<'de>>(
    deserializer: D,
    allowed: &'static str,
    fits: impl FnOnce(u64) -> bool,
) -> Result<u64, D::Error> {
    let number = deserializer.deserialize_any(Wholes(allowed))?;
    if fits(number) {
        Ok(number)
    } else {
        Err(de::Error::invalid_value(de::Unexpected::Unsigned(number), &Wholes(allowed)))
    }
}

/// Writes a whole number without a decimal point.
fn write<S: Serializer>(number: f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && (0.0..EXACT_IN_F64).contains(&number) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, not negative, below 2^53"
        )]
        return serializer.serialize_u64(number as u64);
    }
    serializer.serialize_f64(number)
}

/// Declares a number's type: its name and the type inside, the function that reads it, the allowed numbers in words, the same
/// as a condition, and the same as a JSON Schema.
macro_rules! numbers {
    ($($(#[$doc:meta])+ $name:ident($held:ty), $read:ident, $allowed:literal, $fits:expr, $schema:tt;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub(crate) struct $name(pub(crate) $held);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $read(deserializer, $allowed, $fits).map(Self)
            }
        }

        inline_schema!($name, |_| json_schema!($schema));
    )+};
}

numbers! {
    /// A weight.
    Weight(f64), number, "a finite number above 0", |weight| weight > 0.0,
        {"type": "number", "exclusiveMinimum": 0};
    /// A factor that may be 0.
    Factor(f64), number, "a finite number of at least 0", |factor| factor >= 0.0,
        {"type": "number", "minimum": 0};
    /// A flow's weight. Costs per weight are whole units, so that within these limits equal ratios of weights give equal shares.
    FlowWeight(f64), number, "a finite number above 0, from 0.0001 to 1000000 (only the ratio of weights counts: multiply all of them by the same number)",
        |weight| WEIGHTS.contains(&weight),
        {"type": "number", "minimum": 0.0001, "maximum": 1_000_000};
    /// A band's weight.
    BandWeight(f64), number, "a finite number of at least 0: 0, or from 0.0001 to 1000000 (only the ratio of weights counts: multiply all of them by the same number)",
        |weight| weight == 0.0 || WEIGHTS.contains(&weight),
        {"anyOf": [{"type": "number", "minimum": 0.0001, "maximum": 1_000_000}, {"const": 0}]};
    /// The cost of a token. The cost of a request is a whole number and at least 1, so with smaller weights short and long requests
    /// would cost the same.
    TokenWeight(f64), number, "a finite number of at least 0: 0, or from 0.1 to 100000 (the cost of a request is a whole number, and only the ratio of the two weights counts for shares: multiply both by the same number)",
        |weight| weight == 0.0 || (0.1..=100_000.0).contains(&weight),
        {"anyOf": [{"type": "number", "minimum": 0.1, "maximum": 100_000}, {"const": 0}]};
    /// Grants per second.
    Rate(f64), number, "a finite number above 0, in requests per second", |rate| rate > 0.0,
        {"type": "number", "exclusiveMinimum": 0};
    /// A fraction of another number. As in Dynamo, it may exceed 1.
    Fraction(f64), number, "a finite number of at least 0", |fraction| fraction >= 0.0,
        {"type": "number", "minimum": 0};
    /// The longest iteration as a multiple of alpha. 0 means the default.
    Multiplier(f64), number, "a finite number above 1, or 0 for the default", |factor| factor == 0.0 || factor > 1.0,
        {"anyOf": [{"type": "number", "exclusiveMinimum": 1}, {"const": 0}]};
    /// A whole number.
    WholeNumber(u64), whole, "a whole number of at least 0", |_| true,
        {"type": "integer", "minimum": 0};
    /// A whole number above 0.
    Count(u64), whole, "a whole number of at least 1", |count| count >= 1,
        {"type": "integer", "minimum": 1};
    /// Flows with state of their own, up to the engine's limit.
    FlowCount(u64), whole, "a whole number from 1 to 100000", |count| (1..=FLOWS_LIMIT).contains(&count),
        {"type": "integer", "minimum": 1, "maximum": 100_000};
    /// A TCP port.
    Port(u64), whole, "a port, a whole number from 1 to 65535", |port| (1..=65_535).contains(&port),
        {"type": "integer", "minimum": 1, "maximum": 65_535};
    /// The status of an answer for lack of capacity.
    CapacityStatus(u64), whole, "503 or 429", |status| matches!(status, 429 | 503),
        {"enum": [503, 429]};
}

const WEIGHTS: std::ops::RangeInclusive<f64> = 0.0001..=1_000_000.0;
const FLOWS_LIMIT: u64 = 100_000;
const _: () = assert!(FLOWS_LIMIT as usize == FLOWS_MAX);

macro_rules! serialize_as {
    ($($name:ident as $write:expr;)+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $write(self.0, serializer)
            }
        }
    )+};
}

serialize_as! {
    Weight as write;
    Factor as write;
    FlowWeight as write;
    BandWeight as write;
    TokenWeight as write;
    Rate as write;
    Fraction as write;
    Multiplier as write;
    WholeNumber as write_whole;
    Count as write_whole;
    FlowCount as write_whole;
    Port as write_whole;
    CapacityStatus as write_whole;
    ExactDecimal as write_decimal;
    Share as write_decimal;
}

fn write_whole<S: Serializer>(number: u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(number)
}

/// A double holds both numbers exactly, so the quotient is written as the decimal that was read.
#[expect(clippy::cast_precision_loss, reason = "below 2^53 in any sensible document")]
fn write_decimal<S: Serializer>(number: Decimal, serializer: S) -> Result<S::Ok, S::Error> {
    write(number.billionths() as f64 / Decimal::ONE as f64, serializer)
}

/// A decimal number of at least 0, exact to nine digits after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExactDecimal(pub(crate) Decimal);

/// The shortest decimal that reads back as `number`. Up to 15 digits this is the decimal that was written.
fn decimal(number: f64) -> Option<Decimal> {
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    let text = format!("{number}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let whole: u128 = whole.parse().ok()?;
    let fraction: u128 = fraction.parse().ok()?;
    Some(Decimal::from_billionths(whole.checked_mul(Decimal::ONE)?.checked_add(fraction)?))
}

impl<'de> Deserialize<'de> for ExactDecimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = "a finite number of at least 0";
        let number = number(deserializer, allowed, |number| number >= 0.0)?;
        decimal(number)
            .map(Self)
            .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Float(number), &Numbers(allowed)))
    }
}

inline_schema!(ExactDecimal, |_| json_schema!({"type": "number", "minimum": 0}));

/// A fraction of the whole, above 0 and at most 1, exact to nine digits after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) Decimal);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = "a number above 0 and at most 1";
        let number = number(deserializer, allowed, |number| number > 0.0 && number <= 1.0)?;
        decimal(number)
            .filter(|part| *part > Decimal::default())
            .map(Self)
            .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Float(number), &Numbers(allowed)))
    }
}

inline_schema!(Share, |_| json_schema!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        let exact = |number: f64| decimal(number).map(Decimal::billionths);
        assert_eq!(exact(0.1), Some(100_000_000));
        assert_eq!(exact(2.0), Some(2_000_000_000));
        assert_eq!(exact(1.000_000_001), Some(1_000_000_001));
        assert_eq!(exact(f64::NAN), None);
        assert_eq!(exact(-0.5), None);
    }

    #[test]
    fn numbers_are_written_in_their_shortest_form() {
        let written = |number: f64| serde_json::to_string(&ExactDecimal(decimal(number).expect("a decimal")));
        for (number, text) in [(0.1, "0.1"), (2.0, "2"), (1.75, "1.75"), (0.000_000_001, "1e-9")] {
            assert_eq!(written(number).expect("JSON"), text);
        }
        assert_eq!(serde_json::to_string(&Weight(3.0)).expect("JSON"), "3");
    }
}
