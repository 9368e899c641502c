//! Reads one mapping of a source key by key. A known key is found under any of its spellings and checked; every other key
//! becomes a comment.

use std::borrow::Cow;
use std::time::Duration;

use penstock_config::tree::{Entry, Node};

use super::SourceError;
use super::page::Block;

/// Characters of a value that a comment shows.
const SHOWN_MAX: usize = 160;

/// A mapping, and for each of its entries whether it was taken.
pub(super) struct Section<'a> {
    path: String,
    entries: Vec<(&'a Entry, bool)>,
}

/// The entry of a key that was taken.
pub(super) struct Found<'a> {
    path: String,
    entry: &'a Entry,
}

/// The unit of a duration that is a number without one.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Seconds,
    Millis,
    /// The source accepts no number without a unit.
    Required,
}

/// A key in a form that is the same for `queueTTL`, `queue_ttl` and `queue-ttl`.
pub(super) fn fold(key: &str) -> String {
    key.chars().filter(char::is_ascii_alphanumeric).map(|char| char.to_ascii_lowercase()).collect()
}

/// The comment for a key without an equivalent in Penstock, and the reason if there is one.
pub(super) fn no_equivalent(entry: &Entry, reason: &str) -> String {
    let colon = if reason.is_empty() { "" } else { ": " };
    format!("`{}` has no equivalent here{colon}{reason}", shown(entry))
}

/// A key with its value, cut if it is long. A value that may be a secret is not shown.
fn shown(entry: &Entry) -> String {
    let key = fold(&entry.key);
    let secret = ["password", "passwd", "secret", "apikey", "credential", "authorization"]
        .iter()
        .any(|word| key.contains(word))
        || key.ends_with("token")
        || key.ends_with("key");
    let value = if secret && !entry.value.is_null() {
        "...".to_owned()
    } else {
        let whole = entry.value.to_string();
        match whole.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => format!("{}...", whole.get(..end).unwrap_or_default()),
            None => whole,
        }
    };
    format!("{}: {value}", entry.key)
}

impl<'a> Section<'a> {
    /// The entries of a mapping. `path` names it in errors; it is empty for the document itself.
    pub(super) fn new(path: impl Into<String>, node: &'a Node) -> Self {
        Self::from_entries(path, node.entries())
    }

    pub(super) fn from_entries(
        path: impl Into<String>,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> Self {
        Self { path: path.into(), entries: entries.into_iter().map(|entry| (entry, false)).collect() }
    }

    /// Takes the key that is spelled like one of `names`. `None` if it is missing or null.
    ///
    /// # Errors
    /// When the key is written twice, in one spelling or two.
    pub(super) fn take(&mut self, names: &[&str]) -> Result<Option<Found<'a>>, SourceError> {
        let mut found: Option<&'a Entry> = None;
        for (entry, taken) in &mut self.entries {
            if !names.iter().any(|name| fold(name) == fold(&entry.key)) {
                continue;
            }
            *taken = true;
            if let Some(first) = found {
                let message = if first.key == entry.key {
                    format!("`{}` is written twice", entry.key)
                } else {
                    format!("`{}` and `{}` are the same key", first.key, entry.key)
                };
                return Err(SourceError::new(entry.place.line(), message));
            }
            found = Some(entry);
        }
        Ok(found
            .filter(|entry| !entry.value.is_null())
            .map(|entry| Found { path: self.path_of(&entry.key), entry }))
    }

    /// Takes a mapping; its key is spelled like one of `names`.
    pub(super) fn section(&mut self, names: &[&str]) -> Result<Option<Self>, SourceError> {
        self.take(names)?.map(|found| found.section()).transpose()
    }

