//! Reads one line of a script, strictly, into an operation.
//!
//! A key that is unknown or written twice, and a value of the wrong type or out of its range, are errors with the allowed values.
//! Rules across lines, such as known ids and rising times, are checked by the run. Times are read from the decimals as written,
//! not through binary fractions.

use std::borrow::Cow;

use penstock_engine::input::Band;
use penstock_engine::time::Instant;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::jsonl::{fields, is_object};

/// Tokens of a request. The engine counts up to this number exactly.
pub(super) const TOKENS_MAX: u64 = 1 << 40;
/// Endpoints that a script may make ready.
pub(super) const ENDPOINTS_MAX: u32 = 10_000;
/// The highest strict tier.
pub(super) const STRICT_MAX: u8 = 15;

/// An operation and its time.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) t: Time<'a>,
    pub(super) op: Op<'a>,
}

/// An operation of a script.
#[derive(Debug)]
pub(super) enum Op<'a> {
    /// A request arrives.
    Enqueue(Box<Enqueue<'a>>),
    /// The next request is dispatched, but none of these classes.
    Dispatch(Vec<Cow<'a, str>>),
    /// The real usage of a request.
    Settle {
        /// The request's name.
        id: Cow<'a, str>,
        /// Prompt tokens.
        tokens: u64,
        /// Generated tokens.
        output: u64,
    },
    /// The request was not served.
    Refund(Cow<'a, str>),
    /// The client has given up.
    Cancel(Cow<'a, str>),
    /// Requests that have waited too long expire.
    Expire,
    /// The endpoint has finished the request.
    Complete(Cow<'a, str>),
    /// The number of ready endpoints.
    Endpoints(u32),
}

impl<'a> Line<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// When it isn't an operation; the message has the reason.
    pub(super) fn read(line: &'a [u8]) -> Result<Self, String> {
        if !is_object(line) {
            return Err("not a JSON object; an operation is {\"op\": ..., \"t\": ..., ...}".into());
        }
        let OpName { op } = fields(line)?;
        let (t, op) = match &*op {
            "enqueue" => {
                let request: Enqueue<'_> = fields(line)?;
                (request.t, Op::Enqueue(Box::new(request)))
            }
            "dispatch" => {
                let Dispatch { t, blocked, .. } = fields(line)?;
                (t, Op::Dispatch(blocked))
            }
            "settle" => {
                let usage: Settle<'_> = fields(line)?;
                let op = Op::Settle { id: usage.id, tokens: usage.tokens.0, output: usage.output.0 };
                (usage.t, op)
            }
            "refund" => named(line, Op::Refund)?,
            "cancel" => named(line, Op::Cancel)?,
            "complete" => named(line, Op::Complete)?,
            "expire" => (fields::<Expire<'_>>(line)?.t, Op::Expire),
            "endpoints" => {
                let Endpoints { t, ready, .. } = fields(line)?;
                (t, Op::Endpoints(ready.0))
            }
            other => {
                return Err(format!(
                    "`{other}` is not an operation; allowed are enqueue, dispatch, settle, refund, cancel, expire, and with \
                     --gate complete and endpoints"
                ));
            }
        };
        Ok(Self { t, op })
    }
}

fn named<'a>(line: &'a [u8], op: impl FnOnce(Cow<'a, str>) -> Op<'a>) -> Result<(Time<'a>, Op<'a>), String> {
    let Named { t, id, .. } = fields(line)?;
    Ok((t, op(id)))
}

#[derive(Deserialize)]
struct OpName<'a> {
    #[serde(borrow)]
    op: Cow<'a, str>,
}

/// A request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Enqueue<'a> {
    #[serde(rename = "op")]
    _op: IgnoredAny,
    #[serde(borrow)]
    t: Time<'a>,
    /// The request's name.
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    /// The request's flow.
    #[serde(borrow, default = "default_flow")]
    pub(super) flow: Cow<'a, str>,
    #[serde(default)]
    band: BandName,
    /// The name of its class.
    #[serde(borrow, default)]
    pub(super) class: Option<Cow<'a, str>>,
    #[serde(default)]
    tokens: Count,
    #[serde(default)]
    cached: Count,
    #[serde(default)]
    output: Count,
    #[serde(default)]
    sequences: Count,
    #[serde(default)]
    strict: Strict,
    #[serde(default)]
    jump: Seconds,
    #[serde(default)]
    deadline: Option<Seconds>,
}

impl Enqueue<'_> {
    /// The request's band.
    pub(super) const fn band(&self) -> Band {
        match self.band {
            BandName::Critical => Band::Critical,
            BandName::Default => Band::Default,
            BandName::Sheddable => Band::Sheddable,
        }
    }

    pub(super) const fn tokens(&self) -> u64 {
        self.tokens.0
    }

    /// Cached prompt tokens. They may exceed the prompt; the engine limits them.
    pub(super) const fn cached(&self) -> u64 {
        self.cached.0
    }

    /// Expected generated tokens of one sequence.
    pub(super) const fn output(&self) -> u64 {
        self.output.0
    }

    /// Sequences that a server computes at the same time; 0 counts as 1.
    pub(super) const fn sequences(&self) -> u64 {
        self.sequences.0
    }

    /// The request's strict tier.
    pub(super) const fn strict(&self) -> u8 {
        self.strict.0
    }

    /// The head start in nanoseconds; 0 if it is negative.
    pub(super) fn jump(&self) -> u64 {
        saturating(self.jump.0)
    }

    /// The time by which the request must be dispatched; 0 if it is negative.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.as_ref().map(|deadline| Instant::from_nanos(saturating(deadline.0)))
    }
}

