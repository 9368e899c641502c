//! The objects of one kind that name an InferencePool.
//!
//! Both API groups are followed: `llm-d.ai`, and `inference.networking.x-k8s.io`, from which the kinds have moved. A cluster may have one of
//! them, both, or none: without the kind there are no objects. What fails doesn't hold the endpoints back.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use penstock_errors::root_cause;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::is_expired;
use super::listing::Listing;

/// The API groups, the one that counts first, because a cluster may have both during a migration.
const GROUPS: [&str; 2] = ["llm-d.ai", "inference.networking.x-k8s.io"];
const VERSION: &str = "v1alpha2";
/// The longest wait for the first list of a group.
const FIRST_MAX: Duration = Duration::from_secs(2);
/// The pause after a watch that failed, and before an API group that isn't served is looked for again.
const PAUSE: Duration = Duration::from_secs(5);

/// A kind of objects that name an InferencePool, and the form in which they are kept.
pub(super) struct Kind<T: 'static> {
    /// As in `InferenceObjective`.
    pub(super) name: &'static str,
    /// As in `inferenceobjectives`.
    pub(super) plural: &'static str,
    /// The key of `endpoints.kubernetes` by which they are followed.
    pub(super) key: &'static str,
    /// Reads an object for the pool of this name, after the last reading of the object. `None`: it belongs to another pool, or has no
    /// form that is known.
    pub(super) read: fn(&DynamicObject, &str, Option<&T>) -> Option<T>,
}

/// `spec.poolRef`, in the namespace of the object.
#[derive(Deserialize)]
pub(super) struct PoolRef {
    pub(super) name: String,
}

/// The objects of a pool. Dropping it ends the watches.
#[derive(Debug)]
pub(super) struct PoolObjects<T> {
    groups: Vec<watch::Receiver<Known<T>>>,
    _tasks: JoinSet<()>,
}

/// What is known of one API group.
#[derive(Debug, PartialEq)]
struct Known<T> {
    /// The objects by name; `None`: not known yet.
    objects: Option<BTreeMap<String, T>>,
    /// Why they can't be read; `None`: they can.
    failure: Option<String>,
}

impl<T: Clone + PartialEq + Send + Sync + 'static> PoolObjects<T> {
    /// Follows the objects in this namespace that name this pool.
    pub(super) fn watch(kind: &'static Kind<T>, client: &Client, namespace: &str, pool: &str) -> Self {
        let mut tasks = JoinSet::new();
        let groups = GROUPS.map(|group| {
            let (known, receiver) = watch::channel(Known { objects: None, failure: None });
            let follower = Follower {
                client: client.clone(),
                kind,
                group,
                namespace: namespace.to_owned(),
                pool: pool.to_owned(),
                found: Listing::default(),
                known: known.clone(),
            };
            tasks.spawn(follower.run());
            tasks.spawn(async move {
                tokio::time::sleep(FIRST_MAX).await;
                known.send_if_modified(begin_empty);
            });
            receiver
        });
        Self { groups: groups.into(), _tasks: tasks }
    }

    /// The objects by name; `None` until each API group has answered. Of two objects with one name, the first group's counts: it is the
    /// copy to which a migration moves.
    pub(super) fn by_name(&self) -> Option<BTreeMap<String, T>> {
        let mut all = BTreeMap::new();
        for group in self.groups.iter().rev() {
            all.extend(group.borrow().objects.clone()?);
        }
        Some(all)
    }

    /// Why objects can't be read, of each API group where they can't.
    pub(super) fn failures(&self) -> Vec<String> {
        self.groups.iter().filter_map(|group| group.borrow().failure.clone()).collect()
    }

    async fn changed(&mut self) {
        let changes: Vec<BoxFuture<'_, ()>> =
            self.groups.iter_mut().map(|group| group_changed(group).boxed()).collect();
        futures_util::future::select_all(changes).await;
    }
}

/// Returns when something has changed; never without objects.
pub(super) async fn changed<T: Clone + PartialEq + Send + Sync + 'static>(
    objects: &mut Option<PoolObjects<T>>,
) {
    match objects {
        Some(objects) => objects.changed().await,
        None => std::future::pending().await,
    }
}

async fn group_changed<T>(group: &mut watch::Receiver<Known<T>>) {
    if group.changed().await.is_err() {
        // Its task has panicked: what it knew stays.
        std::future::pending::<()>().await;
    }
}

