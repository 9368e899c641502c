//! Endpoints from Kubernetes: the ready pods of an InferencePool, by which the Gateway API names model servers, or the ready
//! endpoints of a Service ([`service`]).
//!
//! Pods that aren't ready are reported as pending servers, so that an autoscaler isn't asked for more while they start.
//! Two things are watched: the pool, for its selector and its ports, and the pods that match the selector. When the API
//! server fails, the last endpoints stay, and everything is listed again: a watch that merely goes on wouldn't show that the
//! failure is over. A pool that doesn't exist is watched as well. docs/kubernetes.md lists the needed permissions: the pool, the
//! pods and, where they are asked for, the objectives and the model rewrites of one namespace.

mod listing;
mod objectives;
mod pod_labels;
mod pod_selector;
mod pool;
mod pool_objects;
mod pool_rules;
mod rewrites;
mod service;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource as _, ResourceExt as _};
use penstock_config::{
    Discovered, Discovery, EndpointDefaults, KubernetesObject, PendingServers, PodLabels, PodSelector,
};
use penstock_errors::root_cause;

use self::listing::Listing;
use self::pool::Selection;
use self::pool_rules::PoolRules;
use super::{Report, Settings};
use crate::base::clock::sleep_until;

/// The pause after the first failure in a row. Each further one doubles it.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A pool that doesn't exist may be created in another version of the API than the watched one.
const RECHECK: Duration = Duration::from_secs(30);
/// The HTTP status of a Kubernetes watch that starts at a resource version which the API server no longer has. The watcher of
/// kube-runtime then lists everything again.
const EXPIRED: u16 = 410;
/// The endpoint label with the pod's name.
const POD: &str = "pod";

/// Discovers the endpoints of the report's object. The credentials are the pod's service account, or those of `KUBECONFIG`.
pub(super) async fn run(mut report: Report) {
    let Discovery::Kubernetes { object, namespace, labels, selector, objectives, rewrites } =
        report.settings.discovery.clone()
    else {
        return;
    };
    let mut pauses = Pauses::new(PAUSE_FIRST);
    let client = loop {
        match connect().await {
            Ok(client) => break client,
            Err(why) => report.failed(&format!("no access to a Kubernetes API server: {why}")),
        }
        pauses.wait().await;
    };
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    match object {
        KubernetesObject::InferencePool(name) => {
            let target = Target {
                namespace: &namespace,
                name: &name,
                labels: &labels,
                selector: &selector,
                objectives,
                rewrites,
            };
            follow(&mut report, &client, target, &mut pauses).await;
        }
        KubernetesObject::Service { name, port } => {
            let service = service::Target { namespace: &namespace, name: &name, port: port.as_deref() };
            service::follow(&mut report, &client, service, &mut pauses).await;
        }
    }
}

/// A client of the API server of this pod, or of `KUBECONFIG`.
///
/// # Errors
/// The reason why there is none.
pub(crate) async fn connect() -> Result<Client, String> {
    let config = kube::Config::infer().await.map_err(|why| why.to_string())?;
    Client::try_from(without_retries(config)).map_err(|why| why.to_string())
}

/// The client's own retries would hide a failure for many seconds.
const fn without_retries(mut config: kube::Config) -> kube::Config {
    config.default_retry = false;
    config
}

/// The pool to follow, the labels that its pods may have, and which of its pods are endpoints.
#[derive(Clone, Copy, Debug)]
struct Target<'a> {
    namespace: &'a str,
    name: &'a str,
    labels: &'a PodLabels,
    selector: &'a PodSelector,
    /// Its InferenceObjectives are followed as well.
    objectives: bool,
    /// Its InferenceModelRewrites are followed as well.
    rewrites: bool,
}

/// The pauses between attempts.
#[derive(Debug)]
struct Pauses {
    first: Duration,
    next: Duration,
}

impl Pauses {
    const fn new(first: Duration) -> Self {
        Self { first, next: first }
    }

    const fn reset(&mut self) {
        self.next = self.first;
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
    }
}

