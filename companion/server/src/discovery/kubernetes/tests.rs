//! Kubernetes discovery against a small API server: lists, watches, and an outage.

mod rules;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use penstock_config::{Discovery, Endpoint};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::base::found::Found;
use crate::discovery::{States, settings, states};

const NEW: &str = "/apis/inference.networking.k8s.io/v1";
const OLD: &str = "/apis/inference.networking.x-k8s.io/v1alpha2";
/// The API of the objects that name a pool.
const BESIDE: &str = "/apis/llm-d.ai/v1alpha2";
const SOON: Duration = Duration::from_millis(20);

/// Objects by the path of their kind and their name, and all events so far.
#[derive(Default)]
struct Store {
    objects: BTreeMap<(String, String), Value>,
    events: Vec<(String, &'static str, Value)>,
    down: bool,
    /// The older version of the API is refused.
    forbids_old: bool,
    /// Lists of this kind are refused.
    forbidden: Option<&'static str>,
}

/// An API server with its objects and the number of the last event.
#[derive(Clone)]
struct Server {
    store: Arc<Mutex<Store>>,
    revision: watch::Sender<usize>,
}

impl Server {
    /// Serves pools of one API version only, as most clusters do.
    async fn start(pools: &str) -> (Self, Client) {
        let server = Self { store: Arc::default(), revision: watch::Sender::new(0) };
        let app = Router::new()
            .route(&format!("{pools}/namespaces/{{ns}}/inferencepools"), get(many))
            .route(&format!("{pools}/namespaces/{{ns}}/inferencepools/{{name}}"), get(one))
            .route("/api/v1/namespaces/{ns}/pods", get(many))
            .route(BESIDE, get(kinds_beside))
            .route(&format!("{BESIDE}/namespaces/{{ns}}/{{kind}}"), get(many))
            .route(
                pools,
                get(async || {
                    axum::Json(json!({"kind": "APIResourceList", "groupVersion": "v", "resources": []}))
                }),
            )
            .fallback(unserved)
            .with_state(server.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, app).await });
        let uri = format!("http://{address}").parse().expect("a URI");
        (server, Client::try_from(without_retries(kube::Config::new(uri))).expect("a client"))
    }

    fn change(&self, change: impl FnOnce(&mut Store)) {
        let mut store = self.store.lock().expect("no panic");
        change(&mut store);
        let revision = store.events.len();
        drop(store);
        self.revision.send_replace(revision);
    }

    fn put(&self, kind: &str, object: &Value) {
        self.change(|store| {
            let mut object = object.clone();
            object["metadata"]["namespace"] = "ml".into();
            object["metadata"]["resourceVersion"] = (store.events.len() + 1).to_string().into();
            let name = object["metadata"]["name"].as_str().expect("named").to_owned();
            let before = store.objects.insert((kind.into(), name), object.clone());
            let event = if before.is_some() { "MODIFIED" } else { "ADDED" };
            store.events.push((kind.into(), event, object));
        });
    }

    fn remove(&self, kind: &str, name: &str) {
        self.change(|store| {
            let object = store.objects.remove(&(kind.into(), name.into())).expect("there");
            store.events.push((kind.into(), "DELETED", object));
        });
    }

    fn pool(&self, spec: &Value) {
        self.put("inferencepools", &json!({"metadata": {"name": "llama"}, "spec": spec}));
    }

    fn pod(&self, name: &str, app: &str, ip: &str, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": app}},
            "status": {"podIP": ip, "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": ready},
            ]},
        });
        self.put("pods", &pod);
    }

    /// Starts or ends an outage: every request fails, and watches are cut off.
    fn down(&self, down: bool) {
        self.change(|store| store.down = down);
    }
}

async fn unserved(State(server): State<Server>, uri: axum::http::Uri) -> StatusCode {
    let is_old = uri.path().starts_with(OLD);
    if is_old && server.store.lock().expect("no panic").forbids_old {
        StatusCode::FORBIDDEN
    } else {
        StatusCode::NOT_FOUND
    }
}

