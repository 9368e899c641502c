//! One line of a page of metrics: its labels and its number.

/// A number that is finite and not negative, as all are that count here.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let text = core::str::from_utf8(text).ok()?;
    text.parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0)
}

/// The labels of a line as they are written, escapes and all, and what comes behind them.
#[derive(Debug)]
pub(super) struct Labels<'a> {
    /// From the next label on; `None`: there is none any more, or it can't be read.
    labels: Option<&'a [u8]>,
    /// Behind the last one; `None`: it isn't reached, or can't be.
    rest: Option<&'a [u8]>,
}

impl<'a> Labels<'a> {
    /// Those of a line that begins with `name`.
    pub(super) fn of(line: &'a [u8], name: &[u8]) -> Self {
        let rest = line.get(name.len()..).unwrap_or_default().trim_ascii_start();
        match rest.strip_prefix(b"{") {
            Some(labels) => Self {
                labels: Some(labels),
                rest: None,
            },
            None => Self {
                labels: None,
                rest: Some(rest),
            },
        }
    }

    /// The line's number, once all labels were taken.
    pub(super) fn value(&self) -> Option<f64> {
        let value = self
            .rest?
            .trim_ascii_start()
            .split(u8::is_ascii_whitespace)
            .next()?;
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
        // Whatever fails from here on: the line can't be read.
        self.labels = None;
        let named = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = rest.split_at(named);
        let value = value.get(1..)?.trim_ascii_start().strip_prefix(b"\"")?;
        let mut escaped = false;
        let quoted = value.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        let (value, after) = value.split_at(quoted);
        self.labels = after.get(1..);
        Some((name.trim_ascii_end(), value))
    }
}
