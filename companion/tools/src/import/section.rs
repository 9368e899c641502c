//! One mapping of a source, read key by key: what is known is taken under any of its spellings, with its range; what is
//! left over becomes comments.

use std::time::Duration;

use super::Wrong;
use super::page::Block;
use super::tree::{Entry, Node, Value};

/// Characters of a value that a comment repeats.
const SHOWN_MAX: usize = 160;

/// A mapping, and what of it was taken.
pub(super) struct Section<'a> {
    path: String,
    entries: Vec<(&'a Entry, bool)>,
}

/// What was found under a key.
pub(super) struct Found<'a> {
    path: String,
    entry: &'a Entry,
}

/// What a number without a unit counts.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Seconds,
    Millis,
    /// There is none: the source wants one written.
    Written,
}

/// A key without regard to how its words are joined: `queueTTL`, `queue_ttl`, `queue-ttl`.
pub(super) fn fold(key: &str) -> String {
    key.chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|it| it.to_ascii_lowercase())
        .collect()
}

/// That a key has no equal, and why.
pub(super) fn no_equal(entry: &Entry, why: &str) -> String {
    let colon = if why.is_empty() { "" } else { ": " };
    format!("`{}` has no equal here{colon}{why}", shown(entry))
}

/// A key with its value, cut where it is long; what may be a secret isn't repeated.
fn shown(entry: &Entry) -> String {
    let key = fold(&entry.key);
    let secret = [
        "password",
        "passwd",
        "secret",
        "apikey",
        "credential",
        "authorization",
    ]
    .iter()
    .any(|word| key.contains(word))
        || key.ends_with("token")
        || key.ends_with("key");
    let value = if secret && !matches!(entry.node.value, Value::Null) {
        "...".to_owned()
    } else {
        let whole = entry.node.to_string();
        match whole.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => format!("{}...", whole.get(..end).unwrap_or_default()),
            None => whole,
        }
    };
    format!("{}: {value}", entry.key)
}

impl<'a> Section<'a> {
    /// `path` is what errors call it; empty for the document itself.
    pub(super) fn new(path: impl Into<String>, node: &'a Node) -> Self {
        Self::of(path, node.entries())
    }

    pub(super) fn of(path: impl Into<String>, entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        Self {
            path: path.into(),
            entries: entries.into_iter().map(|entry| (entry, false)).collect(),
        }
    }

    /// What stands under one of `names`; nothing, or null: `None`.
    ///
    /// # Errors
    /// When it is said twice, under one spelling or two.
    pub(super) fn take(&mut self, names: &[&str]) -> Result<Option<Found<'a>>, Wrong> {
        let mut found: Option<&'a Entry> = None;
        for (entry, taken) in &mut self.entries {
            if !names.iter().any(|name| fold(name) == fold(&entry.key)) {
                continue;
            }
            *taken = true;
            if let Some(first) = found {
                let why = if first.key == entry.key {
                    format!("`{}` is said twice", entry.key)
                } else {
                    format!("`{}` and `{}` are the same", first.key, entry.key)
                };
                return Err(Wrong::new(entry.line, why));
            }
            found = Some(entry);
        }
        Ok(found
            .filter(|entry| !matches!(entry.node.value, Value::Null))
            .map(|entry| Found {
                path: self.join(&entry.key),
                entry,
            }))
    }

    /// A mapping of its own under one of `names`.
    pub(super) fn section(&mut self, names: &[&str]) -> Result<Option<Self>, Wrong> {
        self.take(names)?.map(|found| found.section()).transpose()
    }

    /// What nothing took, in order.
    pub(super) fn rest(&self) -> impl Iterator<Item = &'a Entry> {
        self.entries
            .iter()
            .filter(|(_, taken)| !taken)
            .map(|(entry, _)| *entry)
    }

    /// A comment for each key that nothing took.
    pub(super) fn leave(&self, to: &mut Block, why: impl Fn(&str) -> &'static str) {
        for entry in self.rest() {
            to.comment(no_equal(entry, why(&fold(&entry.key))));
        }
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }
}

impl<'a> Found<'a> {
    /// `from \`key\``
    pub(super) fn note(&self) -> String {
        format!("from `{}`", self.entry.key)
    }