fn saturating(nanos: i128) -> u64 {
    u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
}

const fn default_flow() -> Cow<'static, str> {
    Cow::Borrowed("f")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dispatch<'a> {
    #[serde(rename = "op")]
    _op: IgnoredAny,
    #[serde(borrow)]
    t: Time<'a>,
    #[serde(borrow, default)]
    blocked: Vec<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settle<'a> {
    #[serde(rename = "op")]
    _op: IgnoredAny,
    #[serde(borrow)]
    t: Time<'a>,
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default)]
    tokens: Count,
    #[serde(default)]
    output: Count,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named<'a> {
    #[serde(rename = "op")]
    _op: IgnoredAny,
    #[serde(borrow)]
    t: Time<'a>,
    #[serde(borrow)]
    id: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expire<'a> {
    #[serde(rename = "op")]
    _op: IgnoredAny,
    #[serde(borrow)]
    t: Time<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoints<'a> {
    #[serde(rename = "op")]
    _op: IgnoredAny,
    #[serde(borrow)]
    t: Time<'a>,
    ready: Ready,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BandName {
    Critical,
    #[default]
    Default,
    Sheddable,
}

/// A whole number from 0 to `max`.
fn up_to<'de, D, T>(max: T, deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Copy + Into<u64> + TryFrom<u64>,
{
    let written = u64::deserialize(deserializer)?;
    T::try_from(written)
        .ok()
        .filter(|_| written <= max.into())
        .ok_or_else(|| D::Error::custom(format!("{written} isn't one of 0 to {}", max.into())))
}

/// Tokens.
#[derive(Debug, Default)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        up_to(TOKENS_MAX, deserializer).map(Self)
    }
}

#[derive(Debug, Default)]
struct Strict(u8);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        up_to(STRICT_MAX, deserializer).map(Self)
    }
}

struct Ready(u32);

impl<'de> Deserialize<'de> for Ready {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        up_to(ENDPOINTS_MAX, deserializer).map(Self)
    }
}

/// A number of seconds, in nanoseconds.
#[derive(Debug, Default)]
struct Seconds(i128);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = <&RawValue>::deserialize(deserializer)?;
        nanos(written.get())
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{written} is not a number of seconds, like 1.5")))
    }
}

/// The time of an operation, and its text in the script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time<'a> {
    /// For the engine.
    pub(super) instant: Instant,
    /// For answers.
    pub(super) written: &'a RawValue,
}

