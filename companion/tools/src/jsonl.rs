//! Reads files of one JSON object a line, strictly.
//!
//! An unknown key, a key that is written twice and a value of the wrong type are errors, and so is a line that isn't one object.
//! Lines are read one at a time, so a file may have any length.

use std::io::{self, BufRead, BufReader, Read};

use serde::Deserialize;

/// Bytes of a line, including its line break.
pub(crate) const LINE_BYTES_MAX: u64 = 1 << 20;

/// The lines of a file, read one after the other into one buffer.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(1 << 16, reader), line: Vec::new(), number: 0 }
    }

    /// The next line and its number, from 1; `None` at the end of the file. A line that is too long is cut to
    /// [`LINE_BYTES_MAX`] bytes; see [`is_cut`].
    pub(crate) fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.line.clear();
        let read = self.reader.by_ref().take(LINE_BYTES_MAX);
        if { read }.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some((self.number, &self.line)))
    }

    /// Whether every byte that has arrived is consumed. A process that writes the file through a pipe may then be waiting for an
    /// answer.
    pub(crate) fn is_drained(&self) -> bool {
        self.reader.buffer().is_empty()
    }
}

/// Whether a line was cut because it is too long.
pub(crate) const fn is_cut(line: &[u8]) -> bool {
    line.len() as u64 == LINE_BYTES_MAX
}

/// Whether a line begins like a JSON object. serde would also read a struct from a list.
pub(crate) fn is_object(line: &[u8]) -> bool {
    line.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Reads the fields of a line. An error names the field.
pub(crate) fn fields<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| {
        let message = error.to_string();
        let message = message.split(" at line 1 ").next().unwrap_or_default();
        if !error.is_data() {
            return format!("{message} (column {})", error.column());
        }
        // Only a second, slower pass knows the path of the field.
        let deserializer = &mut serde_json::Deserializer::from_slice(line);
        let path = match serde_path_to_error::deserialize::<_, T>(deserializer) {
            Err(error) => error.path().to_string(),
            Ok(_) => String::new(),
        };
        match &*path {
            "" | "." | "?" => message.to_owned(),
            path => format!("{path}: {message}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines = Lines::new(text);
        let mut read = Vec::new();
        while let Some((number, line)) = lines.next().expect("memory reads") {
            read.push((number, line.to_vec()));
        }
        assert!(lines.is_drained());
        read
    }

    #[test]
    fn lines_are_numbered_and_the_last_needs_no_line_break() {
        assert!(all(b"").is_empty());
        assert_eq!(all(b"a\n\nb"), [(1, b"a\n".to_vec()), (2, b"\n".to_vec()), (3, b"b".to_vec())]);
    }

    #[test]
    fn long_lines_are_cut() {
        let long = vec![b' '; 1 << 21];
        assert!(all(&long).iter().all(|(_, line)| is_cut(line)));
        assert!(!is_cut(&long[1..1 << 20]));
    }

    #[test]
    fn lists_and_empty_lines_are_no_objects() {
        assert!(is_object(b" \t{"));
        assert!(!is_object(b"[1]"));
        assert!(!is_object(b"\n"));
    }
}
