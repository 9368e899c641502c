//! The leader lease as a Lease object of the Kubernetes API, used as client-go's leader election uses it.
//!
//! The record is an annotation of the object. Each change replaces the object, and names the resource version that it replaces: that is the version of
//! the state. The API server doesn't expire the lease. A standby takes the holder for gone when the object hasn't changed
//! for the lease's duration, measured by the standby's own monotonic clock.
//!
//! Needed permissions: get, list, watch, create and update of `leases` (coordination.k8s.io) in the namespace.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::runtime::watcher;
use kube::{Client, Config, ResourceExt as _};
use penstock_election::{Holder, Record, Request, View};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Error;
use super::record::{decode, encode};
use super::store::{LeaseStore, Outcome, StoreError};

/// The annotation with the record.
const RECORD: &str = "penstock.dev/record";

/// A lease in Kubernetes.
pub(super) struct Kubernetes {
    namespace: String,
    name: String,
    identity: String,
    duration: Duration,
    /// The client of this API server; `None`: the one of the environment.
    client: Mutex<Option<Client>>,
    seen: Mutex<Seen>,
}

/// The last seen state of the object.
#[derive(Debug, Default)]
struct Seen {
    /// `None`: the object doesn't exist.
    lease: Option<Lease>,
    version: u64,
    /// When this version was first seen.
    since: Option<Instant>,
}

impl Kubernetes {
    /// A store that needn't be reachable. The credentials are the pod's service account, or those of `KUBECONFIG`.
    #[expect(clippy::unnecessary_wraps, reason = "the stand-in without the feature fails")]
    pub(super) fn new(
        namespace: &str,
        name: &str,
        identity: String,
        duration: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            duration,
            client: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    async fn api(&self) -> Result<Api<Lease>, StoreError> {
        let known = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let client = match known {
            Some(client) => client,
            None => {
                let mut config = Config::infer().await.map_err(|why| StoreError::new(&why))?;
                config.connect_timeout = Some(self.duration / 3);
                let client = client(config)?;
                let mut known = self.client.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(client).clone()
            }
        };
        Ok(Api::namespaced(client, &self.namespace))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the object, unless a later version was seen before.
    fn see(&self, lease: Option<Lease>) -> Result<(), StoreError> {
        let mut seen = self.seen();
        let version = match &lease {
            Some(lease) => version(lease)?,
            // The deletion has a version of its own, between the last one and that of the next object.
            None => seen.version + u64::from(seen.lease.is_some()),
        };
        let is_newer = version > seen.version || seen.lease.is_none() || seen.since.is_none();
        if is_newer {
            *seen = Seen { lease, version, since: Some(Instant::now()) };
        }
        Ok(())
    }

    /// The last seen state. Its holder counts as gone when it has been the same for the lease's duration.
    fn view(&self) -> View {
        let seen = self.seen();
        let holder = match seen.lease.as_ref().map_or("", holder) {
            "" => Holder::None,
            holder if holder == self.identity => Holder::Me,
            _ if seen.expiry(self.duration).is_some_and(|expiry| expiry <= Instant::now()) => Holder::None,
            _ => Holder::Other,
        };
        let text = seen.lease.as_ref().and_then(|lease| lease.annotations().get(RECORD));
        View {
            holder,
            record: text.and_then(|text| decode(&self.place(), text.as_bytes())),
            version: seen.version,
        }
    }

    /// When another holder counts as gone; `None`: there is none, or it counts so already.
    fn next_expiry(&self) -> Option<Instant> {
        match self.view().holder {
            Holder::Other => self.seen().expiry(self.duration),
            Holder::Me | Holder::None => None,
        }
    }

    /// The object after a request; `None`: the request doesn't fit the last seen state.
    fn changed(&self, request: &Request) -> Option<Lease> {
        let seen = self.seen();
        if seen.version != request.version() {
            return None;
        }
        let mut lease = seen.lease.clone().unwrap_or_default();
        let is_holder = holder(&lease) == self.identity;
        lease.metadata.name = Some(self.name.clone());
        let now = Some(MicroTime(Timestamp::now()));
        let mut spec = lease.spec.take().unwrap_or_default();
        match request {
            Request::Acquire { .. } => {
                spec.holder_identity = Some(self.identity.clone());
                spec.acquire_time.clone_from(&now);
                spec.lease_transitions =
                    Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
            }
            _ if !is_holder => return None,
            Request::Release { .. } => spec.holder_identity = Some(String::new()),
            Request::Renew { .. } | Request::Write { .. } => {}
        }
        let seconds = self.duration.as_secs() + u64::from(self.duration.subsec_nanos() > 0);
        lease.spec = Some(LeaseSpec {
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX).max(1)),
            renew_time: now,
            ..spec
        });
        if let Some(record) = record(request) {
            let annotations = lease.metadata.annotations.get_or_insert_with(BTreeMap::new);
            annotations.insert(RECORD.to_owned(), encode(record));
        }
        Some(lease)
    }

