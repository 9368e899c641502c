//! Whose claims count: everybody's, or those of clients in some networks.

use core::net::IpAddr;

use penstock_wire as wire;

use crate::limits::POLICY_LIST_MAX;

/// Which clients are taken at their word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// All of them.
    All,
    /// Those with an address in one of these networks; without any, nobody.
    Networks(Vec<Network>),
}

/// Addresses of one family that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Leading bits that count.
    prefix: u32,
}

impl Trust {
    /// A policy's trust; none is said before version 2, where everybody had it. A network that isn't one is left out:
    /// trust is never more than what was said.
    #[must_use]
    pub fn new(said: Option<&wire::Trust>) -> Self {
        match said {
            None => Self::All,
            Some(said) if said.all => Self::All,
            Some(said) => {
                let networks = said.networks.iter().take(POLICY_LIST_MAX);
                Self::Networks(networks.filter_map(Network::new).collect())
            }
        }
    }

    /// Whether a client's claims count. `client`: its address as text; one that is none is nobody's.
    #[must_use]
    pub fn covers(&self, client: &str) -> bool {
        match self {
            Self::All => true,
            Self::Networks(networks) => client.parse().is_ok_and(|address: IpAddr| {
                let address = address.to_canonical();
                networks.iter().any(|network| network.holds(address))
            }),
        }
    }
}

impl Network {
    fn new(said: &wire::Network) -> Option<Self> {
        let bytes = said.address.as_slice();
        let v4 = <[u8; 4]>::try_from(bytes).map(|it| (IpAddr::from(it), 32));
        let (address, bits) = v4
            .or_else(|_| <[u8; 16]>::try_from(bytes).map(|it| (IpAddr::from(it), 128)))
            .ok()?;
        (said.prefix <= bits).then_some(Self {
            address,
            prefix: said.prefix,
        })
    }

    fn holds(&self, address: IpAddr) -> bool {
        let (differ, bits) = match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => (u128::from(ours.to_bits() ^ theirs.to_bits()), 32_u32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (ours.to_bits() ^ theirs.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        // A shift by all 128 bits leaves nothing, which `checked_shr` says as none.
        differ
            .checked_shr(bits.saturating_sub(self.prefix))
            .is_none_or(|differ| differ == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn network(address: &[u8], prefix: u32) -> wire::Network {
        wire::Network {
            address: address.to_vec(),
            prefix,
        }
    }

    fn trust(networks: &[wire::Network]) -> Trust {
        Trust::new(Some(&wire::Trust {
            all: false,
            networks: networks.to_vec(),
        }))
    }

    #[test]
    fn everybody_or_nobody() {
        let all = wire::Trust {
            all: true,
            networks: Vec::new(),
        };
        for trust in [Trust::new(None), Trust::new(Some(&all))] {
            assert!(trust.covers("10.0.0.9") && trust.covers(""));
        }
        assert!(!trust(&[]).covers("127.0.0.1"));
    }

    #[test]
    fn networks_hold_what_begins_like_them() {
        let v4 = trust(&[network(&[10, 1, 0, 0], 16), network(&[192, 168, 7, 7], 32)]);
        for inside in ["10.1.0.0", "10.1.255.255", "192.168.7.7", "::ffff:10.1.2.3"] {
            assert!(v4.covers(inside), "{inside}");
        }
        for outside in [
            "10.2.0.0",
            "10.0.255.255",
            "192.168.7.6",
            "::1",
            "",
            "10.1.0.0:80",
            "chat",
        ] {
            assert!(!v4.covers(outside), "{outside}");
        }
        let mut half = [0; 16];
        half[0] = 0xfd;
        let v6 = trust(&[network(&half, 8)]);
        assert!(v6.covers("fd00::1") && v6.covers("fdff::"));
        assert!(!v6.covers("fe00::1") && !v6.covers("10.1.2.3"));
    }

    #[test]
    fn a_family_whole_is_that_family_alone() {
        let v4 = trust(&[network(&[0; 4], 0)]);
        assert!(v4.covers("1.2.3.4") && !v4.covers("::1"));
        let v6 = trust(&[network(&[0; 16], 0)]);
        assert!(v6.covers("::1") && v6.covers("ffff::") && !v6.covers("1.2.3.4"));
    }

    #[test]
    fn what_is_no_network_trusts_nobody() {
        let none = trust(&[network(&[0; 4], 33), network(&[0; 16], 129), network(&[0; 5], 0)]);
        assert_eq!(none, Trust::Networks(Vec::new()));
    }
}
