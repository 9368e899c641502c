//! Several companions with one leader lease.

use std::net::SocketAddr;

use crate::ports::free_addresses;
use crate::wait::until;
use crate::{Companion, Etcd};

/// Companions with the same configuration, and the store of their lease.
pub struct Replicas {
    /// The companions, in the order of `replicas.companions`.
    pub companions: Vec<Companion>,
    /// Where each listens for filters.
    pub addresses: Vec<SocketAddr>,
    /// The store, if the test has started it.
    pub etcd: Option<Etcd>,
}

/// The key `replicas` of the companion that listens on `address`.
#[must_use]
pub fn replicas_key(addresses: &[SocketAddr], address: SocketAddr, lease: &str, more: &str) -> String {
    let companions: Vec<String> = addresses.iter().map(|address| format!("'{address}'")).collect();
    format!(
        "replicas: {{companions: [{}], advertise: '{address}', lease: {lease}{more}}}\n",
        companions.join(", ")
    )
}

/// A lease in etcd that is reached at this URL.
#[must_use]
pub fn etcd_lease(url: &str) -> String {
    format!("{{etcd: {{endpoints: ['{url}']}}}}")
}

impl Replicas {
    /// Starts this many companions with `head` and `pools`, and waits until one leads.
    ///
    /// # Panics
    /// With its log, if one does not start.
    pub async fn start(count: usize, head: &str, pools: &[String]) -> Self {
        let etcd = Etcd::start().await;
        let addresses = free_addresses(count);
        let mut companions = Vec::new();
        for &address in &addresses {
            let key = replicas_key(&addresses, address, &etcd_lease(&etcd.url()), "");
            companions.push(Companion::replica(address, &format!("{key}{head}"), pools).await);
        }
        let replicas = Self { companions, addresses, etcd: Some(etcd) };
        replicas.leader().await;
        replicas
    }

    /// The etcd of the test.
    ///
    /// # Panics
    /// If there is none.
    pub fn etcd(&mut self) -> &mut Etcd {
        self.etcd.as_mut().expect("the lease is in etcd")
    }

    /// Waits until exactly one companion leads and all others that run name it. Returns its place.
    pub async fn leader(&self) -> usize {
        self.leader_of(&(0..self.companions.len()).collect::<Vec<_>>()).await
    }

    /// [`Self::leader`] among the companions at these places.
    pub async fn leader_of(&self, places: &[usize]) -> usize {
        until("one leader", || async {
            let mut leaders = Vec::new();
            let mut pages = Vec::new();
            for &place in places {
                let page = self.companions[place].get("/readyz").await?.json();
                if page["role"] == "leader" {
                    leaders.push(place);
                }
                pages.push(page);
            }
            let [leader] = leaders[..] else {
                return Err(format!("{pages:?}"));
            };
            let address = self.addresses[leader].to_string();
            if pages.iter().all(|page| page["leader"] == address) {
                Ok(leader)
            } else {
                Err(format!("{pages:?}"))
            }
        })
        .await
    }
}
