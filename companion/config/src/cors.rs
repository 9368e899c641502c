//! `listen.cors`: the web pages whose scripts may read the gateway's answers (cross-origin resource sharing).

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Violation;
use crate::value::{self, List, PositiveDuration};

/// The longest list of origins or headers.
const ENTRIES_MAX: usize = 100;

/// The web pages whose scripts may read answers. Envoy answers a browser's questions about them (preflights), without a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cors {
    /// The origins of the pages: `https://chat.example`, with `*` for any part of the host or the port, or `*` for every page. Empty: no page.
    #[serde(deserialize_with = "value::list")]
    #[schemars(with = "List<String>")]
    pub origins: Vec<String>,
    /// Headers that a page may send, besides those of the usual libraries. Empty: any header.
    #[serde(deserialize_with = "value::list")]
    #[schemars(with = "List<String>")]
    pub headers: Vec<String>,
    /// How long a browser may keep the answer to a preflight.
    max_age: PositiveDuration,
}

impl Default for Cors {
    fn default() -> Self {
        Self { origins: Vec::new(), headers: Vec::new(), max_age: PositiveDuration(Duration::from_secs(600)) }
    }
}

impl Cors {
    /// How long a browser may keep the answer to a preflight.
    #[must_use]
    pub const fn max_age(&self) -> Duration {
        self.max_age.0
    }

    /// Checks the origins and the headers, and writes both in lower case.
    pub(crate) fn checked(mut self) -> Result<Self, Violation> {
        for (key, list) in [("origins", &self.origins), ("headers", &self.headers)] {
            if list.len() > ENTRIES_MAX {
                let message = format!("at most {ENTRIES_MAX} entries are allowed, not {}", list.len());
                return Err(Violation::new(format!("listen.cors.{key}"), message));
            }
        }
        for (index, origin) in self.origins.iter_mut().enumerate() {
            if !is_origin(origin) {
                return Err(Violation::new(
                    format!("listen.cors.origins[{index}]"),
                    format!(
                        "`{origin}` is not an origin; write scheme and host without a path, like https://chat.example, \
                         https://*.example or http://localhost:*"
                    ),
                ));
            }
            origin.make_ascii_lowercase();
        }
        for (index, header) in self.headers.iter_mut().enumerate() {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
            if header != "*" && (header.is_empty() || !header.bytes().all(is_name)) {
                return Err(Violation::new(
                    format!("listen.cors.headers[{index}]"),
                    format!("`{header}` is not the name of a header; write one like x-penstock-tenant"),
                ));
            }
            header.make_ascii_lowercase();
        }
        Ok(self)
    }
}

/// `*`, or `scheme://host[:port]`, which may have `*` in the host or the port. Browser extensions and some views send other schemes than
/// http, and `null`.
fn is_origin(text: &str) -> bool {
    if matches!(text, "*" | "null") {
        return true;
    }
    let Some((scheme, host)) = text.split_once("://") else {
        return false;
    };
    let in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let in_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:*[]".contains(&byte);
    !scheme.is_empty() && scheme.bytes().all(in_scheme) && !host.is_empty() && host.bytes().all(in_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_scheme_and_a_host_and_nothing_else() {
        for origin in [
            "*",
            "null",
            "https://chat.example",
            "http://localhost:3000",
            "http://localhost:*",
            "https://*.example",
            "http://[::1]:8080",
            "chrome-extension://abcdef",
        ] {
            assert!(is_origin(origin), "{origin}");
        }
        for origin in [
            "",
            "chat.example",
            "https://",
            "https://a/",
            "https://a/b",
            "https://a b",
            "https://a?b",
            "://a",
        ] {
            assert!(!is_origin(origin), "{origin}");
        }
    }

    #[test]
    fn lists_are_in_lower_case_and_errors_name_the_entry() {
        let cors = |origins: &[&str], headers: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
            Cors { origins: owned(origins), headers: owned(headers), ..Cors::default() }.checked()
        };
        let checked = cors(&["https://Chat.Example"], &["X-Tenant", "*"]).expect("valid");
        assert_eq!(checked.origins, ["https://chat.example"]);
        assert_eq!(checked.headers, ["x-tenant", "*"]);
        let key = |result: Result<Cors, Violation>| result.expect_err("invalid").key;
        assert_eq!(key(cors(&["*", "a"], &[])), "listen.cors.origins[1]");
        assert_eq!(key(cors(&[], &["a b"])), "listen.cors.headers[0]");
        assert_eq!(key(cors(&["*"; 101], &[])), "listen.cors.origins");
    }
}
