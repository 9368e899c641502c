//! Endpoints that are the ready pods of an InferencePool, the object by which Kubernetes' Gateway API names model servers.
//!
//! Two things are watched: the pool, for its selector and its ports, and the pods that the selector fits. An API server
//! that can't be asked takes nothing away; a pool that isn't there has no endpoints, and is waited for. What may be read
//! is in docs/kubernetes.md: the pool and the pods of one namespace, and nothing else.

mod pool;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Client, ResourceExt as _};
use penstock_config::Endpoint;
use penstock_errors::cause;

use self::pool::Selection;
use super::{Report, endpoint};

/// Where pauses have an end, which those of a watch don't.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The label of an endpoint that says which pod it is.
const POD: &str = "pod";

/// Watches the pool of this name, as whom the environment says: a pod's service account, or `KUBECONFIG`. What fails is
/// tried again as a watch is: soon at first, then ever later, up to half a minute.
pub(super) async fn run(mut report: Report, namespace: String, name: String) {
    let mut pauses = DefaultBackoff::default();
    let client = loop {
        match Client::try_default().await {
            Ok(client) => break client,
            Err(why) => report.failed(&format!("no access to a Kubernetes API server: {why}")),
        }
        pause(&mut pauses).await;
    };
    follow(&mut report, &client, &namespace, &name, &mut pauses).await;
}

/// Never returns; after each attempt it waits for the next of `pauses`.
async fn follow(
    report: &mut Report,
    client: &Client,
    namespace: &str,
    name: &str,
    pauses: &mut impl Iterator<Item = Duration>,
) {
    loop {
        match find(client, namespace, name).await {
            Ok(Some(version)) => {
                let pools = Api::namespaced_with(client.clone(), namespace, &version);
                watch(report, client, &pools, name).await;
            }
            Ok(None) => {
                if report.last.as_ref().is_none_or(|it| !it.is_empty()) {
                    report.found(Vec::new()).await;
                }
                report.failed(&format!("there is no InferencePool {namespace}/{name}"));
            }
            Err(why) => report.failed(&format!(
                "InferencePool {namespace}/{name}: {}",
                cause::root(&why)
            )),
        }
        pause(pauses).await;
    }
}

async fn pause(pauses: &mut impl Iterator<Item = Duration>) {
    tokio::time::sleep(pauses.next().unwrap_or(PAUSE_MAX)).await;
}

/// In which version of the API the pool is there; none: it isn't.
async fn find(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<kube::api::ApiResource>, kube::Error> {
    for version in pool::versions() {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &version);
        match api.get(name).await {
            Ok(_) => return Ok(Some(version)),
            // So says a server of an object that it doesn't have, and, without a reason, of an API that it doesn't have.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(why) => return Err(why),
        }
    }
    Ok(None)
}

/// Follows the pool and its pods until the pool has gone.
async fn watch(report: &mut Report, client: &Client, pools: &Api<DynamicObject>, name: &str) {
    let pool = watcher::watch_object(pools.clone(), name).default_backoff();
    let mut pool = std::pin::pin!(pool);
    let mut wanted: Option<Selection> = None;
    let mut pods = futures_util::stream::pending().boxed();
    let mut known = Known::default();
    loop {
        tokio::select! {
            object = pool.next() => match object {
                Some(Ok(Some(object))) => match pool::selection(&object.data) {
                    Ok(selection) if wanted.as_ref() == Some(&selection) => {}
                    Ok(selection) => {
                        let api: Api<Pod> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
                        let fitting = watcher::Config::default().labels(&selection.labels);
                        pods = watcher::watcher(api, fitting).default_backoff().boxed();
                        known = Known::default();
                        wanted = Some(selection);
                    }
                    Err(why) => report.failed(&format!("InferencePool {name}: {why}")),
                },
                Some(Ok(None)) => {
                    report.found(Vec::new()).await;
                    return;
                }
                Some(Err(why)) => report.failed(&format!("InferencePool {name}: {}", cause::root(&why))),
                None => return,
            },
            event = pods.next() => match event {
                Some(Ok(event)) => {
                    let whole = known.take(event);
                    if let (true, Some(wanted)) = (whole, &wanted) {
                        report.found(known.endpoints(&wanted.ports)).await;
                    }
                }
                Some(Err(why)) => report.failed(&format!("pods of InferencePool {name}: {}", cause::root(&why))),
                None => return,
            },
        }
    }
}

/// The ready pods, by name.
#[derive(Debug, Default)]
struct Known {
    ready: BTreeMap<String, IpAddr>,
    /// What is being listed anew; it takes the place of `ready` when it is whole.
    listing: Option<BTreeMap<String, IpAddr>>,
    whole: bool,
}

impl Known {
    /// Takes what happened; whether all pods are known now.
    fn take(&mut self, event: Event<Pod>) -> bool {
        match event {
            Event::Init => self.listing = Some(BTreeMap::new()),
            Event::InitApply(pod) => put(self.listing.get_or_insert_default(), &pod),
            Event::InitDone => {
                self.ready = self.listing.take().unwrap_or_default();
                self.whole = true;
            }
            Event::Apply(pod) => put(&mut self.ready, &pod),
            Event::Delete(pod) => drop(self.ready.remove(&pod.name_any())),
        }
        self.whole && self.listing.is_none()
    }

    /// Each port of each pod is an endpoint.
    fn endpoints(&self, ports: &[u16]) -> Vec<Endpoint> {
        let of = |(name, ip): (&String, &IpAddr)| {
            let (name, ip) = (name.clone(), *ip);
            ports.iter().map(move |port| {
                let mut endpoint = endpoint(SocketAddr::new(ip, *port));
                endpoint.labels.insert(POD.to_owned(), name.clone());
                endpoint
            })
        };
        self.ready.iter().flat_map(of).collect()
    }
}

fn put(pods: &mut BTreeMap<String, IpAddr>, pod: &Pod) {
    let name = pod.name_any();
    match address(pod) {
        Some(ip) => drop(pods.insert(name, ip)),
        None => drop(pods.remove(&name)),
    }
}

/// Where a pod that is ready, and stays, is reached.
fn address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    let ready = status
        .conditions
        .iter()
        .flatten()
        .any(|it| it.type_ == "Ready" && it.status == "True");
    let stays = pod.metadata.deletion_timestamp.is_none();
    if ready && stays {
        status.pod_ip.as_ref()?.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
