//! The proof that a request which enters again was let in before: what its new exchange must know of the first, signed
//! with a key that only this Envoy has.
//!
//! A request takes it along in a header, so every server on its way sees it. That does no harm: nothing in it is secret,
//! and only the listener where requests enter again reads it, which nobody outside can reach. The signature is
//! SipHash-2-4 with 128 bits, over all of it (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012).

use core::hash::Hasher;

use penstock_wire::limits::NAME_BYTES_MAX;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::{process_identity::Key, session::Epoch, time::Instant};

/// What is known of a request that enters again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequeueToken {
    /// Who it was.
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u64,
    /// How often it was queued again, this time included.
    pub(crate) requeues: u32,
    /// When it came for the first time.
    pub(crate) arrived: Instant,
    /// Its client's address: at the listener where it enters again its client is this Envoy.
    pub(crate) client: String,
    /// The model that it asked for; empty: its body still says so.
    pub(crate) model: String,
}

const TAG_BYTES: usize = 16;
const FIXED_BYTES: usize = 38;
const BYTES_MAX: usize = TAG_BYTES + FIXED_BYTES + 2 * NAME_BYTES_MAX;

impl RequeueToken {
    /// The token as a header's value: in hexadecimal digits the tag, four numbers of 8 bytes, one of 4, and one of 2 that
    /// is the client's length, little endian, then the client and the model.
    pub(crate) fn mint(&self, key: &Key) -> String {
        let numbers = [
            self.epoch.hi,
            self.epoch.lo,
            self.sequence,
            self.arrived.as_nanos(),
        ];
        let names = self.client.len().saturating_add(self.model.len());
        let mut said = Vec::with_capacity(names.saturating_add(FIXED_BYTES));
        for number in numbers {
            said.extend_from_slice(&number.to_le_bytes());
        }
        said.extend_from_slice(&self.requeues.to_le_bytes());
        // A name beyond its limit has none: this is what no client can choose.
        let length = u16::try_from(self.client.len()).unwrap_or(u16::MAX);
        said.extend_from_slice(&length.to_le_bytes());
        said.extend_from_slice(self.client.as_bytes());
        said.extend_from_slice(self.model.as_bytes());
        let mut text = String::with_capacity(said.len().saturating_add(TAG_BYTES).saturating_mul(2));
        for byte in tag(key, &said).iter().chain(&said) {
            text.push(digit(byte >> 4));
            text.push(digit(byte & 15));
        }
        text
    }

    /// Reads a token; none: this Envoy never wrote it.
    pub(crate) fn verify(text: &[u8], key: &Key) -> Option<Self> {
        if text.len() > 2 * BYTES_MAX {
            return None;
        }
        let (pairs, rest) = text.as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().map(|pair| byte(*pair)).collect::<Option<_>>()?;
        let (signed, said) = bytes.split_first_chunk::<TAG_BYTES>()?;
        // Every byte is looked at, so that the time says nothing about where they differ.
        let pairs = signed.iter().zip(tag(key, said));
        let differ = pairs.fold(0, |differ, (a, b)| differ | (a ^ b));
        if differ != 0 || !rest.is_empty() {
            return None;
        }
        let (numbers, said) = said.split_first_chunk::<32>()?;
        let (requeues, said) = said.split_first_chunk()?;
        let (length, said) = said.split_first_chunk()?;
        let (client, model) = said.split_at_checked(u16::from_le_bytes(*length).into())?;
        let numbers = numbers.as_chunks().0;
        let [hi, lo, sequence, arrived] = *numbers.first_chunk()?;
        Some(Self {
            epoch: Epoch {
                hi: u64::from_le_bytes(hi),
                lo: u64::from_le_bytes(lo),
            },
            sequence: u64::from_le_bytes(sequence),
            requeues: u32::from_le_bytes(*requeues),
            arrived: Instant::from_nanos(u64::from_le_bytes(arrived)),
            client: core::str::from_utf8(client).ok()?.to_owned(),
            model: core::str::from_utf8(model).ok()?.to_owned(),
        })
    }
}

fn tag(key: &Key, said: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(said);
    hasher.finish128().as_bytes()
}

fn digit(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).unwrap_or('0')
}

fn byte(pair: [u8; 2]) -> Option<u8> {
    let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
    u8::try_from((high? << 4) | low?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const KEY: Key = [3; 16];

    fn token() -> RequeueToken {
        RequeueToken {
            epoch: Epoch { hi: u64::MAX, lo: 2 },
            sequence: 0x1234_5678_9abc_def0,
            requeues: 3,
            arrived: Instant::from_nanos(5),
            client: "2001:db8::9".into(),
            model: "chat".into(),
        }
    }

    #[test]
    fn what_is_minted_is_read() {
        let minted = token().mint(&KEY);
        assert_eq!(minted.len(), 2 * (TAG_BYTES + FIXED_BYTES + 11 + 4));
        assert_eq!(RequeueToken::verify(minted.as_bytes(), &KEY), Some(token()));
        let nobody = RequeueToken {
            client: String::new(),
            model: String::new(),
            ..token()
        };
        assert_eq!(
            RequeueToken::verify(nobody.mint(&KEY).as_bytes(), &KEY),
            Some(nobody)
        );
        let longest = RequeueToken {
            client: "x".repeat(NAME_BYTES_MAX),
            model: "y".repeat(NAME_BYTES_MAX),
            ..token()
        };
        assert_eq!(
            RequeueToken::verify(longest.mint(&KEY).as_bytes(), &KEY),
            Some(longest)
        );
    }

    #[test]
    fn the_tag_is_the_published_function() {
        // The first of the reference implementation's vectors, for an empty message: vectors_sip128.
        let key: Key = core::array::from_fn(|i| u8::try_from(i).unwrap());
        assert_eq!(
            tag(&key, &[]),
            [
                0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02,
                0x93
            ]
        );
    }

    #[test]
    fn any_other_text_is_none() {
        let minted = token().mint(&KEY);
        assert_eq!(RequeueToken::verify(minted.as_bytes(), &[4; 16]), None);
        for at in 0..minted.len() {
            let mut other = minted.clone().into_bytes();
            other[at] = if other[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(RequeueToken::verify(&other, &KEY), None, "{at}");
            assert_eq!(RequeueToken::verify(&minted.as_bytes()[..at], &KEY), None, "{at}");
        }
        for more in ["0", "00", " "] {
            assert_eq!(
                RequeueToken::verify(format!("{minted}{more}").as_bytes(), &KEY),
                None
            );
        }
        for junk in ["", "token", "zz", &"0".repeat(10_000)] {
            assert_eq!(RequeueToken::verify(junk.as_bytes(), &KEY), None);
        }
    }

    #[test]
    fn digits_are_read_as_written() {
        for value in 0..=u8::MAX {
            let text: String = [digit(value >> 4), digit(value & 15)].into_iter().collect();
            assert_eq!(text, format!("{value:02x}"));
            let pair = text.as_bytes().first_chunk().copied().unwrap();
            assert_eq!(byte(pair), Some(value));
        }
    }
}
