//! Discovers the endpoints of pools that don't list them, with one task for each pool.
//!
//! The last discovered list stays until a new one is discovered: when a name server, a file or an API server fails, the
//! endpoints stay, the log has one warning, and one line when it works again. The receiver of [`Found`] decides how a list is applied.

mod dns;
mod file;
#[cfg_attr(not(feature = "kubernetes"), path = "discovery/without_kubernetes.rs")]
mod kubernetes;
#[cfg_attr(not(feature = "kubernetes"), path = "discovery/without_pool_events.rs")]
pub(crate) mod pool_events;
mod states;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use penstock_config::{Config, Discovered, Discovery, Endpoint, EndpointDefaults, Pool};
use penstock_engine::limits::ENDPOINTS_MAX;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[cfg(feature = "kubernetes")]
pub(crate) use self::kubernetes::{connect, reference};
pub(crate) use self::states::{State, States};
use crate::active::reload;
use crate::base::clock::sleep_until;
use crate::base::essential;
use crate::base::found::Found;
use crate::metrics::Metrics;

/// Lists that wait to be applied; tasks beyond the limit wait as well.
const FOUND: usize = 64;
/// How long a list waits for the next one: pods come and go in groups.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The most objectives of a pool; further ones, in the order of their names, are ignored.
const OBJECTIVES_MAX: usize = 1_024;
/// The most rewrite rules of a pool that are discovered; further ones, in the order in which they count, are ignored.
const REWRITES_MAX: usize = 1_024;
/// The name of the tasks.
const NAME: &str = "discovery";

/// The tasks that discover endpoints, one for each pool with discovery. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Finders {
    found: mpsc::Sender<Found>,
    states: States,
    tasks: BTreeMap<Arc<str>, (Settings, AbortOnDrop)>,
}

/// The settings of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    discovery: Discovery,
    defaults: EndpointDefaults,
    /// A class needs `max_batched_tokens` of every endpoint.
    needs_batched_tokens: bool,
}

impl Settings {
    /// `None`: the document lists the pool's endpoints.
    fn of(pool: &Pool) -> Option<Self> {
        Some(Self {
            discovery: pool.discovery.clone()?,
            defaults: pool.endpoint_defaults.clone(),
            needs_batched_tokens: pool.needs_batched_tokens(),
        })
    }
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Finders {
    /// No tasks yet.
    #[must_use]
    pub(crate) const fn new(found: mpsc::Sender<Found>, states: States) -> Self {
        Self { found, states, tasks: BTreeMap::new() }
    }

    /// Starts and ends tasks, so that each pool with discovery has one. A task whose settings haven't changed keeps
    /// running.
    pub(crate) fn follow(&mut self, config: &Config) {
        self.states.follow(config);
        let wanted: BTreeMap<&str, Settings> =
            config.pools.iter().filter_map(|pool| Some((pool.name.as_str(), Settings::of(pool)?))).collect();
        self.tasks.retain(|pool, (settings, _)| wanted.get(&**pool).is_some_and(|wanted| wanted == settings));
        for (pool, settings) in wanted {
            if !self.tasks.contains_key(pool) {
                let pool: Arc<str> = pool.into();
                // The task before may have left something.
                self.states.set_unread(&pool, Vec::new());
                let report =
                    Report::new(pool.clone(), settings.clone(), self.found.clone(), self.states.clone());
                self.tasks.insert(pool, (settings, AbortOnDrop(spawn_one(report))));
            }
        }
    }
}

/// Discovered lists as they are to be applied: lists of a pool that follow each other closely, or while earlier ones are
/// applied, are one, the newest.
#[derive(Debug)]
pub(crate) struct NewestLists {
    found: mpsc::Receiver<Found>,
    newest: BTreeMap<Arc<str>, Found>,
    due: Option<Instant>,
}

impl NewestLists {
    /// The sender is for [`Finders::new`].
    #[must_use]
    pub(crate) fn new() -> (mpsc::Sender<Found>, Self) {
        let (sender, found) = mpsc::channel(FOUND);
        let lists = Self { found, newest: BTreeMap::new(), due: None };
        (sender, lists)
    }

    /// The newest lists of all pools that have new ones, with at most one for each pool. A call that is cancelled loses none.
    pub(crate) async fn next(&mut self) -> Vec<Found> {
        loop {
            tokio::select! {
                // Lists that have come meanwhile count before the time is over.
                biased;
                Some(next) = self.found.recv() => {
                    self.newest.insert(next.pool.clone(), next);
                    self.due.get_or_insert_with(|| Instant::now() + DEBOUNCE);
                }
                () = sleep_until(self.due) => {
                    self.due = None;
                    return std::mem::take(&mut self.newest).into_values().collect();
                }
            }
        }
    }
}

/// Starts discovery. Returns its states.
///
/// # Panics
/// Outside a tokio runtime.
#[must_use]
pub(crate) fn spawn(config: &reload::Handle, metrics: Arc<Metrics>) -> States {
    let states = States::new(&config.active().config, metrics);
    essential::spawn(NAME, run(config.clone(), states.clone()));
    states
}

/// Follows the active configuration, and applies discovered endpoints to it, until the companion shuts down.
async fn run(config: reload::Handle, states: States) {
    let mut changes = config.watch();
    let (sender, mut lists) = NewestLists::new();
    let mut finders = Finders::new(sender, states.clone());
    let mut applying: Option<BoxFuture<'_, ()>> = None;
    loop {
        let now = changes.borrow_and_update().config.clone();
        finders.follow(&now);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = at_last(&mut applying) => applying = None,
            newest = lists.next(), if applying.is_none() => {
                applying = Some(apply(&config, &states, newest).boxed());
            }
        }
    }
}

