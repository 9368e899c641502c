//! Why health checks and metrics of endpoints fail at present, for the status page.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An endpoint: the name of its pool, and its address.
type Key = (Arc<str>, String);

/// What is asked of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// `health`
    Health,
    /// `scrape`
    Metrics,
}

/// The reasons by endpoint and check.
type Reasons = BTreeMap<(Key, Check), Arc<str>>;

/// The present failures of all endpoints. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckFailures(Arc<Mutex<Reasons>>);

impl CheckFailures {
    /// Sets or removes the reason of a failure.
    pub(crate) fn set(&self, pool: &Arc<str>, address: &str, check: Check, why: Option<&str>) {
        let key = ((pool.clone(), address.to_owned()), check);
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => drop(failures.insert(key, why.into())),
            None => drop(failures.remove(&key)),
        }
    }

    /// The reason why this check of an endpoint fails.
    pub(crate) fn why(&self, pool: &str, address: &str, check: Check) -> Option<Arc<str>> {
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(&((pool.into(), address.to_owned()), check)).cloned()
    }

    /// Forgets endpoints for which `is_known` is false.
    pub(crate) fn retain(&self, is_known: impl Fn(&str, &str) -> bool) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.retain(|((pool, address), _), _| is_known(pool, address));
    }
}