impl<'de: 'a, 'a> Deserialize<'de> for Time<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = <&RawValue>::deserialize(deserializer)?;
        let nanos = nanos(written.get()).and_then(|nanos| u64::try_from(nanos).ok());
        let instant = nanos.filter(|&nanos| nanos < u64::MAX).map(Instant::from_nanos);
        let instant = instant.ok_or_else(|| {
            D::Error::custom(format!("{written} is not a time; write seconds, from 0 to 18000000000"))
        })?;
        Ok(Self { instant, written })
    }
}

/// A JSON number of seconds in nanoseconds, rounded to the nearest; `None` if it isn't a number, or is too large.
fn nanos(written: &str) -> Option<i128> {
    let (negative, unsigned) = match written.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, written),
    };
    if !unsigned.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let append = |digits: i128, digit: u8| digits.checked_mul(10)?.checked_add(i128::from(digit - b'0'));
    let mut digits = whole.bytes().try_fold(0, append)?;
    let mut places = i64::from(exponent) + 9;
    for digit in fraction.bytes() {
        // Further digits are below the precision of the result.
        let Some(more) = append(digits, digit) else {
            break;
        };
        digits = more;
        places -= 1;
    }
    let power =
        |exponent: u64| u32::try_from(exponent).ok().and_then(|exponent| 10_i128.checked_pow(exponent));
    let size = match (digits, u64::try_from(places)) {
        (0, _) => 0,
        (_, Ok(places)) => digits.checked_mul(power(places)?)?,
        (_, Err(_)) => power(places.unsigned_abs())
            .map_or(0, |divisor| digits / divisor + i128::from(digits % divisor >= divisor / 2)),
    };
    Some(if negative { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Line<'_>, String> {
        Line::read(line.as_bytes())
    }

    fn error(line: &str) -> String {
        read(line).expect_err(line)
    }

    #[test]
    fn seconds_are_read_exactly() {
        let cases = [
            ("0", 0),
            ("-0.0", 0),
            ("1.0", 1_000_000_000),
            ("0.1", 100_000_000),
            ("1763700000.000000001", 1_763_700_000_000_000_001),
            ("0.30000000000000004", 300_000_000),
            ("0.0000000005", 1),
            ("0.00000000049999999999999999999999999999999999999999", 0),
            ("1e3", 1_000_000_000_000),
            ("2.5E-3", 2_500_000),
            ("1e-400", 0),
            ("0e400", 0),
            ("-1.5", -1_500_000_000),
        ];
        for (written, expected) in cases {
            assert_eq!(nanos(written), Some(expected), "{written}");
        }
        for written in ["null", "\"1\"", "true", "[1]", "1e400", "1e99999999999", "-"] {
            assert_eq!(nanos(written), None, "{written}");
        }
    }

    #[test]
    fn missing_fields_have_defaults() {
        let line = read(r#"{"op":"enqueue","t":1.5,"id":"a"}"#).expect("valid");
        assert_eq!(line.t.instant, Instant::from_nanos(1_500_000_000));
        assert_eq!(line.t.written.get(), "1.5");
        let Op::Enqueue(request) = line.op else {
            panic!("an enqueue");
        };
        assert_eq!((&*request.id, &*request.flow), ("a", "f"));
        assert_eq!((request.band(), request.class.as_deref()), (Band::Default, None));
        assert_eq!((request.tokens(), request.cached(), request.output()), (0, 0, 0));
        assert_eq!((request.strict(), request.jump(), request.deadline()), (0, 0, None));
    }

    #[test]
    fn every_field_is_read() {
        let line = r#" { "t": 2, "id": "\u00e4", "op": "enqueue", "flow": "acme", "band": "sheddable", "class": "c", "tokens": 512,
            "cached": 600, "output": 64, "strict": 15, "jump": -3.5, "deadline": 7.25 } "#;
        let Op::Enqueue(request) = read(line).expect("valid").op else {
            panic!("an enqueue");
        };
        assert_eq!((&*request.id, &*request.flow), ("ä", "acme"));
        assert_eq!((request.band(), request.class.as_deref()), (Band::Sheddable, Some("c")));
        assert_eq!((request.tokens(), request.cached(), request.output()), (512, 600, 64));
        assert_eq!((request.strict(), request.jump()), (15, 0));
        assert_eq!(request.deadline(), Some(Instant::from_nanos(7_250_000_000)));
    }

    #[test]
    fn errors_name_the_field() {
        let cases = [
            ("", "not a JSON object"),
            ("  ", "not a JSON object"),
            ("nonsense", "not a JSON object"),
            (r#"["expire",1]"#, "not a JSON object"),
            (r#"{"op":"expire","t":1"#, "column"),
            (r#"{"op":"expire","t":1} x"#, "trailing"),
            (r#"{"op":"expire","t":NaN}"#, "column"),
            (r#"{"t":1}"#, "`op`"),
            (r#"{"op":1,"t":1}"#, "op:"),
            (r#"{"op":"leap","t":1}"#, "`leap` is not an operation"),
            (r#"{"op":"expire"}"#, "`t`"),
            (r#"{"op":"expire","t":null}"#, "t: null"),
            (r#"{"op":"expire","t":"1"}"#, "t: \"1\""),
            (r#"{"op":"expire","t":-0.5}"#, "t: -0.5"),
            (r#"{"op":"expire","t":1e11}"#, "t: 1e11"),
            (r#"{"op":"expire","t":1,"t":2}"#, "duplicate"),
            (r#"{"op":"expire","t":1,"id":"a"}"#, "unknown field `id`"),
            (r#"{"op":"cancel","t":1}"#, "`id`"),
            (r#"{"op":"cancel","t":1,"id":7}"#, "id:"),
            (r#"{"op":"refund","t":1,"id":null}"#, "id:"),
            (r#"{"op":"enqueue","t":1,"id":"a","colour":1}"#, "`colour`"),
            (r#"{"op":"enqueue","t":1,"id":"a","tokens":-1}"#, "tokens:"),
            (r#"{"op":"enqueue","t":1,"id":"a","tokens":1.5}"#, "tokens:"),
            (r#"{"op":"enqueue","t":1,"id":"a","tokens":"1"}"#, "tokens:"),
            (r#"{"op":"enqueue","t":1,"id":"a","tokens":null}"#, "tokens:"),
            (r#"{"op":"enqueue","t":1,"id":"a","tokens":1099511627777}"#, "tokens:"),
            (r#"{"op":"enqueue","t":1,"id":"a","cached":-1}"#, "cached:"),
            (r#"{"op":"enqueue","t":1,"id":"a","output":1e400}"#, "out of range"),
            (r#"{"op":"enqueue","t":1,"id":"a","strict":16}"#, "strict: 16"),
            (r#"{"op":"enqueue","t":1,"id":"a","strict":-1}"#, "strict:"),
            (r#"{"op":"enqueue","t":1,"id":"a","jump":"1"}"#, "jump:"),
            (r#"{"op":"enqueue","t":1,"id":"a","jump":1e400}"#, "jump:"),
            (r#"{"op":"enqueue","t":1,"id":"a","deadline":true}"#, "deadline:"),
            (r#"{"op":"enqueue","t":1,"id":"a","band":"gold"}"#, "band"),
            (r#"{"op":"enqueue","t":1,"id":"a","flow":null}"#, "flow:"),
            (r#"{"op":"enqueue","t":1,"id":"a","class":7}"#, "class:"),
            (r#"{"op":"dispatch","t":1,"blocked":"c"}"#, "blocked:"),
            (r#"{"op":"dispatch","t":1,"blocked":[1]}"#, "blocked[0]:"),
            (r#"{"op":"settle","t":1,"id":"a","cached":1}"#, "`cached`"),
            (r#"{"op":"settle","t":1,"id":"a","output":-1}"#, "output:"),
            (r#"{"op":"endpoints","t":1}"#, "`ready`"),
            (r#"{"op":"endpoints","t":1,"ready":-1}"#, "ready:"),
            (r#"{"op":"endpoints","t":1,"ready":10001}"#, "ready:"),
        ];
        for (line, word) in cases {
            let message = error(line);
            assert!(message.contains(word), "{line}: {message}");
            assert!(!message.contains("line 1"), "{line}: {message}");
        }
        assert!(Line::read(b"{\"op\":\"cancel\",\"t\":1,\"id\":\"\xff\"}").is_err());
    }
}
