//! Connections to the members of an etcd cluster.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use url::Url;

use super::super::Error;
use super::super::store::StoreError;
use super::generated::kv_client::KvClient;
use super::generated::lease_client::LeaseClient;
use super::generated::watch_client::WatchClient;

/// Time between two pings on a connection. A member closes a connection with more than one in 5 s (etcd's default of
/// `--grpc-keepalive-min-time`).
const KEEPALIVE: Duration = Duration::from_secs(6);

/// The members of a cluster.
#[derive(Debug)]
pub(super) struct Endpoints {
    members: Vec<Endpoint>,
    /// The member of the last connection; a new connection goes to the next one.
    attempts: AtomicUsize,
    /// The members' URLs.
    place: String,
}

impl Endpoints {
    /// `answer_max`: the time in which a member must accept a connection, and answer a ping on it.
    pub(super) fn new(urls: &[String], answer_max: Duration) -> Result<Self, Error> {
        let mut members = Vec::new();
        let mut places = Vec::new();
        for url in urls {
            let (member, place) = member(url, answer_max)?;
            members.push(member);
            places.push(place);
        }
        Ok(Self { members, attempts: AtomicUsize::new(0), place: places.join(", ") })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Connects to the next member.
    pub(super) async fn connect(&self) -> Result<Connection, StoreError> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let none = || StoreError("no endpoint is configured".into());
        let number = attempt.checked_rem(self.members.len()).ok_or_else(none)?;
        let channel = self.members[number].connect().await;
        let channel = channel.map_err(|why| StoreError::new(&why))?;
        Ok(Connection { channel })
    }
}

/// A member, and its URL.
fn member(text: &str, answer_max: Duration) -> Result<(Endpoint, String), Error> {
    let failed =
        |why: &dyn std::fmt::Display| Error::Endpoint { endpoint: text.to_owned(), why: why.to_string() };
    let url = Url::parse(text).map_err(|why| failed(&why))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(failed(&"the scheme must be http or https"));
    }
    let place = url.to_string();
    let mut endpoint = Endpoint::from_shared(place.clone())
        .map_err(|why| failed(&why))?
        .connect_timeout(answer_max)
        // A member that no longer answers ends the watch on its connection.
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(answer_max)
        .keep_alive_while_idle(true);
    if url.scheme() == "https" {
        endpoint = endpoint
            .tls_config(ClientTlsConfig::new().with_native_roots())
            .map_err(|why| failed(&penstock_errors::root_cause(&why)))?;
    }
    Ok((endpoint, place.trim_end_matches('/').to_owned()))
}

/// A connection to a member.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    channel: Channel,
}

impl Connection {
    /// A request that a member without a leader of its own cluster must refuse, instead of never answering.
    pub(super) fn request<T>(message: T) -> Request<T> {
        let mut request = Request::new(message);
        let has_leader = MetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", has_leader);
        request
    }

    pub(super) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    pub(super) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    pub(super) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone())
    }
}

impl From<Status> for StoreError {
    fn from(status: Status) -> Self {
        match status.message() {
            "" => Self(status.code().to_string()),
            message => Self(message.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_named_by_their_urls() {
        let urls = ["http://127.0.0.1:2379/".to_owned(), "http://[::1]:2379".into()];
        let endpoints = Endpoints::new(&urls, Duration::from_secs(1)).expect("usable");
        assert_eq!(endpoints.place(), "http://127.0.0.1:2379, http://[::1]:2379");
    }

    #[test]
    fn an_unusable_endpoint_is_named() {
        for url in ["127.0.0.1:2379", "redis://127.0.0.1", "http://"] {
            let error = Endpoints::new(&[url.to_owned()], Duration::from_secs(1)).expect_err(url);
            let message = error.to_string();
            assert!(
                message.starts_with("replicas.lease.etcd.endpoints: ") && message.contains(url),
                "{message}"
            );
        }
    }
}
