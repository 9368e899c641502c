//! A root context of a filter, over all its streams.

use hashbrown::HashMap;
use penstock_engine::Instant;

use crate::ended_requests::EndedRequests;
use crate::ids::{ConnId, EnvoyId, Origin, Peer, Route};

/// A root context and the routes of its requests.
#[derive(Debug)]
pub(crate) struct RootContext {
    /// The root context's stream; `None` while it is orphaned.
    pub(crate) conn: Option<ConnId>,
    /// The number of its stream. A Hello with a lower number is out of date.
    pub(crate) stream: u32,
    /// Envoy's node name.
    pub(crate) node: Box<str>,
    pub(crate) envoy: EnvoyId,
    /// As [`Peer::can_requeue`].
    pub(crate) can_requeue: bool,
    pub(crate) origin: Origin,
    /// The time at which its last stream ended, while it is orphaned.
    pub(crate) orphaned_since: Option<Instant>,
    /// Digest of the endpoints that it knew when its session opened, or that were sent then.
    pub(crate) endpoints_digest: u64,
    /// The last time at which it is known to have followed this companion.
    pub(crate) followed_at: Instant,
    /// The root context's requests that haven't ended, by sequence number.
    pub(crate) requests: HashMap<u64, Route>,
    /// Granted requests that its last Hello didn't name. They are released at the next beat, unless their end is reported
    /// before.
    pub(crate) unconfirmed: Vec<Route>,
    /// The root context's requests that have ended.
    pub(crate) ended: EndedRequests,
}

impl RootContext {
    /// A root context without a stream.
    pub(crate) fn new(envoy: EnvoyId, origin: Origin) -> Self {
        Self {
            conn: None,
            stream: 0,
            node: Box::default(),
            envoy,
            can_requeue: false,
            origin,
            orphaned_since: None,
            endpoints_digest: 0,
            followed_at: Instant::ZERO,
            requests: HashMap::new(),
            unconfirmed: Vec::new(),
            ended: EndedRequests::default(),
        }
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.conn.is_some()
    }

    pub(crate) const fn peer(&self) -> Peer {
        Peer { envoy: self.envoy, can_requeue: self.can_requeue }
    }

    /// The root context's requests in the order of their ids, which is the order in which they came.
    pub(crate) fn routes(&self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.requests.values().copied().collect();
        routes.sort_unstable_by_key(|route| route.id);
        routes
    }
}
