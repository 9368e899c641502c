//! Endpoints from Kubernetes: the ready pods of an InferencePool, by which the Gateway API names model servers.
//!
//! Pods that aren't ready are reported as pending servers, so that an autoscaler isn't asked for more while they start.
//! Two things are watched: the pool, for its selector and its ports, and the pods that match the selector. When the API
//! server fails, the last endpoints stay. A pool that doesn't exist has no endpoints until it is created.
//! docs/kubernetes.md lists the needed permissions: the pool and the pods of one namespace, and nothing else.

mod pod_labels;
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
use penstock_config::{Discovered, EndpointDefaults, PendingServers, PodLabels};
use penstock_errors::root_cause;

use self::pool::Selection;
use super::{Report, Settings};

/// The pause between attempts when the backoff gives none.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The endpoint label with the pod's name.
const POD: &str = "pod";

/// Discovers the endpoints of the pool with this name. The credentials are the pod's service account, or those of
/// `KUBECONFIG`. Failures are retried with the watch's backoff: soon at first, then up to half a minute later.
pub(super) async fn run(mut report: Report, namespace: String, name: String, labels: PodLabels) {
    let mut pauses = DefaultBackoff::default();
    let client = loop {
        match Client::try_default().await {
            Ok(client) => break client,
            Err(why) => report.failed(&format!("no access to a Kubernetes API server: {why}")),
        }
        pause(&mut pauses).await;
    };
    let target = Target {
        namespace: &namespace,
        name: &name,
        labels: &labels,
    };
    follow(&mut report, &client, target, &mut pauses).await;
}

/// The pool to follow, and the labels that its pods may have.
#[derive(Clone, Copy, Debug)]
struct Target<'a> {
    namespace: &'a str,
    name: &'a str,
    labels: &'a PodLabels,
}

/// Never returns; waits for one of `pauses` after each attempt.
async fn follow(
    report: &mut Report,
    client: &Client,
    target: Target<'_>,
    pauses: &mut impl Iterator<Item = Duration>,
) {
    let Target { namespace, name, .. } = target;
    loop {
        match find_version(client, namespace, name).await {
            Ok(Some(version)) => {
                let pools = Api::namespaced_with(client.clone(), namespace, &version);
                watch(report, client, &pools, target).await;
            }
            Ok(None) => {
                if report.last != Some(Discovered::default()) {
                    report.send(Discovered::default()).await;
                }
                report.failed(&format!("InferencePool {namespace}/{name} does not exist"));
            }
            Err(why) => report.failed(&format!("InferencePool {namespace}/{name}: {}", root_cause(&why))),
        }
        pause(pauses).await;
    }
}

async fn pause(pauses: &mut impl Iterator<Item = Duration>) {
    tokio::time::sleep(pauses.next().unwrap_or(PAUSE_MAX)).await;
}

/// The API version in which the pool exists; `None`: the pool doesn't exist.
async fn find_version(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<kube::api::ApiResource>, kube::Error> {
    for version in pool::versions() {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &version);
        match api.get(name).await {
            Ok(_) => return Ok(Some(version)),
            // The answer for a missing object and, without a reason, for a missing API.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(why) => return Err(why),
        }
    }
    Ok(None)
}

/// Follows the pool and its pods until the pool is deleted or a watch ends.
async fn watch(report: &mut Report, client: &Client, pools: &Api<DynamicObject>, target: Target<'_>) {
    let Target { name, labels, .. } = target;
    let pool = watcher::watch_object(pools.clone(), name).default_backoff();
    let mut pool = std::pin::pin!(pool);
    let mut wanted: Option<Selection> = None;
    let mut pods = futures_util::stream::pending().boxed();
    let mut pods_found = Pods::new(&report.settings, labels);
    loop {
        tokio::select! {
            object = pool.next() => match object {
                Some(Ok(Some(object))) => match pool::selection(&object.data) {
                    Ok(selection) if wanted.as_ref() == Some(&selection) => {}
                    Ok(selection) => {
                        let api: Api<Pod> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
                        let matching = watcher::Config::default().labels(&selection.labels);
                        pods = watcher::watcher(api, matching).default_backoff().boxed();
                        pods_found = Pods::new(&report.settings, labels);
                        wanted = Some(selection);
                    }
                    Err(why) => report.failed(&format!("InferencePool {name}: {why}")),
                },
                Some(Ok(None)) => {
                    report.send(Discovered::default()).await;
                    return;
                }
                Some(Err(why)) => report.failed(&format!("InferencePool {name}: {}", root_cause(&why))),
                None => return,
            },
            event = pods.next() => match event {
                Some(Ok(event)) => {
                    let is_complete = pods_found.handle(event);
                    if let (true, Some(wanted)) = (is_complete, &wanted) {
                        report.send(pods_found.discovered(&wanted.ports)).await;
                    }
                }
                Some(Err(why)) => report.failed(&format!("pods of InferencePool {name}: {}", root_cause(&why))),
                None => return,
            },
        }
    }
}

