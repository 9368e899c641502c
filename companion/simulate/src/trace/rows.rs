//! Collects the rows of a trace and puts them in order.

use std::time::Duration;

use super::{Trace, TraceError, TraceRequest};
use crate::limits::{ARRIVALS_MAX, REQUESTS_MAX, TOKENS_MAX};

/// A row before its time is known from the first one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// From any fixed moment.
    pub(super) at: Duration,
    pub(super) input: u64,
    pub(super) output: u64,
}

#[derive(Debug)]
pub(super) struct Rows {
    /// Only requests that arrive before this time after the first one count.
    length: Duration,
    first: Option<Duration>,
    kept: Vec<Row>,
    unanswered: u64,
}

impl Rows {
    pub(super) const fn new(length: Duration) -> Self {
        Self { length, first: None, kept: Vec::new(), unanswered: 0 }
    }

    /// Adds a row. `line` names it in errors.
    pub(super) fn push(&mut self, line: u64, row: Row) -> Result<(), TraceError> {
        let tokens = row.input.max(row.output);
        if tokens > TOKENS_MAX {
            return Err(TraceError::line(
                line,
                format!("{tokens} tokens; a prompt and an answer have at most {TOKENS_MAX} each"),
            ));
        }
        if row.output == 0 {
            self.unanswered += 1;
            return Ok(());
        }
        let first = *self.first.get_or_insert(row.at);
        // A row before `first` moves the end forward only, so this one can't count.
        if row.at.saturating_sub(first) >= self.length {
            return Ok(());
        }
        if self.kept.len() >= REQUESTS_MAX {
            return Err(TraceError::line(
                line,
                format!("more than {REQUESTS_MAX} requests; take a shorter part of the trace with --for"),
            ));
        }
        self.kept.push(row);
        Ok(())
    }

    /// The requests in order, with times from the first one.
    pub(super) fn finish(mut self) -> Result<Trace, TraceError> {
        self.kept.sort_by_key(|row| row.at);
        let first = self.kept.first().ok_or(TraceError::Empty)?.at;
        let is_in_time = |row: &Row| row.at - first < self.length;
        let requests = self.kept.iter().take_while(|row| is_in_time(row));
        let requests: Vec<TraceRequest> = requests
            .map(|row| TraceRequest { at: row.at - first, input: row.input.max(1), output: row.output })
            .collect();
        if requests.last().is_some_and(|last| last.at > ARRIVALS_MAX) {
            return Err(TraceError::Long);
        }
        Ok(Trace { requests, unanswered: self.unanswered })
    }
}
