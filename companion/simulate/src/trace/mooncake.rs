//! The JSON lines of Mooncake.

use std::io::BufRead;
use std::time::Duration;

use serde::Deserialize;

use super::TraceError;
use super::bounded_lines::LongLine;
use super::rows::{Row, Rows};

/// A line. Other keys, such as the hashes of the prompt's blocks, are ignored.
#[derive(Deserialize)]
struct Object {
    /// Milliseconds since the start of the trace.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
}

pub(super) fn read(mut file: impl BufRead, rows: &mut Rows) -> Result<(), TraceError> {
    let mut text = Vec::new();
    let mut line = 0;
    loop {
        text.clear();
        let read = file.read_until(b'\n', &mut text).map_err(|error| match LongLine::of(&error) {
            Some(long) => TraceError::line(long.line, long.to_string()),
            None => TraceError::Read(error),
        })?;
        if read == 0 {
            return Ok(());
        }
        line += 1;
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let object: Object =
            serde_json::from_slice(&text).map_err(|error| TraceError::line(line, error.to_string()))?;
        let time = Duration::try_from_secs_f64(object.timestamp / 1e3).map_err(|_| {
            let text =
                format!("timestamp: {} is not a number of milliseconds of at least 0", object.timestamp);
            TraceError::line(line, text)
        })?;
        let row = Row { at: time, input: object.input_length, output: object.output_length };
        rows.push(line, row)?;
    }
}
