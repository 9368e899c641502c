//! The answers of an endpoint that failed in a row, each of another request.

use smallvec::SmallVec;

use super::kinds::Comparison;
use crate::input::{Kind, RequestId};
use crate::limits::RUN_MAX;

/// A failed answer.
#[derive(Clone, Copy, Debug)]
struct Failure {
    request: RequestId,
    kind: Kind,
    /// The server says itself that the failure is its own.
    is_servers: bool,
}

/// Failures since the last answer that was none.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// The latest, oldest first.
    latest: SmallVec<[Failure; 2]>,
    /// How many were before them.
    older: u32,
}

impl Run {
    /// Adds a failure; `false`: the request has failed in this row already.
    pub(super) fn push(&mut self, request: RequestId, kind: Kind, is_servers: bool) -> bool {
        if self.latest.iter().any(|failure| failure.request == request) {
            return false;
        }
        if self.latest.len() >= RUN_MAX {
            self.latest.remove(0);
            self.older = self.older.saturating_add(1);
        }
        self.latest.push(Failure { request, kind, is_servers });
        true
    }

    pub(super) fn count(&self) -> u32 {
        self.older.saturating_add(u32::try_from(self.latest.len()).unwrap_or(u32::MAX))
    }

    /// How many of the failures are surprising, and the sum of their surprises. Older ones count like the average of the latest.
    pub(super) fn surprise(&self, comparison: &Comparison<'_>) -> (u32, f64) {
        let (mut count, mut sum) = (0_u32, 0.0);
        let mut flows: SmallVec<[u64; 8]> = SmallVec::new();
        for failure in &self.latest {
            let surprise = comparison.surprise(failure.kind, failure.is_servers, &flows);
            flows.push(failure.kind.flow);
            if surprise > 0.0 {
                count += 1;
                sum += surprise;
            }
        }
        if self.older > 0 && count as usize == self.latest.len() {
            sum += f64::from(self.older) * sum / f64::from(count);
            count = count.saturating_add(self.older);
        }
        (count, sum)
    }

    /// How many of the failures are of a kind that the endpoint has served before.
    pub(super) fn served_before(&self, comparison: &Comparison<'_>) -> u32 {
        let mut count = 0_u32;
        let mut flows: SmallVec<[u64; 8]> = SmallVec::new();
        for failure in &self.latest {
            count += u32::from(comparison.was_served_here(failure.kind, &flows));
            flows.push(failure.kind.flow);
        }
        count
    }
}