    pub(super) const fn entry(&self) -> &'a Entry {
        self.entry
    }

    pub(super) fn wrong(&self, why: impl std::fmt::Display) -> Wrong {
        Wrong::new(self.entry.line, format!("{}: {why}", self.path))
    }

    pub(super) fn section(&self) -> Result<Section<'a>, Wrong> {
        if self.entry.node.is_map() {
            Ok(Section::new(self.path.clone(), &self.entry.node))
        } else {
            Err(self.wrong("this is a mapping"))
        }
    }

    pub(super) fn list(&self) -> Result<&'a [Node], Wrong> {
        match &self.entry.node.value {
            Value::List(nodes) => Ok(nodes),
            Value::Null | Value::Scalar(_) | Value::Map(_) => Err(self.wrong("this is a list")),
        }
    }

    pub(super) fn text(&self) -> Result<&'a str, Wrong> {
        match self.entry.node.scalar() {
            Some(text) => Ok(text.trim()),
            None => Err(self.wrong("this is one value, not a list or a mapping")),
        }
    }

    /// A whole number of at least `least`.
    pub(super) fn whole(&self, least: u64) -> Result<u64, Wrong> {
        let text = self.text()?;
        let digits = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if digits && number >= least => Ok(number),
            Ok(_) | Err(_) => Err(self.wrong(format!(
                "this is a whole number of at least {least}, not `{text}`"
            ))),
        }
    }

    /// A finite number of at least 0.
    pub(super) fn number(&self) -> Result<f64, Wrong> {
        let text = self.text()?;
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(number + 0.0),
            Ok(_) | Err(_) => Err(self.wrong(format!("this is a finite number of at least 0, not `{text}`"))),
        }
    }

    /// Yes or no, in the words that YAML, TOML and Go have for it.
    pub(super) fn flag(&self) -> Result<bool, Wrong> {
        let text = self.text()?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" | "t" | "y" => Ok(true),
            "false" | "no" | "off" | "0" | "f" | "n" => Ok(false),
            _ => Err(self.wrong(format!("this is true or false, not `{text}`"))),
        }
    }

    /// A duration and how it is written here: `90s`, `1h30m`, `1.5s`, or a number in `unit`.
    pub(super) fn span(&self, unit: Unit) -> Result<(Duration, String), Wrong> {
        let text = self.text()?;
        let wrong = || {
            let or = match unit {
                Unit::Seconds => ", or a number of seconds",
                Unit::Millis => ", or a number of milliseconds",
                Unit::Written => "",
            };
            self.wrong(format!(
                "this is a duration like 30s, 250ms or 1h30m{or}, not `{text}`"
            ))
        };
        let bare = match unit {
            Unit::Seconds => Some(1.0),
            Unit::Millis => Some(1e-3),
            Unit::Written => None,
        };
        if let (Some(scale), Ok(number)) = (bare, text.parse::<f64>()) {
            let span = Duration::try_from_secs_f64(number * scale).map_err(|_| wrong())?;
            return Ok((span, spell(span)));
        }
        let span = go_duration(text).ok_or_else(wrong)?;
        let units = text.trim_start_matches(|it: char| it.is_ascii_digit());
        let simple = matches!(units, "ms" | "s" | "m" | "h");
        Ok((span, if simple { text.to_owned() } else { spell(span) }))
    }
}

/// A duration as Penstock reads it, exactly.
pub(super) fn spell(span: Duration) -> String {
    let nanos = span.as_nanos();
    let (unit, size) = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)]
        .into_iter()
        .find(|(_, size)| nanos.is_multiple_of(*size))
        .unwrap_or(("ns", 1));
    format!("{}{unit}", nanos / size)
}

/// Go's `time.ParseDuration`, for what isn't negative.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number = rest.find(|it: char| !it.is_ascii_digit() && it != '.')?;
        let (value, after) = rest.split_at_checked(number)?;
        let unit = after
            .find(|it: char| it.is_ascii_digit() || it == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit)?;
        let nanos: u128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total = total.checked_add(scaled(value, nanos)?)?;
        rest = after;
    }
    Some(total)
}

