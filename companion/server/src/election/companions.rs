//! Reaches other companions, and asks them: to leave a pool to this one, which the pool prefers, and whether they ask for one.

#[expect(
    unreachable_pub,
    clippy::allow_attributes,
    reason = "generated code"
)]
#[rustfmt::skip]
mod generated;

use std::net::SocketAddr;
use std::time::Duration;

use penstock_config::{self as config, Replicas, Tls};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use self::generated::companions_client::CompanionsClient;
pub(crate) use self::generated::companions_server::{Companions, CompanionsServer};
pub(crate) use self::generated::{ClaimsRequest, ClaimsResponse, YieldRequest, YieldResponse};
use crate::base::tls;

/// How long another companion may take to accept a connection, and to answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Bytes of a message. Names and addresses are short.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4_096;

/// Why another companion can't be reached, or didn't answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// The certificates can't be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The connection failed.
    #[error("{}", penstock_errors::root_cause(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("{}", .0.message())]
    Answer(#[from] Status),
}

/// How companions reach each other.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    /// Where this companion listens for filters and other companions.
    own: SocketAddr,
    companions: config::Companions,
    /// With mutual TLS, the files.
    tls: Option<Tls>,
}

impl Peers {
    pub(crate) fn new(replicas: &Replicas, tls: Option<&Tls>) -> Self {
        Self { own: replicas.advertise, companions: replicas.companions.clone(), tls: tls.cloned() }
    }

    /// Connects to the companion at `address`.
    ///
    /// # Errors
    /// If the address or the certificates can't be used, or the connection fails.
    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        with: impl Fn(Endpoint) -> Endpoint,
    ) -> Result<Channel, PeerError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint =
            Endpoint::from_shared(format!("{scheme}://{address}"))?.connect_timeout(ANSWER_MAX);
        if let Some(tls) = &self.tls {
            // The certificates of companions with a name are valid for it, others for their addresses.
            let name = match &self.companions {
                config::Companions::Dns { name, .. } => Some(name.as_str()),
                config::Companions::List(_) => None,
            };
            endpoint = tls::apply_to_client(endpoint, tls, name)?;
        }
        // The endpoint's own limit doesn't cover the handshake of TLS.
        let connected = tokio::time::timeout(ANSWER_MAX, with(endpoint).connect()).await;
        Ok(connected.map_err(|_| Status::deadline_exceeded("it doesn't accept connections in time"))??)
    }

    /// Asks the companion at `leader` to leave a pool to this one. Returns whether it does.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub(crate) async fn claim(&self, pool: &str, leader: SocketAddr) -> Result<bool, PeerError> {
        let request = YieldRequest { pool: pool.to_owned(), address: self.own.to_string() };
        // The leader asks back before it answers.
        let mut client = self.client(leader, ANSWER_MAX * 3).await?;
        Ok(client.r#yield(request).await?.into_inner().yields)
    }

    /// Asks the companion at `address` whether it is asking for a pool.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub(crate) async fn has_claim(&self, pool: &str, address: SocketAddr) -> Result<bool, PeerError> {
        let pool = pool.to_owned();
        let mut client = self.client(address, ANSWER_MAX).await?;
        Ok(client.claims(ClaimsRequest { pool }).await?.into_inner().claims)
    }

    async fn client(
        &self,
        address: SocketAddr,
        answer_max: Duration,
    ) -> Result<CompanionsClient<Channel>, PeerError> {
        let channel = self.connect(address, |endpoint| endpoint.timeout(answer_max)).await?;
        Ok(CompanionsClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
    }
}
