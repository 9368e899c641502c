//! One line of a metrics page: its labels and its value.

/// A value that is finite and not negative, as all used values are.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let text = core::str::from_utf8(text).ok()?;
    text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)
}

/// The labels of a line, with escapes as they are written, and then the line's value.
#[derive(Debug)]
pub(super) struct Labels<'a> {
    /// The text from the next label on; `None`: there are no more labels, or they can't be parsed.
    labels: Option<&'a [u8]>,
    /// The text after the labels; `None`: not reached, or can't be parsed.
    rest: Option<&'a [u8]>,
}

impl<'a> Labels<'a> {
    /// The labels of a line that begins with `name`.
    pub(super) fn of(line: &'a [u8], name: &[u8]) -> Self {
        let rest = line.get(name.len()..).unwrap_or_default().trim_ascii_start();
        match rest.strip_prefix(b"{") {
            Some(labels) => Self { labels: Some(labels), rest: None },
            None => Self { labels: None, rest: Some(rest) },
        }
    }

    /// The line's value, once all labels were taken.
    pub(super) fn value(&self) -> Option<f64> {
        let value = self.rest?.trim_ascii_start().split(u8::is_ascii_whitespace).next()?;
        number(value)
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.labels?.trim_ascii_start();
        if let Some(next) = rest.strip_prefix(b",") {
            rest = next.trim_ascii_start();
        }
        if let Some(after) = rest.strip_prefix(b"}") {
            self.labels = None;
            self.rest = Some(after);
            return None;
        }
        // On a return before the end, the line can't be parsed.
        self.labels = None;
        let name_end = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = rest.split_at(name_end);
        let value = value.get(1..)?.trim_ascii_start().strip_prefix(b"\"")?;
        let mut escaped = false;
        let closing_quote = value.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        let (value, after) = value.split_at(closing_quote);
        self.labels = after.get(1..);
        Some((name.trim_ascii_end(), value))
    }
}
