//! What the control reports to the election. The driver mustn't wait for the election, so reports of a kind replace each
//! other, and the sender never blocks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_control::Scope;
use penstock_election::{Input, Report};
use tokio::sync::Notify;

/// Carries reports from the driver to the election. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reporter(Arc<Shared>);

/// The reporters of all scopes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporters(Arc<Mutex<HashMap<Scope, Reporter>>>);

impl Reporters {
    /// The reporter of a scope. The driver and the scope's election share it, whichever comes first.
    #[must_use]
    pub(crate) fn of(&self, scope: &Scope) -> Reporter {
        let mut reporters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reporters.entry(scope.clone()).or_default().clone()
    }

    /// Forgets a scope whose election has ended.
    pub(crate) fn remove(&self, scope: &Scope) {
        let mut reporters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reporters.remove(scope);
    }
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    wanted: bool,
    superseded: Option<u64>,
    unfollowed: Option<u64>,
    known: Option<Report>,
}

impl Reporter {
    /// Without reports.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves a report for the election. Never waits.
    pub fn report(&self, report: Report) {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        match report {
            Report::Wanted => pending.wanted = true,
            Report::Superseded { term } => pending.superseded = pending.superseded.max(Some(term)),
            Report::Unfollowed { term } => pending.unfollowed = pending.unfollowed.max(Some(term)),
            Report::Known { .. } => pending.known = Some(report),
        }
        drop(pending);
        self.0.changed.notify_one();
    }

    /// Returns all reports since the last call, as soon as there is one. Dropping the future loses none.
    pub(crate) async fn take(&self) -> Vec<Input> {
        loop {
            let inputs = self.take_pending();
            if !inputs.is_empty() {
                return inputs;
            }
            self.0.changed.notified().await;
        }
    }

    fn take_pending(&self) -> Vec<Input> {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = std::mem::take(&mut *pending);
        let unfollowed = pending.unfollowed.map(|term| Report::Unfollowed { term });
        let superseded = pending.superseded.map(|term| Report::Superseded { term });
        let wanted = pending.wanted.then_some(Report::Wanted);
        let reports = [pending.known, unfollowed, superseded, wanted];
        reports.into_iter().flatten().map(Input::Reported).collect()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use penstock_election::{KnownEnvoy, Pickers};

    use super::*;

    #[test]
    fn reports_of_a_kind_replace_each_other() {
        let reporter = Reporter::new();
        assert_eq!(reporter.take().now_or_never(), None);
        let known = |envoy| Report::Known {
            term: 3,
            envoys: vec![KnownEnvoy { envoy, contexts: 1, digest: 7 }],
            pickers: Pickers::default(),
        };
        for report in [
            Report::Wanted,
            known(1),
            Report::Superseded { term: 9 },
            Report::Superseded { term: 8 },
            Report::Wanted,
            known(2),
        ] {
            reporter.report(report);
        }
        let inputs = reporter.take().now_or_never();
        let latest = [known(2), Report::Superseded { term: 9 }, Report::Wanted];
        assert_eq!(inputs, Some(latest.map(Input::Reported).to_vec()));
        assert_eq!(reporter.take().now_or_never(), None);
    }
}
