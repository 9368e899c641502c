//! API keys: the policy has their SHA-256 digests, and a request's key gives its tenant.
//!
//! A request costs at most one hash and one search in a sorted table, whatever its key is. Keys are long and random, so a plain
//! hash is enough. The search needn't take constant time, because a client can't choose the digest of its guess.

use std::borrow::Cow;

use penstock_wire::Code;
use penstock_wire::limits::{API_KEY_BYTES_MAX, API_KEYS_MAX, NAME_BYTES_MAX};
use penstock_wire::{self as wire};
use sha2::{Digest as _, Sha256};

use crate::header_sanitizer::HeaderEdit;
use crate::headers::Headers;
use crate::limits::POLICY_LIST_MAX;
use crate::local_reply::Failure;

/// The header that holds a key after a scheme.
const AUTHORIZATION: &str = "authorization";
const SCHEME: &[u8] = b"bearer";

/// The API keys of a policy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ApiKeys {
    headers: Vec<String>,
    required: bool,
    forward: bool,
    /// Digests and tenants, sorted by digest.
    keys: Vec<([u8; 32], Box<str>)>,
}

/// The digests stay out of every log.
impl core::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ApiKeys of {} keys in {:?}", self.keys.len(), self.headers)
    }
}

impl ApiKeys {
    /// Compiles the keys of a policy. Malformed digests, empty tenants and pseudo-headers are skipped, so that they never
    /// let a request in.
    pub(crate) fn new(policy: &wire::ApiKeys) -> Self {
        let names = policy.headers.iter().take(POLICY_LIST_MAX);
        let mut keys: Vec<_> = policy.keys.iter().take(API_KEYS_MAX).filter_map(entry).collect();
        keys.sort_unstable();
        Self {
            headers: names
                .filter(|name| !name.starts_with(':'))
                .map(|name| name.to_ascii_lowercase())
                .collect(),
            required: policy.required,
            forward: policy.forward,
            keys,
        }
    }

    /// The tenant of the request's key; `None` for a request without a key, which is allowed.
    ///
    /// # Errors
    /// The request has no key and needs one, or its key is no tenant's.
    pub(crate) fn tenant(&self, headers: Headers<'_>) -> Result<Option<&str>, Failure> {
        let mut held = self.headers.iter().filter_map(|name| Some((name, key(name, headers)?)));
        match held.next() {
            None if self.required => Err(self.missing()),
            None => Ok(None),
            Some((name, key)) => self.find(key).map(Some).ok_or_else(|| wrong(name)),
        }
    }

    /// The removals of the headers that hold a key.
    pub(crate) fn removals(&self, headers: Headers<'_>) -> impl Iterator<Item = HeaderEdit> {
        let names = self.headers.iter().filter(|_| !self.forward);
        names
            .filter(move |name| key(name, headers).is_some())
            .map(|name| HeaderEdit::Remove(Cow::Owned(name.clone())))
    }

    fn find(&self, key: &[u8]) -> Option<&str> {
        if key.len() > API_KEY_BYTES_MAX {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(key).into();
        let found = self.keys.binary_search_by(|(known, _)| known.cmp(&digest));
        let (_, tenant) = self.keys.get(found.ok()?)?;
        Some(tenant)
    }

    fn missing(&self) -> Failure {
        let names: Vec<String> = self.headers.iter().map(|name| shown(name)).collect();
        failure(format!("The request has no API key: send yours in the header {}.", names.join(" or ")))
    }
}

fn wrong(header: &str) -> Failure {
    failure(format!(
        "The API key in the header {} isn't valid: send one that the operator of this gateway has issued.",
        shown(header)
    ))
}

fn failure(message: String) -> Failure {
    Failure::new(401, Code::InvalidApiKey, message)
}

fn shown(header: &str) -> String {
    if header == AUTHORIZATION { "`authorization: Bearer KEY`".to_owned() } else { format!("`{header}`") }
}

/// The key in a header; `None` if the header is absent or empty, or if it is an `authorization` of another scheme.
fn key<'a>(name: &str, headers: Headers<'a>) -> Option<&'a [u8]> {
    let value = headers.get(name)?.trim_ascii();
    let key = if name == AUTHORIZATION {
        let end = value.iter().position(u8::is_ascii_whitespace)?;
        let (scheme, key) = value.split_at_checked(end)?;
        scheme.eq_ignore_ascii_case(SCHEME).then(|| key.trim_ascii())?
    } else {
        value
    };
    (!key.is_empty()).then_some(key)
}

