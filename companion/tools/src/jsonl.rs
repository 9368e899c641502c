//! Files of one JSON object a line: read strictly, with errors that say where.
//!
//! An unknown key, one that is said twice or one of another type is an error; so is a line that isn't one object. A
//! line is judged by itself, so that a file may be as long as it likes.

use std::io::{self, BufRead, BufReader, Read};

use serde::Deserialize;

/// Bytes of a line.
pub(crate) const LINE_BYTES_MAX: u64 = 1 << 20;

/// The lines of a file, one after the other, in one buffer.
pub(crate) struct Lines<R> {
    from: BufReader<R>,
    line: Vec<u8>,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            from: BufReader::with_capacity(1 << 16, from),
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line and its number, from 1; `None`: there is none. One that is too long is cut, to
    /// [`LINE_BYTES_MAX`] bytes: see [`is_cut`].
    pub(crate) fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.line.clear();
        let read = self.from.by_ref().take(LINE_BYTES_MAX);
        if { read }.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some((self.number, &self.line)))
    }

    /// Nothing more has arrived so far: whoever writes the file as it goes, through a pipe, waits for an answer.
    pub(crate) fn is_drained(&self) -> bool {
        self.from.buffer().is_empty()
    }
}

/// The line is too long, and not whole.
pub(crate) const fn is_cut(line: &[u8]) -> bool {
    line.len() as u64 == LINE_BYTES_MAX
}

/// It starts like a JSON object. A struct would be read from a list as well.
pub(crate) fn is_object(line: &[u8]) -> bool {
    line.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// The fields of a line as a `T`; an error names the field.
pub(crate) fn fields<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| {
        let message = error.to_string();
        let message = message.split(" at line 1 ").next().unwrap_or_default();
        if !error.is_data() {
            return format!("{message} (column {})", error.column());
        }
        // Once more, slowly, to learn where.
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
    fn lines_are_numbered_and_need_not_end() {
        assert!(all(b"").is_empty());
        assert_eq!(
            all(b"a\n\nb"),
            [(1, b"a\n".to_vec()), (2, b"\n".to_vec()), (3, b"b".to_vec())]
        );
    }

    #[test]
    fn a_line_that_is_too_long_is_known_by_it() {
        let long = vec![b' '; 1 << 21];
        assert!(all(&long).iter().all(|(_, line)| is_cut(line)));
        assert!(!is_cut(&long[1..1 << 20]));
    }

    #[test]
    fn only_an_object_is_one() {
        assert!(is_object(b" \t{"));
        assert!(!is_object(b"[1]"));
        assert!(!is_object(b"\n"));
    }
}