async fn kinds_beside() -> axum::Json<Value> {
    let kinds = ["inferenceobjectives", "inferencemodelrewrites"].map(|name| {
        json!({"name": name, "singularName": "", "namespaced": true, "kind": "Any", "verbs": ["list", "watch"]})
    });
    axum::Json(json!({"kind": "APIResourceList", "groupVersion": "llm-d.ai/v1alpha2", "resources": kinds}))
}

async fn one(State(server): State<Server>, Path((_, name)): Path<(String, String)>) -> Response {
    let store = server.store.lock().expect("no panic");
    match store.objects.get(&("inferencepools".to_owned(), name)) {
        _ if store.down => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Some(object) => axum::Json(object.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn many(
    State(server): State<Server>,
    uri: axum::http::Uri,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let kind = uri.path().rsplit('/').next().expect("a path").to_owned();
    let fits = move |object: &Value| {
        let labels = query.get("labelSelector").map(|text| text.split_once('=').expect("one label"));
        labels.is_none_or(|(label, value)| object["metadata"]["labels"][label] == value)
    };
    let wants = |key: &str| uri.query().is_some_and(|text| text.split('&').any(|text| text.starts_with(key)));
    if server.store.lock().expect("no panic").down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    if server.store.lock().expect("no panic").forbidden == Some(kind.as_str()) {
        return StatusCode::FORBIDDEN.into_response();
    }
    if !wants("watch=true") {
        let store = server.store.lock().expect("no panic");
        let of_kind =
            store.objects.iter().filter(|((stored_kind, _), object)| *stored_kind == kind && fits(object));
        let items: Vec<_> = of_kind.map(|(_, object)| object.clone()).collect();
        let revision = store.events.len().to_string();
        return axum::Json(json!({"metadata": {"resourceVersion": revision}, "items": items}))
            .into_response();
    }
    let from = uri.query().into_iter().flat_map(|text| text.split('&'));
    let mut from = from.filter_map(|text| text.strip_prefix("resourceVersion="));
    let from: usize = from.next().expect("from where").parse().expect("a number");
    let (lines, body) = mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    tokio::spawn(async move {
        let mut revision = server.revision.subscribe();
        let mut position = from;
        loop {
            let next: Vec<_> = {
                let store = server.store.lock().expect("no panic");
                if store.down {
                    return;
                }
                store.events[position..].to_vec()
            };
            position += next.len();
            for (stored_kind, event, object) in next {
                if stored_kind == kind && fits(&object) {
                    let line = format!("{}\n", json!({"type": event, "object": object}));
                    if lines.send(Ok(line.into())).await.is_err() {
                        return;
                    }
                }
            }
            tokio::select! {
                _ = revision.changed() => {}
                () = lines.closed() => return,
            }
        }
    });
    Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(body)).into_response()
}

/// Discovers the endpoints of pool `ml/llama`.
fn start(client: Client) -> mpsc::Receiver<Found> {
    start_with(client, PodLabels::default(), states("chat"))
}

/// Pool `ml/llama`, with all that may be asked for.
fn target<'a>(labels: &'a PodLabels, selector: &'a PodSelector) -> Target<'a> {
    Target { namespace: "ml", name: "llama", labels, selector, objectives: true, rewrites: true }
}

/// No pods of pool `ml/llama` yet.
fn pods() -> Pods {
    let (labels, selector) = (PodLabels::default(), PodSelector::default());
    let target = target(&labels, &selector);
    Pods::new(&settings(Discovery::File("f".into())), target, BTreeMap::new())
}

/// Waits until discovery works, or fails for a reason with this text.
async fn until_state(states: &States, failure: Option<&str>) {
    let wait = async {
        loop {
            let state = states.get("chat").expect("it discovers");
            if failure.map_or(state.is_up, |text| !state.is_up && state.reason.contains(text)) {
                return;
            }
            tokio::time::sleep(SOON).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "{failure:?}: {:?}", states.get("chat"));
}

/// Discovers the endpoints of pool `ml/llama`, with labels of the pods.
fn start_with(client: Client, labels: PodLabels, states: States) -> mpsc::Receiver<Found> {
    start_selecting(client, labels, PodSelector::default(), states)
}

/// Discovers the endpoints of pool `ml/llama` among the selected pods.
fn start_selecting(
    client: Client,
    labels: PodLabels,
    selector: PodSelector,
    states: States,
) -> mpsc::Receiver<Found> {
    let (sender, found) = mpsc::channel(16);
    let discovery = Discovery::Kubernetes {
        object: KubernetesObject::InferencePool("llama".into()),
        namespace: Some("ml".into()),
        labels: labels.clone(),
        selector: selector.clone(),
        objectives: true,
        rewrites: true,
    };
    let mut report = Report::new("chat".into(), settings(discovery), sender, states);
    tokio::spawn(async move {
        follow(&mut report, &client, target(&labels, &selector), &mut Pauses::new(SOON)).await;
    });
    found
}

/// Waits for these endpoints, and ignores other lists before them.
async fn until(found: &mut mpsc::Receiver<Found>, expected: &[(&str, &str)]) {
    until_found(found, |found| {
        let entry = |endpoint: &Endpoint| (endpoint.address.to_string(), endpoint.labels[POD].clone());
        let list: Vec<_> = found.endpoints.iter().map(entry).collect();
        list.len() == expected.len()
            && list.iter().zip(expected).all(|(a, b)| (a.0.as_str(), a.1.as_str()) == *b)
    })
    .await;
}

/// Waits for the expected list, and ignores the lists before it.
async fn until_found(found: &mut mpsc::Receiver<Found>, is_expected: impl Fn(&Discovered) -> bool) {
    let mut last = None;
    let wait = async {
        loop {
            let next = found.recv().await.expect("discovery runs").discovered;
            if is_expected(&next) {
                return;
            }
            last = Some(next);
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "not found; the last list was {last:?}");
}

#[tokio::test]
async fn the_endpoints_are_the_ready_pods_of_the_selector() {
    let (server, client) = Server::start(NEW).await;
    server.pod("p1", "llama", "10.0.0.1", true);
    server.pod("p2", "llama", "10.0.0.2", false);
    server.pod("other", "qwen", "10.0.0.9", true);
    let states = states("chat");
    let mut found = start_with(client, PodLabels::default(), states.clone());
    until_state(&states, Some("ml/llama does not exist")).await;
    assert!(found.try_recv().is_err(), "that is no list");
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}));
    until(&mut found, &[("10.0.0.1:8000", "p1")]).await;
    server.pod("p2", "llama", "10.0.0.2", true);
    until(&mut found, &[("10.0.0.1:8000", "p1"), ("10.0.0.2:8000", "p2")]).await;
    server.remove("pods", "p1");
    until(&mut found, &[("10.0.0.2:8000", "p2")]).await;

    // During an outage the endpoints stay; changes meanwhile are seen after it.
    server.down(true);
    server.pod("p3", "llama", "10.0.0.3", true);
    server.down(false);
    until(&mut found, &[("10.0.0.2:8000", "p2"), ("10.0.0.3:8000", "p3")]).await;

    let ports = json!([{"number": 8000}, {"number": 8001}]);
    server.pool(&json!({"selector": {"matchLabels": {"app": "qwen"}}, "targetPorts": ports}));
    until(&mut found, &[("10.0.0.9:8000", "other"), ("10.0.0.9:8001", "other")]).await;
    server.remove("inferencepools", "llama");
    until(&mut found, &[]).await;
    until_state(&states, Some("ml/llama does not exist")).await;
}

#[tokio::test]
async fn every_failure_and_every_recovery_shows() {
    let (server, client) = Server::start(NEW).await;
    server.pod("p1", "llama", "10.0.0.1", true);
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}));
    let states = states("chat");
    let mut found = start_with(client, PodLabels::default(), states.clone());
    until(&mut found, &[("10.0.0.1:8000", "p1")]).await;
    for _ in 0..2 {
        server.down(true);
        until_state(&states, Some("ml/llama")).await;
        // Nothing has changed meanwhile.
        server.down(false);
        until_state(&states, None).await;
    }
    assert!(found.try_recv().is_err(), "the list is the same");
}

