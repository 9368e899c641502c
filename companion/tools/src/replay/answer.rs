//! What a replay answers: one JSON line for a dispatch, one for a request that leaves otherwise.

use std::io::{self, Write};

use penstock_engine::time::Instant;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::RawValue;

/// The name of the only class where none is configured.
pub(super) const ONLY_CLASS: &str = "default";

/// A request that goes.
#[derive(Serialize)]
pub(super) struct Dispatched<'a> {
    /// When.
    pub(super) t: &'a RawValue,
    /// Its name.
    pub(super) dispatch: &'a str,
    /// Its class.
    pub(super) class: &'a str,
    /// Its flow.
    pub(super) flow: &'a str,
    /// What its class was charged.
    pub(super) cost: u64,
    /// What its flow was charged.
    pub(super) flow_cost: u64,
    /// Of every class, after this.
    #[serde(serialize_with = "in_order")]
    pub(super) deficits: &'a [(Box<str>, u64)],
    /// Under a gate: it didn't wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bypass: Option<bool>,
}

/// Nothing could go.
#[derive(Serialize)]
pub(super) struct Nothing<'a> {
    /// When.
    pub(super) t: &'a RawValue,
    /// Always `None`.
    pub(super) dispatch: Option<&'a str>,
}

/// A newcomer that was refused.
#[derive(Serialize)]
pub(super) struct Refused<'a> {
    /// When.
    pub(super) t: &'a RawValue,
    /// Its name.
    pub(super) reject: &'a str,
    /// Why.
    pub(super) code: &'a str,
}

/// One that waited, and lost its place.
#[derive(Serialize)]
pub(super) struct Displaced<'a> {
    /// When.
    pub(super) t: &'a RawValue,
    /// Its name.
    pub(super) displaced: &'a str,
}

/// One that waited for too long.
#[derive(Serialize)]
pub(super) struct Expired<'a> {
    /// When.
    pub(super) t: &'a RawValue,
    /// Its name.
    pub(super) expired: &'a str,
}

/// Writes an answer as a line.
pub(super) fn write(to: &mut impl Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, answer)?;
    to.write_all(b"\n")
}

/// A time of the engine's own, in seconds.
pub(super) fn seconds(at: Instant) -> Box<RawValue> {
    let nanos = at.as_nanos();
    let written = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    let short = written.trim_end_matches('0');
    let more = if short.ends_with('.') { "0" } else { "" };
    RawValue::from_string(format!("{short}{more}")).expect("invariant: digits around a point are JSON")
}

fn in_order<S: Serializer>(deficits: &[(Box<str>, u64)], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(deficits.len().max(1)))?;
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
        let mut to = Vec::new();
        write(&mut to, answer).expect("memory takes it");
        String::from_utf8(to).expect("JSON is UTF-8")
    }

    #[test]
    fn answers_look_as_promised() {
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
        let nothing = Nothing {
            t: &t,
            dispatch: None,
        };
        assert_eq!(line(&nothing), "{\"t\":1.0,\"dispatch\":null}\n");
    }

    #[test]
    fn times_of_the_engine_are_written_shortly_and_exactly() {
        let cases = [
            (0, "0.0"),
            (30_000_000_000, "30.0"),
            (100_000_000, "0.1"),
            (1, "0.000000001"),
        ];
        for (nanos, expected) in cases {
            assert_eq!(seconds(Instant::from_nanos(nanos)).get(), expected);
        }
    }
}
