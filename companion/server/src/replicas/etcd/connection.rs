//! Connections to the members of an etcd cluster.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use url::Url;

use super::super::Error;
use super::super::store::StoreError;
use super::generated::AuthenticateRequest;
use super::generated::auth_client::AuthClient;
use super::generated::kv_client::KvClient;
use super::generated::lease_client::LeaseClient;
use super::generated::watch_client::WatchClient;

/// Time between two pings on a connection. A member closes a connection with more than one in 5 s (etcd's default of
/// `--grpc-keepalive-min-time`).
const KEEPALIVE: Duration = Duration::from_secs(6);

/// The members of a cluster.
#[derive(Debug)]
pub(super) struct Endpoints {
    members: Vec<Member>,
    /// The member of the last connection; a new connection goes to the next one.
    attempts: AtomicUsize,
    /// The members' URLs, without a password.
    place: String,
}

#[derive(Debug)]
struct Member {
    endpoint: Endpoint,
    user: Option<User>,
}

struct User {
    name: String,
    password: String,
}

impl std::fmt::Debug for User {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("User")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
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
        Ok(Self {
            members,
            attempts: AtomicUsize::new(0),
            place: places.join(", "),
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Connects to the next member, and authenticates.
    pub(super) async fn connect(&self) -> Result<Connection, StoreError> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let none = || StoreError("no endpoint is configured".into());
        let number = attempt.checked_rem(self.members.len()).ok_or_else(none)?;
        let Member { endpoint, user } = &self.members[number];
        let channel = endpoint.connect().await.map_err(|why| StoreError::new(&why))?;
        let mut connection = Connection { channel, token: None };
        if let Some(User { name, password }) = user {
            let request = AuthenticateRequest {
                name: name.clone(),
                password: password.clone(),
            };
            let mut auth = AuthClient::new(connection.channel.clone());
            let token = auth.authenticate(request).await?.into_inner().token;
            let unusable = |_| StoreError("etcd's token has characters that a header can't have".into());
            connection.token = Some(token.parse().map_err(unusable)?);
        }
        Ok(connection)
    }
}

/// A member, and its URL without a password.
fn member(text: &str, answer_max: Duration) -> Result<(Member, String), Error> {
    let failed = |endpoint: &str, why: &dyn std::fmt::Display| Error::Endpoint {
        endpoint: endpoint.to_owned(),
        why: why.to_string(),
    };
    let mut url = Url::parse(text).map_err(|why| failed("URL", &why))?;
    let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let password = url.password().map(decode);
    let user = password.map(|password| User {
        name: decode(url.username()),
        password,
    });
    // Fails for URLs without a host, which the next steps refuse.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    let place = url.to_string();
    if !matches!(url.scheme(), "http" | "https") {
        return Err(failed(&place, &"the scheme must be http or https"));
    }
    let mut endpoint = Endpoint::from_shared(place.clone())
        .map_err(|why| failed(&place, &why))?
        .connect_timeout(answer_max)
        // A member that no longer answers ends the watch on its connection.
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(answer_max)
        .keep_alive_while_idle(true);
    if url.scheme() == "https" {
        endpoint = endpoint
            .tls_config(ClientTlsConfig::new().with_native_roots())
            .map_err(|why| failed(&place, &penstock_errors::root_cause(&why)))?;
    }
    let place = place.trim_end_matches('/').to_owned();
    Ok((Member { endpoint, user }, place))
}

/// A connection to a member.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl Connection {
    /// A request with the token. A member without a leader of its own cluster must refuse it, instead of never answering.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("authorization", token.clone());
        }
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
    fn a_password_is_taken_from_the_url_and_never_shown() {
        let urls = [
            "http://me:s%40cret@127.0.0.1:2379".to_owned(),
            "http://[::1]:2379".into(),
        ];
        let endpoints = Endpoints::new(&urls, Duration::from_secs(1)).expect("usable");
        assert_eq!(endpoints.place(), "http://127.0.0.1:2379, http://[::1]:2379");
        let user = endpoints.members[0].user.as_ref().expect("in the URL");
        assert_eq!((&*user.name, &*user.password), ("me", "s@cret"));
        assert!(endpoints.members[1].user.is_none());
        assert!(!format!("{endpoints:?}").contains("cret"));
    }

    #[test]
    fn an_unusable_endpoint_is_named_without_its_password() {
        for url in ["127.0.0.1:2379", "redis://me:secret@127.0.0.1", "http://"] {
            let error = Endpoints::new(&[url.to_owned()], Duration::from_secs(1)).expect_err(url);
            let message = error.to_string();
            assert!(
                message.starts_with("replicas.lease.etcd.endpoints: "),
                "{message}"
            );
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
