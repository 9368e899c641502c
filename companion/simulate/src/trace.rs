//! Published traces: when requests arrived, and how long their prompts and answers were.
//!
//! Three formats are read. The first line shows which one a file has:
//!
//! | format | first line | source |
//! |---|---|---|
//! | `azure` | a header with `TIMESTAMP`, `ContextTokens`, `GeneratedTokens` | Azure's traces of 2023 and 2024 |
//! | `burstgpt` | a header with `Timestamp`, `Request tokens`, `Response tokens` | BurstGPT |
//! | `mooncake` | a JSON object with `timestamp`, `input_length`, `output_length` | Mooncake |
//!
//! A request without an answer (0 output tokens) failed when it was recorded, and is left out.

use std::io::{BufRead, Read};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use crate::limits::{TOKENS_MAX, TRACE_LINE_BYTES_MAX, TRACE_REQUESTS_MAX};

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Azure's traces of 2023 and 2024.
    Azure,
    /// BurstGPT.
    Burstgpt,
    /// Mooncake.
    Mooncake,
}

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Its arrival, from the first request.
    pub at: Duration,
    /// Prompt tokens; at least 1.
    pub input: u64,
    /// Output tokens; at least 1.
    pub output: u64,
}

/// Why a trace can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line is wrong.
    #[error("{line}: {message}")]
    Line {
        /// From 1.
        line: u64,
        /// What is wrong, and what is allowed.
        message: String,
    },
    /// Reading failed.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// The trace has no request that was answered.
    #[error("the trace has no request with output tokens")]
    Empty,
}

impl TraceError {
    fn line(line: u64, message: impl Into<String>) -> Self {
        Self::Line {
            line,
            message: message.into(),
        }
    }
}

