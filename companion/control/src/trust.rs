//! What the word of a client counts for that isn't trusted: it may claim less than others, never more.
//!
//! Its priority only lowers, its identities fall into a few flows of its own address, and all else it claims is as if
//! it hadn't. A filter of version 1 judges nobody; for those the policy's networks are asked here.

use core::net::{IpAddr, Ipv6Addr};
use std::borrow::Cow;

use penstock_engine::input::Band;
use penstock_wire as wire;

use crate::control::Control;
use crate::convert;
use crate::settings::MaxPriority;

/// Flows that one address may have, or one /64 of IPv6.
const FLOWS_PER_ADDRESS: u64 = 64;
/// An address that nobody knows.
const UNKNOWN: &str = "unknown";

/// A registration as far as it counts, and whether its client is trusted.
pub(crate) fn counted<'a>(
    from: &'a wire::Register,
    version: u32,
    policy: &wire::Policy,
) -> (Cow<'a, wire::Register>, bool) {
    let trust = policy.identity.as_ref().and_then(|it| it.trust.as_ref());
    if !from.untrusted && (version >= 2 || trust.is_none_or(|trust| is_trusted(trust, &from.client))) {
        return (Cow::Borrowed(from), true);
    }
    let register = wire::Register {
        fairness_id: flow_of_address(&from.client, &from.fairness_id),
        user: flow_of_address(&from.client, &from.user),
        class: String::new(),
        strict: None,
        jump_s: None,
        subset: Vec::new(),
        pin: String::new(),
        tolerations: Vec::new(),
        ..from.clone()
    };
    (Cow::Owned(register), false)
}

/// The band that a client of no trust gets for what it claims.
pub(crate) const fn lowered(claimed: Band) -> Band {
    match claimed {
        Band::Critical | Band::Default => Band::Default,
        Band::Sheddable => Band::Sheddable,
    }
}

/// The band that a request gets for what it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) band: Band,
    /// It claims a higher one.
    pub(crate) is_lowered: bool,
}

impl Control {
    /// What a request's claim comes to. `tenant`: the fairness identity as its client said it. One that isn't trusted can
    /// lower its own ceiling by what it calls itself, and never raise it.
    pub(crate) fn claim(&self, from: &wire::Register, tenant: &str, trusted: bool) -> Claim {
        let claimed = convert::band(&from.priority, &self.settings.objectives);
        let MaxPriority { default, tenants } = &self.settings.max_priority;
        // The less critical one is the greater.
        let within = |band: Band, ceiling: Option<Band>| ceiling.map_or(band, |ceiling| band.max(ceiling));
        let own = tenants.get(tenant).copied();
        let band = if trusted {
            within(claimed, own.or(*default))
        } else {
            within(within(lowered(claimed), own), *default)
        };
        Claim {
            band,
            is_lowered: band != claimed && !from.priority.trim().is_empty(),
        }
    }
}

/// One of an address's flows, the same for the same identity; no identity is none.
fn flow_of_address(client: &str, identity: &str) -> String {
    if identity.is_empty() {
        return String::new();
    }
    let flow = hash(identity) % FLOWS_PER_ADDRESS;
    match client.parse().map(|it: IpAddr| it.to_canonical()) {
        Ok(IpAddr::V4(address)) => format!("{address}/{flow:02}"),
        // One customer has a whole network of the lower half, and so as many addresses as it likes.
        Ok(IpAddr::V6(address)) => {
            let network = Ipv6Addr::from_bits(address.to_bits() >> 64 << 64);
            format!("{network}/{flow:02}")
        }
        Err(_) if client.is_empty() => format!("{UNKNOWN}/{flow:02}"),
        Err(_) => format!("{client}/{flow:02}"),
    }
}

/// The same for the same text in every run and build: FNV-1a, its upper bits folded in. Who knows it can choose which of
/// its own few flows it fills, and nothing else.
fn hash(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 32)
}

fn is_trusted(trust: &wire::Trust, client: &str) -> bool {
    let Ok(client) = client.parse::<IpAddr>() else {
        return trust.all;
    };
    let client = client.to_canonical();
    trust.all || trust.networks.iter().any(|network| is_in(network, client))
}

