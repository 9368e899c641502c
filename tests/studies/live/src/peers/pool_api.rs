//! The part of the Kubernetes API that an endpoint picker needs: one InferencePool and its one ready pod, listed and watched.
//!
//! The picker reads its endpoints from the API when it starts and serves requests without it, so a cluster would not change a figure.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The namespace of pool and pod.
pub(super) const NAMESPACE: &str = "default";
/// The name of the pool.
pub(super) const POOL: &str = "bench";

const POOL_GROUP: &str = "inference.networking.k8s.io";

/// A server of the API. It ends when it is dropped.
pub struct PoolApi {
    address: SocketAddr,
    _server: JoinSet<()>,
}

impl PoolApi {
    /// Serves a pool whose only endpoint is this model server.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(model_server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let mut server = JoinSet::new();
        server.spawn(serve(listener, model_server));
        Self { address, _server: server }
    }

    /// The configuration for a client of this API, a file that `KUBECONFIG` names.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench", "namespace": NAMESPACE}}],
            "clusters": [{"name": "bench", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "bench", "user": {}}],
        })
        .to_string()
    }
}

async fn serve(listener: TcpListener, model_server: SocketAddr) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        connections.spawn(async move {
            let service = hyper::service::service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(answer(&request, model_server))
            });
            // An error means that the client has closed the connection.
            let _cut = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

type Body = BoxBody<Bytes, Infallible>;

/// A kind of object: the path of its version, the version, its name and its plural.
#[derive(Clone, Copy)]
struct Kind {
    root: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
}

const POD: Kind = Kind { root: "/api/v1", version: "v1", name: "Pod", plural: "pods" };
const INFERENCE_POOL: Kind = Kind {
    root: "/apis/inference.networking.k8s.io/v1",
    version: "inference.networking.k8s.io/v1",
    name: "InferencePool",
    plural: "inferencepools",
};

impl Kind {
    /// The only object of the kind.
    fn object(self, model_server: SocketAddr) -> Value {
        let (port, address) = (model_server.port(), model_server.ip().to_string());
        let labels = json!({"app": "model-server"});
        let (name, mut object) = if self.name == POD.name {
            let ports = json!([{"containerPort": port, "protocol": "TCP"}]);
            let pod = json!({
                "spec": {"containers": [{"name": "model-server", "ports": ports}]},
                "status": {
                    "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            });
            ("model-server", pod)
        } else {
            let pool = json!({"spec": {
                "selector": {"matchLabels": labels},
                "targetPorts": [{"number": port}],
                "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
            }});
            (POOL, pool)
        };
        object["kind"] = self.name.into();
        object["apiVersion"] = self.version.into();
        object["metadata"] = json!({
            "name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "1", "labels": labels,
        });
        object
    }

    /// The document that lists the kinds of its version.
    fn types(self) -> Value {
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": self.version,
            "resources": [{
                "name": self.plural, "singularName": self.name.to_lowercase(), "namespaced": true, "kind": self.name,
                "verbs": ["get", "list", "watch"],
            }],
        })
    }

    fn list(self, model_server: SocketAddr) -> Value {
        json!({
            "kind": format!("{}List", self.name), "apiVersion": self.version,
            "metadata": {"resourceVersion": "1"}, "items": [self.object(model_server)],
        })
    }

    /// A watch in which nothing happens. With `initial`, it begins with the object and the mark that the list is complete.
    fn watch(self, initial: bool, model_server: SocketAddr) -> Response<Body> {
        let complete = json!({
            "kind": self.name, "apiVersion": self.version,
            "metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}},
        });
        let events = [("ADDED", self.object(model_server)), ("BOOKMARK", complete)];
        let lines = events
            .into_iter()
            .filter(move |_| initial)
            .map(|(event, object)| format!("{}\n", json!({"type": event, "object": object})))
            .map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))));
        let body = StreamBody::new(stream::iter(lines).chain(stream::pending()));
        response(StatusCode::OK, BodyExt::boxed(body))
    }
}