async fn apply(config: &reload::Handle, states: &States, newest: Vec<Found>) {
    let pools: Vec<Arc<str>> = newest.iter().map(|found| found.pool.clone()).collect();
    config.set_discovered(newest).await;
    states.are_applied(pools.iter());
}

async fn at_last(applying: &mut Option<BoxFuture<'_, ()>>) {
    match applying {
        Some(applying) => applying.await,
        None => std::future::pending().await,
    }
}

fn spawn_one(report: Report) -> JoinHandle<()> {
    match report.settings.discovery.clone() {
        Discovery::Dns { name, port, refresh, resolver } => {
            essential::spawn(NAME, dns::run(report, name, port, refresh, resolver))
        }
        Discovery::File(path) => essential::spawn(NAME, file::run(report, path)),
        Discovery::Kubernetes { .. } => essential::spawn(NAME, kubernetes::run(report)),
    }
}

/// The output of one task: sends each new list once.
#[derive(Debug)]
struct Report {
    pool: Arc<str>,
    settings: Settings,
    found: mpsc::Sender<Found>,
    states: States,
    last: Option<Discovered>,
    /// Discovery fails, and the log has a line about it.
    failing: bool,
}

impl Report {
    const fn new(pool: Arc<str>, settings: Settings, found: mpsc::Sender<Found>, states: States) -> Self {
        Self { pool, settings, found, states, last: None, failing: false }
    }

    /// Sends a complete list of endpoints, where discovery finds no pending servers. As [`Self::send`].
    async fn send_endpoints(&mut self, endpoints: Vec<Endpoint>) {
        self.send(Discovered { endpoints, ..Discovered::default() }).await;
    }

    /// Sends an empty list, and shows the reason why discovery has found nothing, although it works.
    async fn send_nothing(&mut self, why: &str) {
        if !self.is_known_empty() {
            tracing::warn!(pool = &*self.pool, "endpoint discovery has found no endpoint: {why}");
        }
        self.send_endpoints(Vec::new()).await;
        self.states.finds_nothing(&self.pool, why);
    }

    /// The last list is empty.
    fn is_known_empty(&self) -> bool {
        self.last.as_ref().is_some_and(|last| *last == Discovered::default())
    }

    /// Sends the complete list, if it differs from the last one. Duplicate addresses, and endpoints and groups of pending
    /// servers beyond the limit of a pool, are dropped.
    async fn send(&mut self, mut discovered: Discovered) {
        self.works();
        let Discovered { endpoints, pending, http2: _, objectives, rewrites } = &mut discovered;
        let mut seen = BTreeSet::new();
        endpoints.retain(|endpoint| seen.insert(endpoint.address));
        let found = endpoints.len();
        endpoints.truncate(ENDPOINTS_MAX);
        pending.truncate(ENDPOINTS_MAX);
        let objectives_found = objectives.len();
        while objectives.len() > OBJECTIVES_MAX {
            objectives.pop_last();
        }
        let rewrites_found = rewrites.len();
        rewrites.truncate(REWRITES_MAX);
        if self.last.as_ref() == Some(&discovered) {
            return;
        }
        let none = Discovered::default();
        let last = self.last.as_ref().unwrap_or(&none);
        if last.objectives != discovered.objectives {
            self.log_rules("objectives", objectives_found, OBJECTIVES_MAX);
        }
        if last.rewrites != discovered.rewrites {
            self.log_rules("rewrite rules", rewrites_found, REWRITES_MAX);
        }
        let known = self.last.iter().flat_map(|last| &last.endpoints);
        let before: BTreeSet<SocketAddr> = known.map(|endpoint| endpoint.address).collect();
        let (added, removed) = (seen.difference(&before), before.difference(&seen));
        tracing::info!(
            pool = &*self.pool,
            endpoints = discovered.endpoints.len(),
            pending = (discovered.pending.iter()).map(|pending| pending.servers).sum::<u64>(),
            added = list(added),
            removed = list(removed),
            "endpoints discovered"
        );
        if found > ENDPOINTS_MAX {
            tracing::warn!(
                pool = &*self.pool,
                found,
                "more endpoints discovered than a pool can have; only the first {ENDPOINTS_MAX} are used"
            );
        }
        self.last = Some(discovered.clone());
        let found = Found { pool: self.pool.clone(), discovery: self.settings.discovery.clone(), discovered };
        // Sending fails when the companion shuts down.
        let _ = self.found.send(found).await;
    }

