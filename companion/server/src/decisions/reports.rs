//! What the control reports to the election. The driver mustn't wait for the election, so reports of a kind replace each
//! other, and the sender never blocks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_control::Scope;
use penstock_election::{Input, KnownEnvoy};
use tokio::sync::Notify;

/// A report of the control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A filter asks this standby, and there is no leader that the filter can reach.
    Wanted,
    /// A filter follows a leader with this term.
    Superseded {
        /// The term that the filter named.
        term: u64,
    },
    /// The filters stay with the last leader.
    Unfollowed {
        /// The term of the control.
        term: u64,
    },
    /// The Envoys with sessions here changed, or the takeover is complete.
    Known {
        /// The term of the control.
        term: u64,
        /// The Envoys with sessions here.
        envoys: Vec<KnownEnvoy>,
    },
}

/// Carries reports from the driver to the election. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reporter(Arc<Shared>);

/// The reporters of all scopes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporters(Arc<Mutex<HashMap<Scope, Reporter>>>);

impl Reporters {
    /// That of a scope. The driver and the scope's election share it, whichever comes first.
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
    known: Option<(u64, Vec<KnownEnvoy>)>,
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
            Report::Known { term, envoys } => pending.known = Some((term, envoys)),
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
        let known = pending.known.map(|(term, envoys)| Input::Known { term, envoys });
        let unfollowed = pending.unfollowed.map(|term| Input::Unfollowed { term });
        let superseded = pending.superseded.map(|term| Input::Superseded { term });
        let wanted = pending.wanted.then_some(Input::Wanted);
        let inputs = [known, unfollowed, superseded, wanted];
        inputs.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn reports_of_a_kind_replace_each_other() {
        let reporter = Reporter::new();
        assert_eq!(reporter.take().now_or_never(), None);
        let known =
            |envoy| Report::Known { term: 3, envoys: vec![KnownEnvoy { envoy, contexts: 1, digest: 7 }] };
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
        let envoys = vec![KnownEnvoy { envoy: 2, contexts: 1, digest: 7 }];
        let inputs = reporter.take().now_or_never();
        assert_eq!(
            inputs,
            Some(vec![Input::Known { term: 3, envoys }, Input::Superseded { term: 9 }, Input::Wanted])
        );
        assert_eq!(reporter.take().now_or_never(), None);
    }
}
