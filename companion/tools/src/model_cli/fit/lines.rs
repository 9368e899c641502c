//! A line of observations: a window of a server, or one request. All lines of a file are of one form.

use std::borrow::Cow;
use std::fmt;

use penstock_model::Traffic;
use penstock_model::workload::Observed;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::jsonl::{fields, is_object};
use crate::model_cli::number::{AtLeast0, Seconds};

/// What a file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Windows,
    Requests,
}

impl fmt::Display for Form {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Windows => "windows {\"t\", \"rate\", \"input\", \"output\", \"ttft\", \"itl\"}",
            Self::Requests => {
                "requests {\"t\", \"input\", \"output\", \"dispatched\", \"first\", \"done\", \"endpoint\"}"
            }
        })
    }
}

/// The keys that only one form has.
#[derive(Deserialize)]
struct Which {
    rate: Option<de::IgnoredAny>,
    ttft: Option<de::IgnoredAny>,
    itl: Option<de::IgnoredAny>,
    dispatched: Option<de::IgnoredAny>,
    first: Option<de::IgnoredAny>,
    done: Option<de::IgnoredAny>,
    endpoint: Option<de::IgnoredAny>,
}

impl Form {
    /// Of a line by itself.
    pub(super) fn of(line: &[u8]) -> Result<Self, String> {
        if !is_object(line) {
            return Err(format!(
                "not a JSON object; lines are {} or {}",
                Self::Windows,
                Self::Requests
            ));
        }
        let which: Which = fields(line)?;
        let window = which.rate.is_some() || which.ttft.is_some() || which.itl.is_some();
        let request = which.dispatched.is_some()
            || which.first.is_some()
            || which.done.is_some()
            || which.endpoint.is_some();
        match (window, request) {
            (true, false) => Ok(Self::Windows),
            (false, true) => Ok(Self::Requests),
            (true, true) => Err(format!(
                "keys of two forms; lines are {} or {}",
                Self::Windows,
                Self::Requests
            )),
            (false, false) => Err(format!(
                "neither a rate nor times; lines are {} or {}",
                Self::Windows,
                Self::Requests
            )),
        }
    }

    /// The same, of a line after others of this form.
    pub(super) fn check(self, line: &[u8]) -> Result<(), String> {
        match Self::of(line)? {
            form if form == self => Ok(()),
            _ => Err(format!(
                "a file has lines of one form, and this one begins with {self}"
            )),
        }
    }
}

/// A window of one server.
#[derive(Debug)]
pub(super) struct Window {
    /// Its end.
    pub(super) t: Seconds,
    /// What was seen; 0 for a mean that wasn't.
    pub(super) observed: Observed,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWindow {
    t: Seconds,
    rate: AtLeast0,
    #[serde(default)]
    input: Option<AtLeast0>,
    #[serde(default)]
    output: Option<AtLeast0>,
    #[serde(default)]
    ttft: Option<AtLeast0>,
    #[serde(default)]
    itl: Option<AtLeast0>,
}

impl Window {
    /// Reads a line.
    pub(super) fn read(line: &[u8]) -> Result<Self, String> {
        let raw: RawWindow = fields(line)?;
        let mean = |it: Option<AtLeast0>, name: &str| match it {
            Some(value) => Ok(value.0),
            None if raw.rate.0 > 0.0 => Err(format!("{name}: a window of a rate above 0 has one")),
            None => Ok(0.0),
        };
        let seen = |it: Option<AtLeast0>| it.map_or(0.0, |it| it.0);
        Ok(Self {
            t: raw.t,
            observed: Observed {
                traffic: Traffic {
                    rate: raw.rate.0,
                    input: mean(raw.input, "input")?,
                    output: mean(raw.output, "output")?,
                },
                ttft_ms: seen(raw.ttft),
                itl_ms: seen(raw.itl),
                busy: usize::from(raw.rate.0 > 0.0),
            },
        })
    }
}

/// One request, from its dispatch to its last token.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) dispatched_ms: f64,
    /// `None`: it had no first token, or nobody saw it.
    pub(super) first_ms: Option<f64>,
    pub(super) done_ms: f64,
    pub(super) input: f64,
    pub(super) output: f64,
    /// Where it ran.
    pub(super) endpoint: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRequest<'a> {
    #[serde(rename = "t")]
    _t: Seconds,
    input: AtLeast0,
    output: AtLeast0,
    dispatched: Seconds,
    #[serde(default)]
    first: Option<Seconds>,
    done: Seconds,
    #[serde(borrow, default)]
    endpoint: Endpoint<'a>,
}

