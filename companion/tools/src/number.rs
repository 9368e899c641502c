//! Number types with a range, for flags and files.
//!
//! All numbers are finite, and so small that a product of four of them is finite as well.

use std::fmt;
use std::str::FromStr;

use penstock_model::Parameters;
use serde::de::{Deserialize, Deserializer, Error as _};

/// Above every realistic value.
const MAX: f64 = 1e30;
/// Above every realistic time, before or after a clock's zero. In milliseconds such a time is still exact to 1 ms.
const SECONDS_MAX: f64 = 1e12;

/// A number is out of its range. The text contains the number and the range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct OutOfRange(String);

macro_rules! ranged {
    ($name:ident, $what:literal, $holds:expr) => {
        impl TryFrom<f64> for $name {
            type Error = OutOfRange;
            fn try_from(number: f64) -> Result<Self, OutOfRange> {
                let holds: fn(f64) -> bool = $holds;
                if holds(number) {
                    Ok(Self(number))
                } else {
                    Err(OutOfRange(format!(concat!("expected ", $what, ", not {:?}"), number)))
                }
            }
        }

        impl FromStr for $name {
            type Err = OutOfRange;
            fn from_str(text: &str) -> Result<Self, OutOfRange> {
                parse(text, $what)?.try_into()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                f64::deserialize(deserializer)?
                    .try_into()
                    .map_err(|error: OutOfRange| D::Error::custom(error))
            }
        }
    };
}

fn parse(text: &str, what: &str) -> Result<f64, OutOfRange> {
    text.trim().parse().map_err(|_| OutOfRange(format!("expected {what}, not `{text}`")))
}

/// A finite number above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Above0(pub(crate) f64);
ranged!(Above0, "a number above 0 and up to 1e30", |number| number > 0.0 && number <= MAX);

/// A finite number, 0 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AtLeast0(pub(crate) f64);
ranged!(AtLeast0, "a number from 0 to 1e30", |number| (0.0..=MAX).contains(&number));

/// A number above 1, or 0 for the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Multiplier(f64);
ranged!(Multiplier, "a number above 1 and up to 1e30, or 0 for the default of 3", |number| number == 0.0
    || number > 1.0 && number <= MAX);

impl Multiplier {
    pub(crate) fn value(self) -> f64 {
        if self.0 == 0.0 { penstock_model::slo::MULTIPLIER } else { self.0 }
    }
}

/// Requests in one batch: a whole number from 1 on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Batch(pub(crate) f64);
ranged!(Batch, "a whole number from 1 to 1e12", |number| number.fract() == 0.0
    && (1.0..=1e12).contains(&number));

/// A point in time, in seconds of any clock.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Seconds(f64);
ranged!(Seconds, "a number of seconds from -1e12 to 1e12", |seconds| seconds.abs() <= SECONDS_MAX);

impl Seconds {
    pub(crate) fn ms(self) -> f64 {
        self.0 * 1_000.0
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// alpha, beta and gamma in milliseconds: a list of three numbers in files, `8,0.05,0.0005` in flags.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
pub(crate) struct ParameterTriple(Above0, AtLeast0, AtLeast0);

impl ParameterTriple {
    pub(crate) const fn parameters(self) -> Parameters {
        Parameters { alpha_ms: self.0.0, beta_ms: self.1.0, gamma_ms: self.2.0 }
    }
}

impl FromStr for ParameterTriple {
    type Err = OutOfRange;
    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        let parts: Vec<&str> = text.split(',').collect();
        let [alpha, beta, gamma] = *parts else {
            let why = format!("expected three numbers like 8,0.05,0.0005, not `{text}`");
            return Err(OutOfRange(why));
        };
        let named = |name: &'static str| move |error: OutOfRange| OutOfRange(format!("{name}: {error}"));
        Ok(Self(
            alpha.parse().map_err(named("alpha"))?,
            beta.parse().map_err(named("beta"))?,
            gamma.parse().map_err(named("gamma"))?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_accepted<T: FromStr + for<'de> Deserialize<'de>>(text: &str) -> bool {
        let from_json = serde_json::from_str::<T>(text).is_ok();
        assert_eq!(from_json, text.parse::<T>().is_ok(), "{text}");
        from_json
    }

    #[test]
    fn ranges_apply_to_flags_and_files() {
        for text in ["1e-300", "0.05", "8", "1e30"] {
            assert!(is_accepted::<Above0>(text) && is_accepted::<AtLeast0>(text), "{text}");
        }
        for text in ["-1", "1.1e30", "1e400", "nan", "inf", "x", ""] {
            assert!(!is_accepted::<Above0>(text) && !is_accepted::<AtLeast0>(text), "{text}");
        }
        assert!(is_accepted::<AtLeast0>("0") && !is_accepted::<Above0>("0"));
        for (text, allowed) in [("1", true), ("256", true), ("0", false), ("1.5", false), ("-2", false)] {
            assert_eq!(is_accepted::<Batch>(text), allowed, "{text}");
        }
        for (text, allowed) in [("0", true), ("1.01", true), ("1", false), ("0.5", false), ("-1", false)] {
            assert_eq!(is_accepted::<Multiplier>(text), allowed, "{text}");
        }
        assert!(
            is_accepted::<Seconds>("-1.5")
                && is_accepted::<Seconds>("1795262073.25")
                && !is_accepted::<Seconds>("1e13")
        );
    }

    #[test]
    fn multiplier_0_is_the_default_of_3() {
        let value = |text: &str| text.parse::<Multiplier>().map(Multiplier::value);
        assert_eq!(value("0"), Ok(3.0));
        assert_eq!(value("2"), Ok(2.0));
    }

    #[test]
    fn parameters_are_three_numbers_in_range() {
        let three: ParameterTriple = "8, .05,0".parse().expect("three");
        let parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.0 };
        assert_eq!(three.parameters(), parameters);
        assert_eq!(serde_json::from_str::<ParameterTriple>("[8, 0.05, 0]").expect("three"), three);
        for text in ["", "8,1", "8,1,1,1", "0,1,1", "8,-1,1", "8,1,nan"] {
            assert!(text.parse::<ParameterTriple>().is_err(), "{text}");
            assert!(serde_json::from_str::<ParameterTriple>(&format!("[{text}]")).is_err(), "{text}");
        }
    }
}
