//! The URL of a redis: where it is, and perhaps a password, which is in no error, no log line and no page.
//!
//! Whoever asks for the document sees `***` in place of a password, and may say `***` where it is to stay as it is.

use std::fmt;

use redis::IntoConnectionInfo;
use serde_json::Value;

/// What stands for a password.
const MASK: &str = "***";
/// What a URL may be.
pub(super) const ALLOWED: &str = "redis://[USER:PASSWORD@]HOST[:PORT][/NUMBER], or rediss:// for TLS; what is special in a password is written as %XX";

/// Of a form that a client can connect by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// `None`: it isn't one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let scheme_is_ours = text.starts_with("redis://") || text.starts_with("rediss://");
        // A query could choose another protocol, a fragment trust everybody.
        let is_plain = !text.contains(['?', '#']) && !text.contains(char::is_whitespace);
        let is_known = parts(text).is_none_or(|(_, password, _)| password != MASK);
        let number_is_one = text
            .splitn(4, '/')
            .nth(3)
            .is_none_or(|it| it.trim_matches('/').bytes().all(|byte| byte.is_ascii_digit()));
        let fits = scheme_is_ours && is_plain && is_known && number_is_one;
        (fits && text.into_connection_info().is_ok()).then(|| Self(text.to_owned()))
    }

    /// With the password, for who connects.
    pub fn exposed(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&masked(&self.0))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// What is before the password, the password, and what is behind it; `None`: there is none.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let begin = url.find("://")? + 3;
    let end = url.get(begin..)?.find('/').map_or(url.len(), |at| begin + at);
    let at = begin + url.get(begin..end)?.rfind('@')?;
    let colon = begin + url.get(begin..at)?.find(':')?;
    Some((url.get(..=colon)?, url.get(colon + 1..at)?, url.get(at..)?))
}

fn masked(url: &str) -> String {
    match parts(url) {
        Some((before, _, behind)) => format!("{before}{MASK}{behind}"),
        None => url.to_owned(),
    }
}

/// The URL of a pool's store, as the document has it.
fn url_of(pool: &mut Value) -> Option<&mut Value> {
    pool.get_mut("usage")?.get_mut("store")?.get_mut("redis")
}

fn pools(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    document
        .get_mut("pools")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// A document without its passwords.
pub(super) fn mask(document: &mut Value) {
    for url in pools(document).filter_map(url_of) {
        if let Value::String(text) = url {
            *text = masked(text);
        }
    }
}

/// Puts the passwords of `known` where `document` says that they stay: in the URL of the pool of the same name, if that
/// is otherwise the same. `true`: there was such a place.
pub(super) fn unmask(document: &mut Value, known: &Value) -> bool {
    let mut known = known.clone();
    let mut found = false;
    for pool in pools(document) {
        let name = pool.get("name").cloned();
        let Some(Value::String(url)) = url_of(pool) else {
            continue;
        };
        if parts(url).is_none_or(|(_, password, _)| password != MASK) {
            continue;
        }
        let same = pools(&mut known).find(|it| it.get("name").cloned() == name);
        if let Some(Value::String(before)) = same.and_then(url_of)
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
    fn a_password_is_in_no_text_of_it() {
        for (url, shown) in [
            ("redis://h", "redis://h"),
            ("rediss://h:7000/3", "rediss://h:7000/3"),
            ("redis://:hunter2@h/1", "redis://:***@h/1"),
            ("redis://me:hunter2@[::1]:6379", "redis://me:***@[::1]:6379"),
            ("redis://me:hunter2:a%40b@h", "redis://me:***@h"),
            ("redis://me@h", "redis://me@h"),
        ] {
            let parsed = RedisUrl::parse(url).expect(url);
            assert_eq!(
                (parsed.to_string(), format!("{parsed:?}")),
                (shown.into(), shown.into())
            );
            assert_eq!(parsed.exposed(), url);
        }
    }

    #[test]
    fn what_no_client_could_use_is_none() {
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
    fn what_is_shown_may_be_said_again_of_the_same_pool_and_server() {
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
