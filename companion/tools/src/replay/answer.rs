//! The answers of a replay: one JSON line for each dispatch, and one for each request that leaves the queue in another way.

use std::io::{self, Write};

use penstock_engine::time::Instant;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::RawValue;

/// The name of the only class of a policy without classes.
pub(super) const ONLY_CLASS: &str = "default";

/// A request was dispatched.
#[derive(Serialize)]
pub(super) struct Dispatched<'a> {
    /// The time in seconds.
    pub(super) t: &'a RawValue,
    /// The request's name.
    pub(super) dispatch: &'a str,
    /// The request's class.
    pub(super) class: &'a str,
    /// The request's flow.
    pub(super) flow: &'a str,
    /// The cost to its class, in tokens.
    pub(super) cost: u64,
    pub(super) flow_cost: u64,
    /// The deficit of every class after the dispatch.
    #[serde(serialize_with = "serialize_in_order")]
    pub(super) deficits: &'a [(Box<str>, u64)],
    /// With `--gate`: whether the request was granted without waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bypass: Option<bool>,
}

/// No request could be dispatched.
#[derive(Serialize)]
pub(super) struct NoDispatch<'a> {
    /// The time in seconds.
    pub(super) t: &'a RawValue,
    /// Always `None`, which is written as null.
    pub(super) dispatch: Option<&'a str>,
}

/// A request was rejected when it arrived.
#[derive(Serialize)]
pub(super) struct Rejected<'a> {
    /// The time in seconds.
    pub(super) t: &'a RawValue,
    /// The request's name.
    pub(super) reject: &'a str,
    pub(super) code: &'a str,
}

/// A waiting request was displaced by a more critical one.
#[derive(Serialize)]
pub(super) struct Displaced<'a> {
    /// The time in seconds.
    pub(super) t: &'a RawValue,
    /// The request's name.
    pub(super) displaced: &'a str,
}

/// A waiting request expired.
#[derive(Serialize)]
pub(super) struct Expired<'a> {
    /// The time in seconds.
    pub(super) t: &'a RawValue,
    /// The request's name.
    pub(super) expired: &'a str,
}

pub(super) fn write(out: &mut impl Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, answer)?;
    out.write_all(b"\n")
}

/// A time of a timer in seconds, exactly. Operations are answered with their times as they are written.
pub(super) fn seconds(time: Instant) -> Box<RawValue> {
    let nanos = time.as_nanos();
    let written = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    let short = written.trim_end_matches('0');
    let zero = if short.ends_with('.') { "0" } else { "" };
    RawValue::from_string(format!("{short}{zero}")).expect("invariant: digits around a point are JSON")
}

fn serialize_in_order<S: Serializer>(deficits: &[(Box<str>, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(deficits.len().max(1)))?;
    if deficits.is_empty() {
        map.serialize_entry(ONLY_CLASS, &0)?;
    }
    for (class, deficit) in deficits {
        map.serialize_entry(class, deficit)?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(answer: &impl Serialize) -> String {
        let mut out = Vec::new();
        write(&mut out, answer).expect("memory takes it");
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn answers_have_the_documented_form() {
        let t = seconds(Instant::from_nanos(1_000_000_000));
        let deficits: [(Box<str>, u64); 2] = [("uncached".into(), 0), ("cached".into(), 7)];
        let mut dispatched = Dispatched {
            t: &t,
            dispatch: "a\"",
            class: "cached",
            flow: "acme",
            cost: 384,
            flow_cost: 512,
            deficits: &deficits,
            bypass: None,
        };
        assert_eq!(
            line(&dispatched),
            "{\"t\":1.0,\"dispatch\":\"a\\\"\",\"class\":\"cached\",\"flow\":\"acme\",\"cost\":384,\"flow_cost\":512,\
             \"deficits\":{\"uncached\":0,\"cached\":7}}\n"
        );
        (dispatched.deficits, dispatched.bypass) = (&[], Some(true));
        assert!(line(&dispatched).ends_with("\"deficits\":{\"default\":0},\"bypass\":true}\n"));
        let none = NoDispatch { t: &t, dispatch: None };
        assert_eq!(line(&none), "{\"t\":1.0,\"dispatch\":null}\n");
    }

    #[test]
    fn times_are_written_exactly_without_trailing_zeros() {
        let cases = [(0, "0.0"), (30_000_000_000, "30.0"), (100_000_000, "0.1"), (1, "0.000000001")];
        for (nanos, expected) in cases {
            assert_eq!(seconds(Instant::from_nanos(nanos)).get(), expected);
        }
    }
}