    async fn read(&self) -> Result<(), StoreError> {
        let found = self.api().await?.get_opt(&self.name).await;
        self.see(found.map_err(|why| StoreError::new(&why))?)
    }

    async fn follow(&self, views: &mpsc::Sender<View>) -> Result<(), StoreError> {
        let api = self.api().await?;
        let mut objects = std::pin::pin!(watcher::watch_object(api, &self.name));
        loop {
            let expiry = self.next_expiry();
            let expires = async {
                match expiry {
                    Some(expiry) => tokio::time::sleep_until(expiry).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // After a suspension of the process, changes that have arrived count before the time.
                biased;
                object = objects.next() => {
                    let ended = || StoreError("the API server ended the watch".into());
                    let object = object.ok_or_else(ended)?;
                    self.see(object.map_err(|why| StoreError::new(&why))?)?;
                }
                () = expires => {}
            }
            if views.send(self.view()).await.is_err() {
                return Ok(());
            }
        }
    }
}

impl Seen {
    fn expiry(&self, duration: Duration) -> Option<Instant> {
        self.since?.checked_add(duration)
    }
}

impl LeaseStore for Kubernetes {
    fn place(&self) -> String {
        format!("Lease {}/{}", self.namespace, self.name)
    }

    async fn execute(&self, request: &Request) -> Result<Outcome, StoreError> {
        let Some(lease) = self.changed(request) else {
            return Ok(Outcome::Refused);
        };
        let api = self.api().await?;
        let params = PostParams::default();
        let exists = lease.metadata.resource_version.is_some();
        let sent = if exists {
            api.replace(&self.name, &params, &lease).await
        } else {
            // Refused if the object exists.
            api.create(&params, &lease).await
        };
        match sent {
            Ok(lease) => {
                let version = version(&lease)?;
                self.see(Some(lease))?;
                Ok(Outcome::Done { version })
            }
            // The object has another version, or was deleted. In a namespace that doesn't exist nothing can be created.
            Err(kube::Error::Api(status)) if status.code == 409 || exists && status.code == 404 => {
                Ok(Outcome::Refused)
            }
            Err(why) => Err(StoreError::new(&why)),
        }
    }

    async fn observe(&self) -> Result<View, StoreError> {
        self.read().await?;
        Ok(self.view())
    }

    async fn watch(&self, views: &mpsc::Sender<View>) -> StoreError {
        match self.follow(views).await {
            Ok(()) => StoreError("the election has ended".into()),
            Err(why) => why,
        }
    }
}

/// A client that tries once: the election repeats its requests, and must learn of a failure.
fn client(mut config: Config) -> Result<Client, StoreError> {
    config.default_retry = false;
    Client::try_from(config).map_err(|why| StoreError::new(&why))
}

fn record(request: &Request) -> Option<&Record> {
    match request {
        Request::Acquire { record, .. } | Request::Write { record, .. } | Request::Release { record, .. } => {
            Some(record)
        }
        Request::Renew { .. } => None,
    }
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The resource version. API servers count with whole numbers, and since Kubernetes 1.35 promise it.
fn version(lease: &Lease) -> Result<u64, StoreError> {
    let text = lease.metadata.resource_version.as_deref().unwrap_or_default();
    let unusable = |_| StoreError(format!("the API server's resource version {text:?} is not a number"));
    text.parse().map_err(unusable)
}

#[cfg(test)]
mod tests;