/// A decimal number of units of so many nanoseconds.
fn scaled(value: &str, unit: u128) -> Option<Duration> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    let number = |digits: &str| {
        if digits.is_empty() {
            Some(0)
        } else {
            digits.parse::<u128>().ok()
        }
    };
    let ten = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let nanos = number(whole)?
        .checked_mul(unit)?
        .checked_add(number(fraction)?.checked_mul(unit)? / ten)?;
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn read<T>(value: &str, of: impl FnOnce(&Found<'_>) -> Result<T, Wrong>) -> Result<T, String> {
        let node = tree::yaml(&format!("\nthe_key: {value}\n")).expect("YAML");
        let mut section = Section::new("top", &node[0].node);
        let found = section.take(&["theKey"]).expect("once").expect("there");
        of(&found).map_err(|wrong| {
            assert_eq!(wrong.line, 2);
            assert!(wrong.why.starts_with("top.the_key: "), "{}", wrong.why);
            wrong.why
        })
    }

    #[test]
    fn durations_are_gos_or_bare_numbers() {
        let span = |value: &str, unit| read(value, |found| found.span(unit)).map(|it| it.1);
        for (value, spelt) in [
            ("30", "30s"),
            ("\"30\"", "30s"),
            ("30s", "30s"),
            ("\"90s\"", "90s"),
            ("2m", "2m"),
            ("1h30m", "5400s"),
            ("1.5s", "1500ms"),
            ("1.5h", "5400s"),
            ("0.5", "500ms"),
            ("1500us", "1500us"),
            ("0", "0s"),
        ] {
            assert_eq!(span(value, Unit::Seconds).as_deref(), Ok(spelt), "{value}");
        }
        assert_eq!(span("500", Unit::Millis).as_deref(), Ok("500ms"));
        assert_eq!(span("12.5", Unit::Millis).as_deref(), Ok("12500us"));
        for value in [
            "soon",
            "-1s",
            "-1",
            "5 minutes",
            "NaN",
            "s",
            ".s",
            "1d",
            "[1]",
            "1s2",
        ] {
            assert!(span(value, Unit::Seconds).is_err(), "{value}");
        }
        assert!(span("300", Unit::Written).is_err_and(|why| why.contains("like 30s")));
        assert_eq!(span("0", Unit::Written).as_deref(), Ok("0s"));
    }

    #[test]
    fn numbers_and_flags_are_read_from_text_too() {
        for (value, whole) in [("7", 7), ("\"7\"", 7), ("1", 1)] {
            assert_eq!(read(value, |found| found.whole(1)), Ok(whole));
        }
        for value in ["0", "-1", "1.5", "x", "\"\"", "[1]", "99999999999999999999"] {
            assert!(read(value, |found| found.whole(1)).is_err(), "{value}");
        }
        assert_eq!(read("\"2.50\"", |found| found.number()), Ok(2.5));
        for value in ["-0.1", "inf", "NaN", "two"] {
            assert!(read(value, |found| found.number()).is_err(), "{value}");
        }
        for (value, flag) in [("true", true), ("\"False\"", false), ("1", true), ("off", false)] {
            assert_eq!(read(value, |found| found.flag()), Ok(flag));
        }
        assert!(read("maybe", |found| found.flag()).is_err());
    }

    #[test]
    fn spellings_are_one_key_and_secrets_stay_where_they_are() {
        let node =
            tree::yaml("queue_ttl: 1\nqueueTTL: 2\napi_key: abc\nother: [1, {a: b}]\nnone:\n").expect("YAML");
        let mut section = Section::new("", &node[0].node);
        let twice = section.take(&["queue_ttl"]).map(|_| ()).expect_err("twice");
        assert_eq!(
            (twice.line, twice.why.as_str()),
            (2, "`queue_ttl` and `queueTTL` are the same")
        );
        assert!(section.take(&["none"]).is_ok_and(|it| it.is_none()));
        let mut block = Block::default();
        section.leave(&mut block, |_| "");
        assert_eq!(
            block.render(),
            "# `api_key: ...` has no equal here\n# `other: [1, {a: b}]` has no equal here\n"
        );
    }
}