#[tokio::test]
async fn a_missing_pool_is_missing_where_a_role_has_one_version_only() {
    let (server, client) = Server::start(NEW).await;
    server.change(|store| store.forbids_old = true);
    let states = states("chat");
    let mut found = start_with(client, PodLabels::default(), states.clone());
    until_state(&states, Some("does not exist")).await;
    server.pod("p1", "llama", "10.0.0.1", true);
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}));
    until(&mut found, &[("10.0.0.1:8000", "p1")]).await;
}

#[tokio::test]
async fn a_cluster_without_the_kind_is_named() {
    let (_server, client) = Server::start("/apis/other/v1").await;
    let states = states("chat");
    let _found = start_with(client, PodLabels::default(), states.clone());
    until_state(&states, Some("no InferencePool kind")).await;
}

#[tokio::test]
async fn the_older_api_version_is_found() {
    let (server, client) = Server::start(OLD).await;
    server.pod("p1", "llama", "fd00::1", true);
    server.pool(&json!({"selector": {"app": "llama"}, "targetPortNumber": 8000}));
    let mut found = start(client);
    until(&mut found, &[("[fd00::1]:8000", "p1")]).await;
}

#[test]
fn a_pod_is_an_endpoint_while_it_is_ready_and_pending_until_then() {
    #[derive(Debug, PartialEq)]
    enum Seen {
        Endpoint,
        Pending,
        Nothing,
    }
    let see = |ready: &str, phase: Option<&str>, deleted: Option<&str>, ip: Option<&str>| {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "deletionTimestamp": deleted},
            "status": {"phase": phase, "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
        }));
        let mut pods = pods();
        pods.handle(Event::Apply(pod.expect("a pod")));
        let found = pods.discovered(&[8000]);
        match (found.endpoints.len(), found.pending.len()) {
            (1, 0) => Seen::Endpoint,
            (0, 1) => Seen::Pending,
            (0, 0) => Seen::Nothing,
            other => panic!("{other:?}"),
        }
    };
    let ip = Some("10.0.0.1");
    assert_eq!(see("True", Some("Running"), None, ip), Seen::Endpoint);
    assert_eq!(see("False", Some("Running"), None, ip), Seen::Pending, "its readiness probe fails");
    assert_eq!(see("False", Some("Pending"), None, None), Seen::Pending, "it isn't scheduled yet");
    assert_eq!(see("True", Some("Running"), None, None), Seen::Pending, "it has no address yet");
    let ends = Some("2026-01-01T00:00:00Z");
    assert_eq!(see("True", Some("Running"), ends, ip), Seen::Nothing);
    assert_eq!(see("False", Some("Running"), ends, ip), Seen::Nothing);
    assert_eq!(see("False", Some("Failed"), None, ip), Seen::Nothing, "an evicted pod never comes back");
    assert_eq!(see("False", Some("Succeeded"), None, ip), Seen::Nothing);
}