    /// Logs how many objectives or rewrite rules are used from now on.
    fn log_rules(&self, noun: &str, found: usize, most: usize) {
        tracing::info!(pool = &*self.pool, used = found.min(most), "{noun} discovered");
        if found > most {
            tracing::warn!(
                pool = &*self.pool,
                found,
                "more {noun} discovered than a pool can have; only the first {most} are used"
            );
        }
    }

    /// What else of the pool can't be read, although discovery works.
    #[cfg(feature = "kubernetes")]
    fn set_unread(&self, unread: Vec<String>) {
        self.states.set_unread(&self.pool, unread);
    }

    /// The last list isn't empty.
    #[cfg(feature = "kubernetes")]
    fn has_endpoints(&self) -> bool {
        self.last.as_ref().is_some_and(|last| *last != Discovered::default())
    }

    /// Discovery works, though it may have found nothing new. Logs the end of a failure.
    fn works(&mut self) {
        let failed_since = self.states.works(&self.pool);
        if std::mem::take(&mut self.failing) {
            let lasted = failed_since.and_then(|since| since.elapsed().ok());
            tracing::info!(
                pool = &*self.pool,
                failed_s = lasted.map_or(0, |lasted| lasted.as_secs()),
                "endpoint discovery works again"
            );
        }
    }

    /// Logs a failure once. The last list stays in use.
    fn failed(&mut self, why: &dyn std::fmt::Display) {
        self.states.fails(&self.pool, &why.to_string());
        if std::mem::replace(&mut self.failing, true) {
            return;
        }
        tracing::warn!(
            pool = &*self.pool,
            "endpoint discovery failed: {why}; the known endpoints stay in use"
        );
    }
}

/// The first addresses, and the number of the rest.
pub(crate) fn list<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> String {
    const SHOWN: usize = 8;
    let all: Vec<_> = addresses.map(ToString::to_string).collect();
    let shown = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
fn states(pool: &str) -> States {
    let text = format!("pools: [{{name: {pool}, endpoints: {{file: list.yaml}}}}]");
    let config = Config::parse(&text, "f.yaml").expect("valid");
    States::new(&config, Arc::new(Metrics::new().expect("metrics")))
}

/// The settings of a task for a pool with the defaults of endpoints.
#[cfg(test)]
fn settings(discovery: Discovery) -> Settings {
    Settings { discovery, defaults: EndpointDefaults::default(), needs_batched_tokens: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn endpoint(address: SocketAddr) -> Endpoint {
        EndpointDefaults::default().endpoint(address)
    }

    #[test]
    fn a_discovered_endpoint_has_the_defaults_of_a_configured_one() {
        let text = "pools: [{name: a, endpoints: {static: ['127.0.0.1:1']}}]";
        let listed = Config::parse(text, "f.yaml").expect("valid");
        assert_eq!(listed.pools[0].endpoints, [endpoint(address(1))]);
    }

    #[tokio::test]
    async fn only_changed_lists_are_sent_and_each_address_once() {
        let (sender, mut lists_found) = mpsc::channel(8);
        let discovery = Discovery::File("f".into());
        let mut report = Report::new("a".into(), settings(discovery.clone()), sender, states("a"));
        let (one, two) = (endpoint(address(1)), endpoint(address(2)));
        report.send_endpoints(vec![one.clone(), two.clone(), one.clone()]).await;
        report.send_endpoints(vec![one.clone(), two.clone()]).await;
        report.failed(&"away");
        report.send_endpoints(vec![]).await;
        let mut lists = Vec::new();
        while let Ok(found) = lists_found.try_recv() {
            assert_eq!((&*found.pool, &found.discovery), ("a", &discovery));
            lists.push(found.discovered.endpoints);
        }
        assert_eq!(lists, [vec![one, two], vec![]]);
    }

    #[tokio::test]
    async fn finders_follow_the_configuration() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, port: u16| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("['127.0.0.1:{port}']")).expect("written");
            path.display().to_string()
        };
        let config = |pools: &[(&str, String)]| {
            let pools: Vec<_> = pools
                .iter()
                .map(|(name, file)| {
                    format!("{{name: {name}, models: ['{name}'], endpoints: {{file: '{file}'}}}}")
                })
                .collect();
            let text = format!("pools: [{}]", pools.join(", "));
            Config::parse(&text, "f.yaml").expect("valid")
        };
        let (sender, mut found) = mpsc::channel(8);
        let mut finders = Finders::new(sender, states("a"));
        finders.follow(&config(&[("a", file("one", 1)), ("b", file("two", 2))]));
        let mut next = async || {
            let found: Found = found.recv().await.expect("found");
            (found.pool.to_string(), found.discovered.endpoints[0].address.port())
        };
        let mut both = [next().await, next().await];
        both.sort();
        assert_eq!(both, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        finders.follow(&config(&[("a", file("one", 1)), ("b", file("three", 3))]));
        let then = next().await;
        assert_eq!(then, ("b".to_owned(), 3), "the task of a keeps running, and that of b is replaced");
        finders.follow(&config(&[("c", file("one", 1))]));
        assert_eq!(next().await, ("c".to_owned(), 1));
        assert_eq!(finders.tasks.len(), 1);
    }
}
