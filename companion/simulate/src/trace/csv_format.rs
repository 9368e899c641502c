//! The CSV files of Azure and BurstGPT. Fields hold no line breaks, and quotes around them are ignored.

use std::io::Read;
use std::time::{Duration, UNIX_EPOCH};

use super::TraceError;
use super::bounded_lines::LongLine;
use super::rows::{Row, Rows};
use crate::limits::TOKENS_MAX;

/// Characters of a field that an error shows.
const FIELD_SHOWN_MAX: usize = 40;

/// How one kind of file is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// The names of the columns with time, prompt tokens and output tokens.
    names: [&'static str; 3],
    /// Reads a time.
    time: fn(&str) -> Option<Duration>,
    /// The form of a time.
    form: &'static str,
}

pub(super) const AZURE: Columns = Columns {
    names: ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
    time: wall_clock,
    form: "a date and time like 2023-11-16 18:15:46.68",
};

pub(super) const BURSTGPT: Columns = Columns {
    names: ["Timestamp", "Request tokens", "Response tokens"],
    time: seconds,
    form: "a number of seconds of at least 0",
};

pub(super) fn read(file: impl Read, columns: &Columns, rows: &mut Rows) -> Result<(), TraceError> {
    let mut csv =
        csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).quoting(false).from_reader(file);
    let headers = csv.headers().map_err(failed)?.clone();
    let mut places = [0; 3];
    for (place, column) in places.iter_mut().zip(columns.names) {
        let found = headers.iter().position(|header| unquoted(header) == column);
        *place = found.ok_or_else(|| TraceError::line(1, format!("the header has no column `{column}`")))?;
    }
    let mut record = csv::StringRecord::new();
    while csv.read_record(&mut record).map_err(failed)? {
        let line = record.position().map_or(0, csv::Position::line);
        let [written, input, output] = places.map(|place| unquoted(record.get(place).unwrap_or_default()));
        let [time_name, input_name, output_name] = columns.names;
        let time = (columns.time)(written).ok_or_else(|| {
            TraceError::line(line, format!("{time_name}: {} is not {}", shown(written), columns.form))
        })?;
        let row = Row {
            at: time,
            input: tokens(line, input_name, input)?,
            output: tokens(line, output_name, output)?,
        };
        rows.push(line, row)?;
    }
    Ok(())
}

/// A field as errors show it: short, and without control characters.
fn shown(field: &str) -> String {
    let short: String = field.chars().take(FIELD_SHOWN_MAX).collect();
    let rest = if short.len() < field.len() { "..." } else { "" };
    format!("`{}{rest}`", short.escape_debug())
}

fn unquoted(field: &str) -> &str {
    field.trim_matches('"')
}

fn failed(error: csv::Error) -> TraceError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) => match LongLine::of(&error) {
            Some(long) => TraceError::line(long.line, long.to_string()),
            None => TraceError::Read(error),
        },
        csv::ErrorKind::Utf8 { .. } => TraceError::line(line, "the line is not UTF-8"),
        other => TraceError::line(line, csv_message(&other)),
    }
}

fn csv_message(kind: &csv::ErrorKind) -> String {
    format!("not CSV: {kind:?}")
}

fn tokens(line: u64, column: &str, text: &str) -> Result<u64, TraceError> {
    let tokens = text.parse().ok().filter(|tokens| *tokens <= TOKENS_MAX);
    tokens.ok_or_else(|| {
        TraceError::line(
            line,
            format!("{column}: {} is not a whole number from 0 to {TOKENS_MAX}", shown(text)),
        )
    })
}

/// A date and a time of day in UTC: `2023-11-16 18:15:46.6805900`, or with `+00:00` at its end.
fn wall_clock(text: &str) -> Option<Duration> {
    let text = text.strip_suffix("+00:00").unwrap_or(text);
    let time = humantime::parse_rfc3339_weak(text).ok()?;
    time.duration_since(UNIX_EPOCH).ok()
}

/// Seconds since the start of the trace, with or without a fraction.
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}