fn is_in(network: &wire::Network, client: IpAddr) -> bool {
    let client = match client {
        IpAddr::V4(client) => client.octets().to_vec(),
        IpAddr::V6(client) => client.octets().to_vec(),
    };
    let bits = usize::try_from(network.prefix).unwrap_or(usize::MAX);
    if client.len() != network.address.len() || bits > 8 * client.len() {
        return false;
    }
    client
        .iter()
        .zip(&network.address)
        .enumerate()
        .all(|(at, (a, b))| {
            let bits = bits.saturating_sub(8 * at).min(8);
            u32::from(a ^ b) >> (8 - bits) == 0
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_network_has_the_flows_of_one_address() {
        let of = |client: &str| flow_of_address(client, "acme");
        assert_eq!(of("2001:db8:1:2:aaaa::1"), of("2001:db8:1:2:bbbb::7"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.1.2.3"), of("10.1.2.3"));
        assert_ne!(of("10.1.2.3"), of("10.1.2.4"));
        assert!(of("").starts_with("unknown/"), "{}", of(""));
    }

    fn claims() -> wire::Register {
        wire::Register {
            sequence: 1,
            fairness_id: "acme".into(),
            user: "u".into(),
            priority: "critical".into(),
            class: "batch".into(),
            strict: Some(1),
            jump_s: Some(1),
            client: "10.1.2.3".into(),
            subset: vec!["a".into()],
            pin: "a".into(),
            tolerations: vec!["t".into()],
            untrusted: true,
            ..Default::default()
        }
    }

    fn policy(networks: &[(&[u8], u32)]) -> wire::Policy {
        let network = |(address, prefix): &(&[u8], u32)| wire::Network {
            address: address.to_vec(),
            prefix: *prefix,
        };
        let trust = wire::Trust {
            all: false,
            networks: networks.iter().map(network).collect(),
        };
        wire::Policy {
            identity: Some(wire::Identity {
                trust: Some(trust),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn of_an_untrusted_client_little_counts() {
        let said = claims();
        let (counts, trusted) = counted(&said, 2, &wire::Policy::default());
        let expected = wire::Register {
            sequence: 1,
            fairness_id: "10.1.2.3/12".into(),
            user: "10.1.2.3/60".into(),
            priority: "critical".into(),
            client: "10.1.2.3".into(),
            untrusted: true,
            ..Default::default()
        };
        assert_eq!((&*counts, trusted), (&expected, false));
    }

    #[test]
    fn an_address_has_few_flows_and_no_identity_is_none() {
        let flows: std::collections::BTreeSet<_> = (0..10_000)
            .map(|id| flow_of_address("::1", &format!("t{id}")))
            .collect();
        assert_eq!(flows.len() as u64, FLOWS_PER_ADDRESS);
        assert_eq!(flows.first().map(String::as_str), Some("::/00"));
        assert_eq!(flow_of_address("::1", ""), "");
        assert!(flow_of_address("", "a").starts_with("unknown/"));
    }

    #[test]
    fn an_old_filters_clients_are_judged_here() {
        let trusted = |version, client: &str, policy: &wire::Policy| {
            let said = wire::Register {
                untrusted: false,
                client: client.into(),
                ..claims()
            };
            counted(&said, version, policy).1
        };
        let none = policy(&[]);
        assert!(
            trusted(1, "10.1.2.3", &wire::Policy::default()),
            "no word of it: all"
        );
        assert!(trusted(2, "10.1.2.3", &none), "the filter has judged");
        assert!(!trusted(1, "10.1.2.3", &none));
        let some = policy(&[(&[10, 0, 0, 0], 9), (&[0xfd; 16], 128)]);
        for (client, is) in [
            ("10.127.0.1", true),
            ("10.128.0.1", false),
            ("::ffff:10.0.0.1", true),
            ("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd", true),
            ("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfc", false),
            ("", false),
        ] {
            assert_eq!(trusted(1, client, &some), is, "{client}");
        }
    }

    #[test]
    fn priority_only_lowers() {
        let all = [Band::Critical, Band::Default, Band::Sheddable];
        assert_eq!(all.map(lowered), [Band::Default, Band::Default, Band::Sheddable]);
    }
}