/// Never returns; waits for one of `pauses` after each attempt.
async fn follow(report: &mut Report, client: &Client, target: Target<'_>, pauses: &mut Pauses) {
    let Target { namespace, name, .. } = target;
    let mut rules = PoolRules::watch(client, &target);
    loop {
        match find_version(client, namespace, name).await {
            Ok(Some(version)) => {
                let pools = Api::namespaced_with(client.clone(), namespace, &version);
                if let Err(why) = watch(report, client, &pools, target, &mut rules, pauses).await {
                    report.failed(&why);
                }
            }
            Ok(None) => report.failed(&format!(
                "the API server has no InferencePool kind, in which {namespace}/{name} could exist"
            )),
            Err(why) => report.failed(&format!("InferencePool {namespace}/{name}: {}", root_cause(&why))),
        }
        pauses.wait().await;
    }
}

/// The API version in which the pool exists, or else one in which it may be created; `None`: the API server has none.
async fn find_version(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<ApiResource>, kube::Error> {
    let (mut missing, mut refused) = (None, None);
    for version in pool::versions() {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &version);
        match api.get(name).await {
            Ok(_) => return Ok(Some(version)),
            // The answer for a missing object and for a missing API.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                if missing.is_none() && is_served(client, &version).await {
                    missing = Some(version);
                }
            }
            // A role may have one of the versions only.
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    match (missing, refused) {
        (None, Some(why)) => Err(why),
        (missing, _) => Ok(missing),
    }
}

/// A reference to an InferencePool, for an Event; `None`: it doesn't exist.
///
/// # Errors
/// The API server doesn't say.
pub(crate) async fn reference(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<ObjectReference>, kube::Error> {
    let Some(version) = find_version(client, namespace, name).await? else {
        return Ok(None);
    };
    let pools: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &version);
    let pool = pools.get_opt(name).await?;
    Ok(pool.map(|pool| pool.object_ref(&version)))
}

/// Whether the API server serves this version of the InferencePool API; `true` also if it doesn't answer the question.
async fn is_served(client: &Client, version: &ApiResource) -> bool {
    let resources = client.list_api_group_resources(&version.api_version).await;
    !matches!(resources, Err(kube::Error::Api(status)) if status.code == 404)
}

/// Follows the pool and its pods until it is time to look for another version of the API.
///
/// # Errors
/// The reason why a watch ended.
async fn watch(
    report: &mut Report,
    client: &Client,
    pools: &Api<DynamicObject>,
    target: Target<'_>,
    rules: &mut PoolRules,
    pauses: &mut Pauses,
) -> Result<(), String> {
    let Target { namespace, name, .. } = target;
    let mut pool = std::pin::pin!(watcher::watch_object(pools.clone(), name));
    let mut wanted: Option<Selection> = None;
    let mut pods = futures_util::stream::pending().boxed();
    let mut pods_found = Pods::new(&report.settings, target, BTreeMap::new());
    let mut recheck = None;
    loop {
        tokio::select! {
            object = pool.next() => match object.transpose() {
                Ok(Some(Some(object))) => {
                    recheck = None;
                    match pool::selection(&object.data) {
                        Ok(selection) if wanted.as_ref() == Some(&selection) => {
                            if pods_found.found.is_complete() {
                                report.works();
                            }
                        }
                        Ok(selection) => {
                            let api: Api<Pod> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
                            let matching = watcher::Config::default().labels(&selection.query());
                            pods = watcher::watcher(api, matching).boxed();
                            pods_found = Pods::new(&report.settings, target, selection.labels.clone());
                            wanted = Some(selection);
                        }
                        Err(why) => report.failed(&format!("InferencePool {namespace}/{name}: {why}")),
                    }
                }
                Ok(Some(None)) => {
                    pauses.reset();
                    if report.has_endpoints() {
                        // It was deleted.
                        report.send(Discovered::default()).await;
                    }
                    report.failed(&format!("InferencePool {namespace}/{name} does not exist"));
                    pods = futures_util::stream::pending().boxed();
                    wanted = None;
                    recheck.get_or_insert_with(|| tokio::time::Instant::now() + RECHECK);
                }
                Err(why) if is_expired(&why) => {}
                Err(why) => return Err(format!("InferencePool {namespace}/{name}: {}", root_cause(&why))),
                Ok(None) => return Err(format!("InferencePool {namespace}/{name}: the watch has ended")),
            },
            event = pods.next() => match event.transpose() {
                Ok(Some(event)) => {
                    pods_found.handle(event);
                    pauses.reset();
                    send(report, wanted.as_ref(), &pods_found, rules).await;
                }
                Err(why) if is_expired(&why) => {}
                Err(why) => return Err(format!("pods of InferencePool {namespace}/{name}: {}", root_cause(&why))),
                Ok(None) => return Err(format!("pods of InferencePool {namespace}/{name}: the watch has ended")),
            },
            () = rules.changed() => {
                report.set_unread(rules.failures());
                send(report, wanted.as_ref(), &pods_found, rules).await;
            }
            () = sleep_until(recheck) => return Ok(()),
        }
    }
}