    /// The entries that were not taken, in their order.
    pub(super) fn rest(&self) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(|(_, taken)| !taken).map(|(entry, _)| *entry)
    }

    /// Adds a comment for each entry that was not taken. `reason` returns the reason for a key in the form of [`fold`].
    pub(super) fn comment_rest(&self, block: &mut Block, reason: impl Fn(&str) -> &'static str) {
        for entry in self.rest() {
            block.comment(no_equivalent(entry, reason(&fold(&entry.key))));
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
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

    pub(super) fn error(&self, message: impl std::fmt::Display) -> SourceError {
        SourceError::new(self.entry.place.line(), format!("{}: {message}", self.path))
    }

    pub(super) fn section(&self) -> Result<Section<'a>, SourceError> {
        if self.entry.value.is_map() {
            Ok(Section::new(self.path.clone(), &self.entry.value))
        } else {
            Err(self.error("must be a mapping"))
        }
    }

    pub(super) fn list(&self) -> Result<&'a [Node], SourceError> {
        self.entry.value.items().ok_or_else(|| self.error("must be a list"))
    }

    /// A single value as text, without the spaces around it.
    pub(super) fn text(&self) -> Result<Cow<'a, str>, SourceError> {
        match self.entry.value.scalar() {
            Some(Cow::Borrowed(text)) => Ok(text.trim().into()),
            Some(Cow::Owned(text)) => Ok(text.trim().to_owned().into()),
            None => Err(self.error("must be one value, not a list or a mapping")),
        }
    }

    /// A whole number of at least `least`.
    pub(super) fn whole(&self, least: u64) -> Result<u64, SourceError> {
        let text = self.text()?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if digits && number >= least => Ok(number),
            Ok(_) | Err(_) => {
                Err(self.error(format!("must be a whole number of at least {least}, not `{text}`")))
            }
        }
    }

    /// A finite number of at least 0.
    pub(super) fn number(&self) -> Result<f64, SourceError> {
        let text = self.text()?;
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(number + 0.0),
            Ok(_) | Err(_) => Err(self.error(format!("must be a finite number of at least 0, not `{text}`"))),
        }
    }

    /// True or false, in the words of YAML, TOML and Go.
    pub(super) fn flag(&self) -> Result<bool, SourceError> {
        let text = self.text()?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" | "t" | "y" => Ok(true),
            "false" | "no" | "off" | "0" | "f" | "n" => Ok(false),
            _ => Err(self.error(format!("must be true or false, not `{text}`"))),
        }
    }

    /// A duration such as `90s`, `1h30m` or `1.5s`, or a number in `unit`; and the same in Penstock's notation.
    pub(super) fn duration(&self, unit: Unit) -> Result<(Duration, String), SourceError> {
        let text = self.text()?;
        let error = || {
            let alternative = match unit {
                Unit::Seconds => ", or a number of seconds",
                Unit::Millis => ", or a number of milliseconds",
                Unit::Required => "",
            };
            self.error(format!("must be a duration like 30s, 250ms or 1h30m{alternative}, not `{text}`"))
        };
        let seconds_per_unit = match unit {
            Unit::Seconds => Some(1.0),
            Unit::Millis => Some(1e-3),
            Unit::Required => None,
        };
        if let (Some(seconds), Ok(number)) = (seconds_per_unit, text.parse::<f64>()) {
            let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| error())?;
            return Ok((duration, format_duration(duration)));
        }
        let duration = go_duration(&text).ok_or_else(error)?;
        let units = text.trim_start_matches(|char: char| char.is_ascii_digit());
        let is_simple = matches!(units, "ms" | "s" | "m" | "h");
        let written = if is_simple { text.into_owned() } else { format_duration(duration) };
        Ok((duration, written))
    }
}

/// A duration in Penstock's notation, exactly.
fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let (unit, size) = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)]
        .into_iter()
        .find(|(_, size)| nanos.is_multiple_of(*size))
        .unwrap_or(("ns", 1));
    format!("{}{unit}", nanos / size)
}

/// Go's `time.ParseDuration`, for durations that aren't negative.
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
        let number = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (value, after) = rest.split_at_checked(number)?;
        let unit = after.find(|char: char| char.is_ascii_digit() || char == '.').unwrap_or(after.len());
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

/// A decimal number of units, each of `unit` nanoseconds.
fn scaled(value: &str, unit: u128) -> Option<Duration> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    let number = |digits: &str| {
        if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() }
    };
    let ten = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let nanos = number(whole)?.checked_mul(unit)?.checked_add(number(fraction)?.checked_mul(unit)? / ten)?;
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn read<T>(value: &str, read: impl FnOnce(&Found<'_>) -> Result<T, SourceError>) -> Result<T, String> {
        let node = tree::yaml(&format!("\nthe_key: {value}\n")).expect("YAML");
        let mut section = Section::new("top", &node[0].node);
        let found = section.take(&["theKey"]).expect("once").expect("there");
        read(&found).map_err(|error| {
            assert_eq!(error.line, 2);
            assert!(error.message.starts_with("top.the_key: "), "{}", error.message);
            error.message
        })
    }

    #[test]
    fn durations_are_in_gos_notation_or_plain_numbers() {
        let duration =
            |value: &str, unit| read(value, |found| found.duration(unit)).map(|(_, written)| written);
        for (value, written) in [
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
            assert_eq!(duration(value, Unit::Seconds).as_deref(), Ok(written), "{value}");
        }
        assert_eq!(duration("500", Unit::Millis).as_deref(), Ok("500ms"));
        assert_eq!(duration("12.5", Unit::Millis).as_deref(), Ok("12500us"));
        for value in ["soon", "-1s", "-1", "5 minutes", "NaN", "s", ".s", "1d", "[1]", "1s2"] {
            assert!(duration(value, Unit::Seconds).is_err(), "{value}");
        }
        assert!(duration("300", Unit::Required).is_err_and(|message| message.contains("like 30s")));
        assert_eq!(duration("0", Unit::Required).as_deref(), Ok("0s"));
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
    fn spellings_are_one_key_and_secrets_are_not_shown() {
        let node =
            tree::yaml("queue_ttl: 1\nqueueTTL: 2\napi_key: abc\nother: [1, {a: b}]\nnone:\n").expect("YAML");
        let mut section = Section::new("", &node[0].node);
        let twice = section.take(&["queue_ttl"]).map(|_| ()).expect_err("twice");
        assert_eq!((twice.line, twice.message.as_str()), (2, "`queue_ttl` and `queueTTL` are the same key"));
        assert!(section.take(&["none"]).is_ok_and(|found| found.is_none()));
        let mut block = Block::default();
        section.comment_rest(&mut block, |_| "");
        assert_eq!(
            block.render(),
            "# `api_key: ...` has no equivalent here\n# `other: [1, {a: b}]` has no equivalent here\n"
        );
    }
}
