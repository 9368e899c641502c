//! The token that authenticates a requeued request: the facts of its first pass through the filter, signed with a key that
//! only the workers of this Envoy share.
//!
//! Envoy passes the token to the requeue listener alone, which clients can't reach, and to no server. The signature is
//! SipHash-2-4 with 128 bits over the whole content (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012).

use core::hash::Hasher;

use penstock_wire::limits::NAME_BYTES_MAX;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::hex::{hex_byte, push_hex};
use crate::limits::LIST_ENTRY_BYTES_MAX;
use crate::process_identity::SigningKey;
use crate::session::Epoch;
use crate::time::Instant;

/// The facts of a requeued request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequeueToken {
    /// The key of the request before it was requeued: epoch and sequence.
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u64,
    /// How often the request was requeued, this time included.
    pub(crate) requeues: u32,
    /// When the request arrived at the gateway.
    pub(crate) arrived: Instant,
    /// The client's address. At the requeue listener, the client of the connection is this Envoy.
    pub(crate) client: Option<String>,
    /// The tenant that an API key has verified. The key may have been removed from the request.
    pub(crate) tenant: Option<String>,
    /// The endpoint at which the request was admitted by credit; `None`: the companion granted it.
    pub(crate) leased_endpoint: Option<String>,
    /// The model that the client requested; `None`: the body still names it.
    pub(crate) requested_model: Option<String>,
}

const TAG_BYTES: usize = 16;
const FIXED_BYTES: usize = 38;
const BYTES_MAX: usize =
    TAG_BYTES + FIXED_BYTES + LENGTH_BYTES + 3 * NAME_BYTES_MAX + 1 + LIST_ENTRY_BYTES_MAX;
/// Bytes of a length.
const LENGTH_BYTES: usize = 2;
/// Set in the length of the addresses: the length of a tenant follows.
const HAS_TENANT: u16 = 1 << 15;
const _: () = assert!(NAME_BYTES_MAX + 1 + LIST_ENTRY_BYTES_MAX < HAS_TENANT as usize);
/// Between the client's address and the leased endpoint. Neither contains it.
const SEPARATOR: u8 = 0;

impl RequeueToken {
    /// The token as a header value, in hexadecimal digits: the tag, four numbers of 8 bytes, one of 4 and one of 2 (the
    /// length of the client's address), little endian, then the address and the model. An absent string is empty. A filter
    /// of the previous release may read it during an update.
    ///
    /// With a tenant, the length has the bit `HAS_TENANT`, the tenant's length follows it, and the tenant follows the address.
    /// The previous release refuses such a token: it would give the request another tenant.
    ///
    /// A leased endpoint is appended to the address, after a zero byte. The previous release takes it for a part of the client's
    /// address. No trusted network contains such an address, so that filter treats the client as untrusted.
    pub(crate) fn sign(&self, key: &SigningKey) -> String {
        self.sign_after("", key)
    }

    /// The same after `prefix`.
    pub(crate) fn sign_after(&self, prefix: &str, key: &SigningKey) -> String {
        let numbers = [self.epoch.hi, self.epoch.lo, self.sequence, self.arrived.as_nanos()];
        let client = self.client.as_deref().unwrap_or_default();
        let model = self.requested_model.as_deref().unwrap_or_default();
        let tenant = self.tenant.as_deref().unwrap_or_default();
        let leased = self.leased_endpoint.as_deref();
        let leased_length = leased.map_or(0, |endpoint| endpoint.len().saturating_add(1));
        let addresses_length = client.len().saturating_add(leased_length);
        let strings = addresses_length.saturating_add(tenant.len()).saturating_add(model.len());
        let mut content =
            Vec::with_capacity(strings.saturating_add(FIXED_BYTES).saturating_add(LENGTH_BYTES));
        for number in numbers {
            content.extend_from_slice(&number.to_le_bytes());
        }
        content.extend_from_slice(&self.requeues.to_le_bytes());
        // Each string has a limit, so its length always fits.
        let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
        if tenant.is_empty() {
            content.extend_from_slice(&length(addresses_length).to_le_bytes());
        } else {
            content.extend_from_slice(&(length(addresses_length) | HAS_TENANT).to_le_bytes());
            content.extend_from_slice(&length(tenant.len()).to_le_bytes());
        }
        content.extend_from_slice(client.as_bytes());
        if let Some(endpoint) = leased {
            content.push(SEPARATOR);
            content.extend_from_slice(endpoint.as_bytes());
        }
        content.extend_from_slice(tenant.as_bytes());
        content.extend_from_slice(model.as_bytes());
        let digits = content.len().saturating_add(TAG_BYTES).saturating_mul(2);
        let mut text = String::with_capacity(prefix.len().saturating_add(digits));
        text.push_str(prefix);
        push_hex(&mut text, &tag(key, &content));
        push_hex(&mut text, &content);
        text
    }

