//! Finds the endpoints of pools that don't list them: one task a pool looks, and says what it found.
//!
//! What was found last stays until something else is: a name server, a file or an API server that can't be asked takes
//! nothing away, and is warned of once. What becomes of a list is the decision of whoever takes [`Found`].

mod dns;
mod file;
#[cfg_attr(not(feature = "kubernetes"), path = "discovery/without_kubernetes.rs")]
mod kubernetes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use penstock_config::{Config, Discovery, Endpoint};
use penstock_engine::limits::ENDPOINTS_MAX;
use penstock_engine::units::Decimal;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::reload;

/// Lists that wait to come into force; who finds more waits as well.
const FOUND: usize = 64;

/// A pool's endpoints from now on, as far as `by` is still what finds them.
#[derive(Clone, Debug)]
pub struct Found {
    /// The pool's name.
    pub pool: Arc<str>,
    /// What found them.
    pub by: Discovery,
    /// All of them; each address once.
    pub endpoints: Vec<Endpoint>,
}

/// The tasks that look, one for each pool that wants it. Dropped, they end.
#[derive(Debug)]
pub struct Finders {
    to: mpsc::Sender<Found>,
    tasks: BTreeMap<Arc<str>, (Discovery, Task)>,
}

#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Finders {
    /// None yet.
    #[must_use]
    pub const fn new(to: mpsc::Sender<Found>) -> Self {
        Self {
            to,
            tasks: BTreeMap::new(),
        }
    }

    /// Looks for the endpoints of this configuration's pools. A pool whose way of finding them hasn't changed isn't asked
    /// anew.
    pub fn follow(&mut self, config: &Config) {
        let wanted: BTreeMap<&str, &Discovery> = config
            .pools
            .iter()
            .filter_map(|pool| Some((pool.name.as_str(), pool.discovery.as_ref()?)))
            .collect();
        self.tasks
            .retain(|pool, (by, _)| wanted.get(&**pool).is_some_and(|it| *it == by));
        for (pool, by) in wanted {
            if !self.tasks.contains_key(pool) {
                let pool: Arc<str> = pool.into();
                let report = Report::new(pool.clone(), by.clone(), self.to.clone());
                self.tasks.insert(pool, (by.clone(), Task(look(report))));
            }
        }
    }
}

/// Keeps looking for whatever configuration is in force, and has what is found come into force, until nothing does any
/// more.
pub async fn run(config: reload::Handle) {
    let mut changes = config.watch();
    let (to, mut found) = mpsc::channel(FOUND);
    let mut finders = Finders::new(to);
    loop {
        let now = changes.borrow_and_update().config.clone();
        finders.follow(&now);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            Some(Found { pool, by, endpoints }) = found.recv() => config.found(&pool, by, endpoints).await,
        }
    }
}

fn look(report: Report) -> JoinHandle<()> {
    match report.by.clone() {
        Discovery::Dns { name, port, refresh } => tokio::spawn(dns::run(report, name, port, refresh)),
        Discovery::File(path) => tokio::spawn(file::run(report, path)),
        Discovery::Kubernetes {
            inference_pool,
            namespace,
        } => tokio::spawn(kubernetes::run(report, namespace, inference_pool)),
    }
}

/// A server of which nothing but the address is known: as one that is listed so.
fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint {
        address,
        weight: Decimal::whole(1),
        variant: "default".to_owned(),
        max_batch: 256,
        labels: BTreeMap::new(),
        taints: Vec::new(),
    }
}

/// What one finder says, and what it said last.
#[derive(Debug)]
struct Report {
    pool: Arc<str>,
    by: Discovery,
    to: mpsc::Sender<Found>,
    last: Option<Vec<Endpoint>>,
    /// Looking fails, and that was said.
    failing: bool,
}

impl Report {
    const fn new(pool: Arc<str>, by: Discovery, to: mpsc::Sender<Found>) -> Self {
        Self {
            pool,
            by,
            to,
            last: None,
            failing: false,
        }
    }

    /// These are all there are. Each address counts once, and no more than a pool can have.
    async fn found(&mut self, mut endpoints: Vec<Endpoint>) {
        self.failing = false;
        let mut seen = BTreeSet::new();
        endpoints.retain(|it| seen.insert(it.address));
        if self.last.as_ref() == Some(&endpoints) {
            return;
        }
        let found = endpoints.len();
        endpoints.truncate(ENDPOINTS_MAX);
        let before: BTreeSet<SocketAddr> = self.last.iter().flatten().map(|it| it.address).collect();
        let (come, gone) = (seen.difference(&before), before.difference(&seen));
        tracing::info!(
            pool = &*self.pool,
            endpoints = endpoints.len(),
            come = list(come),
            gone = list(gone),
            "endpoints found"
        );
        if found > ENDPOINTS_MAX {
            tracing::warn!(
                pool = &*self.pool,
                found,
                "a pool has at most {ENDPOINTS_MAX} endpoints"
            );
        }
        self.last = Some(endpoints.clone());
        let (pool, by) = (self.pool.clone(), self.by.clone());
        // Nobody takes it any more when the companion ends.
        let _ = self.to.send(Found { pool, by, endpoints }).await;
    }

    /// It can't be looked. What was found stays.
    fn failed(&mut self, why: &dyn std::fmt::Display) {
        if std::mem::replace(&mut self.failing, true) {
            return;
        }
        let known = self.last.as_ref().map_or(0, Vec::len);
        tracing::warn!(
            pool = &*self.pool,
            "its endpoints can't be looked for, those known ({known}) stay: {why}"
        );
    }
}

/// Some of many.
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
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn a_server_that_is_found_is_like_one_that_is_listed() {
        let text = "pools: [{name: a, endpoints: {static: ['127.0.0.1:1']}}]";
        let listed = Config::parse(text, "f.yaml").expect("valid");
        assert_eq!(listed.pools[0].endpoints, [endpoint(at(1))]);
    }

    #[tokio::test]
    async fn a_list_is_said_when_it_changes_and_each_address_once() {
        let (to, mut said) = mpsc::channel(8);
        let by = Discovery::File("f".into());
        let mut report = Report::new("a".into(), by.clone(), to);
        let (one, two) = (endpoint(at(1)), endpoint(at(2)));
        report.found(vec![one.clone(), two.clone(), one.clone()]).await;
        report.found(vec![one.clone(), two.clone()]).await;
        report.failed(&"away");
        report.found(vec![]).await;
        let mut lists = Vec::new();
        while let Ok(found) = said.try_recv() {
            assert_eq!((&*found.pool, &found.by), ("a", &by));
            lists.push(found.endpoints);
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
        let (to, mut found) = mpsc::channel(8);
        let mut finders = Finders::new(to);
        finders.follow(&config(&[("a", file("one", 1)), ("b", file("two", 2))]));
        let mut next = async || {
            let found: Found = found.recv().await.expect("found");
            (found.pool.to_string(), found.endpoints[0].address.port())
        };
        let mut both = [next().await, next().await];
        both.sort();
        assert_eq!(both, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        finders.follow(&config(&[("a", file("one", 1)), ("b", file("three", 3))]));
        let then = next().await;
        assert_eq!(then, ("b".to_owned(), 3), "a is still looked at, and b anew");
        finders.follow(&config(&[("c", file("one", 1))]));
        assert_eq!(next().await, ("c".to_owned(), 1));
        assert_eq!(finders.tasks.len(), 1);
    }
}