fn answer<B>(request: &Request<B>, model_server: SocketAddr) -> Response<Body> {
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let asks = |parameter: &str| query.split('&').any(|part| part == parameter);
    for kind in [POD, INFERENCE_POOL] {
        let objects = format!("{}/namespaces/{NAMESPACE}/{}", kind.root, kind.plural);
        if path == kind.root {
            return document(StatusCode::OK, &kind.types());
        }
        if path == objects && asks("watch=true") {
            return kind.watch(asks("sendInitialEvents=true"), model_server);
        }
        if path == objects {
            return document(StatusCode::OK, &kind.list(model_server));
        }
    }
    match path {
        "/api" => document(StatusCode::OK, &json!({"kind": "APIVersions", "versions": ["v1"]})),
        "/apis" => {
            let version = json!({"groupVersion": INFERENCE_POOL.version, "version": "v1"});
            let group = json!({"name": POOL_GROUP, "versions": [version], "preferredVersion": version});
            let groups = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]});
            document(StatusCode::OK, &groups)
        }
        _ => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                "message": format!("{path} is not served"),
            });
            document(StatusCode::NOT_FOUND, &status)
        }
    }
}

fn document(status: StatusCode, document: &Value) -> Response<Body> {
    response(status, Full::from(document.to_string()).boxed())
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/api/v1/namespaces/default/pods";
    const POOLS: &str = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools";

    fn ask(uri: &str) -> Response<Body> {
        let request = Request::get(uri).body(()).expect("a request");
        answer(&request, ([127, 0, 0, 1], 8000).into())
    }

    async fn read(uri: &str) -> Value {
        let body = ask(uri).into_body().collect().await.expect("a whole body");
        serde_json::from_slice(&body.to_bytes()).expect("JSON")
    }

    /// The next event of a watch, or `None` if nothing happens.
    async fn event(body: &mut Body) -> Option<Value> {
        let frame = futures_util::FutureExt::now_or_never(body.frame())??;
        let data = frame.expect("no error").into_data().expect("data");
        Some(serde_json::from_slice(&data).expect("one line of JSON"))
    }

    #[tokio::test]
    async fn the_pools_selector_and_port_fit_the_one_ready_pod() {
        let (pools, pods) =
            (read(&format!("{POOLS}?limit=500")).await, read(&format!("{PODS}?limit=500")).await);
        let [pool, pod] = [&pools, &pods].map(|list| {
            assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
            &list["items"][0]
        });
        assert_eq!(pool["metadata"]["name"], POOL);
        assert_eq!(pool["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]);
        assert_eq!(pool["spec"]["targetPorts"], json!([{"number": 8000}]));
        assert_eq!(pod["status"]["podIP"], "127.0.0.1");
        assert_eq!(pod["status"]["conditions"][0]["type"], "Ready");
    }

    #[tokio::test]
    async fn a_watch_with_initial_events_sends_the_object_then_the_mark_then_nothing() {
        for (path, kind) in [(PODS, "Pod"), (POOLS, "InferencePool")] {
            let answer = ask(&format!("{path}?sendInitialEvents=true&watch=true"));
            let mut body = answer.into_body();
            let added = event(&mut body).await.expect("an event");
            assert_eq!(added["type"], "ADDED");
            assert_eq!(added["object"]["kind"], kind);
            let mark = event(&mut body).await.expect("an event");
            assert_eq!(mark["type"], "BOOKMARK");
            assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
            assert_eq!(event(&mut body).await, None);
        }
    }

    #[tokio::test]
    async fn a_watch_after_a_list_sends_nothing_and_stays_open() {
        let answer = ask(&format!("{PODS}?resourceVersion=1&watch=true"));
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(event(&mut answer.into_body()).await, None);
    }

    #[tokio::test]
    async fn clients_find_both_kinds_and_no_other() {
        let groups = read("/apis").await;
        assert_eq!(groups["groups"][0]["name"], "inference.networking.k8s.io");
        for (root, kind) in [("/api/v1", "Pod"), ("/apis/inference.networking.k8s.io/v1", "InferencePool")] {
            let types = read(root).await;
            assert_eq!(types["resources"].as_array().map(Vec::len), Some(1));
            assert_eq!(types["resources"][0]["kind"], kind);
        }
        for path in ["/api/v1/namespaces/other/pods", "/apis/inference.networking.x-k8s.io/v1alpha2"] {
            assert_eq!(ask(path).status(), StatusCode::NOT_FOUND, "{path}");
        }
    }
}
