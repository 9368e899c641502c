//! Numbers with a range: counts, weights, rates, parts.

use std::borrow::Cow;
use std::fmt;

use penstock_engine::limits::FLOWS_MAX;
use penstock_engine::units::Decimal;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// Up to here every whole number has a double of its own.
const EXACT_IN_F64: f64 = 9_007_199_254_740_992.0;

/// Takes any number; it is what is `allowed` that an error names.
struct Numbers(&'static str);

impl Visitor<'_> for Numbers {
    type Value = f64;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "past 2^53 the nearest double is meant")]
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "past 2^53 the nearest double is meant")]
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }
}

/// Takes whole numbers of at least 0.
struct Wholes(&'static str);

impl Visitor<'_> for Wholes {
    type Value = u64;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.0)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
    }
}

fn number<'de, D: Deserializer<'de>>(
    from: D,
    allowed: &'static str,
    fits: impl FnOnce(f64) -> bool,
) -> Result<f64, D::Error> {
    let number = from.deserialize_any(Numbers(allowed))?;
    if number.is_finite() && fits(number) {
        Ok(number)
    } else {
        Err(de::Error::invalid_value(
            de::Unexpected::Float(number),
            &Numbers(allowed),
        ))
    }
}

fn whole<'de, D: Deserializer<'de>>(
    from: D,
    allowed: &'static str,
    fits: impl FnOnce(u64) -> bool,
) -> Result<u64, D::Error> {
    let number = from.deserialize_any(Wholes(allowed))?;
    if fits(number) {
        Ok(number)
    } else {
        Err(de::Error::invalid_value(
            de::Unexpected::Unsigned(number),
            &Wholes(allowed),
        ))
    }
}

/// Writes a whole number without a point.
fn write<S: Serializer>(number: f64, to: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && (0.0..EXACT_IN_F64).contains(&number) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, not negative, below 2^53"
        )]
        return to.serialize_u64(number as u64);
    }
    to.serialize_f64(number)
}

/// A number's type: what it holds, what is allowed in words, when it fits, and the same as a schema.
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

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )+};
}

numbers! {
    /// A weight.
    Weight(f64), number, "a finite number above 0", |it| it > 0.0,
        {"type": "number", "exclusiveMinimum": 0};
    /// A factor that may be nothing.
    Factor(f64), number, "a finite number of at least 0", |it| it >= 0.0,
        {"type": "number", "minimum": 0};
    /// Dispatches per second.
    Rate(f64), number, "a finite number above 0, in requests per second", |it| it > 0.0,
        {"type": "number", "exclusiveMinimum": 0};
    /// A part of a number that isn't written here, as Dynamo has them: over 1 too.
    Fraction(f64), number, "a finite number of at least 0", |it| it >= 0.0,
        {"type": "number", "minimum": 0};
    /// How many times alpha an iteration may take. 0 is the default.
    Multiplier(f64), number, "a finite number above 1, or 0 for the default", |it| it == 0.0 || it > 1.0,
        {"anyOf": [{"type": "number", "exclusiveMinimum": 1}, {"const": 0}]};
    /// A whole number.
    Number(u64), whole, "a whole number of at least 0", |_| true,
        {"type": "integer", "minimum": 0};
    /// A whole number that isn't nothing.
    Count(u64), whole, "a whole number of at least 1", |it| it >= 1,
        {"type": "integer", "minimum": 1};
    /// How often something is tried again.
    Attempts(u64), whole, "a whole number from 0 to 1000", |it| it <= 1_000,
        {"type": "integer", "minimum": 0, "maximum": 1000};
    /// Flows with state of their own, up to the engine's limit.
    FlowCount(u64), whole, "a whole number from 1 to 100000", |it| (1..=FLOWS_MOST).contains(&it),
        {"type": "integer", "minimum": 1, "maximum": 100_000};
    /// A TCP port.
    Port(u64), whole, "a port, a whole number from 1 to 65535", |it| (1..=65_535).contains(&it),
        {"type": "integer", "minimum": 1, "maximum": 65_535};
    /// A status for what there is no room for.
    CapacityStatus(u64), whole, "503 or 429", |it| matches!(it, 429 | 503),
        {"enum": [503, 429]};
}

const FLOWS_MOST: u64 = 100_000;
const _: () = assert!(FLOWS_MOST as usize == FLOWS_MAX);

macro_rules! written {
    ($($name:ident as $write:expr;)+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $write(self.0, to)
            }
        }
    )+};
}

written! {
    Weight as write;
    Factor as write;
    Rate as write;
    Fraction as write;
    Multiplier as write;
    Number as write_whole;
    Count as write_whole;
    Attempts as write_whole;
    FlowCount as write_whole;
    Port as write_whole;
    CapacityStatus as write_whole;
    Exact as write_decimal;
    Share as write_decimal;
}

fn write_whole<S: Serializer>(number: u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(number)
}

/// Both numbers are exact in a double, so what is written is the decimal again.
#[expect(clippy::cast_precision_loss, reason = "below 2^53 in any sensible document")]
fn write_decimal<S: Serializer>(number: Decimal, to: S) -> Result<S::Ok, S::Error> {
    write(number.billionths() as f64 / Decimal::ONE as f64, to)
}

/// A decimal number of at least 0, kept exactly as it was written (to nine digits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Exact(pub(crate) Decimal);

/// From the shortest decimal that reads back as `number`: what a person wrote, for up to 15 digits.
fn decimal(number: f64) -> Option<Decimal> {
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    let text = format!("{number}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let whole: u128 = whole.parse().ok()?;
    let fraction: u128 = fraction.parse().ok()?;
    Some(Decimal::from_billionths(
        whole.checked_mul(Decimal::ONE)?.checked_add(fraction)?,
    ))
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = "a finite number of at least 0";
        let number = number(deserializer, allowed, |it| it >= 0.0)?;
        decimal(number)
            .map(Self)
            .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Float(number), &Numbers(allowed)))
    }
}

impl JsonSchema for Exact {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Exact".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "number", "minimum": 0})
    }
}

/// A part of the whole, kept exactly: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) Decimal);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = "a number above 0 and at most 1";
        let number = number(deserializer, allowed, |it| it > 0.0 && it <= 1.0)?;
        decimal(number)
            .filter(|part| *part > Decimal::default())
            .map(Self)
            .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Float(number), &Numbers(allowed)))
    }
}

impl JsonSchema for Share {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Share".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_keeps_what_was_written() {
        let exact = |number: f64| decimal(number).map(|it| it.billionths());
        assert_eq!(exact(0.1), Some(100_000_000));
        assert_eq!(exact(2.0), Some(2_000_000_000));
        assert_eq!(exact(1.000_000_001), Some(1_000_000_001));
        assert_eq!(exact(f64::NAN), None);
        assert_eq!(exact(-0.5), None);
    }

    #[test]
    fn numbers_are_written_as_people_write_them() {
        let written = |number: f64| serde_json::to_string(&Exact(decimal(number).expect("a decimal")));
        for (number, text) in [(0.1, "0.1"), (2.0, "2"), (1.75, "1.75"), (0.000_000_001, "1e-9")] {
            assert_eq!(written(number).expect("JSON"), text);
        }
        assert_eq!(serde_json::to_string(&Weight(3.0)).expect("JSON"), "3");
    }
}
