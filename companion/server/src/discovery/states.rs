//! Whether the discovery of each pool works, for `/readyz`, `/status`, the advice and the metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use penstock_config::Config;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// The states of all pools with discovery. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct States {
    inner: Arc<Mutex<Inner>>,
    /// Each pool had an answer at some time since the start.
    complete: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Inner {
    pools: BTreeMap<Arc<str>, State>,
}

/// The discovery of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The discovery works.
    pub(crate) is_up: bool,
    /// Since when, by the wall clock.
    pub(crate) since: SystemTime,
    /// Why it doesn't work, or why it has found no endpoint; otherwise empty.
    pub(crate) reason: String,
    /// What else of the pool can't be read, such as its objectives, and why. The endpoints don't wait for it.
    pub(crate) unread: Vec<String>,
    /// The discovery has found a list, even an empty one, and that was applied.
    has_answered: bool,
}

impl States {
    /// The states of the pools of this configuration, which have had no answer.
    #[must_use]
    pub(crate) fn new(config: &Config, metrics: Arc<Metrics>) -> Self {
        let states = Self { inner: Arc::default(), complete: watch::Sender::new(false), metrics };
        states.follow(config);
        states.are_applied([].into_iter());
        states
    }

    /// Forgets pools without discovery, and adds those that are new.
    pub(super) fn follow(&self, config: &Config) {
        let mut inner = self.inner();
        let has_discovery = |name: &str| {
            let mut pools = config.pools.iter();
            pools.any(|pool| pool.name == name && pool.discovery.is_some())
        };
        for (pool, _) in inner.pools.extract_if(.., |pool, _| !has_discovery(pool)) {
            self.metrics.remove_discovery(&pool);
        }
        for pool in &config.pools {
            if pool.discovery.is_some() && !inner.pools.contains_key(pool.name.as_str()) {
                let state = State {
                    is_up: false,
                    since: SystemTime::now(),
                    reason: "it has had no answer yet".into(),
                    unread: Vec::new(),
                    has_answered: false,
                };
                inner.pools.insert(pool.name.as_str().into(), state);
                self.metrics.set_discovery_up(&pool.name, false);
            }
        }
    }

    /// A pool's discovery has found a list. Returns since when it had failed, if it had.
    pub(super) fn works(&self, pool: &str) -> Option<SystemTime> {
        let mut inner = self.inner();
        let state = inner.pools.get_mut(pool)?;
        let failed_since = (!state.is_up).then_some(state.since);
        if !state.is_up {
            (state.is_up, state.since) = (true, SystemTime::now());
        }
        state.reason.clear();
        self.metrics.set_discovery_up(pool, true);
        failed_since
    }

    /// A pool's discovery works, and has found no endpoint for this reason.
    pub(super) fn finds_nothing(&self, pool: &str, reason: &str) {
        if let Some(state) = self.inner().pools.get_mut(pool).filter(|state| state.is_up) {
            reason.clone_into(&mut state.reason);
        }
    }

    /// What else of a pool can't be read, and why.
    pub(super) fn set_unread(&self, pool: &str, unread: Vec<String>) {
        if let Some(state) = self.inner().pools.get_mut(pool) {
            state.unread = unread;
        }
    }

