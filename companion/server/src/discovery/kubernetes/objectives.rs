//! The InferenceObjectives of an InferencePool, by which requests that name one get a priority.
//!
//! Both API groups are followed: `llm-d.ai`, and `inference.networking.x-k8s.io`, from which the kind has moved. A cluster may have one of
//! them, both, or none: without the kind there are no objectives. What fails doesn't hold the endpoints back.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher;
use penstock_engine::input::Band;
use penstock_errors::root_cause;
use serde::Deserialize;
use serde_json::Value;
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

/// The bands of one API group, by the name of an objective; `None`: not known yet.
type Bands = Option<BTreeMap<String, Band>>;

/// The objectives of a pool. Dropping it ends the watches.
#[derive(Debug)]
pub(super) struct Objectives {
    groups: Vec<watch::Receiver<Bands>>,
    _tasks: JoinSet<()>,
}

impl Objectives {
    /// Follows the objectives in this namespace that name this pool.
    pub(super) fn watch(client: &Client, namespace: &str, pool: &str) -> Self {
        let mut tasks = JoinSet::new();
        let groups = GROUPS.map(|group| {
            let (bands, receiver) = watch::channel(None);
            let following =
                follow(client.clone(), group, namespace.to_owned(), pool.to_owned(), bands.clone());
            tasks.spawn(following);
            tasks.spawn(async move {
                tokio::time::sleep(FIRST_MAX).await;
                begin_empty(&bands);
            });
            receiver
        });
        Self { groups: groups.into(), _tasks: tasks }
    }

    /// The bands by the name of an objective; `None` until each API group has answered.
    pub(super) fn bands(&self) -> Bands {
        let mut all = BTreeMap::new();
        for group in self.groups.iter().rev() {
            all.extend(group.borrow().clone()?);
        }
        Some(all)
    }

    async fn changed(&mut self) {
        let changed = async |group: &mut watch::Receiver<Bands>| {
            if group.changed().await.is_err() {
                // Its task has panicked: what it knew stays.
                std::future::pending::<()>().await;
            }
        };
        let changes: Vec<BoxFuture<'_, ()>> =
            self.groups.iter_mut().map(|group| changed(group).boxed()).collect();
        futures_util::future::select_all(changes).await;
    }
}

/// Returns when one has changed; never without objectives.
pub(super) async fn changed(objectives: &mut Option<Objectives>) {
    match objectives {
        Some(objectives) => objectives.changed().await,
        None => std::future::pending().await,
    }
}

/// Follows one API group for ever.
async fn follow(
    client: Client,
    group: &'static str,
    namespace: String,
    pool: String,
    bands: watch::Sender<Bands>,
) {
    let kind = GroupVersionKind::gvk(group, VERSION, "InferenceObjective");
    let resource = ApiResource::from_gvk_with_plural(&kind, "inferenceobjectives");
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource);
    let mut failing = false;
    loop {
        match watch_group(&api, &pool, &bands, &mut failing).await {
            // The kind isn't served, so it has no objects.
            Err(Failure::Missing) => {
                bands.send_if_modified(|known| {
                    known.replace(BTreeMap::new()).is_none_or(|last| !last.is_empty())
                });
            }
            Err(Failure::Other(why)) => {
                if !core::mem::replace(&mut failing, true) {
                    tracing::warn!(
                        "InferenceObjectives of {group} in {namespace}, which stay as they are: {why}"
                    );
                }
                begin_empty(&bands);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Without a first list, the group has no objectives for now: what only orders requests doesn't hold them back.
fn begin_empty(bands: &watch::Sender<Bands>) {
    bands.send_if_modified(|known| {
        let is_first = known.is_none();
        known.get_or_insert_default();
        is_first
    });
}

enum Failure {
    /// The API server has no such kind.
    Missing,
    Other(String),
}

/// Follows the objects until the watch fails.
async fn watch_group(
    api: &Api<DynamicObject>,
    pool: &str,
    bands: &watch::Sender<Bands>,
    failing: &mut bool,
) -> Result<core::convert::Infallible, Failure> {
    let mut events = watcher::watcher(api.clone(), watcher::Config::default()).boxed();
    let mut found: Listing<Band> = Listing::default();
    loop {
        match events.next().await {
            Some(Ok(event)) => {
                found.handle(event, |object: DynamicObject, _| band(&object.data, pool));
                if found.is_complete() {
                    if core::mem::take(failing) {
                        tracing::info!("InferenceObjectives are followed again");
                    }
                    let now = Some(found.objects().clone());
                    bands.send_if_modified(|known| {
                        let is_changed = *known != now;
                        *known = now;
                        is_changed
                    });
                }
            }
            Some(Err(why)) if is_expired(&why) => {}
            Some(Err(watcher::Error::InitialListFailed(kube::Error::Api(status)))) if status.code == 404 => {
                return Err(Failure::Missing);
            }
            Some(Err(why)) => return Err(Failure::Other(root_cause(&why).to_string())),
            None => return Err(Failure::Other("the watch has ended".to_owned())),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    priority: i64,
    pool_ref: PoolRef,
}

#[derive(Deserialize)]
struct PoolRef {
    name: String,
}

/// The band of an objective with this content; `None`: it belongs to another pool, or has no form that is known.
fn band(data: &Value, pool: &str) -> Option<Band> {
    let Object { spec } = Object::deserialize(data).ok()?;
    (spec.pool_ref.name == pool).then_some(match spec.priority {
        1.. => Band::Critical,
        0 => Band::Default,
        _ => Band::Sheddable,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_sign_of_the_priority_is_the_band() {
        let objective = |priority: Value| json!({"spec": {"priority": priority, "poolRef": {"group": "inference.networking.k8s.io", "name": "llama"}}});
        for (priority, expected) in [
            (100, Band::Critical),
            (1, Band::Critical),
            (0, Band::Default),
            (-1, Band::Sheddable),
            (-100, Band::Sheddable),
        ] {
            assert_eq!(band(&objective(priority.into()), "llama"), Some(expected), "{priority}");
            assert_eq!(band(&objective(priority.into()), "other"), None);
        }
        let without = json!({"spec": {"poolRef": {"name": "llama"}}});
        assert_eq!(band(&without, "llama"), Some(Band::Default));
        for wrong in [json!({}), json!({"spec": {"priority": 1}}), objective("high".into())] {
            assert_eq!(band(&wrong, "llama"), None, "{wrong}");
        }
    }
}
