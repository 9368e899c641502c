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
//! A request without an answer (0 output tokens) failed when it was recorded, and is left out. Requests are sorted by their times.

mod bounded_lines;
mod csv_format;
mod mooncake;
mod rows;

use std::io::{BufRead, Read};
use std::time::Duration;

use self::bounded_lines::BoundedLines;
use self::rows::Rows;
use crate::limits::{ARRIVALS_MAX, TRACE_LINE_BYTES_MAX};

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
    /// The request's arrival, from the first request.
    pub at: Duration,
    /// Prompt tokens; at least 1.
    pub input: u64,
    /// Output tokens; at least 1.
    pub output: u64,
}

/// A trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// In order of their arrivals; at least one.
    pub requests: Vec<TraceRequest>,
    /// Requests that were left out because they have no answer.
    pub unanswered: u64,
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
    /// The trace is longer than a run may be.
    #[error(
        "the trace is longer than {} days; take a shorter part of it with --for",
        ARRIVALS_MAX.as_secs() / 86_400
    )]
    Long,
}

impl TraceError {
    fn line(line: u64, message: impl Into<String>) -> Self {
        Self::Line { line, message: message.into() }
    }
}

/// Reads a trace. `format`: `None` to tell it from the first line. Requests from `length` after the first one on are left out.
///
/// # Errors
/// A line is wrong, with its number; or reading fails; or the trace is empty or too long.
pub fn read(mut reader: impl BufRead, format: Option<Format>, length: Duration) -> Result<Trace, TraceError> {
    let mut first = Vec::new();
    reader.by_ref().take(TRACE_LINE_BYTES_MAX as u64).read_until(b'\n', &mut first)?;
    if first.is_empty() {
        return Err(TraceError::Empty);
    }
    let Some(format) = format.or_else(|| recognized(&first)) else {
        return Err(TraceError::line(
            1,
            "the format isn't known: a CSV header of Azure (TIMESTAMP,ContextTokens,GeneratedTokens) or BurstGPT \
             (Timestamp,Model,Request tokens,Response tokens,...), or a JSON object of Mooncake (timestamp, input_length, \
             output_length) is expected",
        ));
    };
    let whole = BoundedLines::new(first.as_slice().chain(reader));
    let mut rows = Rows::new(length);
    match format {
        Format::Azure => csv_format::read(whole, &csv_format::AZURE, &mut rows)?,
        Format::Burstgpt => csv_format::read(whole, &csv_format::BURSTGPT, &mut rows)?,
        Format::Mooncake => mooncake::read(whole, &mut rows)?,
    }
    rows.finish()
}

/// The format that the first line shows.
fn recognized(first: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(first);
    let has = |name: &str| text.split(',').any(|field| field.trim().trim_matches('"') == name);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<TraceRequest>, TraceError> {
        read(text.as_bytes(), None, Duration::MAX).map(|trace| trace.requests)
    }

    fn request(ms: u64, input: u64, output: u64) -> TraceRequest {
        TraceRequest { at: Duration::from_millis(ms), input, output }
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
            ("a,b\n1,2\n", 1, "Mooncake"),
            (&format!("{azure}yesterday,1,2\n"), 2, "yesterday"),
            (&format!("{azure}2023-11-16 18:15:46.5,1,2\n2023-11-16 18:15:46.5,-1,2\n"), 3, "-1"),
            (&format!("{azure}2023-11-16 18:15:46.5,1\n"), 2, "GeneratedTokens"),
            ("TIMESTAMP,ContextTokens\n", 1, "GeneratedTokens"),
            ("Timestamp,Request tokens,Response tokens\nNaN,1,1\n", 2, "seconds"),
            ("Timestamp,Request tokens,Response tokens\n1,1e3,1\n", 2, "whole number"),
            ("Timestamp,Request tokens,Response tokens\n1e300,1,1\n", 2, "seconds"),
            ("{\"timestamp\": 1}\n", 1, "input_length"),
            ("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}", 1, "milliseconds"),
            ("{\"timestamp\": 1, \"input_length\": 99999999999, \"output_length\": 1}", 1, "at most"),
        ] {
            let TraceError::Line { line: found, message } = parse(text).expect_err(text) else {
                panic!("{text}: an error of a line")
            };
            assert!(found == line && message.contains(word), "{text}: {found}: {message}");
        }
    }

    #[test]
    fn empty_and_too_long_traces_are_errors() {
        let burstgpt = "Timestamp,Request tokens,Response tokens\n";
        for text in ["", burstgpt, &format!("{burstgpt}1,1,0\n")] {
            assert!(matches!(parse(text), Err(TraceError::Empty)), "{text}");
        }
        let long = format!("{burstgpt}1,1,1\n10000000,1,1\n");
        assert!(matches!(parse(&long), Err(TraceError::Long)));
        assert!(read(long.as_bytes(), None, Duration::from_secs(10)).is_ok());
    }

    #[test]
    fn a_length_cuts_the_trace_from_its_first_request_whatever_the_order() {
        let text =
            "Timestamp,Request tokens,Response tokens\n12,2,1\n15,3,1\n10,1,1\n19,4,1\n21,5,1\n90,6,0\n";
        let trace = read(text.as_bytes(), None, Duration::from_secs(9)).expect("valid");
        let expected = [request(0, 1, 1), request(2_000, 2, 1), request(5_000, 3, 1)];
        assert_eq!((trace.requests.as_slice(), trace.unanswered), (&expected[..], 1));
    }

    #[test]
    fn quotes_and_other_columns_are_ignored() {
        let text = "\"id\",\"TIMESTAMP\",\"ContextTokens\",\"GeneratedTokens\"\n\"7,\"2023-11-16 18:15:46\",\"3\",\"4\"\n";
        assert_eq!(parse(text).expect("valid"), [request(0, 3, 4)]);
    }
}
