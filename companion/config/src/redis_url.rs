//! The URL of a redis server. It may contain a password, which appears in no error, log line or page.
//!
//! A document that is shown has `***` in place of the password. A document that is sent back with `***` keeps the password.

use std::fmt;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

/// Shown in place of a password.
const MASK: &str = "***";
/// The form of a URL, for errors.
pub(super) const ALLOWED: &str = "redis://[USER:PASSWORD@]HOST[:PORT][/NUMBER], or rediss:// for TLS; write special characters of a password as %XX";

/// The URL of a redis server, in a form that the client accepts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// Checks a URL; `None` if it isn't [`ALLOWED`].
    pub(super) fn parse(text: &str) -> Option<Self> {
        // The parser drops spaces and line breaks.
        if text.contains(char::is_whitespace) {
            return None;
        }
        let url = Url::parse(text).ok()?;
        // A query could choose another protocol, and a fragment could turn off the check of certificates.
        let is_plain =
            matches!(url.scheme(), "redis" | "rediss") && url.query().is_none() && url.fragment().is_none();
        let host = url.host_str()?;
        let is_any_address = host.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
        let number = url.path().trim_matches('/');
        let has_number = number.is_empty()
            || number.bytes().all(|byte| byte.is_ascii_digit()) && number.parse::<i64>().is_ok();
        let password = url.password().unwrap_or_default();
        let is_text = |encoded| percent_decode_str(encoded).decode_utf8().is_ok();
        let has_credentials = password != MASK && is_text(password) && is_text(url.username());
        let fits = is_plain && !host.is_empty() && !is_any_address && has_number && has_credentials;
        fits.then(|| Self(text.to_owned()))
    }

    /// The URL with its password, for connecting.
    #[must_use]
    pub fn with_password(&self) -> &str {
        &self.0
    }
}

/// Without the password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&masked(&self.0))
    }
}

/// Without the password.
impl fmt::Debug for RedisUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The URL with [`MASK`] for its password, if it has one.
fn masked(text: &str) -> String {
    let mut url = match Url::parse(text) {
        Ok(url) if url.password().is_some() => url,
        Ok(_) | Err(_) => return text.to_owned(),
    };
    match url.set_password(Some(MASK)) {
        Ok(()) => url.to_string(),
        Err(()) => MASK.to_owned(),
    }
}

fn is_masked(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| url.password() == Some(MASK))
}

/// The redis URL of a pool's store.
fn url_of(pool: &mut Value) -> Option<&mut Value> {
    pool.get_mut("usage")?.get_mut("store")?.get_mut("redis")
}

fn pools(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    document.get_mut("pools").and_then(Value::as_array_mut).into_iter().flatten()
}

/// Replaces every password of a document by [`MASK`].
pub(super) fn mask(document: &mut Value) {
    for url in pools(document).filter_map(url_of) {
        if let Value::String(text) = url {
            *text = masked(text);
        }
    }
}

/// Replaces each [`MASK`] by the password that the pool of the same name has in `known`, if the URL is otherwise the same:
/// a password must not be sent to another server. Returns whether there was one to replace.
pub(super) fn unmask(document: &mut Value, known: &Value) -> bool {
    let mut known = known.clone();
    let mut found = false;
    for pool in pools(document) {
        let name = pool.get("name").cloned();
        let Some(Value::String(url)) = url_of(pool) else {
            continue;
        };
        if !is_masked(url) {
            continue;
        }
        let namesake = pools(&mut known).find(|pool| pool.get("name").cloned() == name);
        if let Some(Value::String(before)) = namesake.and_then(url_of)
            && masked(before) == *url
        {
            url.clone_from(before);
            found = true;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(name: &str, url: &str) -> Value {
        json!({"pools": [{"name": "other"}, {"name": name, "usage": {"store": {"redis": url}}}]})
    }

    #[test]
    fn display_and_debug_hide_the_password() {
        for (url, shown) in [
            ("redis://h", "redis://h"),
            ("rediss://h:7000/3", "rediss://h:7000/3"),
            ("redis://:hunter2@h/1", "redis://:***@h/1"),
            ("redis://me:hunter2@[::1]:6379", "redis://me:***@[::1]:6379"),
            ("redis://me:hunter2:a%40b@h", "redis://me:***@h"),
            ("redis://me@h", "redis://me@h"),
        ] {
            let parsed = RedisUrl::parse(url).expect(url);
            assert_eq!((parsed.to_string(), format!("{parsed:?}")), (shown.into(), shown.into()));
            assert_eq!(parsed.with_password(), url);
        }
    }

    #[test]
    fn urls_that_a_client_could_not_use_are_rejected() {
        for url in [
            "",
            "redis",
            "redis://",
            "http://h",
            "localhost:6379",
            "redis://h:port",
            "redis://h:99999",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/1/2",
            "redis://h?protocol=resp3",
            "rediss://h#insecure",
            "redis://0.0.0.0",
            "redis://a b",
            "unix:///run/redis.sock",
            "redis://:***@h",
        ] {
            assert_eq!(RedisUrl::parse(url), None, "{url}");
        }
    }

    #[test]
    fn a_masked_password_stays_for_the_same_pool_and_server_only() {
        let known = document("chat", "redis://:hunter2@h/1");
        let mut shown = known.clone();
        mask(&mut shown);
        assert_eq!(shown, document("chat", "redis://:***@h/1"));
        assert!(unmask(&mut shown, &known));
        assert_eq!(shown, known);
        for (name, url) in [("chat", "redis://:***@elsewhere/1"), ("code", "redis://:***@h/1")] {
            let mut other = document(name, url);
            assert!(!unmask(&mut other, &known), "a password isn't sent elsewhere");
            assert_eq!(other, document(name, url));
        }
        let mut new = document("chat", "redis://:new@h/1");
        assert!(!unmask(&mut new, &known));
    }
}
