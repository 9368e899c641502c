//! The claims of clients that aren't trusted: such a client may claim less than a trusted one, never more.
//!
//! Such a client's priority can only lower the band, its identities become a few flows of its own address, and every other claim is
//! ignored. A tenant that an API key has verified is no claim: it counts for clients that aren't trusted too.
//! The filter compares addresses with the policy's networks.

use core::net::{IpAddr, Ipv6Addr};

use penstock_engine::input::Band;
use penstock_engine::policy::MaxPriority;

use crate::registration::Registration;

/// Flows that one IPv4 address or one /64 network of IPv6 may have.
const FLOWS_PER_ADDRESS: u64 = 64;
/// Stands for an address that the filter doesn't know.
const UNKNOWN: &str = "unknown";

/// The band of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) band: Band,
    /// The client claimed a higher band.
    pub(crate) is_lowered: bool,
}

/// Removes the claims that the client may not make, and returns its band. `objective`: the band of an objective in the request's pool.
pub(crate) fn apply(
    registration: &mut Registration<'_>,
    objective: impl FnOnce(&str) -> Option<Band>,
    ceilings: &MaxPriority,
) -> Claim {
    // The ceiling is that of the tenant which the client names. Unless the tenant is verified, a client without trust can only
    // lower its own band by it.
    let claim = claim(registration, objective, ceilings);
    if registration.is_untrusted {
        restrict(registration);
    }
    claim
}

fn restrict(registration: &mut Registration<'_>) {
    if !registration.is_tenant_verified {
        registration.tenant = flow_of_address(registration.client, &registration.tenant).into();
    }
    registration.user = flow_of_address(registration.client, &registration.user).into();
    registration.class = "";
    registration.strict = 0;
    registration.head_start = core::time::Duration::ZERO;
    if !registration.is_subset_of_gateway {
        registration.subset = &[];
    }
    registration.pin = None;
    registration.tolerations = &[];
}

fn claim(
    registration: &Registration<'_>,
    objective: impl FnOnce(&str) -> Option<Band>,
    ceilings: &MaxPriority,
) -> Claim {
    let claimed = band(registration.priority, objective);
    let band = within_ceiling(claimed, registration, ceilings);
    Claim { band, is_lowered: band != claimed && !registration.priority.trim().is_empty() }
}

/// The band that a request gets for a claim.
fn within_ceiling(claimed: Band, registration: &Registration<'_>, ceilings: &MaxPriority) -> Band {
    let MaxPriority { default, tenants } = ceilings;
    // A less critical band is the greater value.
    let within = |band: Band, ceiling: Option<Band>| ceiling.map_or(band, |ceiling| band.max(ceiling));
    let own_ceiling = tenants.get(&*registration.tenant).copied();
    let claimable = if registration.is_untrusted { lowered(claimed) } else { claimed };
    if !registration.is_untrusted || registration.is_tenant_verified {
        within(claimable, own_ceiling.or(*default))
    } else {
        within(within(claimable, own_ceiling), *default)
    }
}

/// The band of a claim: a band's name, or an objective's. Every other text is the default band.
fn band(claim: &str, objective: impl FnOnce(&str) -> Option<Band>) -> Band {
    let claim = claim.trim();
    let is_one_of = |names: [&str; 2]| names.iter().any(|name| claim.eq_ignore_ascii_case(name));
    if is_one_of(["critical", "high"]) {
        Band::Critical
    } else if is_one_of(["default", "normal"]) {
        Band::Default
    } else if is_one_of(["sheddable", "low"]) {
        Band::Sheddable
    } else {
        objective(claim).unwrap_or(Band::Default)
    }
}

/// The band that a client without trust gets for a claim.
const fn lowered(claimed: Band) -> Band {
    match claimed {
        Band::Critical | Band::Default => Band::Default,
        Band::Sheddable => Band::Sheddable,
    }
}

/// One of the address's flows, always the same one for an identity. Without an identity there is no flow.
fn flow_of_address(client: &str, identity: &str) -> String {
    if identity.is_empty() {
        return String::new();
    }
    let flow = hash(identity) % FLOWS_PER_ADDRESS;
    match client.parse().map(|address: IpAddr| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => format!("{address}/{flow:02}"),
        // A provider gives one customer a whole /64 network, so the customer chooses the lower half freely.
        Ok(IpAddr::V6(address)) => {
            let network = Ipv6Addr::from_bits(address.to_bits() >> 64 << 64);
            format!("{network}/{flow:02}")
        }
        Err(_) if client.is_empty() => format!("{UNKNOWN}/{flow:02}"),
        Err(_) => format!("{client}/{flow:02}"),
    }
}

