//! The trusted clients: all clients, or those in trusted networks.

use core::net::IpAddr;

use penstock_wire as wire;

use crate::limits::POLICY_LIST_MAX;

/// The trusted clients. Only they may claim a class, a strict tier or a head start, or restrict the endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// All clients.
    All,
    /// Clients with an address in one of these networks; an empty list trusts no client.
    Networks(Vec<Network>),
}

/// An IP network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Number of leading bits that an address must share.
    prefix: u32,
}

impl Trust {
    /// Parses the trust of a policy. `None` trusts all clients. A malformed network is
    /// skipped, so that it never adds trust.
    #[must_use]
    pub fn new(trust: Option<&wire::Trust>) -> Self {
        match trust {
            None => Self::All,
            Some(trust) if trust.all => Self::All,
            Some(trust) => {
                let networks = trust.networks.iter().take(POLICY_LIST_MAX);
                Self::Networks(networks.filter_map(Network::new).collect())
            }
        }
    }

    /// Whether the claims of the client at this address count. A client without a valid address isn't in any network.
    #[must_use]
    pub fn covers(&self, client: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Networks(networks) => {
                client.and_then(|client| client.parse().ok()).is_some_and(|address: IpAddr| {
                    let address = address.to_canonical();
                    networks.iter().any(|network| network.contains(address))
                })
            }
        }
    }
}

impl Network {
    fn new(network: &wire::Network) -> Option<Self> {
        let bytes = network.address.as_slice();
        let v4 = <[u8; 4]>::try_from(bytes).map(|octets| (IpAddr::from(octets), 32));
        let (address, bits) =
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|octets| (IpAddr::from(octets), 128))).ok()?;
        (network.prefix <= bits).then_some(Self { address, prefix: network.prefix })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (difference, bits) = match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (u128::from(network.to_bits() ^ address.to_bits()), 32_u32)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits() ^ address.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        // Prefix 0 of IPv6 shifts by all 128 bits, for which `checked_shr` returns `None`.
        difference.checked_shr(bits.saturating_sub(self.prefix)).is_none_or(|prefix| prefix == 0)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn network(address: &[u8], prefix: u32) -> wire::Network {
        wire::Network { address: address.to_vec(), prefix }
    }

    fn trust(networks: &[wire::Network]) -> Trust {
        Trust::new(Some(&wire::Trust { all: false, networks: networks.to_vec() }))
    }

    #[test]
    fn trust_covers_all_clients_or_none() {
        let all = wire::Trust { all: true, networks: Vec::new() };
        for trust in [Trust::new(None), Trust::new(Some(&all))] {
            assert!(trust.covers(Some("10.0.0.9")) && trust.covers(None));
        }
        assert!(!trust(&[]).covers(Some("127.0.0.1")));
    }

    #[test]
    fn networks_cover_addresses_with_their_prefix() {
        let v4 = trust(&[network(&[10, 1, 0, 0], 16), network(&[192, 168, 7, 7], 32)]);
        for inside in ["10.1.0.0", "10.1.255.255", "192.168.7.7", "::ffff:10.1.2.3"] {
            assert!(v4.covers(Some(inside)), "{inside}");
        }
        for outside in ["10.2.0.0", "10.0.255.255", "192.168.7.6", "::1", "", "10.1.0.0:80", "chat"] {
            assert!(!v4.covers(Some(outside)), "{outside}");
        }
        let mut half = [0; 16];
        half[0] = 0xfd;
        let v6 = trust(&[network(&half, 8)]);
        assert!(v6.covers(Some("fd00::1")) && v6.covers(Some("fdff::")));
        assert!(!v6.covers(Some("fe00::1")) && !v6.covers(Some("10.1.2.3")));
    }

    #[test]
    fn prefix_0_covers_only_its_own_address_family() {
        let v4 = trust(&[network(&[0; 4], 0)]);
        assert!(v4.covers(Some("1.2.3.4")) && !v4.covers(Some("::1")));
        let v6 = trust(&[network(&[0; 16], 0)]);
        assert!(v6.covers(Some("::1")) && v6.covers(Some("ffff::")) && !v6.covers(Some("1.2.3.4")));
    }

    #[test]
    fn malformed_network_trusts_no_client() {
        let none = trust(&[network(&[0; 4], 33), network(&[0; 16], 129), network(&[0; 5], 0)]);
        assert_eq!(none, Trust::Networks(Vec::new()));
    }
}