#[tokio::test]
async fn pods_that_are_not_ready_are_pending_by_variant_and_port() {
    let (server, client) = Server::start(NEW).await;
    let labels = PodLabels { variant: Some("accelerator".into()), ..PodLabels::default() };
    let pod = |name: &str, accelerator: &str, ready: &str| {
        json!({
            "metadata": {"name": name, "labels": {"app": "llama", "accelerator": accelerator}},
            "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
        })
    };
    let ports = json!([{"number": 8000}, {"number": 8001}]);
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": ports}));
    server.put("pods", &pod("a", "h100", "True"));
    server.put("pods", &pod("b", "h100", "False"));
    server.put("pods", &pod("c", "l4", "False"));
    let mut found = start_with(client, labels, states("chat"));
    let group = |variant: &str, servers| PendingServers { variant: variant.into(), max_batch: 256, servers };
    until_found(&mut found, |found| {
        found.endpoints.len() == 2 && found.pending == [group("h100", 2), group("l4", 2)]
    })
    .await;
    // A pod that becomes ready is an endpoint, and no longer pending.
    let mut ready = pod("b", "h100", "True");
    ready["status"]["podIP"] = "10.0.0.2".into();
    server.put("pods", &ready);
    until_found(&mut found, |found| found.endpoints.len() == 4 && found.pending == [group("l4", 2)]).await;
    server.remove("pods", "c");
    until_found(&mut found, |found| found.pending.is_empty()).await;
}