fn entry(key: &wire::ApiKey) -> Option<([u8; 32], Box<str>)> {
    let digest = key.sha256.as_slice().try_into().ok()?;
    let tenant = key.tenant.as_str();
    (1..=NAME_BYTES_MAX).contains(&tenant.len()).then(|| (digest, tenant.into()))
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;
    use crate::headers::serialize;

    fn digest(key: &str) -> Vec<u8> {
        Sha256::digest(key).to_vec()
    }

    fn policy(required: bool, forward: bool) -> wire::ApiKeys {
        let key = |key: &str, tenant: &str| wire::ApiKey { sha256: digest(key), tenant: tenant.into() };
        wire::ApiKeys {
            headers: ["authorization", "X-API-Key"].map(str::to_owned).into(),
            required,
            forward,
            keys: vec![key("pk-a", "acme"), key("pk-b", "acme"), key("pk-c", "other")],
        }
    }

    fn tenant(keys: &ApiKeys, pairs: &[(&str, &str)]) -> Result<Option<String>, Failure> {
        let map = serialize(pairs.iter().copied());
        keys.tenant(Headers::new(&map)).map(|tenant| tenant.map(str::to_owned))
    }

    #[test]
    fn a_key_gives_its_tenant_in_every_header_of_the_policy() {
        let keys = ApiKeys::new(&policy(true, false));
        for (name, value, expected) in [
            ("authorization", "Bearer pk-a", "acme"),
            ("authorization", "bEARER  pk-b ", "acme"),
            ("x-api-key", " pk-c ", "other"),
        ] {
            assert_eq!(tenant(&keys, &[(name, value)]), Ok(Some(expected.into())), "{value}");
        }
        let both = [("x-api-key", "pk-c"), ("authorization", "Bearer pk-a")];
        assert_eq!(tenant(&keys, &both), Ok(Some("acme".into())), "the policy's order counts");
        let other_scheme = [("authorization", "Basic pk-a"), ("x-api-key", "pk-c")];
        assert_eq!(tenant(&keys, &other_scheme), Ok(Some("other".into())));
    }

    #[test]
    fn a_wrong_key_is_refused_even_where_none_is_required_and_never_echoed() {
        for required in [true, false] {
            let keys = ApiKeys::new(&policy(required, false));
            for wrong in ["pk-d", "pk-", "Bearer pk-a", &"k".repeat(API_KEY_BYTES_MAX + 1)] {
                let failure = tenant(&keys, &[("x-api-key", wrong)]).expect_err(wrong);
                assert_eq!((failure.status, &*failure.code), (401, "invalid_api_key"));
                assert!(!failure.message.contains(wrong), "{}", failure.message);
                assert!(failure.message.contains("`x-api-key`"), "{}", failure.message);
            }
        }
    }

    #[test]
    fn a_request_without_a_key_is_refused_if_the_policy_requires_one() {
        for absent in [
            &[][..],
            &[("x-api-key", " ")],
            &[("authorization", "Bearer ")],
            &[("authorization", "pk-a")],
            &[("authorization", "Basic cGs6YQ==")],
        ] {
            assert_eq!(tenant(&ApiKeys::new(&policy(false, false)), absent), Ok(None));
            let failure = tenant(&ApiKeys::new(&policy(true, false)), absent).expect_err("no key");
            assert_eq!(failure.status, 401);
            let names = "`authorization: Bearer KEY` or `x-api-key`";
            assert!(failure.message.contains(names), "{}", failure.message);
        }
    }

    #[test]
    fn headers_with_keys_are_removed_unless_they_are_forwarded() {
        let map = serialize([("authorization", "Basic a"), ("x-api-key", "pk-a"), ("accept", "b")]);
        let removals = |forward| {
            let keys = ApiKeys::new(&policy(true, forward));
            keys.removals(Headers::new(&map)).collect::<Vec<_>>()
        };
        assert_eq!(removals(false), [HeaderEdit::Remove("x-api-key".into())]);
        assert_eq!(removals(true), []);
    }

    #[test]
    fn malformed_entries_let_no_request_in() {
        let mut policy = policy(true, false);
        policy.headers.push(":path".into());
        policy.keys = vec![
            wire::ApiKey { sha256: digest("pk-a"), tenant: String::new() },
            wire::ApiKey { sha256: digest("pk-b")[..31].into(), tenant: "acme".into() },
        ];
        let keys = ApiKeys::new(&policy);
        assert_eq!((keys.keys.len(), keys.headers.len()), (0, 2));
        for key in ["pk-a", "pk-b", ""] {
            assert!(tenant(&keys, &[("x-api-key", key), (":path", "pk-a")]).is_err());
        }
    }
}
