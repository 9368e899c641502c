//! Lines of a file of observations. Each line is a window of a server or a request; all lines of a file have one format.

use std::borrow::Cow;
use std::fmt;

use penstock_model::Traffic;
use penstock_model::workload::Observed;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::jsonl::{fields, is_object};
use crate::number::{AtLeast0, Seconds};

/// The format of a file's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Windows,
    Requests,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Windows => "windows {\"t\", \"rate\", \"input\", \"output\", \"ttft\", \"itl\"}",
            Self::Requests => {
                "requests {\"t\", \"input\", \"output\", \"dispatched\", \"first\", \"done\", \"endpoint\"}"
            }
        })
    }
}

/// The keys that only one of the formats has.
#[derive(Deserialize)]
struct DistinctiveKeys {
    rate: Option<de::IgnoredAny>,
    ttft: Option<de::IgnoredAny>,
    itl: Option<de::IgnoredAny>,
    dispatched: Option<de::IgnoredAny>,
    first: Option<de::IgnoredAny>,
    done: Option<de::IgnoredAny>,
    endpoint: Option<de::IgnoredAny>,
}

impl Format {
    pub(super) fn detect(line: &[u8]) -> Result<Self, String> {
        if !is_object(line) {
            return Err(format!("not a JSON object; expected {} or {}", Self::Windows, Self::Requests));
        }
        let keys: DistinctiveKeys = fields(line)?;
        let window = keys.rate.is_some() || keys.ttft.is_some() || keys.itl.is_some();
        let request = keys.dispatched.is_some()
            || keys.first.is_some()
            || keys.done.is_some()
            || keys.endpoint.is_some();
        match (window, request) {
            (true, false) => Ok(Self::Windows),
            (false, true) => Ok(Self::Requests),
            (true, true) => Err(format!(
                "keys of both formats in one line; expected {} or {}",
                Self::Windows,
                Self::Requests
            )),
            (false, false) => Err(format!(
                "no key that distinguishes the formats; expected {} or {}",
                Self::Windows,
                Self::Requests
            )),
        }
    }

    /// Checks that a line has this format, which is that of the file's first line.
    pub(super) fn check(self, line: &[u8]) -> Result<(), String> {
        match Self::detect(line)? {
            format if format == self => Ok(()),
            _ => Err(format!("all lines of a file must have the same format, and the first line has {self}")),
        }
    }
}

#[derive(Debug)]
pub(super) struct Window {
    /// The window's end.
    pub(super) t: Seconds,
    /// The observed means; 0 for one that wasn't observed.
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
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let raw: RawWindow = fields(line)?;
        let mean = |value: Option<AtLeast0>, name: &str| match value {
            Some(value) => Ok(value.0),
            None if raw.rate.0 > 0.0 => Err(format!("{name}: missing, but the rate is above 0")),
            None => Ok(0.0),
        };
        let latency = |value: Option<AtLeast0>| value.map_or(0.0, |value| value.0);
        Ok(Self {
            t: raw.t,
            observed: Observed {
                traffic: Traffic {
                    rate: raw.rate.0,
                    input: mean(raw.input, "input")?,
                    output: mean(raw.output, "output")?,
                },
                ttft_ms: latency(raw.ttft),
                itl_ms: latency(raw.itl),
                busy: usize::from(raw.rate.0 > 0.0),
            },
        })
    }
}

/// A request, from its dispatch to its last token.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) dispatched_ms: f64,
    /// `None`: there was no first token, or its time is unknown.
    pub(super) first_ms: Option<f64>,
    pub(super) done_ms: f64,
    pub(super) input: f64,
    pub(super) output: f64,
    /// The server's endpoint.
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
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, String> {
        let raw: RawRequest<'a> = fields(line)?;
        if raw.done < raw.dispatched {
            return Err(format!("done: {} is before dispatched, {}", raw.done, raw.dispatched));
        }
        match raw.first {
            Some(first) if first < raw.dispatched => {
                return Err(format!("first: {first} is before dispatched, {}", raw.dispatched));
            }
            Some(first) if first > raw.done => {
                return Err(format!("first: {first} is after done, {}", raw.done));
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

/// A name, or a number as a name. Absent or null: the only endpoint.
#[derive(Default)]
struct Endpoint<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Endpoint<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EndpointVisitor;
        impl<'de> Visitor<'de> for EndpointVisitor {
            type Value = Endpoint<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name like \"127.0.0.1:8001\", or a whole number")
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
        deserializer.deserialize_any(EndpointVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: &str = r#"{"t":1,"rate":2,"input":512,"output":128,"ttft":35,"itl":9.6}"#;
    const REQUEST: &str =
        r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":1.5,"done":2,"endpoint":"a"}"#;

    #[test]
    fn format_follows_from_the_keys() {
        assert_eq!(Format::detect(WINDOW.as_bytes()), Ok(Format::Windows));
        assert_eq!(Format::detect(REQUEST.as_bytes()), Ok(Format::Requests));
        assert_eq!(Format::Windows.check(WINDOW.as_bytes()), Ok(()));
        for line in [REQUEST, "{}", r#"{"t":1,"rate":2,"done":3}"#, "[1]", "", "null"] {
            assert!(Format::Windows.check(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn window_may_lack_latencies_that_were_not_observed() {
        let window = |line: &str| Window::parse(line.as_bytes());
        let whole = window(WINDOW).expect("a window").observed;
        assert_eq!((whole.ttft_ms, whole.itl_ms, whole.busy), (35.0, 9.6, 1));
        let half = window(r#"{"t":1,"rate":2,"input":5,"output":1,"ttft":null}"#).expect("a window");
        assert_eq!((half.observed.ttft_ms, half.observed.itl_ms), (0.0, 0.0));
        assert_eq!(window(r#"{"t":1,"rate":0}"#).expect("idle").observed.busy, 0);
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
            let message = window(&WINDOW.replace(from, to)).expect_err(to);
            assert!(message.contains(why), "{to}: {message}");
        }
    }

    #[test]
    fn times_of_a_request_must_be_in_order() {
        let request = |from: &str, to: &str| {
            Request::parse(REQUEST.replace(from, to).as_bytes())
                .map(|request| (request.first_ms, request.endpoint.into_owned()))
        };
        assert_eq!(request("", ""), Ok((Some(1_500.0), "a".into())));
        assert_eq!(request("1.5", "null"), Ok((None, "a".into())));
        assert_eq!(request(r#""a""#, "7"), Ok((Some(1_500.0), "7".into())));
        assert_eq!(request(r#""a""#, "null"), Ok((Some(1_500.0), String::new())));
        assert_eq!(request(r#","endpoint":"a""#, ""), Ok((Some(1_500.0), String::new())));
        for (from, to, why) in [
            ("\"done\":2", "\"done\":0.5", "done: 0.5 is before dispatched, 1"),
            ("1.5", "0.5", "first: 0.5 is before dispatched, 1"),
            ("1.5", "2.5", "first: 2.5 is after done, 2"),
            (",\"done\":2", "", "`done`"),
            ("\"output\":2", "\"output\":-2", "output"),
            ("\"a\"", "-1", "endpoint"),
            ("\"a\"", "[]", "endpoint"),
        ] {
            let message = request(from, to).expect_err(to);
            assert!(message.contains(why), "{to}: {message}");
        }
    }
}