#[test]
fn pods_of_the_last_list_count_during_a_new_list() {
    let pod = |name: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .expect("a pod")
    };
    let mut pods = pods();
    let is_complete_after = |pods: &mut Pods, event| {
        pods.handle(event);
        pods.found.is_complete()
    };
    assert!(!is_complete_after(&mut pods, Event::Init));
    assert!(!is_complete_after(&mut pods, Event::InitApply(pod("a"))));
    assert!(is_complete_after(&mut pods, Event::InitDone));
    assert!(!is_complete_after(&mut pods, Event::Init), "half a list is no list");
    assert_eq!(pods.discovered(&[1]).endpoints.len(), 1);
    assert!(!is_complete_after(&mut pods, Event::InitApply(pod("b"))));
    assert!(is_complete_after(&mut pods, Event::InitDone));
    assert!(pods.found.objects().contains_key("b") && !pods.found.objects().contains_key("a"));
    assert!(is_complete_after(&mut pods, Event::Delete(pod("b"))) && pods.found.objects().is_empty());
}

#[tokio::test]
async fn a_pods_labels_name_the_variant_of_its_endpoints() {
    let (server, client) = Server::start(NEW).await;
    let labels = PodLabels { variant: Some("accelerator".into()), ..PodLabels::default() };
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}));
    for (name, ip, accelerator) in [("a", "10.0.0.1", json!("h100")), ("b", "10.0.0.2", Value::Null)] {
        let labels = match accelerator {
            Value::Null => json!({"app": "llama"}),
            accelerator => json!({"app": "llama", "accelerator": accelerator}),
        };
        let pod = json!({
            "metadata": {"name": name, "labels": labels},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        server.put("pods", &pod);
    }
    let mut found = start_with(client, labels, states("chat"));
    let list = loop {
        let list = found.recv().await.expect("discovery runs").discovered.endpoints;
        if list.len() == 2 {
            break list;
        }
    };
    let variants: Vec<_> = list.iter().map(|endpoint| endpoint.variant.as_str()).collect();
    assert_eq!(variants, ["h100", "default"]);
}

#[tokio::test]
async fn pods_come_and_go_with_their_labels_and_active_ports() {
    let (server, client) = Server::start(NEW).await;
    let ports = json!([{"number": 8000}, {"number": 8001}]);
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": ports}));
    let put = |name: &str, ip: &str, role: Option<&str>, active: Option<&str>| {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {"app": "llama"}, "annotations": {}},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        if let Some(role) = role {
            pod["metadata"]["labels"]["llm-d.ai/role"] = role.into();
        }
        if let Some(active) = active {
            pod["metadata"]["annotations"]["llm-d.ai/active-ports"] = active.into();
        }
        server.put("pods", &pod);
    };
    put("a", "10.0.0.1", Some("prefill"), None);
    put("b", "10.0.0.2", Some("decode"), Some("8001"));
    let excluded = [("llm-d.ai/role".to_owned(), vec!["prefill".to_owned()])];
    let selector = PodSelector { exclude_labels: excluded.into(), ..PodSelector::default() };
    let mut found = start_selecting(client, PodLabels::default(), selector, states("chat"));
    until(&mut found, &[("10.0.0.2:8001", "b")]).await;
    // A second rank becomes active, and then the pod of the other role takes requests, at the port that exists here.
    put("b", "10.0.0.2", Some("decode"), Some("8000,8001,9000"));
    until(&mut found, &[("10.0.0.2:8000", "b"), ("10.0.0.2:8001", "b")]).await;
    put("a", "10.0.0.1", Some("prefill-decode"), Some("8000"));
    until(&mut found, &[("10.0.0.1:8000", "a"), ("10.0.0.2:8000", "b"), ("10.0.0.2:8001", "b")]).await;
    put("a", "10.0.0.1", Some("prefill"), Some("8000"));
    until(&mut found, &[("10.0.0.2:8000", "b"), ("10.0.0.2:8001", "b")]).await;
    put("b", "10.0.0.2", Some("decode"), Some("none"));
    until(&mut found, &[]).await;
    put("b", "10.0.0.2", None, None);
    until(&mut found, &[("10.0.0.2:8000", "b"), ("10.0.0.2:8001", "b")]).await;
}
