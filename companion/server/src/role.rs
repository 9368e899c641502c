//! The role of this companion among several, as the HTTP API and the metrics show it.

use std::net::SocketAddr;

use penstock_config::{Companions, Replicas};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The role of this companion. Only with `replicas`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// This companion leads: it grants. Otherwise it is a standby.
    pub is_leader: bool,
    /// The leader's term; 0: unknown.
    pub term: u64,
    /// Where the leader listens for filters, `ip:port`; of a leader, its own address. `None`: no leader is known.
    pub leader: Option<String>,
}

impl Role {
    /// The role in one word.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        if self.is_leader { "leader" } else { "standby" }
    }

    /// The object `replicas` of `/status`.
    #[must_use]
    pub fn status(&self, replicas: &Replicas) -> Value {
        let companions: Vec<String> = match &replicas.companions {
            Companions::List(addresses) => addresses.iter().map(SocketAddr::to_string).collect(),
            Companions::Dns { name, port } => vec![format!("{name}:{port}")],
        };
        json!({
            "role": self.as_str(),
            "term": self.term,
            "leader": self.leader,
            "companions": companions,
        })
    }
}

/// Follows the role of this companion; `None` without `replicas`.
pub type RoleReceiver = Option<watch::Receiver<Role>>;

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "127.0.0.1:9290";

    #[test]
    fn status_names_the_companions_of_a_list_or_of_a_name() {
        let role = Role {
            is_leader: false,
            term: 7,
            leader: Some(OTHER.into()),
        };
        for (companions, expected) in [
            (
                Companions::List(vec![OTHER.parse().expect("an address")]),
                json!([OTHER]),
            ),
            (
                Companions::Dns {
                    name: "companions.models".into(),
                    port: 9190,
                },
                json!(["companions.models:9190"]),
            ),
        ] {
            let replicas = Replicas {
                companions,
                advertise: OTHER.parse().expect("an address"),
                lease: penstock_config::Lease::File("l".into()),
                duration: std::time::Duration::from_secs(3),
            };
            let status = role.status(&replicas);
            assert_eq!(
                status,
                json!({"role": "standby", "term": 7, "leader": OTHER, "companions": expected})
            );
        }
    }
}
