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
    pub(crate) credit_endpoint: Option<String>,
    /// The model that the client requested; `None`: the body still names it.
    pub(crate) requested_model: Option<String>,
}

const TAG_BYTES: usize = 16;
/// Four numbers of 8 bytes, and one of 4.
const NUMBER_BYTES: usize = 36;
/// Bytes of a string's length.
const LENGTH_BYTES: usize = 2;
const STRINGS: usize = 4;
const BYTES_MAX: usize =
    TAG_BYTES + NUMBER_BYTES + STRINGS * LENGTH_BYTES + 3 * NAME_BYTES_MAX + LIST_ENTRY_BYTES_MAX;
const _: () = assert!(NAME_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(LIST_ENTRY_BYTES_MAX <= u16::MAX as usize);

impl RequeueToken {
    /// The token as a header value, in hexadecimal digits: the tag, the numbers, little endian, and the strings, each after its
    /// length. An absent string is empty.
    pub(crate) fn sign(&self, key: &SigningKey) -> String {
        self.sign_after("", key)
    }

    /// The token as in [`Self::sign`], after `prefix`.
    pub(crate) fn sign_after(&self, prefix: &str, key: &SigningKey) -> String {
        let numbers = [self.epoch.hi, self.epoch.lo, self.sequence, self.arrived.as_nanos()];
        let strings = [&self.client, &self.tenant, &self.credit_endpoint, &self.requested_model]
            .map(|text| text.as_deref().unwrap_or_default());
        let length = strings
            .iter()
            .fold(NUMBER_BYTES + STRINGS * LENGTH_BYTES, |length, text| length.saturating_add(text.len()));
        let mut content = Vec::with_capacity(length);
        for number in numbers {
            content.extend_from_slice(&number.to_le_bytes());
        }
        content.extend_from_slice(&self.requeues.to_le_bytes());
        for text in strings {
            // Each string has a limit, so its length always fits.
            content.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
            content.extend_from_slice(text.as_bytes());
        }
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
        let (requeues, mut content) = content.split_first_chunk()?;
        let mut next = || split_string(&mut content);
        let (client, tenant, credit_endpoint, requested_model) = (next()?, next()?, next()?, next()?);
        if !content.is_empty() {
            return None;
        }
        let numbers = numbers.as_chunks().0;
        let [hi, lo, sequence, arrived] = *numbers.first_chunk()?;
        Some(Self {
            epoch: Epoch { hi: u64::from_le_bytes(hi), lo: u64::from_le_bytes(lo) },
            sequence: u64::from_le_bytes(sequence),
            requeues: u32::from_le_bytes(*requeues),
            arrived: Instant::from_nanos(u64::from_le_bytes(arrived)),
            client,
            tenant,
            credit_endpoint,
            requested_model,
        })
    }
}

/// Splits a string off `content`: an inner `None` if it is empty; an outer `None` if there is none, or it isn't UTF-8.
#[expect(clippy::option_option, reason = "the outer option is the error")]
fn split_string(content: &mut &[u8]) -> Option<Option<String>> {
    let (length, rest) = content.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    *content = rest;
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
            credit_endpoint: None,
            requested_model: Some("chat".into()),
        }
    }

    #[test]
    fn signed_token_verifies() {
        let signed = token().sign(&KEY);
        assert_eq!(signed.len(), 2 * (TAG_BYTES + NUMBER_BYTES + STRINGS * LENGTH_BYTES + 11 + 4));
        assert_eq!(RequeueToken::verify(signed.as_bytes(), &KEY), Some(token()));
        let anonymous = RequeueToken { client: None, requested_model: None, ..token() };
        assert_eq!(RequeueToken::verify(anonymous.sign(&KEY).as_bytes(), &KEY), Some(anonymous));
        let verified =
            RequeueToken { client: None, tenant: Some("acme".into()), requested_model: None, ..token() };
        assert_eq!(RequeueToken::verify(verified.sign(&KEY).as_bytes(), &KEY), Some(verified));
        let longest = RequeueToken {
            client: Some("x".repeat(NAME_BYTES_MAX)),
            tenant: Some("z".repeat(NAME_BYTES_MAX)),
            credit_endpoint: Some("z".repeat(LIST_ENTRY_BYTES_MAX)),
            requested_model: Some("y".repeat(NAME_BYTES_MAX)),
            ..token()
        };
        assert_eq!(RequeueToken::verify(longest.sign(&KEY).as_bytes(), &KEY), Some(longest));
    }

    #[test]
    fn token_carries_the_credit_endpoint_with_and_without_a_client() {
        for client in [None, Some("2001:db8::9".to_owned())] {
            let leased = RequeueToken {
                client,
                credit_endpoint: Some("10.0.0.1:8000".into()),
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