    /// The lists of these pools are their endpoints now.
    pub(crate) fn are_applied<'a>(&self, pools: impl Iterator<Item = &'a Arc<str>>) {
        let mut inner = self.inner();
        for pool in pools {
            if let Some(state) = inner.pools.get_mut(pool) {
                state.has_answered = true;
            }
        }
        if inner.pools.values().all(|state| state.has_answered) {
            self.complete.send_if_modified(|complete| !core::mem::replace(complete, true));
        }
    }

    /// A pool's discovery fails.
    pub(super) fn fails(&self, pool: &str, reason: &str) {
        if let Some(state) = self.inner().pools.get_mut(pool) {
            if state.is_up {
                (state.is_up, state.since) = (false, SystemTime::now());
            }
            reason.clone_into(&mut state.reason);
            self.metrics.set_discovery_up(pool, false);
        }
    }

    /// The state of a pool; `None`: it has no discovery.
    #[must_use]
    pub(crate) fn get(&self, pool: &str) -> Option<State> {
        self.inner().pools.get(pool).cloned()
    }

    /// A pool that has had no answer, and why; `None`: each had one at some time since the start.
    #[must_use]
    pub(crate) fn unanswered(&self) -> Option<(Arc<str>, String)> {
        let inner = self.inner();
        let is_complete = *self.complete.borrow();
        let mut pools = inner.pools.iter().filter(|_| !is_complete);
        let (pool, state) = pools.find(|(_, state)| !state.has_answered)?;
        Some((pool.clone(), state.reason.clone()))
    }

    /// Whether each pool had an answer at some time since the start.
    #[must_use]
    pub(crate) fn complete(&self) -> watch::Receiver<bool> {
        self.complete.subscribe()
    }

    /// Ends once each pool had an answer, or after `limit`.
    ///
    /// A companion that starts hears of no request before: it counts a running one at its endpoint, and decides about others by the rules that
    /// are known then. What can't be found in time is served without.
    pub(crate) async fn wait_for_answers(self, limit: Duration) {
        let mut complete = self.complete();
        if tokio::time::timeout(limit, complete.wait_for(|complete| *complete)).await.is_ok() {
            return;
        }
        if let Some((pool, why)) = self.unanswered() {
            tracing::warn!(
                pool = &*pool,
                why,
                "the discovery hasn't answered within {} s: requests are taken without its endpoints and rules until it does, and what runs at \
                 servers of this pool takes no places until they are found",
                limit.as_secs()
            );
        }
    }

    /// The state of a pool whose discovery works, but for this.
    #[cfg(test)]
    pub(crate) fn with_unread(pool: &str, unread: &str) -> Self {
        let states = super::states(pool);
        states.works(pool);
        states.set_unread(pool, vec![unread.to_owned()]);
        states
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn config(pools: &[(&str, bool)]) -> Config {
        let pools: Vec<_> = pools
            .iter()
            .map(|(name, discovers)| {
                let endpoints = if *discovers { "{file: list.yaml}" } else { "{static: ['127.0.0.1:1']}" };
                format!("{{name: {name}, models: [{name}], endpoints: {endpoints}}}")
            })
            .collect();
        Config::parse(&format!("pools: [{}]", pools.join(", ")), "f.yaml").expect("valid")
    }

    #[test]
    fn every_discovering_pool_needs_one_answer_and_no_second_one() {
        let metrics = Arc::new(Metrics::new().expect("metrics"));
        let states = States::new(&config(&[("a", true), ("b", true), ("c", false)]), metrics);
        assert_eq!(states.get("c"), None);
        assert!(states.works("a").is_some());
        let unanswered = states.unanswered().map(|(pool, _)| pool);
        assert_eq!(unanswered, Some("a".into()), "not applied yet");
        states.are_applied([&Arc::from("a")].into_iter());
        states.fails("b", "forbidden");
        assert_eq!(states.unanswered(), Some(("b".into(), "forbidden".into())));
        states.works("b");
        states.are_applied([&Arc::from("b")].into_iter());
        assert_eq!(states.unanswered(), None);
        states.fails("a", "away");
        let state = states.get("a").expect("it discovers");
        assert_eq!((state.is_up, &*state.reason), (false, "away"));
        states.follow(&config(&[("a", true), ("d", true)]));
        assert_eq!(states.unanswered(), None, "it was ready");
        assert_eq!(states.get("b"), None);
        assert!(!states.get("d").expect("it discovers").is_up);
        assert!(states.works("a").is_some(), "a recovery");
        assert!(states.works("a").is_none());
    }

    #[test]
    fn a_companion_without_discovery_waits_for_nothing() {
        let metrics = Arc::new(Metrics::new().expect("metrics"));
        let states = States::new(&config(&[("a", false)]), metrics);
        assert_eq!(states.unanswered(), None);
        states.follow(&config(&[("b", true)]));
        assert_eq!(states.unanswered(), None, "it was ready");
    }

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn requests_wait_for_the_discovery_but_not_for_ever() {
        let metrics = || Arc::new(Metrics::new().expect("metrics"));
        let waits = |states: &States| states.clone().wait_for_answers(LIMIT).now_or_never().is_none();
        assert!(!waits(&States::new(&config(&[("a", false)]), metrics())));
        let states = States::new(&config(&[("a", true), ("b", true), ("c", false)]), metrics());
        assert!(waits(&states));
        states.are_applied([&Arc::from("b")].into_iter());
        assert!(waits(&states), "that of another pool");
        states.clone().wait_for_answers(LIMIT).await;
        assert!(waits(&states), "it has given up");
        states.works("a");
        assert!(waits(&states), "not applied yet");
        states.are_applied([&Arc::from("a")].into_iter());
        assert!(!waits(&states));
        states.fails("a", "away");
        assert!(!waits(&states), "its endpoints were known");
    }
}