/// Sends what was found, if all of it is known.
async fn send(report: &mut Report, wanted: Option<&Selection>, pods: &Pods, rules: &PoolRules) {
    let Some(wanted) = wanted.filter(|_| pods.found.is_complete()) else {
        return;
    };
    let Some((objectives, rewrites)) = rules.known() else {
        // Their first list is on its way.
        return;
    };
    let discovered = pods.discovered(&wanted.ports);
    report.send(Discovered { http2: wanted.http2, objectives, rewrites, ..discovered }).await;
}

fn is_expired(why: &watcher::Error) -> bool {
    matches!(why, watcher::Error::WatchError(status) if status.code == EXPIRED)
}

/// The pods that are ready or may become ready.
#[derive(Debug)]
struct Pods {
    rules: PodRules,
    found: Listing<FoundPod>,
}

/// How pods are read.
#[derive(Debug)]
struct PodRules {
    labels: PodLabels,
    selector: PodSelector,
    /// The labels by which the InferencePool selects its pods.
    pool_labels: BTreeMap<String, String>,
    settings: Settings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundPod {
    /// `None`: the pod isn't ready.
    ip: Option<IpAddr>,
    values: EndpointDefaults,
    /// The ports at which the pod takes requests; `None`: at all of the InferencePool.
    active_ports: Option<Vec<u16>>,
}

impl FoundPod {
    fn takes_requests_at(&self, port: u16) -> bool {
        self.active_ports.as_ref().is_none_or(|active| active.contains(&port))
    }
}

impl Pods {
    fn new(settings: &Settings, target: Target<'_>, pool_labels: BTreeMap<String, String>) -> Self {
        let Target { labels, selector, .. } = target;
        let (labels, selector, settings) = (labels.clone(), selector.clone(), settings.clone());
        Self { rules: PodRules { labels, selector, pool_labels, settings }, found: Listing::default() }
    }

    fn handle(&mut self, event: Event<Pod>) {
        let Self { rules, found } = self;
        found.handle(event, |pod, before| rules.read(&pod, before));
    }

    /// Each active port of each ready pod is an endpoint, and each active port of every other pod a pending server.
    fn discovered(&self, ports: &[u16]) -> Discovered {
        let mut endpoints = Vec::new();
        let mut pending: BTreeMap<(&str, u64), u64> = BTreeMap::new();
        for (name, pod) in self.found.objects() {
            let FoundPod { ip, values, .. } = pod;
            for port in ports.iter().filter(|port| pod.takes_requests_at(**port)) {
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
        Discovered { endpoints, pending: pending.collect(), ..Discovered::default() }
    }
}

impl PodRules {
    /// What a pod says of itself; `before`: what it said last. `None`: the pod has ended, is being deleted, or isn't selected. A value that
    /// is missing or not allowed is logged once for each pod.
    fn read(&self, pod: &Pod, before: Option<&FoundPod>) -> Option<FoundPod> {
        let Self { labels, selector, pool_labels, settings } = self;
        if !stays(pod) || !pod_selector::selects(selector, pool_labels, pod) {
            return None;
        }
        let (values, mut problems) =
            pod_labels::values(pod, labels, &settings.defaults, settings.needs_batched_tokens);
        if before.is_some_and(|before| before.values == values) {
            problems.clear();
        }
        let (active_ports, wrong_ports) = pod_selector::active_ports(pod);
        if before.is_none_or(|before| before.active_ports != active_ports) {
            problems.extend(wrong_ports);
        }
        for problem in problems {
            tracing::warn!(pod = pod.name_any(), "{problem}");
        }
        Some(FoundPod { ip: address(pod), values, active_ports })
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
