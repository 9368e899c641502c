//! A file whose lines are limited, so that a file without line breaks doesn't fill the memory.

use std::io::{self, BufRead, Read};

use crate::limits::TRACE_LINE_BYTES_MAX;

/// A line is longer than [`TRACE_LINE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the line is longer than {TRACE_LINE_BYTES_MAX} bytes")]
pub(super) struct LongLine {
    /// From 1.
    pub(super) line: u64,
}

impl LongLine {
    /// The long line that caused this error.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Self>().copied()
    }
}

/// Passes a file on, and fails at a line that is too long.
#[derive(Debug)]
pub(super) struct BoundedLines<R> {
    inner: R,
    /// The number of the current line, from 1.
    line: u64,
    /// Bytes of the current line so far.
    bytes: usize,
}

impl<R: BufRead> BoundedLines<R> {
    pub(super) const fn new(inner: R) -> Self {
        Self { inner, line: 1, bytes: 0 }
    }
}

impl<R: BufRead> BufRead for BoundedLines<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.bytes > TRACE_LINE_BYTES_MAX {
            return Err(io::Error::other(LongLine { line: self.line }));
        }
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        if let Ok(buffer) = self.inner.fill_buf() {
            let consumed = &buffer[..amount.min(buffer.len())];
            let breaks = consumed.iter().filter(|byte| **byte == b'\n').count();
            self.line += breaks as u64;
            self.bytes = match consumed.iter().rposition(|byte| *byte == b'\n') {
                Some(last) => consumed.len() - last - 1,
                None => self.bytes + consumed.len(),
            };
        }
        self.inner.consume(amount);
    }
}

impl<R: BufRead> Read for BoundedLines<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_pass_up_to_the_limit() {
        let fits = format!("a\n{}\nb", "x".repeat(TRACE_LINE_BYTES_MAX));
        let mut text = String::new();
        BoundedLines::new(fits.as_bytes()).read_to_string(&mut text).expect("short lines");
        assert_eq!(text, fits);
        let long = format!("a\nb\n{}", "x".repeat(TRACE_LINE_BYTES_MAX + 100_000));
        let reader = io::BufReader::new(long.as_bytes());
        let error = BoundedLines::new(reader).read_to_string(&mut text).expect_err("a long line");
        assert_eq!(LongLine::of(&error).expect("the cause").line, 3);
    }
}