    /// Parses and verifies a header value; `None`: this Envoy hasn't signed it.
    pub(crate) fn verify(text: &[u8], key: &SigningKey) -> Option<Self> {
        if text.len() > 2 * BYTES_MAX {
            return None;
        }
        let (pairs, rest) = text.as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().map(|pair| hex_byte(*pair)).collect::<Option<_>>()?;
        let (signed, content) = bytes.split_first_chunk::<TAG_BYTES>()?;
        // Compares in constant time, so that the duration doesn't reveal the first wrong byte.
        let pairs = signed.iter().zip(tag(key, content));
        let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
        if difference != 0 || !rest.is_empty() {
            return None;
        }
        let (numbers, content) = content.split_first_chunk::<32>()?;
        let (requeues, content) = content.split_first_chunk()?;
        let (length, content) = content.split_first_chunk()?;
        let length = u16::from_le_bytes(*length);
        let (tenant_length, content) = if length & HAS_TENANT == 0 {
            (0, content)
        } else {
            let (length, content) = content.split_first_chunk()?;
            (u16::from_le_bytes(*length), content)
        };
        let (addresses, content) = content.split_at_checked((length & !HAS_TENANT).into())?;
        let (tenant, model) = content.split_at_checked(tenant_length.into())?;
        let mut addresses = addresses.splitn(2, |byte| *byte == SEPARATOR);
        let client = addresses.next().unwrap_or_default();
        let leased_endpoint = addresses.next().unwrap_or_default();
        let numbers = numbers.as_chunks().0;
        let [hi, lo, sequence, arrived] = *numbers.first_chunk()?;
        Some(Self {
            epoch: Epoch { hi: u64::from_le_bytes(hi), lo: u64::from_le_bytes(lo) },
            sequence: u64::from_le_bytes(sequence),
            requeues: u32::from_le_bytes(*requeues),
            arrived: Instant::from_nanos(u64::from_le_bytes(arrived)),
            client: non_empty(client)?,
            tenant: non_empty(tenant)?,
            leased_endpoint: non_empty(leased_endpoint)?,
            requested_model: non_empty(model)?,
        })
    }
}

/// The string, or an inner `None` if it is empty; an outer `None` if it isn't UTF-8.
#[expect(clippy::option_option, reason = "the outer option is the error")]
fn non_empty(bytes: &[u8]) -> Option<Option<String>> {
    let text = core::str::from_utf8(bytes).ok()?;
    Some((!text.is_empty()).then(|| text.to_owned()))
}

fn tag(key: &SigningKey, content: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(content);
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    const KEY: SigningKey = [3; 16];

    fn token() -> RequeueToken {
        RequeueToken {
            epoch: Epoch { hi: u64::MAX, lo: 2 },
            sequence: 0x1234_5678_9abc_def0,
            requeues: 3,
            arrived: Instant::from_nanos(5),
            client: Some("2001:db8::9".into()),
            tenant: None,
            leased_endpoint: None,
            requested_model: Some("chat".into()),
        }
    }

    #[test]
    fn signed_token_verifies() {
        let signed = token().sign(&KEY);
        assert_eq!(signed.len(), 2 * (TAG_BYTES + FIXED_BYTES + 11 + 4));
        assert_eq!(RequeueToken::verify(signed.as_bytes(), &KEY), Some(token()));
        let anonymous = RequeueToken { client: None, requested_model: None, ..token() };
        assert_eq!(RequeueToken::verify(anonymous.sign(&KEY).as_bytes(), &KEY), Some(anonymous));
        let verified =
            RequeueToken { client: None, tenant: Some("acme".into()), requested_model: None, ..token() };
        assert_eq!(RequeueToken::verify(verified.sign(&KEY).as_bytes(), &KEY), Some(verified));
        let longest = RequeueToken {
            client: Some("x".repeat(NAME_BYTES_MAX)),
            tenant: Some("z".repeat(NAME_BYTES_MAX)),
            leased_endpoint: Some("z".repeat(LIST_ENTRY_BYTES_MAX)),
            requested_model: Some("y".repeat(NAME_BYTES_MAX)),
            ..token()
        };
        assert_eq!(RequeueToken::verify(longest.sign(&KEY).as_bytes(), &KEY), Some(longest));
    }

    /// Where the previous release reads the length of the client's address.
    #[test]
    fn previous_release_refuses_a_token_with_a_tenant() {
        let length = |token: RequeueToken| {
            let signed = token.sign(&KEY);
            let position = 2 * (TAG_BYTES + FIXED_BYTES - LENGTH_BYTES);
            let digits = signed.as_bytes()[position..].first_chunk::<4>().unwrap();
            let bytes = digits.as_chunks::<2>().0.iter().map(|pair| hex_byte(*pair).unwrap());
            u16::from_le_bytes(bytes.collect::<Vec<_>>().try_into().unwrap())
        };
        assert_eq!(length(token()), 11);
        let tenant = Some("acme".into());
        let flagged = length(RequeueToken { tenant, ..token() });
        assert!(usize::from(flagged) > BYTES_MAX, "longer than any token");
    }

    #[test]
    fn token_carries_the_leased_endpoint_with_and_without_a_client() {
        for client in [None, Some("2001:db8::9".to_owned())] {
            let leased = RequeueToken {
                client,
                leased_endpoint: Some("10.0.0.1:8000".into()),
                requested_model: None,
                ..token()
            };
            assert_eq!(RequeueToken::verify(leased.sign(&KEY).as_bytes(), &KEY), Some(leased));
        }
    }

    #[test]
    fn tag_matches_the_published_test_vector() {
        // The first test vector of the reference implementation (vectors_sip128), for an empty message.
        let key: SigningKey = core::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(
            tag(&key, &[]),
            [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93]
        );
    }

    #[test]
    fn any_other_text_is_rejected() {
        let signed = token().sign(&KEY);
        assert_eq!(RequeueToken::verify(signed.as_bytes(), &[4; 16]), None);
        for position in 0..signed.len() {
            let mut other = signed.clone().into_bytes();
            other[position] = if other[position] == b'0' { b'1' } else { b'0' };
            assert_eq!(RequeueToken::verify(&other, &KEY), None, "{position}");
            assert_eq!(RequeueToken::verify(&signed.as_bytes()[..position], &KEY), None, "{position}");
        }
        for more in ["0", "00", " "] {
            assert_eq!(RequeueToken::verify(format!("{signed}{more}").as_bytes(), &KEY), None);
        }
        for junk in ["", "token", "zz", &"0".repeat(10_000)] {
            assert_eq!(RequeueToken::verify(junk.as_bytes(), &KEY), None);
        }
    }
}
