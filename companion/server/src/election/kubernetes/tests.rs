//! The lease in Kubernetes against a small API server, which compares resource versions as a real one does.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/models/leases";
const LONG: Duration = Duration::from_secs(60);
/// The lease's duration where it must not expire.
const DURATION: Duration = Duration::from_secs(600);

/// The object, and the number of the last change.
#[derive(Default)]
struct Store {
    lease: Option<Value>,
    revision: u64,
    down: bool,
}

#[derive(Clone)]
struct Server {
    store: Arc<Mutex<Store>>,
    changed: watch::Sender<u64>,
    client: Client,
}

impl Server {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let uri = format!("http://{address}").parse().expect("a URI");
        let server = Self {
            store: Arc::default(),
            changed: watch::Sender::new(0),
            client: client(Config::new(uri)).expect("a client"),
        };
        let app = Router::new()
            .route(LEASES, get(many).post(create))
            .route(&format!("{LEASES}/penstock"), get(one).put(replace))
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    /// Changes the object and notifies the watches. `None`: the object is deleted.
    fn put(&self, lease: Option<Value>) -> Option<Value> {
        let mut store = self.store.lock().expect("no panic");
        store.revision += 1;
        let revision = store.revision;
        store.lease = lease.map(|mut lease| {
            lease["metadata"]["resourceVersion"] = revision.to_string().into();
            lease
        });
        let lease = store.lease.clone();
        drop(store);
        self.changed.send_replace(revision);
        lease
    }

    fn lease(&self) -> Option<Value> {
        self.store.lock().expect("no panic").lease.clone()
    }

    fn down(&self, down: bool) {
        self.store.lock().expect("no panic").down = down;
    }

    fn candidate(&self, identity: &str, duration: Duration) -> Arc<Kubernetes> {
        let store = Kubernetes::new("models", "penstock", identity.into(), duration).expect("usable");
        *store.client.lock().expect("no panic") = Some(self.client.clone());
        Arc::new(store)
    }
}

async fn one(State(server): State<Server>) -> Response {
    if server.store.lock().expect("no panic").down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match server.lease() {
        Some(lease) => axum::Json(lease).into_response(),
        None => failure(StatusCode::NOT_FOUND, "NotFound"),
    }
}

async fn many(State(server): State<Server>, uri: axum::http::Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    assert!(query.contains("metadata.name"), "the permission is for one object: {query}");
    if !query.contains("watch=true") {
        let revision = server.store.lock().expect("no panic").revision.to_string();
        let items: Vec<_> = server.lease().into_iter().collect();
        return axum::Json(json!({"metadata": {"resourceVersion": revision}, "items": items}))
            .into_response();
    }
    let (lines, body) = mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    tokio::spawn(async move {
        let mut changed = server.changed.subscribe();
        let mut last = None;
        loop {
            changed.borrow_and_update();
            let lease = server.lease();
            let event = match (&last, &lease) {
                (Some(last), None) => Some(("DELETED", last)),
                (_, Some(lease)) => Some(("MODIFIED", lease)),
                (None, None) => None,
            };
            if let Some((event, object)) = event {
                let line = format!("{}\n", json!({"type": event, "object": object}));
                if lines.send(Ok(line.into())).await.is_err() {
                    return;
                }
            }
            last = lease;
            tokio::select! {
                _ = changed.changed() => {}
                () = lines.closed() => return,
            }
        }
    });
    Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(body)).into_response()
}

async fn create(State(server): State<Server>, axum::Json(lease): axum::Json<Value>) -> Response {
    assert_eq!(lease["metadata"]["name"], "penstock");
    if server.lease().is_some() {
        return failure(StatusCode::CONFLICT, "AlreadyExists");
    }
    axum::Json(server.put(Some(lease))).into_response()
}

async fn replace(State(server): State<Server>, axum::Json(lease): axum::Json<Value>) -> Response {
    if server.store.lock().expect("no panic").down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match server.lease() {
        None => failure(StatusCode::NOT_FOUND, "NotFound"),
        Some(present) if present["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] => {
            failure(StatusCode::CONFLICT, "Conflict")
        }
        Some(_) => axum::Json(server.put(Some(lease))).into_response(),
    }
}

fn failure(code: StatusCode, reason: &str) -> Response {
    let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code.as_u16()});
    (code, axum::Json(status)).into_response()
}

fn term(term: u64) -> Record {
    Record { term, ..Record::default() }
}

async fn version(store: &Kubernetes) -> u64 {
    store.observe().await.expect("an answer").version
}

async fn acquire(store: &Kubernetes, number: u64) -> Outcome {
    let version = version(store).await;
    let record = term(number);
    let acquired = store.execute(&Request::Acquire { version, record }).await;
    acquired.expect("an answer")
}

fn follow(store: Arc<Kubernetes>) -> mpsc::Receiver<View> {
    let (sender, views) = mpsc::channel(16);
    tokio::spawn(async move { store.watch(&sender).await });
    views
}