/// Without a first list, the group has no objects for now: what concerns single requests doesn't hold all of them back.
fn begin_empty<T>(known: &mut Known<T>) -> bool {
    let is_first = known.objects.is_none();
    known.objects.get_or_insert_default();
    is_first
}

enum Failure {
    /// The API server has no such kind.
    Missing,
    Other {
        why: String,
        is_forbidden: bool,
    },
}

/// The task that follows one API group.
struct Follower<T: 'static> {
    client: Client,
    kind: &'static Kind<T>,
    group: &'static str,
    namespace: String,
    pool: String,
    /// It outlives a watch, so that what is wrong with an object is logged once.
    found: Listing<T>,
    known: watch::Sender<Known<T>>,
}

impl<T: Clone + PartialEq + Send + Sync + 'static> Follower<T> {
    /// Never returns.
    async fn run(mut self) {
        let kind = GroupVersionKind::gvk(self.group, VERSION, self.kind.name);
        let resource = ApiResource::from_gvk_with_plural(&kind, self.kind.plural);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        loop {
            match self.watch(&api).await {
                // The kind isn't served, so it has no objects.
                Failure::Missing => {
                    self.found = Listing::default();
                    self.know(Known { objects: Some(BTreeMap::new()), failure: None });
                }
                Failure::Other { why, is_forbidden } => self.fails(&why, is_forbidden),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Follows the objects until the watch fails.
    async fn watch(&mut self, api: &Api<DynamicObject>) -> Failure {
        let mut events = watcher::watcher(api.clone(), watcher::Config::default()).boxed();
        loop {
            match events.next().await {
                Some(Ok(event)) => self.handle(event),
                Some(Err(why)) if is_expired(&why) => {}
                Some(Err(why)) => {
                    let (code, why) = (first_list_code(&why), root_cause(&why));
                    return self.failure(code, why).await;
                }
                None => {
                    return Failure::Other { why: "the watch has ended".to_owned(), is_forbidden: false };
                }
            }
        }
    }

    fn handle(&mut self, event: Event<DynamicObject>) {
        let (kind, pool) = (self.kind, self.pool.as_str());
        self.found.handle(event, |object, before| (kind.read)(&object, pool, before));
        if self.found.is_complete() {
            self.know(Known { objects: Some(self.found.objects().clone()), failure: None });
        }
    }

    /// `code`: the HTTP status of the first list, if that failed.
    async fn failure(&self, code: Option<u16>, why: String) -> Failure {
        match code {
            Some(404) => Failure::Missing,
            // A role may have one of the API groups only, and an API server refuses before it says that it has no such kind.
            Some(403) if !self.is_served().await => Failure::Missing,
            _ => Failure::Other { why, is_forbidden: code == Some(403) },
        }
    }

    /// Whether the API server has the kind; `true` also if it doesn't answer the question.
    async fn is_served(&self) -> bool {
        let version = format!("{}/{VERSION}", self.group);
        match self.client.list_api_group_resources(&version).await {
            Ok(list) => list.resources.iter().any(|resource| resource.name == self.kind.plural),
            Err(kube::Error::Api(status)) => status.code != 404,
            Err(_) => true,
        }
    }

    /// Replaces what is known, after objects could be read.
    fn know(&self, now: Known<T>) {
        let mut was_failing = false;
        self.known.send_if_modified(|known| {
            was_failing = known.failure.is_some();
            let is_changed = *known != now;
            *known = now;
            is_changed
        });
        if was_failing {
            tracing::info!("the {}s of {} are read again", self.kind.name, self.group);
        }
    }

    /// Logs the beginning of a failure.
    fn fails(&self, why: &str, is_forbidden: bool) {
        let Self { kind, group, namespace, .. } = self;
        let Kind { name, plural, key, .. } = kind;
        let mut failure = format!(
            "the {name}s of {group} in namespace {namespace} can't be read, and those that are known stay in \
             use: {why}"
        );
        if is_forbidden {
            failure += &format!(
                ". Let the Role of the companion list and watch {plural} of the API group {group}, or remove \
                 endpoints.kubernetes.{key}"
            );
        }
        let mut was_failing = false;
        self.known.send_if_modified(|known| {
            was_failing = known.failure.is_some();
            let is_changed = known.failure.as_deref() != Some(failure.as_str());
            known.failure = Some(failure.clone());
            begin_empty(known) || is_changed
        });
        if !was_failing {
            tracing::warn!("{failure}");
        }
    }
}

/// The HTTP status by which the first list was refused.
fn first_list_code(why: &watcher::Error) -> Option<u16> {
    match why {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}