/// The pods that are ready or may become ready.
#[derive(Debug)]
struct Pods {
    labels: PodLabels,
    settings: Settings,
    /// By name.
    found: BTreeMap<String, FoundPod>,
    /// A new list in progress, which replaces `found` when it is complete.
    listing: Option<BTreeMap<String, FoundPod>>,
    listed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundPod {
    /// `None`: the pod isn't ready.
    ip: Option<IpAddr>,
    values: EndpointDefaults,
}

impl Pods {
    fn new(settings: &Settings, labels: &PodLabels) -> Self {
        Self {
            labels: labels.clone(),
            settings: settings.clone(),
            found: BTreeMap::new(),
            listing: None,
            listed: false,
        }
    }

    /// Applies an event. Returns whether the list is complete now.
    fn handle(&mut self, event: Event<Pod>) -> bool {
        match event {
            Event::Init => self.listing = Some(BTreeMap::new()),
            Event::InitApply(pod) => {
                let found = self.read(&pod);
                put(self.listing.get_or_insert_default(), &pod, found);
            }
            Event::InitDone => {
                self.found = self.listing.take().unwrap_or_default();
                self.listed = true;
            }
            Event::Apply(pod) => {
                let found = self.read(&pod);
                put(&mut self.found, &pod, found);
            }
            Event::Delete(pod) => drop(self.found.remove(&pod.name_any())),
        }
        self.listed && self.listing.is_none()
    }

    /// `None`: the pod has ended or is being deleted. A value that is missing or not allowed is logged once for each pod.
    fn read(&self, pod: &Pod) -> Option<FoundPod> {
        let Settings {
            defaults,
            needs_batched_tokens,
            ..
        } = &self.settings;
        if !stays(pod) {
            return None;
        }
        let (values, problems) = pod_labels::values(pod, &self.labels, defaults, *needs_batched_tokens);
        let name = pod.name_any();
        let before = self.found.get(&name);
        if before.is_none_or(|before| before.values != values) {
            for problem in problems {
                tracing::warn!(pod = name, "{problem}");
            }
        }
        let ip = address(pod);
        Some(FoundPod { ip, values })
    }

    /// Each port of each ready pod is an endpoint, and each port of every other pod a pending server.
    fn discovered(&self, ports: &[u16]) -> Discovered {
        let mut endpoints = Vec::new();
        let mut pending: BTreeMap<(&str, u64), u64> = BTreeMap::new();
        for (name, FoundPod { ip, values }) in &self.found {
            for port in ports {
                if let Some(ip) = ip {
                    let mut endpoint = values.endpoint(SocketAddr::new(*ip, *port));
                    endpoint.labels.insert(POD.to_owned(), name.clone());
                    endpoints.push(endpoint);
                } else {
                    *pending.entry((&values.variant, values.max_batch)).or_default() += 1;
                }
            }
        }
        let pending = pending.into_iter();
        let pending = pending.map(|((variant, max_batch), servers)| PendingServers {
            variant: variant.to_owned(),
            max_batch,
            servers,
        });
        Discovered {
            endpoints,
            pending: pending.collect(),
        }
    }
}

fn put(pods: &mut BTreeMap<String, FoundPod>, pod: &Pod, found: Option<FoundPod>) {
    let name = pod.name_any();
    match found {
        Some(found) => drop(pods.insert(name, found)),
        None => drop(pods.remove(&name)),
    }
}

/// The pod is ready or may become ready: it has not ended and is not being deleted.
fn stays(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
    !has_ended && pod.metadata.deletion_timestamp.is_none()
}

/// The address of a pod that is ready.
fn address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    status.pod_ip.as_ref().filter(|_| is_ready)?.parse().ok()
}

#[cfg(test)]
mod tests;
