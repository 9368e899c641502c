//! The scalars of the configuration: types that can't hold a value out of their range.
//!
//! A range is checked while the document is read, so that its error carries the line and the key's path.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use ipnet::IpNet;
use penstock_engine::limits::FLOWS_MAX;
use penstock_engine::units::Decimal;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A duration above zero, written `30s`, `250ms`, `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match humantime::parse_duration(text.trim()) {
            Ok(span) if !span.is_zero() => Ok(Self(span)),
            Ok(_) | Err(_) => Err(de::Error::custom(format!(
                "`{text}` is no duration above zero; write one like 30s, 250ms or 5m"
            ))),
        }
    }
}

/// A number of bytes, written `32MiB`, `1500KB` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) u64);

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

/// A finite number above zero: a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weight(pub(super) f64);

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let weight = f64::deserialize(deserializer)?;
        if weight.is_finite() && weight > 0.0 {
            Ok(Self(weight))
        } else {
            Err(de::Error::custom(format!(
                "a weight is a finite number above 0, not {weight}"
            )))
        }
    }
}

/// A finite number, 0 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Factor(pub(super) f64);

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let factor = f64::deserialize(deserializer)?;
        if factor.is_finite() && factor >= 0.0 {
            Ok(Self(factor))
        } else {
            Err(de::Error::custom(format!(
                "this is a finite number of at least 0, not {factor}"
            )))
        }
    }
}

/// A whole number of at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(pub(super) u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            0 => Err(de::Error::custom("this is a whole number of at least 1, not 0")),
            count => Ok(Self(count)),
        }
    }
}

/// A whole number from 0 to 1000: how often something is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole(pub(super) u32);

impl Whole {
    const MOST: u32 = 1_000;
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u64::deserialize(deserializer)?;
        u32::try_from(count)
            .ok()
            .filter(|count| *count <= Self::MOST)
            .map(Self)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "this is a whole number from 0 to {}, not {count}",
                    Self::MOST
                ))
            })
    }
}

/// Whose claims count: `all`, `none`, or a list of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trusted {
    All,
    Networks(Vec<Network>),
}

/// A network, written `10.0.0.0/8` or `fd00::/8`; bits past its prefix don't count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network(pub(super) IpNet);

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.trim().parse::<IpNet>() {
            Ok(network) => Ok(Self(network.trunc())),
            Err(_) => Err(de::Error::custom(format!(
                "`{text}` is no network; write one like 10.0.0.0/8, 192.0.2.7/32 or fd00::/8"
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for Trusted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Trusted;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("all, none, or a list of networks like [10.0.0.0/8, fd00::/8]")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Trusted, E> {
                match text {
                    "all" => Ok(Trusted::All),
                    "none" => Ok(Trusted::Networks(Vec::new())),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Trusted, A::Error> {
                let mut networks = Vec::new();
                while let Some(network) = list.next_element()? {
                    networks.push(network);
                }
                Ok(Trusted::Networks(networks))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// A decimal number of at least 0, kept exactly as it was written (to nine digits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Exact(pub(super) Decimal);

impl Exact {
    /// From the shortest decimal that reads back as `number`: what a person wrote, for up to 15 digits.
    fn from_f64(number: f64) -> Option<Self> {
        if !number.is_finite() || number < 0.0 {
            return None;
        }
        let text = format!("{number}");
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
        let whole: u128 = whole.parse().ok()?;
        let fraction: u128 = fraction.parse().ok()?;
        Some(Self(Decimal::from_billionths(
            whole.checked_mul(Decimal::ONE)?.checked_add(fraction)?,
        )))
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Self::from_f64(number)
            .ok_or_else(|| de::Error::custom(format!("this is a finite number of at least 0, not {number}")))
    }
}

/// Dispatches per second: a finite number above zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate(pub(super) f64);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rate = f64::deserialize(deserializer)?;
        if rate.is_finite() && rate > 0.0 {
            Ok(Self(rate))
        } else {
            Err(de::Error::custom(format!(
                "a rate is a finite number above 0, in requests per second, not {rate}"
            )))
        }
    }
}

/// A part of a number that isn't written here, as Dynamo has them: finite, 0 or more, and over 1 too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fraction(pub(super) f64);

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Factor::deserialize(deserializer).map(|it| Self(it.0))
    }
}

/// A part of the whole, kept exactly: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share(pub(super) Decimal);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Exact::from_f64(number)
            .map(|it| it.0)
            .filter(|part| *part > Decimal::default() && *part <= Decimal::whole(1))
            .map(Self)
            .ok_or_else(|| de::Error::custom(format!("this is a number above 0 and at most 1, not {number}")))
    }
}

/// Flows with state of their own: a whole number from 1 to the engine's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowCount(pub(super) usize);

impl<'de> Deserialize<'de> for FlowCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u64::deserialize(deserializer)?;
        usize::try_from(count)
            .ok()
            .filter(|count| (1..=FLOWS_MAX).contains(count))
            .map(Self)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "this is a whole number from 1 to {FLOWS_MAX}, not {count}"
                ))
            })
    }
}

/// A time that a server is given, above zero: `500ms`, or a number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target(pub(super) Duration);

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
                match humantime::parse_duration(text.trim()) {
                    Ok(span) if !span.is_zero() => Ok(Target(span)),
                    Ok(_) | Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Targets)
    }
}

/// How many times alpha an iteration may take: a finite number above 1. 0 is the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Multiplier(pub(super) f64);

impl<'de> Deserialize<'de> for Multiplier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let multiplier = f64::deserialize(deserializer)?;
        if multiplier == 0.0 {
            Ok(Self(penstock_model::slo::Policy::default().multiplier))
        } else if multiplier.is_finite() && multiplier > 1.0 {
            Ok(Self(multiplier))
        } else {
            Err(de::Error::custom(format!(
                "this is a finite number above 1, or 0 for the default, not {multiplier}"
            )))
        }
    }
}

/// A word or a number, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scalar(pub(super) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalars;
        impl Visitor<'_> for Scalars {
            type Value = Scalar;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a word or a whole number")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Scalars)
    }
}

/// A mapping in the order it was written: its first entry that matches counts.
#[derive(Clone, Debug)]
pub(super) struct Pairs<T>(pub(super) Vec<(String, T)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Pairs<T>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a mapping")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// One word, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OneOrMany<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Words<T> {
            type Value = OneOrMany<T>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("one word or a list of them")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
                T::deserialize(de::value::StrDeserializer::new(text)).map(|one| OneOrMany(vec![one]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany<T>, A::Error> {
                let mut many = Vec::new();
                while let Some(one) = list.next_element()? {
                    many.push(one);
                }
                Ok(OneOrMany(many))
            }
        }
        deserializer.deserialize_any(Words(PhantomData))
    }
}

/// Either a plain string or a mapping: `"a"` is short for `{address: "a"}`.
pub(super) struct TextOr<T>(pub(super) PhantomData<T>);

impl<'de, T> Visitor<'de> for TextOr<T>
where
    T: Deserialize<'de> + From<String>,
{
    type Value = T;
    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an address like \"127.0.0.1:8001\", or {address: ...}")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Ok(T::from(text.to_owned()))
    }
    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(de::value::MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_keeps_what_was_written() {
        let exact = |number: f64| Exact::from_f64(number).map(|it| it.0.billionths());
        assert_eq!(exact(0.1), Some(100_000_000));
        assert_eq!(exact(2.0), Some(2_000_000_000));
        assert_eq!(exact(1.000_000_001), Some(1_000_000_001));
        assert_eq!(exact(f64::NAN), None);
        assert_eq!(exact(-0.5), None);
    }
}