impl<'a> Request<'a> {
    /// Reads a line.
    pub(super) fn read(line: &'a [u8]) -> Result<Self, String> {
        let raw: RawRequest<'a> = fields(line)?;
        if raw.done < raw.dispatched {
            return Err(format!(
                "done: {} lies before dispatched, {}",
                raw.done, raw.dispatched
            ));
        }
        match raw.first {
            Some(first) if first < raw.dispatched => {
                return Err(format!(
                    "first: {first} lies before dispatched, {}",
                    raw.dispatched
                ));
            }
            Some(first) if first > raw.done => {
                return Err(format!("first: {first} lies after done, {}", raw.done));
            }
            Some(_) | None => {}
        }
        Ok(Self {
            dispatched_ms: raw.dispatched.ms(),
            first_ms: raw.first.map(Seconds::ms),
            done_ms: raw.done.ms(),
            input: raw.input.0,
            output: raw.output.0,
            endpoint: raw.endpoint.0,
        })
    }
}

/// A name, or a number for one. Absent or null: the only one.
#[derive(Default)]
struct Endpoint<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Endpoint<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Endpoint<'de>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a name like \"127.0.0.1:8001\", or a whole number")
            }
            fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Endpoint<'de>, E> {
                Ok(Endpoint(Cow::Borrowed(name)))
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<Endpoint<'de>, E> {
                Ok(Endpoint(Cow::Owned(name.to_owned())))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Endpoint<'de>, E> {
                Ok(Endpoint(Cow::Owned(number.to_string())))
            }
            fn visit_unit<E: de::Error>(self) -> Result<Endpoint<'de>, E> {
                Ok(Endpoint::default())
            }
        }
        deserializer.deserialize_any(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: &str = r#"{"t":1,"rate":2,"input":512,"output":128,"ttft":35,"itl":9.6}"#;
    const REQUEST: &str =
        r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":1.5,"done":2,"endpoint":"a"}"#;

    #[test]
    fn the_form_shows_in_the_keys() {
        assert_eq!(Form::of(WINDOW.as_bytes()), Ok(Form::Windows));
        assert_eq!(Form::of(REQUEST.as_bytes()), Ok(Form::Requests));
        assert_eq!(Form::Windows.check(WINDOW.as_bytes()), Ok(()));
        for line in [REQUEST, "{}", r#"{"t":1,"rate":2,"done":3}"#, "[1]", "", "null"] {
            assert!(Form::Windows.check(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_window_may_lack_what_was_not_seen() {
        let of = |line: &str| Window::read(line.as_bytes());
        let whole = of(WINDOW).expect("a window").observed;
        assert_eq!((whole.ttft_ms, whole.itl_ms, whole.busy), (35.0, 9.6, 1));
        let half = of(r#"{"t":1,"rate":2,"input":5,"output":1,"ttft":null}"#).expect("a window");
        assert_eq!((half.observed.ttft_ms, half.observed.itl_ms), (0.0, 0.0));
        assert_eq!(of(r#"{"t":1,"rate":0}"#).expect("idle").observed.busy, 0);
        for (from, to, why) in [
            (r#""input":512,"#, "", "input"),
            (r#""rate":2"#, r#""rate":-2"#, "rate"),
            (r#""rate":2"#, r#""rate":null"#, "rate"),
            (r#""ttft":35"#, r#""ttft":"35""#, "ttft"),
            (r#""itl":9.6"#, r#""itl":1e999"#, "column"),
            (r#""itl":9.6"#, r#""itl":NaN"#, "column"),
            (r#""t":1,"#, "", "`t`"),
            (r#""t":1,"#, r#""t":1,"t":1,"#, "duplicate"),
            (r#""t":1,"#, r#""t":1,"x":1,"#, "`x`"),
        ] {
            let why_not = of(&WINDOW.replace(from, to)).expect_err(to);
            assert!(why_not.contains(why), "{to}: {why_not}");
        }
    }

    #[test]
    fn the_times_of_a_request_are_in_order() {
        let of = |from: &str, to: &str| {
            Request::read(REQUEST.replace(from, to).as_bytes())
                .map(|it| (it.first_ms, it.endpoint.into_owned()))
        };
        assert_eq!(of("", ""), Ok((Some(1_500.0), "a".into())));
        assert_eq!(of("1.5", "null"), Ok((None, "a".into())));
        assert_eq!(of(r#""a""#, "7"), Ok((Some(1_500.0), "7".into())));
        assert_eq!(of(r#""a""#, "null"), Ok((Some(1_500.0), String::new())));
        assert_eq!(of(r#","endpoint":"a""#, ""), Ok((Some(1_500.0), String::new())));
        for (from, to, why) in [
            (
                "\"done\":2",
                "\"done\":0.5",
                "done: 0.5 lies before dispatched, 1",
            ),
            ("1.5", "0.5", "first: 0.5 lies before dispatched, 1"),
            ("1.5", "2.5", "first: 2.5 lies after done, 2"),
            (",\"done\":2", "", "`done`"),
            ("\"output\":2", "\"output\":-2", "output"),
            ("\"a\"", "-1", "endpoint"),
            ("\"a\"", "[]", "endpoint"),
        ] {
            let why_not = of(from, to).expect_err(to);
            assert!(why_not.contains(why), "{to}: {why_not}");
        }
    }
}