/// Waits for a view that fits.
async fn until(views: &mut mpsc::Receiver<View>, is_expected: impl Fn(&View) -> bool) -> View {
    let wait = async {
        loop {
            let view = views.recv().await.expect("the watch runs");
            if is_expected(&view) {
                return view;
            }
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("a view that fits")
}

#[tokio::test]
async fn the_first_candidate_creates_the_object_and_keeps_it() {
    let server = Server::start().await;
    let store = server.candidate("first", DURATION);
    let view = store.observe().await.expect("an answer");
    assert_eq!((view.holder, view.record, view.version), (Holder::None, None, 0));
    assert_eq!(acquire(&store, 5).await, Outcome::Done { version: 1 });
    let lease = server.lease().expect("it exists");
    let spec = &lease["spec"];
    assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&"first".into(), &600.into()));
    assert_eq!(spec["leaseTransitions"], 0);
    assert_eq!(spec["acquireTime"], spec["renewTime"]);
    let text = lease["metadata"]["annotations"][RECORD].as_str().expect("a record");
    assert_eq!(serde_json::from_str::<Record>(text).expect("JSON"), term(5));

    // A renewal keeps the record, and what others add to the object.
    let mut labelled = lease;
    labelled["metadata"]["labels"] = json!({"team": "a"});
    server.put(Some(labelled));
    let renew = |version| Request::Renew { version };
    assert_eq!(store.execute(&renew(1)).await.expect("an answer"), Outcome::Refused);
    let view = store.observe().await.expect("an answer");
    assert_eq!((view.holder, view.version), (Holder::Me, 2));
    let renewed = store.execute(&renew(2)).await.expect("an answer");
    assert_eq!(renewed, Outcome::Done { version: 3 });
    let lease = server.lease().expect("it exists");
    assert_eq!(lease["metadata"]["labels"]["team"], "a");
    assert_eq!(lease["metadata"]["annotations"][RECORD].as_str().map(str::len), Some(encode(&term(5)).len()));
}

#[tokio::test]
async fn of_two_candidates_one_acquires() {
    let server = Server::start().await;
    let (first, second) = (server.candidate("first", DURATION), server.candidate("second", DURATION));
    let seen = version(&second).await;
    acquire(&first, 5).await;
    let record = term(6);
    let request = Request::Acquire { version: seen, record };
    assert_eq!(second.execute(&request).await.expect("an answer"), Outcome::Refused);
    let view = second.observe().await.expect("an answer");
    assert_eq!((view.holder, view.record), (Holder::Other, Some(term(5))));
    for request in [Request::Renew { version: 1 }, Request::Release { version: 1, record: term(5) }] {
        assert_eq!(second.execute(&request).await.expect("an answer"), Outcome::Refused);
    }
}

#[tokio::test]
async fn a_holder_counts_as_gone_when_the_object_does_not_change() {
    let server = Server::start().await;
    let first = server.candidate("first", DURATION);
    let second = server.candidate("second", Duration::from_millis(300));
    acquire(&first, 5).await;
    let mut views = follow(second.clone());
    let taken = until(&mut views, |view| view.version == 1).await;
    assert_eq!(taken.holder, Holder::Other);
    let gone = until(&mut views, |view| view.holder == Holder::None).await;
    assert_eq!((gone.version, gone.record), (1, Some(term(5))));
    assert_eq!(acquire(&second, 6).await, Outcome::Done { version: 2 });
    assert_eq!(server.lease().expect("it exists")["spec"]["leaseTransitions"], 1);
    let late = first.execute(&Request::Renew { version: 1 }).await.expect("an answer");
    assert_eq!(late, Outcome::Refused);
}

#[tokio::test]
async fn a_release_frees_the_lease_at_once() {
    let server = Server::start().await;
    let (first, second) = (server.candidate("first", DURATION), server.candidate("second", DURATION));
    acquire(&first, 5).await;
    let mut views = follow(second.clone());
    until(&mut views, |view| view.holder == Holder::Other).await;
    let record = Record { released: true, ..term(5) };
    let request = Request::Release { version: 1, record: record.clone() };
    assert_eq!(first.execute(&request).await.expect("an answer"), Outcome::Done { version: 2 });
    let free = until(&mut views, |view| view.holder == Holder::None).await;
    assert_eq!((free.version, free.record), (2, Some(record)));
    assert_eq!(acquire(&second, 6).await, Outcome::Done { version: 3 });
}

#[tokio::test]
async fn a_deleted_object_is_created_again() {
    let server = Server::start().await;
    let store = server.candidate("first", DURATION);
    acquire(&store, 5).await;
    server.put(None);
    let renewed = store.execute(&Request::Renew { version: 1 }).await.expect("an answer");
    assert_eq!(renewed, Outcome::Refused);
    let view = store.observe().await.expect("an answer");
    assert_eq!((view.holder, view.version), (Holder::None, 2), "newer than the object");
    assert_eq!(acquire(&store, 6).await, Outcome::Done { version: 3 });
}

#[tokio::test]
async fn an_outage_is_an_error_and_no_refusal() {
    let server = Server::start().await;
    let store = server.candidate("first", DURATION);
    acquire(&store, 5).await;
    server.down(true);
    store.execute(&Request::Renew { version: 1 }).await.expect_err("it is down");
    server.down(false);
    let renewed = store.execute(&Request::Renew { version: 1 }).await.expect("an answer");
    assert_eq!(renewed, Outcome::Done { version: 2 });
}