/// FNV-1a with its upper bits folded in: the same in every run and build. A client that knows it can choose between the
/// flows of one address, and nothing else.
fn hash(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use penstock_wire as wire;

    use super::*;
    use crate::ids::Epoch;
    use crate::wire_in;

    fn parsed(message: &wire::Register) -> Registration<'_> {
        wire_in::registration(Epoch::from_bits(1), message)
    }

    #[test]
    fn a_network_has_the_flows_of_one_address() {
        let flow = |client: &str| flow_of_address(client, "acme");
        assert_eq!(flow("2001:db8:1:2:aaaa::1"), flow("2001:db8:1:2:bbbb::7"));
        assert_ne!(flow("2001:db8:1:2::1"), flow("2001:db8:1:3::1"));
        assert_eq!(flow("::ffff:10.1.2.3"), flow("10.1.2.3"));
        assert_ne!(flow("10.1.2.3"), flow("10.1.2.4"));
        assert!(flow("").starts_with("unknown/"), "{}", flow(""));
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

    #[test]
    fn a_verified_tenant_of_a_client_without_trust_stays() {
        let message = wire::Register { tenant_verified: true, ..claims() };
        let mut registration = parsed(&message);
        restrict(&mut registration);
        assert_eq!((&*registration.tenant, &*registration.user), ("acme", "10.1.2.3/60"));
        assert_eq!((registration.class, registration.pin), ("", None));
    }

    #[test]
    fn the_subset_of_the_gateway_counts_whoever_the_client_is() {
        let message = wire::Register { gateway_subset: true, ..claims() };
        let mut registration = parsed(&message);
        restrict(&mut registration);
        assert_eq!((registration.subset, registration.pin), (&["a".to_owned()][..], None));
    }

    #[test]
    fn the_ceiling_of_a_verified_tenant_replaces_the_default() {
        let max_priority = MaxPriority {
            default: Some(Band::Sheddable),
            tenants: [("acme".to_owned(), Band::Critical)].into_iter().collect(),
        };
        let band_of = |tenant_verified| {
            let message = wire::Register { tenant_verified, ..claims() };
            within_ceiling(Band::Critical, &parsed(&message), &max_priority)
        };
        assert_eq!(band_of(false), Band::Sheddable);
        assert_eq!(
            band_of(true),
            Band::Default,
            "its claim of a priority is still that of a client without trust"
        );
    }

    #[test]
    fn claims_of_a_client_without_trust_are_removed() {
        let message = claims();
        let mut registration = parsed(&message);
        restrict(&mut registration);
        let expected = wire::Register {
            sequence: 1,
            fairness_id: "10.1.2.3/12".into(),
            user: "10.1.2.3/60".into(),
            priority: "critical".into(),
            client: "10.1.2.3".into(),
            untrusted: true,
            ..Default::default()
        };
        assert_eq!(registration, parsed(&expected));
    }

    #[test]
    fn an_address_has_few_flows_and_none_without_an_identity() {
        let flows: std::collections::BTreeSet<_> =
            (0..10_000).map(|id| flow_of_address("::1", &format!("t{id}"))).collect();
        assert_eq!(flows.len() as u64, FLOWS_PER_ADDRESS);
        assert_eq!(flows.first().map(String::as_str), Some("::/00"));
        assert_eq!(flow_of_address("::1", ""), "");
        assert!(flow_of_address("", "a").starts_with("unknown/"));
    }

    #[test]
    fn claims_become_bands() {
        let objective = |name: &str| (name == "chat-gold").then_some(Band::Critical);
        let cases = [
            (" HIGH ", Band::Critical),
            ("critical", Band::Critical),
            ("Normal", Band::Default),
            ("low", Band::Sheddable),
            ("chat-gold", Band::Critical),
            ("urgent!", Band::Default),
            ("", Band::Default),
        ];
        for (claim, expected) in cases {
            assert_eq!(band(claim, objective), expected, "{claim}");
        }
    }

    #[test]
    fn a_priority_without_trust_can_only_lower_the_band() {
        let all = [Band::Critical, Band::Default, Band::Sheddable];
        assert_eq!(all.map(lowered), [Band::Default, Band::Default, Band::Sheddable]);
    }
}