/// Reads a trace. `format`: `None` to tell it from the first line. The requests are in the order of their arrivals.
///
/// # Errors
/// A line is wrong, with its number; or reading fails; or the trace is empty.
pub fn read(mut reader: impl BufRead, format: Option<Format>) -> Result<Vec<TraceRequest>, TraceError> {
    let mut first = Vec::new();
    reader
        .by_ref()
        .take(TRACE_LINE_BYTES_MAX)
        .read_until(b'\n', &mut first)?;
    let format = match format.or_else(|| recognized(&first)) {
        Some(format) => format,
        None => {
            return Err(TraceError::line(
                1,
                "the format isn't known: a CSV header of Azure (TIMESTAMP,ContextTokens,GeneratedTokens) or BurstGPT \
                 (Timestamp,Model,Request tokens,Response tokens,...), or a JSON object of Mooncake (timestamp, input_length, \
                 output_length) is expected",
            ));
        }
    };
    let whole = first.as_slice().chain(reader);
    let rows = match format {
        Format::Azure => csv_rows(
            whole,
            &["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
            wall_clock,
        )?,
        Format::Burstgpt => csv_rows(
            whole,
            &["Timestamp", "Request tokens", "Response tokens"],
            seconds,
        )?,
        Format::Mooncake => json_rows(whole)?,
    };
    from_first(rows)
}

/// The format that the first line shows.
fn recognized(first: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(first);
    let has = |name: &str| {
        text.split(',')
            .any(|field| field.trim().trim_matches('"') == name)
    };
    if text.trim_start().starts_with('{') {
        Some(Format::Mooncake)
    } else if has("ContextTokens") {
        Some(Format::Azure)
    } else if has("Request tokens") {
        Some(Format::Burstgpt)
    } else {
        None
    }
}

/// A row before its time is known from the first one. `at` counts from any fixed moment.
#[derive(Clone, Copy, Debug)]
struct Row {
    at: Duration,
    input: u64,
    output: u64,
}

/// Sorts the rows, drops those without an answer, and counts their times from the first.
fn from_first(mut rows: Vec<Row>) -> Result<Vec<TraceRequest>, TraceError> {
    rows.retain(|row| row.output > 0);
    rows.sort_by_key(|row| row.at);
    let first = rows.first().ok_or(TraceError::Empty)?.at;
    let requests = rows.into_iter().map(|row| TraceRequest {
        at: row.at - first,
        input: row.input.max(1),
        output: row.output,
    });
    Ok(requests.collect())
}

/// Reads the three columns of a CSV file. `time` reads the first of them.
fn csv_rows(
    file: impl Read,
    columns: &[&str; 3],
    time: fn(&str) -> Option<Duration>,
) -> Result<Vec<Row>, TraceError> {
    let mut csv = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .flexible(true)
        .from_reader(file);
    let headers = csv.headers().map_err(|error| csv_error(&error))?.clone();
    let mut places = [0; 3];
    for (place, column) in places.iter_mut().zip(columns) {
        let found = headers.iter().position(|header| header == *column);
        *place = found.ok_or_else(|| TraceError::line(1, format!("the header has no column `{column}`")))?;
    }
    let mut rows = Vec::new();
    let mut record = csv::StringRecord::new();
    while csv.read_record(&mut record).map_err(|error| csv_error(&error))? {
        let line = record.position().map_or(0, csv::Position::line);
        check_count(line, rows.len())?;
        let [at, input, output] = places.map(|place| record.get(place).unwrap_or_default());
        let at = time(at)
            .ok_or_else(|| TraceError::line(line, format!("{}: `{at}` is not a time", columns[0])))?;
        rows.push(Row {
            at,
            input: tokens(line, columns[1], input)?,
            output: tokens(line, columns[2], output)?,
        });
    }
    Ok(rows)
}

fn csv_error(error: &csv::Error) -> TraceError {
    let line = error.position().map_or(1, csv::Position::line);
    TraceError::line(line, error.to_string())
}

fn check_count(line: u64, rows: usize) -> Result<(), TraceError> {
    if rows < TRACE_REQUESTS_MAX {
        return Ok(());
    }
    Err(TraceError::line(
        line,
        format!("a trace has at most {TRACE_REQUESTS_MAX} requests; cut the file"),
    ))
}

fn tokens(line: u64, column: &str, text: &str) -> Result<u64, TraceError> {
    let tokens = text.parse().ok().filter(|tokens| *tokens <= TOKENS_MAX);
    tokens.ok_or_else(|| {
        TraceError::line(
            line,
            format!("{column}: `{text}` is not a whole number from 0 to {TOKENS_MAX}"),
        )
    })
}

/// A date and a time of day in UTC: `2023-11-16 18:15:46.6805900`, or with `+00:00` at its end.
fn wall_clock(text: &str) -> Option<Duration> {
    let text = text.strip_suffix("+00:00").unwrap_or(text);
    let time = humantime::parse_rfc3339_weak(text).ok()?;
    time.duration_since(SystemTime::UNIX_EPOCH).ok()
}

/// Seconds since the start of the trace, with or without a fraction.
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

/// A line of Mooncake. Its other keys don't matter here.
#[derive(Deserialize)]
struct Object {
    /// Milliseconds since the start of the trace.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
}

fn json_rows(mut file: impl BufRead) -> Result<Vec<Row>, TraceError> {
    let mut rows = Vec::new();
    let mut text = Vec::new();
    let mut line = 0;
    loop {
        text.clear();
        let read = file
            .by_ref()
            .take(TRACE_LINE_BYTES_MAX)
            .read_until(b'\n', &mut text)?;
        if read == 0 {
            return Ok(rows);
        }
        line += 1;
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        check_count(line, rows.len())?;
        let object: Object =
            serde_json::from_slice(&text).map_err(|error| TraceError::line(line, error.to_string()))?;
        let at = Duration::try_from_secs_f64(object.timestamp / 1e3)
            .map_err(|_| TraceError::line(line, "timestamp is a number of milliseconds of at least 0"))?;
        let is_long = object.input_length.max(object.output_length) > TOKENS_MAX;
        if is_long {
            return Err(TraceError::line(
                line,
                format!("input_length and output_length are at most {TOKENS_MAX}"),
            ));
        }
        rows.push(Row {
            at,
            input: object.input_length,
            output: object.output_length,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<TraceRequest>, TraceError> {
        read(text.as_bytes(), None)
    }

    fn request(ms: u64, input: u64, output: u64) -> TraceRequest {
        TraceRequest {
            at: Duration::from_millis(ms),
            input,
            output,
        }
    }

    #[test]
    fn azures_traces_of_both_years_are_read() {
        let both = [
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,374,44\n2023-11-16 18:15:47.7500000,396,109\n",
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-12 00:00:00.5+00:00,374,44\r\n2024-05-12 00:00:01.750000+00:00,396,109",
        ];
        for text in both {
            let expected = [request(0, 374, 44), request(1_250, 396, 109)];
            assert_eq!(parse(text).expect("valid"), expected);
        }
    }

    #[test]
    fn burstgpt_is_read_without_its_failed_requests() {
        let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                    5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,API log\n";
        let expected = [request(0, 472, 18), request(113_000, 417, 276)];
        assert_eq!(parse(text).expect("valid"), expected);
    }

    #[test]
    fn mooncake_is_read_and_sorted() {
        let text = "{\"timestamp\": 3000, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [1]}\n\n\
                    {\"timestamp\": 1000, \"input_length\": 20, \"output_length\": 6, \"hash_ids\": [1, 2]}\n";
        let expected = [request(0, 20, 6), request(2_000, 10, 5)];
        assert_eq!(parse(text).expect("valid"), expected);
    }

    #[test]
    fn errors_name_the_line_and_what_is_expected() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        for (text, line, word) in [
            ("", 1, "Azure"),
            ("a,b\n1,2\n", 1, "Mooncake"),
            (&format!("{azure}yesterday,1,2\n"), 2, "yesterday"),
            (
                &format!("{azure}2023-11-16 18:15:46.5,1,2\n2023-11-16 18:15:46.5,-1,2\n"),
                3,
                "-1",
            ),
            (&format!("{azure}2023-11-16 18:15:46.5,1\n"), 2, "GeneratedTokens"),
            ("{\"timestamp\": 1}\n", 1, "input_length"),
            (
                "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}",
                1,
                "milliseconds",
            ),
            (
                "{\"timestamp\": 1, \"input_length\": 99999999999, \"output_length\": 1}",
                1,
                "at most",
            ),
        ] {
            let TraceError::Line { line: found, message } = parse(text).expect_err(text) else {
                panic!("{text}: an error of a line")
            };
            assert!(
                found == line && message.contains(word),
                "{text}: {found}: {message}"
            );
        }
        assert!(matches!(parse(azure), Err(TraceError::Empty)));
    }
}
