//! Several companions for one gateway: their addresses, and the lease that makes one of them the leader.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The companions of a gateway. The one that holds the lease is the leader and grants; the others are standbys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The addresses of all companions.
    pub companions: Companions,
    /// The address at which filters reach this companion: an IP address that isn't unspecified, and a port above 0. Among
    /// `companions` if they are a list.
    pub advertise: SocketAddr,
    /// The lease of the leader.
    pub lease: Lease,
    /// What one lease is for.
    pub per: Per,
    /// The time from the last renewal of the lease after which another companion may acquire it; 1 s to 60 s.
    pub duration: Duration,
}

/// What a lease covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Per {
    /// All pools have the same leader.
    #[default]
    Gateway,
    /// Each pool has a lease and a leader of its own, and the pools spread over the companions.
    Pool,
}

impl Lease {
    /// Whether this build can keep the lease in etcd.
    #[must_use]
    pub const fn supports_etcd() -> bool {
        cfg!(feature = "etcd")
    }
}

/// The gRPC addresses of all companions of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Companions {
    /// At least one address, without duplicates.
    List(Vec<SocketAddr>),
    /// All addresses of a DNS name. Each companion's `advertise` must be among them.
    Dns {
        /// The name.
        name: String,
        /// The port of every companion; at least 1.
        port: u16,
    },
}

/// The place of the lease that makes one companion the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// A key of etcd.
    Etcd {
        /// The URLs of etcd's members, `http://` or `https://`, at least one, without credentials.
        endpoints: Vec<String>,
        /// The beginning of the keys that Penstock uses, with a slash at its beginning and none at its end.
        prefix: String,
    },
    /// A Lease object in Kubernetes.
    Kubernetes {
        /// The namespace of the object.
        namespace: String,
        /// The name of the object.
        name: String,
    },
    /// A file. All companions run on one machine.
    File(PathBuf),
}
