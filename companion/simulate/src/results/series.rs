//! The course of a run over its time.

use std::time::Duration;

use super::first_token;
use super::percentiles::Percentiles;
use crate::closed_loop::{Planned, Record};

/// The course of a run, in equal parts of the time in which requests arrive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The length of a part.
    pub part: Duration,
    /// Requests that arrived.
    pub arrived: Vec<usize>,
    /// The most requests that waited at one time.
    pub waiting: Vec<usize>,
    /// The most requests at the servers at one time.
    pub running: Vec<usize>,
    /// From the arrival to the first token, of 99 in a hundred of the served requests that arrived in the part.
    pub ttft_p99_ms: Vec<Option<f64>>,
}

impl Series {
    pub(super) fn new(requests: &[Planned], record: &Record) -> Self {
        let (part, loads) = (record.load.part, &record.load.parts);
        if part.is_zero() || loads.is_empty() {
            return Self::default();
        }
        // The last arrival is at the end of the last part.
        let index = |time: Duration| {
            usize::try_from(time.as_nanos() / part.as_nanos()).unwrap_or(usize::MAX).min(loads.len() - 1)
        };
        let mut arrived = vec![0; loads.len()];
        for request in requests {
            arrived[index(request.at)] += 1;
        }
        let mut ttft = vec![Vec::new(); loads.len()];
        for finished in &record.finished {
            ttft[index(finished.arrived)].push(first_token(finished));
        }
        Self {
            part,
            arrived,
            waiting: loads.iter().map(|load| load.waiting).collect(),
            running: loads.iter().map(|load| load.running).collect(),
            ttft_p99_ms: ttft.into_iter().map(|times| Percentiles::of(times).p99).collect(),
        }
    }
}
